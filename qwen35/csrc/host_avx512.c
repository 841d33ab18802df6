#if defined(__x86_64__)
#define HOST_ISA 512
#define HOST_NAME avx512
#include "host_isa.inc.h"
#endif
