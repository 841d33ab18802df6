#ifndef FORMATS_H
#define FORMATS_H

#include <stddef.h>
#include <stdint.h>

#include "formats.cdef.h"

#endif
