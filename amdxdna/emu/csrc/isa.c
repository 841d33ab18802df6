/* The kernels' variants, and which of them this CPU runs. */
#include "internal.h"

static const isa_variant *const variants[] = {&isa_portable, &isa_avx2, &isa_avx512, &isa_avx512_bf16};
enum { VARIANTS = sizeof variants / sizeof *variants };

const char *emu_isa_name(int index) { return index < VARIANTS ? variants[index]->name : NULL; }

int emu_isa_supported(int index) { return index < VARIANTS && variants[index]->supported(); }

int emu_isa_default(void)
{
    int best = VARIANTS;
    while (!emu_isa_supported(--best))
        ;
    return best;
}

const isa_variant *isa_variant_of(int isa) { return variants[isa - 1]; }
