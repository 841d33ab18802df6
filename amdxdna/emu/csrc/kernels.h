#ifndef KERNELS_H
#define KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { EMU_SWIGLU = 1, EMU_BIAS = 2, EMU_GELU = 4, EMU_PAIR = 8 };
enum { EMU_BFP16 = 0, EMU_BFP6S = 1 };

#include "kernels.cdef.h"

#endif
