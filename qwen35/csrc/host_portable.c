#define HOST_ISA 0
#define HOST_NAME portable
#include "host_isa.inc.h"
