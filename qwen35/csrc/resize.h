#ifndef RESIZE_H
#define RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "resize.cdef.h"

#endif
