#ifndef BLAS_H
#define BLAS_H

#include <stdint.h>

#include "blas.cdef.h"

#endif
