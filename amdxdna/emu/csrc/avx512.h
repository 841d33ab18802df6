#ifndef AVX512_H
#define AVX512_H

#include "internal.h"

#include <immintrin.h>

size_t avx512_prepare_bfp16(const uint16_t *x, size_t k, void *out);
size_t avx512_prepare_bfp6s(const uint16_t *x, size_t k, void *out);
void avx512_gemv_bfp16(const gemv_job *job, size_t begin, size_t end);
void avx512_gemv_bfp6s(const gemv_job *job, size_t begin, size_t end);

#ifdef TARGET
#define TARGET_INLINE TARGET INLINE

/* Byte permutations of a bfp16 block of 72 bytes: lane row * 8 + k; 0xFF where no byte is taken. */
TARGET_INLINE __m512i bfp16_exponents_index(void)
{
    /* Byte 3 of dword i: the exponent of row i / 2. */
    return _mm512_setr_epi32(0, 0, 9 << 24, 9 << 24, 18 << 24, 18 << 24, 27 << 24, 27 << 24, 36 << 24, 36 << 24,
                             45 << 24, 45 << 24, 54 << 24, 54 << 24, 63 << 24, 63 << 24);
}

/* The 64 mantissas as bytes [row][k]; *raw is the block's first 64 bytes. */
TARGET_INLINE __m512i bfp16_mantissas(const uint8_t *p, __m512i *raw)
{
    const __m512i index = _mm512_setr_epi64(
        0x0807060504030201, 0x11100F0E0D0C0B0A, 0x1A19181716151413, 0x232221201F1E1D1C,
        0x2C2B2A2928272625, 0x3534333231302F2E, 0x3E3D3C3B3A393837, 0);
    *raw = _mm512_loadu_si512(p);
    /* Row 7's are the last 8 bytes: the top lane of a load that starts 8 bytes on. */
    return _mm512_mask_loadu_epi64(_mm512_permutexvar_epi8(index, *raw), 0x80, p + 8);
}

/* 2^(e - 127) of row i / 2 in lane i. */
TARGET_INLINE __m512 bfp16_scales(__m512i raw)
{
    __m512i e = _mm512_maskz_permutexvar_epi8(0x8888888888888888, bfp16_exponents_index(), raw);
    return _mm512_castsi512_ps(_mm512_srli_epi32(e, 1));
}

/* What the tiles of a bfp6s segment share, made of its 64 scale bytes (byte tile * 8 + row). */
typedef struct {
    __m512i c;       /* c - 5 in bits 0..1, 2..3 and 4..5 */
    __m512i e, odd;  /* (s >> 2) + 80 halved, and its lowest bit in bit 7 */
} bfp6s_segment;

TARGET_INLINE bfp6s_segment bfp6s_open(const uint8_t *scales)
{
    bfp6s_segment g;
    __m512i s = _mm512_loadu_si512(scales);
    __m512i exponent = _mm512_add_epi8(_mm512_and_si512(_mm512_srli_epi16(s, 2), _mm512_set1_epi8(63)),
                                       _mm512_set1_epi8(80));
    const __m512i thrice = _mm512_set4_epi32(0x3F2A1500, 0x3F2A1500, 0x3F2A1500, 0x3F2A1500);
    g.c = _mm512_shuffle_epi8(thrice, _mm512_and_si512(s, _mm512_set1_epi8(3)));
    g.e = _mm512_and_si512(_mm512_srli_epi16(exponent, 1), _mm512_set1_epi8(127));
    g.odd = _mm512_slli_epi16(_mm512_and_si512(exponent, _mm512_set1_epi8(1)), 7);
    return g;
}

/* Byte lane -> row of tile 0; the next tile's is 8 further. */
TARGET_INLINE __m512i bfp6s_row_index(void)
{
    return _mm512_setr_epi64(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303,
                             0x0404040404040404, 0x0505050505050505, 0x0606060606060606, 0x0707070707070707);
}

