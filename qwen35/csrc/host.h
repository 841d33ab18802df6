#ifndef HOST_H
#define HOST_H

#include <stddef.h>
#include <stdint.h>

#endif
