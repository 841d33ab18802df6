/* GEMM for AVX-512: float32 products, tiles of 12 rows by 32 columns in registers. */
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")))
#include "avx512.h"

enum { TILE_ROWS = 12 };

static int supported(void)
{
    return isa_avx2.supported() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

#include "gemm_floats.inc.h"

/* Eight k of a group into the panel: mantissas [row][k], lane i of `scale` for row i % 8, 2^-24 included. */
TARGET_INLINE void decode_block(__m512i m, __m512 scale, float *to)
{
    for (int i = 0; i < 4; i++) {
        /* Byte 3 of dword n: row n % 8, k 2 i + n / 8. */
        const __m512i index = _mm512_slli_epi32(
            _mm512_add_epi32(_mm512_setr_epi32(0, 8, 16, 24, 32, 40, 48, 56, 1, 9, 17, 25, 33, 41, 49, 57),
                             _mm512_set1_epi32(2 * i)), 24);
        __m512i top = _mm512_maskz_permutexvar_epi8(0x8888888888888888, index, m);
        __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(top), scale);
        _mm256_store_ps(to + 2 * i * HALF, _mm512_castps512_ps256(v));
        _mm256_store_ps(to + (2 * i + 1) * HALF, _mm512_extractf32x8_ps(v, 1));
    }
}

TARGET static void decode_bfp16(const uint8_t *groups, size_t count, size_t k, void *out)
{
    float *panel = out;
    if (count < HALF / 8)
        memset(panel, 0, k * HALF * sizeof *panel);
    const __m512i index = _mm512_setr_epi32(0, 9 << 24, 18 << 24, 27 << 24, 36 << 24, 45 << 24, 54 << 24, 63 << 24,
                                            0, 9 << 24, 18 << 24, 27 << 24, 36 << 24, 45 << 24, 54 << 24, 63 << 24);
    const __m512 offset = _mm512_set1_ps(0x1p-30f);
    for (size_t at = 0; at < k; at += 8)
        for (size_t g = 0; g < count; g++) {
            __m512i raw, m = bfp16_mantissas(groups + (g * (k / 8) + at / 8) * BFP16_BLOCK, &raw);
            __m512i e = _mm512_maskz_permutexvar_epi8(0x8888888888888888, index, raw);
            __m512 scale = _mm512_castsi512_ps(_mm512_srli_epi32(e, 1));
            decode_block(m, _mm512_mul_ps(scale, offset), panel + at * HALF + g * 8);
        }
}

TARGET static void decode_bfp6s(const uint8_t *groups, size_t count, size_t k, void *out)
{
    float *panel = out;
    if (count < HALF / 8)
        memset(panel, 0, k * HALF * sizeof *panel);
    const __m512 offset = _mm512_set1_ps(0x1p-30f);
    const __m512i sign = _mm512_set1_epi8(-128);
    /* Bytes 3 and 2 of lane i: (e, odd) of row i % 8. */
    const int pair = 0x40 << 16, row = 0x0101 << 16;
    const __m512i scales0 = _mm512_setr_epi32(
        pair, pair + row, pair + 2 * row, pair + 3 * row, pair + 4 * row, pair + 5 * row, pair + 6 * row,
        pair + 7 * row, pair, pair + row, pair + 2 * row, pair + 3 * row, pair + 4 * row, pair + 5 * row,
        pair + 6 * row, pair + 7 * row);
    for (size_t g = 0; g < count; g++, groups += k / 128 * BFP6S_SEGMENT)
        for (size_t at = 0; at < k; at += 16) {
            const uint8_t *segment = groups + at / 128 * BFP6S_SEGMENT;
            size_t tile = at / 16 % 8;
            __m512i step = _mm512_set1_epi8((char)(8 * tile)), m[2];
            bfp6s_segment shared = bfp6s_open(segment + BFP6S_SCALES);
            bfp6s_mantissas(&shared, segment + tile * BFP6S_TILE, _mm512_add_epi8(bfp6s_row_index(), step), m);
            __m512 scale = _mm512_mul_ps(bfp6s_scales(&shared, _mm512_add_epi8(scales0, step)), offset);
            decode_block(_mm512_xor_si512(m[0], sign), scale, panel + at * HALF + g * 8);
            decode_block(_mm512_xor_si512(m[1], sign), scale, panel + (at + 8) * HALF + g * 8);
        }
}

TARGET_INLINE void tile_rows(const float *a, const float *b, const unsigned rows, size_t k, float *out)
{
    __m512 sum[TILE_ROWS][2];
    for (unsigned r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (size_t i = 0; i < k; i++, a += TILE_ROWS, b += HALF) {
        __m512 b0 = _mm512_load_ps(b), b1 = _mm512_load_ps(b + 16);
        for (unsigned r = 0; r < rows; r++) {
            __m512 x = _mm512_set1_ps(a[r]);
            sum[r][0] = _mm512_fmadd_ps(x, b0, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(x, b1, sum[r][1]);
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        _mm512_storeu_ps(out + r * PANEL, sum[r][0]);
        _mm512_storeu_ps(out + r * PANEL + 16, sum[r][1]);
    }
}

#include "gemm_tile.inc.h"

const isa_variant isa_avx512 = {
    .name = "avx512",
    .supported = supported,
    .x_bytes = 64,
    .prepare = {avx512_prepare_bfp16, avx512_prepare_bfp6s},
    .gemv = {avx512_gemv_bfp16, avx512_gemv_bfp6s},
    .tile_rows = TILE_ROWS,
    .element = 4,
    .pack = pack,
    .decode = {decode_bfp16, decode_bfp6s},
    .tile = tile,
    .finish = avx2_finish,
};
