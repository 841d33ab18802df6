#ifndef HOST_VISION_H
#define HOST_VISION_H

#include <stddef.h>
#include <stdint.h>

#include "host_vision.cdef.h"

#endif
