#ifndef KERNELS_H
#define KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { EMU_SWIGLU = 1, EMU_BIAS = 2, EMU_GELU = 4, EMU_PAIR = 8 };
enum { EMU_BFP16 = 0, EMU_BFP6S = 1 };

int emu_gemm(uintptr_t a, uintptr_t b, uintptr_t c, size_t rows, size_t k, size_t n, size_t lda,
             size_t c_stride, uint32_t flags, uint32_t format, int threads, int isa);
int emu_gemv(uintptr_t x, uintptr_t w, uintptr_t y, size_t m, size_t k, uint32_t flags,
             uint32_t format, int threads, int isa);
void emu_copy(uintptr_t src, uintptr_t dst, size_t nbytes, uint32_t addend);
uint64_t emu_read(uintptr_t src, size_t nbytes, int threads);
const char *emu_isa_name(int index);
int emu_isa_supported(int index);
int emu_isa_default(void);

#endif
