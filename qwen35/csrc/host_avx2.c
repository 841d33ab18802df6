#if defined(__x86_64__)
#define HOST_ISA 256
#define HOST_NAME avx2
#include "host_isa.inc.h"
#endif
