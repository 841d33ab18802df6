#ifndef INTERNAL_H
#define INTERNAL_H

#include "kernels.h"

#include <string.h>

/* Weight streams: groups of 8 rows (outputs). bfp16: 72 bytes a block of 8 k, 9 a row: exponent, mantissas.
   bfp6s: 832 bytes a segment of 128 k: eight tiles of 16 k (64 nibble bytes, 32 high-bit bytes), 64 scales. */
enum { BFP16_ROW = 9, BFP16_BLOCK = 72, BFP6S_SEGMENT = 832, BFP6S_TILE = 96, BFP6S_SCALES = 768 };
/* A GEMM works on panels of 64 outputs, held as two halves of 32. */
enum { HALF = 32, PANEL = 64 };

/* Bytes ahead of use that a GEMV asks for weights: what arrives while memory answers, and a page or two. */
enum { PREFETCH = 12288 };

#define INLINE static inline __attribute__((always_inline))

INLINE size_t group_bytes(size_t k, uint32_t format)
{
    return format == EMU_BFP16 ? k / 8 * BFP16_BLOCK : k / 128 * BFP6S_SEGMENT;
}

INLINE uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE float from_bf16(uint16_t bits) { return bits_float((uint32_t)bits << 16); }

/* Half to even; a NaN stays one. */
INLINE uint16_t to_bf16(float value)
{
    uint32_t bits = float_bits(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* 2^e, e in -149..127. */
INLINE float pow2(int e)
{
    return bits_float(e >= -126 ? (uint32_t)(e + 127) << 23 : 1u << (e + 149));
}

INLINE float load_float(const uint8_t *at)
{
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

typedef struct {
    const uint8_t *w;
    const uint8_t *bias; /* float32, unaligned, or NULL */
    uint16_t *y;
    size_t k;
    size_t stride;       /* bytes of a group of 8 rows */
    const void *x;       /* what `prepare` made of x */
    size_t entries;
} gemv_job;

/* SwiGLU: silu(gate) * up of a panel's 32 | 32 columns. GELU: the tanh form, x sigmoid(GELU_X x + GELU_X3 x^3). */
typedef enum { PLAIN, SWIGLU, GELU } epilogue;
#define GELU_X 1.5957691216f /* 2 sqrt(2 / pi) */
#define GELU_X3 0.0713548163f /* 0.044715 times that */

typedef struct {
    const char *name;
    int (*supported)(void);

    /* GEMV. `prepare` turns x into entries of at most x_bytes an element of x and returns their number,
       or 0 when only the portable variant can do it. `gemv` computes groups [begin, end). */
    size_t x_bytes;
    size_t (*prepare[2])(const uint16_t *x, size_t k, void *out);
    void (*gemv[2])(const gemv_job *job, size_t begin, size_t end);

    /* GEMM. A is packed in tiles of up to `tile_rows` rows; a packed element of A and B takes `element`
       bytes. `pack` packs `count` rows, `decode` up to four groups as a half panel [k][HALF], `tile`
       multiplies count x k by k x HALF into float32 out[count][PANEL] (the half's columns). `finish`
       adds the bias to `columns` (a multiple of 8) of out's row and turns them into bf16. */
    unsigned tile_rows, element;
    void (*pack)(const uint16_t *const *rows, unsigned count, size_t k, void *out);
    void (*decode[2])(const uint8_t *groups, size_t count, size_t k, void *out);
    void (*tile)(const void *a, const void *b, unsigned count, size_t k, float *out);
    void (*finish)(const float *sums, const float *bias, epilogue kind, unsigned columns, uint16_t *out);
} isa_variant;

/* `finish` of every vector variant. */
void avx2_finish(const float *sums, const float *bias, epilogue kind, unsigned columns, uint16_t *out);

extern const isa_variant isa_portable, isa_avx2, isa_avx512, isa_avx512_bf16;

const isa_variant *isa_variant_of(int isa);

#endif
