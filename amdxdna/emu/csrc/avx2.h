#ifndef AVX2_H
#define AVX2_H

#include "internal.h"

size_t avx2_prepare_bfp16(const uint16_t *x, size_t k, void *out);
size_t avx2_prepare_bfp6s(const uint16_t *x, size_t k, void *out);
void avx2_gemv_bfp16(const gemv_job *job, size_t begin, size_t end);
void avx2_gemv_bfp6s(const gemv_job *job, size_t begin, size_t end);


#ifdef TARGET
#include <immintrin.h>

#define TARGET_INLINE TARGET INLINE

/* bfp6s mantissas of a tile, doubled. With u = q + 32, twice round_half_even(q * c / 2) is q c, moved by one
   to a multiple of four when it is odd: c u + b t - 32 c - b, where t = 1, 0, 1, 2 for u % 4 = 0..3 and b = 1
   for c = 5, -1 for c = 7, else 0. */
typedef struct {
    __m256i cb;     /* words of rows 0..7: bytes c and b; the same in both 128-bit lanes */
    __m256i offset; /* words -32 c - b */
} bfp6s_rows;

TARGET_INLINE bfp6s_rows bfp6s_open(const uint8_t *scales)
{
    const __m128i cb = _mm_setr_epi8(5, 1, 6, 0, 7, -1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i offset = _mm_setr_epi16(-161, -192, -223, -256, 0, 0, 0, 0);
    __m128i s = _mm_and_si128(_mm_loadl_epi64((const __m128i *)scales), _mm_set1_epi8(3));
    __m128i twice = _mm_slli_epi16(s, 1);
    __m128i index = _mm_or_si128(_mm_unpacklo_epi8(twice, twice), _mm_set1_epi16(0x0100));
    bfp6s_rows rows = {_mm256_broadcastsi128_si256(_mm_shuffle_epi8(cb, index)),
                       _mm256_broadcastsi128_si256(_mm_shuffle_epi8(offset, index))};
    return rows;
}

/* 2^(exponent - 127) of rows 0..7. */
TARGET_INLINE __m256 bfp6s_scales(const uint8_t *scales)
{
    __m256i s = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)scales));
    __m256i e = _mm256_add_epi32(_mm256_srli_epi32(s, 2), _mm256_set1_epi32(80));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}

/* u of the rows 4 part .. 4 part + 3: *u0 of the tile's first 8 k, *u1 of its last. */
TARGET_INLINE void bfp6s_unpack(const uint8_t *tile, int part, __m256i *u0, __m256i *u1)
{
    const __m256i low4 = _mm256_set1_epi8(0x0F), bits45 = _mm256_set1_epi8(0x30);
    __m256i nib = _mm256_loadu_si256((const __m256i *)(tile + 32 * part));
    __m256i two = _mm256_loadu_si256((const __m256i *)(tile + 64));
    __m256i high0 = part ? _mm256_slli_epi16(two, 2) : _mm256_slli_epi16(two, 4);
    __m256i high1 = part ? _mm256_srli_epi16(two, 2) : two;
    *u0 = _mm256_or_si256(_mm256_and_si256(nib, low4), _mm256_and_si256(high0, bits45));
    *u1 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(nib, 4), low4), _mm256_and_si256(high1, bits45));
}

TARGET_INLINE __m256i bfp6s_thirds(__m256i u)
{
    const __m256i t = _mm256_set1_epi32(0x02010001);
    return _mm256_shuffle_epi8(t, u);
}

/* Word `row` of the rows' words throughout the low 128-bit lane, word `row` + 2 throughout the high one. */
TARGET_INLINE __m256i bfp6s_pick(__m256i words, int row)
{
    const short w = 0x0404;
    __m256i index = _mm256_add_epi16(_mm256_set1_epi16((short)(0x0100 + row * 0x0202)),
                                     _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, w, w, w, w, w, w, w, w));
    return _mm256_shuffle_epi8(words, index);
}

/* Words: rows 4 part + odd and 4 part + odd + 2, one a lane, of u and its t. */
TARGET_INLINE __m256i bfp6s_doubled(const bfp6s_rows *rows, __m256i u, __m256i t, int part, int odd)
{
    __m256i pairs = odd ? _mm256_unpackhi_epi8(u, t) : _mm256_unpacklo_epi8(u, t);
    __m256i products = _mm256_maddubs_epi16(pairs, bfp6s_pick(rows->cb, 4 * part + odd));
    return _mm256_add_epi16(products, bfp6s_pick(rows->offset, 4 * part + odd));
}
#endif

#endif
