/* First cut: scalar bfp16 GEMM and GEMV. */
#include "kernels.h"

#include <math.h>
#include <string.h>

static float from_bf16(uint16_t v) { uint32_t u = (uint32_t)v << 16; float f; memcpy(&f, &u, 4); return f; }
static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static float dot(const uint16_t *a, const uint8_t *b, size_t k, size_t row)
{
    const uint8_t *p = b + row / 8 * (k / 8 * 72) + row % 8 * 9;
    float sum = 0;
    for (size_t i = 0; i < k; i += 8, p += 72) {
        float part = 0;
        for (int j = 0; j < 8; j++)
            part += from_bf16(a[i + j]) * (float)(int8_t)p[1 + j];
        sum += part * ldexpf(1.0f, p[0] - 133);
    }
    return sum;
}

int emu_gemm(uintptr_t a, uintptr_t b, uintptr_t c, size_t rows, size_t k, size_t n, size_t lda,
             size_t c_stride, uint32_t flags, uint32_t format, int threads, int isa)
{
    const float *bias = (const float *)(b + n * (k / 8) * 9);
    for (size_t r = 0; r < rows; r++) {
        const uint16_t *x = (const uint16_t *)a + r * lda;
        uint16_t *y = (uint16_t *)c + r * c_stride;
        for (size_t j = 0; j < n; j++) {
            float v = dot(x, (const uint8_t *)b, k, j) + (flags & EMU_BIAS ? bias[j] : 0);
            if (!(flags & EMU_SWIGLU)) {
                y[j] = to_bf16(v);
            } else if (j % 64 < 32) {
                float up = dot(x, (const uint8_t *)b, k, j + 32) + (flags & EMU_BIAS ? bias[j + 32] : 0);
                y[j / 64 * 32 + j % 32] = to_bf16(v / (1 + expf(-v)) * up);
            }
        }
    }
    return 0;
}

int emu_gemv(uintptr_t x, uintptr_t w, uintptr_t y, size_t m, size_t k, uint32_t flags,
             uint32_t format, int threads, int isa)
{
    return emu_gemm(x, w, y, 1, k, m, k, m, flags, format, threads, isa);
}

void emu_copy(uintptr_t src, uintptr_t dst, size_t nbytes, uint32_t addend)
{
    const uint32_t *from = (const uint32_t *)src;
    uint32_t *to = (uint32_t *)dst;
    for (size_t i = 0; i < nbytes / 4; i++)
        to[i] = from[i] + addend;
}
