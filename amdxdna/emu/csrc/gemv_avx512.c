/* GEMV for AVX-512 VNNI: x as signed bytes, q = 256 high + low; mantissas as unsigned bytes, plus 128, which
   the entry's offset takes out again. Exact 32-bit sums of a block, then float32 sums. */
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")))
#include "avx512.h"
#include "entries.h"

enum { HEADROOM = 7 };

typedef struct {
    int8_t low[8], high[8];
    int32_t offset[2]; /* -128 times the sum of four q */
    float unit;        /* of q, times 2^-6: an exponent byte e as float bits e << 23 is 2^(e - 127) */
    uint32_t block;
} entry8;

typedef struct {
    int8_t low[16], high[16];
    int32_t offset[2]; /* both halves' */
    float unit;
    uint32_t block;
} entry16;

TARGET_INLINE void put_bytes(const int32_t *q, int8_t *low, int8_t *high, int32_t offset[2])
{
    __m256i v = _mm256_load_si256((const __m256i *)q);
    _mm_storel_epi64((__m128i *)low, _mm256_cvtepi32_epi8(v));
    __m256i rest = _mm256_add_epi32(v, _mm256_set1_epi32(128)); /* v - low = 256 high */
    _mm_storel_epi64((__m128i *)high, _mm256_cvtepi32_epi8(_mm256_srai_epi32(rest, 8)));
    offset[0] -= 128 * (q[0] + q[1] + q[2] + q[3]);
    offset[1] -= 128 * (q[4] + q[5] + q[6] + q[7]);
}

TARGET_INLINE void put8(void *out, size_t at, size_t block, const int32_t *q, int unit)
{
    entry8 *e = (entry8 *)out + at;
    e->offset[0] = e->offset[1] = 0;
    put_bytes(q, e->low, e->high, e->offset);
    e->unit = pow2(unit - 6);
    e->block = (uint32_t)block;
}

TARGET_INLINE void put16(void *out, size_t at, size_t block, const int32_t *q, int unit)
{
    entry16 *e = (entry16 *)out + at;
    e->offset[0] = e->offset[1] = 0;
    put_bytes(q, e->low, e->high, e->offset);
    put_bytes(q + 8, e->low + 8, e->high + 8, e->offset);
    e->unit = pow2(unit - 6);
    e->block = (uint32_t)block;
}

TARGET size_t avx512_prepare_bfp16(const uint16_t *x, size_t k, void *out)
{
    return fill_entries(x, k / 8, 8, HEADROOM, HEADROOM - 1, 6 - 149, put8, out);
}

TARGET size_t avx512_prepare_bfp6s(const uint16_t *x, size_t k, void *out)
{
    return fill_entries(x, k / 16, 16, HEADROOM, HEADROOM - 1, 6 - 149, put16, out);
}

TARGET_INLINE __m512i broadcast8(const void *at)
{
    return _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)at));
}

/* 256 high + low, as float times unit. */
TARGET_INLINE __m512 combine(__m512i high, __m512i low, float unit)
{
    __m512i products = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(products), _mm512_set1_ps(unit));
}

/* Lane 2 r + h gets the products of row r with k 4 h .. 4 h + 3. */
TARGET_INLINE __m512 bfp16_block(const uint8_t *p, const entry8 *e, __m512 sum)
{
    __m512i raw, m = _mm512_xor_si512(bfp16_mantissas(p, &raw), _mm512_set1_epi8(-128));
    __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), m, broadcast8(e->high));
    __m512i low = _mm512_dpbusd_epi32(broadcast8(e->offset), m, broadcast8(e->low));
    return _mm512_fmadd_ps(combine(high, low, e->unit), bfp16_scales(raw), sum);
}

