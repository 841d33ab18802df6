/* GEMM for AVX2: float32 products, tiles of 6 rows by 16 columns in registers. */
#define TARGET __attribute__((target("avx2,fma")))
#include "avx2.h"

enum { TILE_ROWS = 6 };

static int supported(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#include "gemm_floats.inc.h"

/* Transposes 8 rows of 8 bytes: out[i] holds column 2i, then column 2i + 1. */
TARGET_INLINE void transpose(const uint8_t *p, size_t step, __m128i out[4])
{
    __m128i pair[4], quad[4];
    for (int i = 0; i < 4; i++)
        pair[i] = _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(p + i * step)),
                                    _mm_loadl_epi64((const __m128i *)(p + (i + 4) * step)));
    for (int i = 0; i < 2; i++) {
        quad[2 * i] = _mm_unpacklo_epi8(pair[i], pair[i + 2]);
        quad[2 * i + 1] = _mm_unpackhi_epi8(pair[i], pair[i + 2]);
    }
    for (int i = 0; i < 2; i++) {
        out[2 * i] = _mm_unpacklo_epi8(quad[i], quad[i + 2]);
        out[2 * i + 1] = _mm_unpackhi_epi8(quad[i], quad[i + 2]);
    }
}

/* Eight k of a group, from 8 x 8 mantissas `step` bytes a row and one scale a row. */
TARGET_INLINE void decode_block(const uint8_t *m, size_t step, __m256 scale, float *to)
{
    __m128i columns[4];
    transpose(m, step, columns);
    for (int i = 0; i < 4; i++) {
        __m256 even = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(columns[i]));
        __m256 odd = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(columns[i], 8)));
        _mm256_store_ps(to + 2 * i * HALF, _mm256_mul_ps(even, scale));
        _mm256_store_ps(to + (2 * i + 1) * HALF, _mm256_mul_ps(odd, scale));
    }
}

TARGET static void decode_bfp16(const uint8_t *groups, size_t count, size_t k, void *out)
{
    float *panel = out;
    if (count < HALF / 8)
        memset(panel, 0, k * HALF * sizeof *panel);
    const __m256 offset = _mm256_set1_ps(1.0f / 64); /* e << 23 is 2^(e - 127) */
    for (size_t at = 0; at < k; at += 8)
        for (size_t g = 0; g < count; g++) {
            const uint8_t *p = groups + (g * (k / 8) + at / 8) * BFP16_BLOCK;
            __m256i e = _mm256_setr_epi32(p[0], p[9], p[18], p[27], p[36], p[45], p[54], p[63]);
            __m256 scale = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(e, 23)), offset);
            decode_block(p + 1, BFP16_ROW, scale, panel + at * HALF + g * 8);
        }
}

/* The mantissas of a tile as two halves [row][8 k]. */
TARGET_INLINE void bfp6s_mantissas(const uint8_t *tile, const uint8_t *scales, uint8_t out[128])
{
    bfp6s_rows rows = bfp6s_open(scales);
    for (int part = 0; part < 2; part++) {
        __m256i u[2];
        bfp6s_unpack(tile, part, u, u + 1);
        for (int h = 0; h < 2; h++) {
            __m256i t = bfp6s_thirds(u[h]);
            __m256i even = _mm256_srai_epi16(bfp6s_doubled(&rows, u[h], t, part, 0), 1);
            __m256i odd = _mm256_srai_epi16(bfp6s_doubled(&rows, u[h], t, part, 1), 1);
            _mm256_storeu_si256((__m256i *)(out + 64 * h + 32 * part), _mm256_packs_epi16(even, odd));
        }
    }
}

TARGET static void decode_bfp6s(const uint8_t *groups, size_t count, size_t k, void *out)
{
    float *panel = out;
    if (count < HALF / 8)
        memset(panel, 0, k * HALF * sizeof *panel);
    const __m256 offset = _mm256_set1_ps(1.0f / 64);
    for (size_t at = 0; at < k; at += 16)
        for (size_t g = 0; g < count; g++) {
            const uint8_t *segment = groups + (g * (k / 128) + at / 128) * BFP6S_SEGMENT;
            size_t tile = at / 16 % 8;
            const uint8_t *scales = segment + BFP6S_SCALES + tile * 8;
            uint8_t m[128];
            bfp6s_mantissas(segment + tile * BFP6S_TILE, scales, m);
            __m256 scale = _mm256_mul_ps(bfp6s_scales(scales), offset);
            decode_block(m, 8, scale, panel + at * HALF + g * 8);
            decode_block(m + 64, 8, scale, panel + (at + 8) * HALF + g * 8);
        }
}

