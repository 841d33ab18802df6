#if defined(__x86_64__)
#define HOST_ISA 512
#define HOST_BF16 1
#define HOST_NAME avx512bf16
#include "host_isa.inc.h"
#endif
