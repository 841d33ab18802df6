#ifndef KERNELS_H
#define KERNELS_H

#include <stddef.h>
#include <stdint.h>

#endif