TARGET_INLINE void tile_rows(const float *a, const float *b, const unsigned rows, size_t k, float *out)
{
    __m256 sum[TILE_ROWS][2];
    for (unsigned r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (size_t i = 0; i < k; i++, a += TILE_ROWS, b += HALF) {
        __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);
        for (unsigned r = 0; r < rows; r++) {
            __m256 x = _mm256_broadcast_ss(a + r);
            sum[r][0] = _mm256_fmadd_ps(x, b0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(x, b1, sum[r][1]);
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        _mm256_storeu_ps(out + r * PANEL, sum[r][0]);
        _mm256_storeu_ps(out + r * PANEL + 8, sum[r][1]);
    }
}

TARGET static void tile(const void *a, const void *b, unsigned count, size_t k, float *out)
{
    for (size_t part = 0; part < HALF; part += 16) {
        const float *w = (const float *)b + part;
        switch (count) {
        case 1: tile_rows(a, w, 1, k, out + part); break;
        case 2: tile_rows(a, w, 2, k, out + part); break;
        case 3: tile_rows(a, w, 3, k, out + part); break;
        case 4: tile_rows(a, w, 4, k, out + part); break;
        case 5: tile_rows(a, w, 5, k, out + part); break;
        default: tile_rows(a, w, 6, k, out + part); break;
        }
    }
}

TARGET_INLINE __m128i round_bf16(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    __m256i nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    __m256i isnan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i r = _mm256_blendv_epi8(up, nan, isnan);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

/* e^v to about 1e-7, 0 and infinity at the ends; NaN stays. */
TARGET_INLINE __m256 exponential(__m256 v)
{
    v = _mm256_max_ps(_mm256_set1_ps(-104.0f), _mm256_min_ps(_mm256_set1_ps(89.0f), v));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(v, _mm256_set1_ps(1.44269504f)), 8);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), v);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    static const float inverse_factorial[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
    __m256 p = _mm256_set1_ps(inverse_factorial[0]);
    for (int i = 1; i < 8; i++)
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(inverse_factorial[i]));
    /* 2^n in two factors: n reaches -150 and 128. */
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    __m256i rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

/* v sigmoid(t) */
TARGET_INLINE __m256 gated(__m256 v, __m256 t)
{
    __m256 one = _mm256_set1_ps(1), e = exponential(_mm256_xor_ps(t, _mm256_set1_ps(-0.0f)));
    return _mm256_div_ps(v, _mm256_add_ps(one, e));
}

TARGET void avx2_finish(const float *sums, const float *bias, epilogue kind, unsigned columns, uint16_t *out)
{
    unsigned count = kind == SWIGLU ? HALF : columns;
    for (unsigned j = 0; j < count; j += 8) {
        __m256 v = _mm256_add_ps(_mm256_loadu_ps(sums + j), _mm256_loadu_ps(bias + j));
        if (kind == SWIGLU) {
            __m256 up = _mm256_add_ps(_mm256_loadu_ps(sums + HALF + j), _mm256_loadu_ps(bias + HALF + j));
            v = _mm256_mul_ps(gated(v, v), up);
        } else if (kind == GELU) {
            /* The result is zero from -15 on; -infinity would make a NaN. A NaN passes. */
            v = _mm256_max_ps(_mm256_set1_ps(-64.0f), v);
            __m256 slope = _mm256_fmadd_ps(_mm256_mul_ps(v, v), _mm256_set1_ps(GELU_X3), _mm256_set1_ps(GELU_X));
            v = gated(v, _mm256_mul_ps(v, slope));
        }
        _mm_storeu_si128((__m128i *)(out + j), round_bf16(v));
    }
}

const isa_variant isa_avx2 = {
    .name = "avx2",
    .supported = supported,
    .x_bytes = 64,
    .prepare = {avx2_prepare_bfp16, avx2_prepare_bfp6s},
    .gemv = {avx2_gemv_bfp16, avx2_gemv_bfp6s},
    .tile_rows = TILE_ROWS,
    .element = 4,
    .pack = pack,
    .decode = {decode_bfp16, decode_bfp6s},
    .tile = tile,
    .finish = avx2_finish,
};