TARGET_INLINE __m512 bfp6s_tile(const bfp6s_segment *g, const uint8_t *tile, __m512i rows, __m512i scales,
                                const entry16 *e, __m512 sum)
{
    __m512i m[2];
    bfp6s_mantissas(g, tile, rows, m);
    __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), m[0], broadcast8(e->high));
    __m512i low = _mm512_dpbusd_epi32(broadcast8(e->offset), m[0], broadcast8(e->low));
    high = _mm512_dpbusd_epi32(high, m[1], broadcast8(e->high + 8));
    low = _mm512_dpbusd_epi32(low, m[1], broadcast8(e->low + 8));
    return _mm512_fmadd_ps(combine(high, low, e->unit), bfp6s_scales(g, scales), sum);
}

TARGET_INLINE void store_group(const gemv_job *job, size_t group, __m512 sum)
{
    float lanes[16] __attribute__((aligned(64)));
    _mm512_store_ps(lanes, sum);
    for (size_t r = 0; r < 8; r++) {
        size_t row = group * 8 + r;
        float v = lanes[2 * r] + lanes[2 * r + 1];
        job->y[row] = to_bf16(job->bias ? v + load_float(job->bias + 4 * row) : v);
    }
}

TARGET void avx512_gemv_bfp16(const gemv_job *job, size_t begin, size_t end)
{
    const entry8 *first = job->x, *end_of_blocks = first + job->k / 8, *last = first + job->entries;
    prefetch_lines(job->w + begin * job->stride, PREFETCH / 64);
    for (size_t group = begin; group < end; group++) {
        const uint8_t *base = job->w + group * job->stride, *p = base;
        __m512 sum = _mm512_setzero_ps();
        const entry8 *e = first;
        for (; e + 8 <= end_of_blocks; e += 8, p += 8 * BFP16_BLOCK) {
            prefetch_lines(p + PREFETCH, 1);
            for (size_t i = 0; i < 8; i++) {
                prefetch_lines(p + PREFETCH + 64 * (i + 1), 1);
                sum = bfp16_block(p + i * BFP16_BLOCK, e + i, sum);
            }
        }
        for (; e < end_of_blocks; e++, p += BFP16_BLOCK)
            sum = bfp16_block(p, e, sum);
        for (; e < last; e++)
            sum = bfp16_block(base + (size_t)e->block * BFP16_BLOCK, e, sum);
        store_group(job, group, sum);
    }
}

TARGET void avx512_gemv_bfp6s(const gemv_job *job, size_t begin, size_t end)
{
    size_t tiles = job->k / 16;
    const entry16 *first = job->x, *end_of_tiles = first + tiles, *last = first + job->entries;
    const __m512i rows0 = bfp6s_row_index(), scales0 = bfp6s_scale_index(), eight = _mm512_set1_epi8(8);
    prefetch_lines(job->w + begin * job->stride, PREFETCH / 64);
    for (size_t group = begin; group < end; group++) {
        const uint8_t *base = job->w + group * job->stride, *p = base;
        __m512 sum = _mm512_setzero_ps();
        const entry16 *e = first;
        for (; e < end_of_tiles; p += BFP6S_SEGMENT) {
            bfp6s_segment shared = bfp6s_open(p + BFP6S_SCALES);
            __m512i rows = rows0, scales = scales0;
            prefetch_lines(p + PREFETCH, 5);
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++, e++) {
                prefetch_lines(p + PREFETCH + 64 * (5 + i), 1);
                sum = bfp6s_tile(&shared, p + i * BFP6S_TILE, rows, scales, e, sum);
                rows = _mm512_add_epi8(rows, eight);
                scales = _mm512_add_epi8(scales, eight);
            }
        }
        for (; e < last; e++) {
            const uint8_t *at = base + e->block / 8 * BFP6S_SEGMENT;
            size_t i = e->block % 8;
            __m512i step = _mm512_set1_epi8((char)(8 * i));
            bfp6s_segment shared = bfp6s_open(at + BFP6S_SCALES);
            sum = bfp6s_tile(&shared, at + i * BFP6S_TILE, _mm512_add_epi8(rows0, step),
                             _mm512_add_epi8(scales0, step), e, sum);
        }
        store_group(job, group, sum);
    }
}
