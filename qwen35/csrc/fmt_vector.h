#ifndef FMT_VECTOR_H
#define FMT_VECTOR_H

#include "formats.h"

#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* the vectors below never cross a call: all is inlined */

/* Compiled twice and chosen by the loader: 8-wide vectors are two SSE2 registers, or one of AVX2. */
#define FMT_CLONES __attribute__((target_clones("avx2", "default")))
#define FMT_INLINE static inline __attribute__((always_inline))

typedef float fmt_f8 __attribute__((vector_size(32)));
typedef int32_t fmt_i8 __attribute__((vector_size(32)));
typedef uint32_t fmt_u8 __attribute__((vector_size(32)));
typedef int8_t fmt_q8 __attribute__((vector_size(8)));
typedef uint16_t fmt_h8 __attribute__((vector_size(16)));

/* Eight source values as float32 bits. */
FMT_INLINE fmt_u8 fmt_load(const void *src, int bf16, size_t at)
{
    fmt_u8 bits;
    if (bf16) {
        fmt_h8 half;
        memcpy(&half, (const uint16_t *)src + at, sizeof half);
        bits = __builtin_convertvector(half, fmt_u8) << 16;
    } else {
        memcpy(&bits, (const float *)src + at, sizeof bits);
    }
    return bits;
}

FMT_INLINE uint32_t fmt_max(fmt_u8 v)
{
    uint32_t best = 0;
    for (int j = 0; j < 8; j++)
        best = v[j] > best ? v[j] : best;
    return best;
}

/* 2^e as a float; e in -149..127. */
FMT_INLINE float fmt_pow2(int e)
{
    uint32_t bits = e >= -126 ? (uint32_t)(e + 127) << 23 : 1u << (e + 149);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Half-to-even for |v| < 2^22, in the default rounding mode. */
FMT_INLINE fmt_f8 fmt_round(fmt_f8 v)
{
    const float magic = 12582912.0f;
    return (v + magic) - magic;
}

FMT_INLINE fmt_f8 fmt_min8(fmt_f8 a, fmt_f8 b)
{
    fmt_i8 pick = a < b;
    return (fmt_f8)(((fmt_i8)a & pick) | ((fmt_i8)b & ~pick));
}

FMT_INLINE fmt_f8 fmt_max8(fmt_f8 a, fmt_f8 b)
{
    fmt_i8 pick = a > b;
    return (fmt_f8)(((fmt_i8)a & pick) | ((fmt_i8)b & ~pick));
}

#endif
