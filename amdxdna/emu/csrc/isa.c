/* Chooses the kernels' variant: by the CPU, or the caller. */
#include "internal.h"

#include <stdatomic.h>

static const isa_variant *const variants[] = {&isa_portable, &isa_avx2, &isa_avx512, &isa_avx512_bf16};
enum { VARIANTS = sizeof variants / sizeof *variants };

const char *emu_isa_name(int index) { return index >= 0 && index < VARIANTS ? variants[index]->name : NULL; }

int emu_isa_supported(int index) { return index >= 0 && index < VARIANTS && variants[index]->supported(); }

int emu_isa_default(void)
{
    static _Atomic int chosen; /* 1 + index */
    int known = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (known)
        return known - 1;
    int best = 0;
    for (int i = 0; i < VARIANTS; i++)
        if (variants[i]->supported())
            best = i;
    atomic_store_explicit(&chosen, best + 1, memory_order_relaxed);
    return best;
}

const isa_variant *isa_choose(int isa)
{
    int index = isa > 0 && emu_isa_supported(isa - 1) ? isa - 1 : emu_isa_default();
    return variants[index];
}