/* Mantissas plus 128 of a tile as two halves of bytes [row][8 k]. `rows` is bfp6s_row_index() + 8 * tile.
   u = q + 32 = low + 16 high, and 8 c high is even, so that
   128 + round_half_even(q * c / 2) = (128 + round_half_even((low - 32) * c / 2)) + 8 c high: two tables. */
TARGET_INLINE void bfp6s_mantissas(const bfp6s_segment *g, const uint8_t *tile, __m512i rows, __m512i half[2])
{
#define R(c, u) (uint8_t)(128 + (((((u) - 32) * (c)) + (((((u) - 32) * (c)) >> 1) & 1)) >> 1))
#define R4(c, u) R(c, u), R(c, u + 1), R(c, u + 2), R(c, u + 3)
#define R16(c) R4(c, 0), R4(c, 4), R4(c, 8), R4(c, 12)
    static const uint8_t low_levels[64] __attribute__((aligned(64))) = {R16(5), R16(6), R16(7), R16(8)};
#undef R
#undef R4
#undef R16
    /* Lanes of rows 0..3 look up c - 5 in bits 2..3 and high in 0..1, the others the other way round. */
    static const uint8_t high_levels[32] __attribute__((aligned(32))) = {
        0, 40, 80, 120, 0, 48, 96, 144, 0, 56, 112, 168, 0, 64, 128, 192,
        0, 0, 0, 0, 40, 48, 56, 64, 80, 96, 112, 128, 120, 144, 168, 192};
    const __m512i low_table = _mm512_load_si512(low_levels);
    const __m512i high_table = _mm512_permutexvar_epi64(
        _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3),
        _mm512_castsi256_si512(_mm256_load_si256((const __m256i *)high_levels)));
    const __m512i low4 = _mm512_set1_epi8(0x0F);
    const __m512i two_bits = _mm512_inserti64x4(_mm512_set1_epi8(0x03), _mm256_set1_epi8(0x0C), 1);
    __m512i nib = _mm512_loadu_si512(tile);
    __asm__("" : "+v"(nib)); /* one load: it crosses cache lines */
    __m512i two = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(tile + 64)));
    __m512i c = _mm512_permutexvar_epi8(rows, g->c);
    /* Ternary 0xE4: the first where the third is set, else the second. */
    __m512i l1 = _mm512_ternarylogic_epi64(_mm512_srli_epi16(nib, 4), c, low4, 0xE4);
    __m512i h1 = _mm512_ternarylogic_epi64(_mm512_srli_epi16(two, 4), c, two_bits, 0xE4);
    __m512i l0 = _mm512_ternarylogic_epi64(nib, c, low4, 0xE4);
    __m512i h0 = _mm512_ternarylogic_epi64(two, c, two_bits, 0xE4);
    half[0] = _mm512_add_epi8(_mm512_permutexvar_epi8(l0, low_table), _mm512_shuffle_epi8(high_table, h0));
    half[1] = _mm512_add_epi8(_mm512_permutexvar_epi8(l1, low_table), _mm512_shuffle_epi8(high_table, h1));
}

/* Indices that put (e, odd) of row i / 2 of tile 0 into bytes 3 and 2 of lane i; the next tile's: 8 further. */
TARGET_INLINE __m512i bfp6s_scale_index(void)
{
    const int pair = 0x40 << 16, row = 0x0101 << 16;
    return _mm512_setr_epi32(pair, pair, pair + row, pair + row, pair + 2 * row, pair + 2 * row, pair + 3 * row,
                             pair + 3 * row, pair + 4 * row, pair + 4 * row, pair + 5 * row, pair + 5 * row,
                             pair + 6 * row, pair + 6 * row, pair + 7 * row, pair + 7 * row);
}

/* 2^(exponent - 127) by such indices. */
TARGET_INLINE __m512 bfp6s_scales(const bfp6s_segment *g, __m512i index)
{
    return _mm512_castsi512_ps(_mm512_maskz_permutex2var_epi8(0xCCCCCCCCCCCCCCCC, g->e, index, g->odd));
}
#endif

#endif
