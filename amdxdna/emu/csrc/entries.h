#ifndef ENTRIES_H
#define ENTRIES_H

/* x of a GEMV as integers. The x of one weight block (8 or 16 values) become q * 2^unit with |q| below
   2^(8 + headroom): exact for values within 2^headroom of the block's largest. What truncation leaves of
   smaller values becomes the q of a further entry for the same block, and so on until nothing is left: at
   most as many entries as values, and the products of a GEMV stay exact whatever x's range. */

#include "internal.h"

#include <immintrin.h>

/* The including file defines TARGET: its function attribute, AVX2 at least. */
#ifndef TARGET_INLINE
#define TARGET_INLINE TARGET INLINE
#endif

/* The weights are asked for PREFETCH bytes ahead, each cache line once: before a run of groups its first
   lines, then as many lines as a step of the loop moves on (8 blocks of bfp16 are 9 lines, a segment of
   bfp6s 13). */
INLINE void prefetch_lines(const uint8_t *p, size_t count)
{
    for (size_t i = 0; i < count; i++)
        __builtin_prefetch(p + 64 * i, 0, 2); /* as far as L2: from there the hardware keeps up */
}

typedef struct {
    uint32_t m[16]; /* magnitudes, 8 bits */
    int e[16];      /* biased exponents, 1 for denormals */
    int sign[16];
} parts;

INLINE int largest_exponent(const parts *p, unsigned n)
{
    int e = 0;
    for (unsigned i = 0; i < n; i++)
        if (p->m[i] && p->e[i] > e)
            e = p->e[i];
    return e;
}

/* Splits x; returns 0 when a value is not finite. */
INLINE int split(const uint16_t *x, unsigned n, parts *p)
{
    for (unsigned i = 0; i < n; i++) {
        int e = x[i] >> 7 & 0xFF;
        if (e == 255)
            return 0;
        p->m[i] = (x[i] & 0x7Fu) | (e ? 0x80u : 0);
        p->e[i] = e ? e : 1;
        p->sign[i] = x[i] >> 15 ? -1 : 1;
    }
    return 1;
}

/* Takes one entry's q out of p, which is not empty; returns log2 of its unit. *more: p is not empty yet. */
INLINE int take(parts *p, unsigned n, int headroom, int32_t *q, int *more)
{
    int top = largest_exponent(p, n), any = 0;
    for (unsigned i = 0; i < n; i++) {
        int shift = headroom - (top - p->e[i]);
        if (!p->m[i]) {
            q[i] = 0;
        } else if (shift >= 0) {
            q[i] = p->sign[i] * (int32_t)(p->m[i] << shift);
            p->m[i] = 0;
        } else {
            int down = -shift < 8 ? -shift : 8;
            q[i] = p->sign[i] * (int32_t)(p->m[i] >> down);
            p->m[i] &= (1u << down) - 1;
        }
        any |= p->m[i] != 0;
    }
    *more = any;
    return top - 134 - headroom;
}

/* Products of greater units could leave float32's range before the weights' scale brings them back. */
enum { MOST_UNIT = 100 };

typedef void (*put_entry)(void *out, size_t at, size_t block, const int32_t *q, int unit);

/* The common case of split and take: all of a block's values exact in one entry and none above `most`.
   Returns 0 otherwise. */
TARGET_INLINE int take_exact(const uint16_t *x, unsigned n, int headroom, int most, int32_t *q, int *unit)
{
    __m128i raw[2];
    __m128i largest = _mm_setzero_si128();
    for (unsigned i = 0; i < n / 8; i++) {
        raw[i] = _mm_loadu_si128((const __m128i *)x + i);
        largest = _mm_max_epi16(largest, _mm_and_si128(raw[i], _mm_set1_epi16(0x7FFF)));
    }
    /* phminposuw finds a least value: that of the complement. */
    unsigned least = (unsigned)_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(largest, _mm_set1_epi16(-1))), 0);
    int top = (int)(~least & 0xFFFF) >> 7;
    if (top < 20 || top > 240)
        return 0;
    __m256 inverse = _mm256_castsi256_ps(_mm256_set1_epi32((134 + headroom - top + 127) << 23));
    int exact = 0xFF;
    for (unsigned i = 0; i < n / 8; i++) {
        __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(raw[i]), 16);
        __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(bits), inverse);
        __m256i whole = _mm256_cvttps_epi32(scaled);
        exact &= _mm256_movemask_ps(_mm256_cmp_ps(_mm256_cvtepi32_ps(whole), scaled, _CMP_EQ_OQ));
        __m256i over = _mm256_cmpgt_epi32(whole, _mm256_set1_epi32(most));
        exact &= ~_mm256_movemask_ps(_mm256_castsi256_ps(over));
        _mm256_store_si256((__m256i *)(q + 8 * i), whole);
    }
    *unit = top - 134 - headroom;
    return exact == 0xFF;
}

/* Fills `out` for `blocks` blocks of n values: first one entry a block in order, then the further ones.
   `put` writes entry number `at` for block `block`. With headroom 7 a q can be 32640, which is no pair of
   signed bytes: such blocks, like those of more than one entry, are taken with the smaller `headroom`.
   Returns the number of entries; 0 when x is not finite, or so small or large that a unit or a product
   would leave float32's range. */
TARGET_INLINE size_t fill_entries(const uint16_t *x, size_t blocks, unsigned n, int exact_headroom,
                                  int headroom, int least_unit, put_entry put, void *out)
{
    size_t extra = blocks;
    for (size_t block = 0; block < blocks; block++) {
        int32_t q[16] __attribute__((aligned(32)));
        int unit, more;
        if (take_exact(x + block * n, n, exact_headroom, 32639, q, &unit)) {
            put(out, block, block, q, unit);
            continue;
        }
        parts p;
        if (!split(x + block * n, n, &p))
            return 0;
        if (!largest_exponent(&p, n)) {
            memset(q, 0, sizeof q);
            put(out, block, block, q, 0);
            continue;
        }
        size_t at = block;
        do {
            unit = take(&p, n, headroom, q, &more);
            if (unit < least_unit || unit > MOST_UNIT)
                return 0;
            put(out, at, block, q, unit);
            at = extra++;
        } while (more);
        extra--;
    }
    return extra;
}

#endif
