#ifndef HOST_H
#define HOST_H

#include <stddef.h>
#include <stdint.h>

#include "host.cdef.h"

#endif
