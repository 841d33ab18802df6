#ifndef AVX512_H
#define AVX512_H

#include "avx2.h"

#include <immintrin.h>

/* Ice Lake, Zen 4 and later. */
#define AVX512_SET "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni"

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

/* A bfp6s tile: 128 mantissas as two halves of bytes [row][8 k]. */
TARGET_INLINE void bfp6s_mantissas(const uint8_t *tile, const uint8_t *scales, __m512i half[2])
{
    /* round_half_even(q * c / 2) by u = q + 32, for c = 5, 6 and c = 7, 8. */
#define R(c, u) (((((u) - 32) * (c)) + (((((u) - 32) * (c)) >> 1) & 1)) >> 1)
#define R8(c, u) R(c, u), R(c, u + 1), R(c, u + 2), R(c, u + 3), R(c, u + 4), R(c, u + 5), R(c, u + 6), R(c, u + 7)
#define R64(c) R8(c, 0), R8(c, 8), R8(c, 16), R8(c, 24), R8(c, 32), R8(c, 40), R8(c, 48), R8(c, 56)
    static const int8_t levels[4][64] __attribute__((aligned(64))) = {{R64(5)}, {R64(6)}, {R64(7)}, {R64(8)}};
#undef R
#undef R8
#undef R64
    const __m512i t5 = _mm512_load_si512(levels[0]), t6 = _mm512_load_si512(levels[1]);
    const __m512i t7 = _mm512_load_si512(levels[2]), t8 = _mm512_load_si512(levels[3]);
    /* Bit offsets that bring a lane's two high bits to bits 4 and 5: half 0, half 1. */
    const __m512i shift0 = _mm512_setr_epi64(
        0x342C241C140C043C, 0x342C241C140C043C, 0x342C241C140C043C, 0x342C241C140C043C,
        0x362E261E160E063E, 0x362E261E160E063E, 0x362E261E160E063E, 0x362E261E160E063E);
    const __m512i shift1 = _mm512_setr_epi64(
        0x3830282018100800, 0x3830282018100800, 0x3830282018100800, 0x3830282018100800,
        0x3A322A221A120A02, 0x3A322A221A120A02, 0x3A322A221A120A02, 0x3A322A221A120A02);
    const __m512i row_of_lane = _mm512_setr_epi64(
        0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303,
        0x0404040404040404, 0x0505050505050505, 0x0606060606060606, 0x0707070707070707);
    const __m512i low4 = _mm512_set1_epi8(0x0F), bits45 = _mm512_set1_epi8(0x30);
    __m512i nib = _mm512_loadu_si512(tile);
    __m512i two = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(tile + 64)));
    int64_t eight;
    memcpy(&eight, scales, 8);
    __m512i s = _mm512_shuffle_epi8(_mm512_set1_epi64(eight), row_of_lane);
    __mmask64 upper = _mm512_test_epi8_mask(s, _mm512_set1_epi8(2));
    /* Bit 6 of a table index picks its second half. */
    __m512i s6 = _mm512_slli_epi16(s, 6);
    __m512i high0 = _mm512_multishift_epi64_epi8(shift0, two), high1 = _mm512_multishift_epi64_epi8(shift1, two);
    /* Ternary 0xCA: where the first is set the second, else the third. */
    __m512i u0 = _mm512_ternarylogic_epi64(bits45, high0, s6, 0xCA);
    __m512i u1 = _mm512_ternarylogic_epi64(bits45, high1, s6, 0xCA);
    u0 = _mm512_ternarylogic_epi64(low4, nib, u0, 0xCA);
    u1 = _mm512_ternarylogic_epi64(low4, _mm512_srli_epi16(nib, 4), u1, 0xCA);
    half[0] = _mm512_mask_mov_epi8(_mm512_permutex2var_epi8(t5, u0, t6), upper, _mm512_permutex2var_epi8(t7, u0, t8));
    half[1] = _mm512_mask_mov_epi8(_mm512_permutex2var_epi8(t5, u1, t6), upper, _mm512_permutex2var_epi8(t7, u1, t8));
}

/* 2^(exponent - 127) of row i / 2 in lane i. */
TARGET_INLINE __m512 bfp6s_scales(const uint8_t *scales)
{
    const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512i s = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)scales), twice));
    __m512i e = _mm512_add_epi32(_mm512_srli_epi32(s, 2), _mm512_set1_epi32(80));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
#endif

#endif
