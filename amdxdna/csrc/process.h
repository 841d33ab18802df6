#ifndef AMDXDNA_PROCESS_H
#define AMDXDNA_PROCESS_H

#include <stddef.h>
#include <stdint.h>

#include "process.cdef.h"

#endif
