/* GEMM for AVX-512 BF16: a bfp16 or bfp6s weight is exact in bf16, so pairs of k go through vdpbf16ps. It
   takes denormals as zero, and adds the two products of a pair to the sum one after the other. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 10
#error "gcc 10 or newer is needed, which is the first that knows AVX-512 BF16; another is chosen with CC=gcc-12"
#endif
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")))
#include "avx512.h"

enum { TILE_ROWS = 12 };

static int supported(void) { return isa_avx512.supported() && __builtin_cpu_supports("avx512bf16"); }

/* [k / 2][TILE_ROWS] pairs of bf16; missing rows are left out. */
TARGET static void pack(const uint16_t *const *rows, unsigned count, size_t k, void *out)
{
    uint32_t *to = out;
    for (size_t at = 0; at < k; at += 8, to += 4 * TILE_ROWS)
        for (unsigned r = 0; r < count; r++) {
            uint32_t v[4];
            memcpy(v, rows[r] + at, sizeof v);
            for (unsigned j = 0; j < 4; j++)
                to[j * TILE_ROWS + r] = v[j];
        }
}

/* Eight k of two groups into the panel [k / 2][HALF] of bf16 pairs: mantissas [row][k], lane i of a scale
   for row i / 2, 2^-24 included. */
TARGET_INLINE void decode_block(__m512i ma, __m512i mb, __m512 sa, __m512 sb, uint32_t *to)
{
    for (int i = 0; i < 4; i++) {
        /* Byte 3 of dword n: row n / 2, k 2 i + n % 2. */
        const __m512i index = _mm512_slli_epi32(
            _mm512_add_epi32(_mm512_setr_epi32(0, 1, 8, 9, 16, 17, 24, 25, 32, 33, 40, 41, 48, 49, 56, 57),
                             _mm512_set1_epi32(2 * i)), 24);
        __m512i a = _mm512_maskz_permutexvar_epi8(0x8888888888888888, index, ma);
        __m512i b = _mm512_maskz_permutexvar_epi8(0x8888888888888888, index, mb);
        __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_cvtepi32_ps(b), sb),
                                             _mm512_mul_ps(_mm512_cvtepi32_ps(a), sa));
        _mm512_store_si512(to + i * HALF, (__m512i)pairs);
    }
}

TARGET static void decode_bfp16(const uint8_t *groups, size_t count, size_t k, void *out)
{
    static const uint8_t nothing[BFP16_BLOCK];
    uint32_t *panel = out;
    const __m512 offset = _mm512_set1_ps(0x1p-30f);
    size_t stride = k / 8 * BFP16_BLOCK;
    for (size_t at = 0; at < k; at += 8, groups += BFP16_BLOCK)
        for (size_t g = 0; g < HALF / 8; g += 2) {
            const uint8_t *pa = g < count ? groups + g * stride : nothing;
            const uint8_t *pb = g + 1 < count ? groups + (g + 1) * stride : nothing;
            __m512i ra, rb, ma = bfp16_mantissas(pa, &ra), mb = bfp16_mantissas(pb, &rb);
            decode_block(ma, mb, _mm512_mul_ps(bfp16_scales(ra), offset), _mm512_mul_ps(bfp16_scales(rb), offset),
                         panel + at / 2 * HALF + g * 8);
        }
}

TARGET static void decode_bfp6s(const uint8_t *groups, size_t count, size_t k, void *out)
{
    static const uint8_t nothing[BFP6S_SEGMENT];
    uint32_t *panel = out;
    const __m512 offset = _mm512_set1_ps(0x1p-30f);
    const __m512i sign = _mm512_set1_epi8(-128);
    size_t stride = k / 128 * BFP6S_SEGMENT;
    for (size_t at = 0; at < k; at += 16)
        for (size_t g = 0; g < HALF / 8; g += 2) {
            size_t segment = at / 128 * BFP6S_SEGMENT, tile = at / 16 % 8;
            const uint8_t *pa = g < count ? groups + g * stride + segment : nothing;
            const uint8_t *pb = g + 1 < count ? groups + (g + 1) * stride + segment : nothing;
            __m512i ma[2], mb[2], step = _mm512_set1_epi8((char)(8 * tile));
            __m512i rows = _mm512_add_epi8(bfp6s_row_index(), step);
            __m512i scales = _mm512_add_epi8(bfp6s_scale_index(), step);
            bfp6s_segment ga = bfp6s_open(pa + BFP6S_SCALES), gb = bfp6s_open(pb + BFP6S_SCALES);
            bfp6s_mantissas(&ga, pa + tile * BFP6S_TILE, rows, ma);
            bfp6s_mantissas(&gb, pb + tile * BFP6S_TILE, rows, mb);
            for (int h = 0; h < 2; h++) {
                ma[h] = _mm512_xor_si512(ma[h], sign);
                mb[h] = _mm512_xor_si512(mb[h], sign);
            }
            /* Mantissas of nothing are not zero: its scale is. */
            __m512 fa = _mm512_maskz_mul_ps(g < count ? 0xFFFF : 0, bfp6s_scales(&ga, scales), offset);
            __m512 fb = _mm512_maskz_mul_ps(g + 1 < count ? 0xFFFF : 0, bfp6s_scales(&gb, scales), offset);
            decode_block(ma[0], mb[0], fa, fb, panel + at / 2 * HALF + g * 8);
            decode_block(ma[1], mb[1], fa, fb, panel + (at / 2 + 4) * HALF + g * 8);
        }
}

TARGET_INLINE void tile_rows(const uint32_t *a, const uint32_t *b, const unsigned rows, size_t k, float *out)
{
    __m512 sum[TILE_ROWS][2];
    for (unsigned r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (size_t i = 0; i < k; i += 2, a += TILE_ROWS, b += HALF) {
        __m512bh b0 = (__m512bh)_mm512_load_si512(b), b1 = (__m512bh)_mm512_load_si512(b + 16);
        for (unsigned r = 0; r < rows; r++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[r]);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        _mm512_storeu_ps(out + r * PANEL, sum[r][0]);
        _mm512_storeu_ps(out + r * PANEL + 16, sum[r][1]);
    }
}

#include "gemm_tile.inc.h"

const isa_variant isa_avx512_bf16 = {
    .name = "avx512bf16",
    .supported = supported,
    .x_bytes = 64,
    .prepare = {avx512_prepare_bfp16, avx512_prepare_bfp6s},
    .gemv = {avx512_gemv_bfp16, avx512_gemv_bfp6s},
    .tile_rows = TILE_ROWS,
    .element = 2,
    .pack = pack,
    .decode = {decode_bfp16, decode_bfp6s},
    .tile = tile,
    .finish = avx2_finish,
};
