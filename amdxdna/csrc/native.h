#ifndef AMDXDNA_NATIVE_H
#define AMDXDNA_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#include "uapi.h"
#include "native.cdef.h"

#endif
