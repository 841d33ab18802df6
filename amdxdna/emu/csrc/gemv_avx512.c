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

/* One tile of each of `count` groups, stage by stage so that their chains of dependence overlap. */
TARGET_INLINE void bfp6s_tiles(const bfp6s_segment *shared, const uint8_t *tile, size_t stride, __m512i rows,
                               __m512i scales, const entry16 *e, size_t count, __m512 *sum)
{
    __m512i m[4][2], high[4], low[4];
    for (size_t g = 0; g < count; g++)
        bfp6s_mantissas(shared + g, tile + g * stride, rows, m[g]);
    for (size_t g = 0; g < count; g++) {
        high[g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), m[g][0], broadcast8(e->high));
        low[g] = _mm512_dpbusd_epi32(broadcast8(e->offset), m[g][0], broadcast8(e->low));
    }
    for (size_t g = 0; g < count; g++) {
        high[g] = _mm512_dpbusd_epi32(high[g], m[g][1], broadcast8(e->high + 8));
        low[g] = _mm512_dpbusd_epi32(low[g], m[g][1], broadcast8(e->low + 8));
    }
    for (size_t g = 0; g < count; g++)
        sum[g] = _mm512_fmadd_ps(combine(high[g], low[g], e->unit), bfp6s_scales(shared + g, scales), sum[g]);
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

TARGET_INLINE void bfp16_groups(const gemv_job *job, size_t group, size_t count)
{
    size_t blocks = job->k / 8;
    const entry8 *e = job->x, *end = e + blocks, *last = e + job->entries;
    const uint8_t *base = job->w + group * job->stride, *p = base;
    __m512 sum[4];
    for (size_t g = 0; g < count; g++)
        sum[g] = _mm512_setzero_ps();
    for (; e < end; e++, p += BFP16_BLOCK)
        for (size_t g = 0; g < count; g++) {
            _mm_prefetch((const char *)(p + g * job->stride) + PREFETCH, _MM_HINT_T0);
            sum[g] = bfp16_block(p + g * job->stride, e, sum[g]);
        }
    for (; e < last; e++)
        for (size_t g = 0; g < count; g++)
            sum[g] = bfp16_block(base + g * job->stride + (size_t)e->block * BFP16_BLOCK, e, sum[g]);
    for (size_t g = 0; g < count; g++)
        store_group(job, group + g, sum[g]);
}

TARGET void avx512_gemv_bfp16(const gemv_job *job, size_t begin, size_t end)
{
    for (; begin + 2 <= end; begin += 2)
        bfp16_groups(job, begin, 2);
    if (begin < end)
        bfp16_groups(job, begin, 1);
}

TARGET_INLINE void bfp6s_groups(const gemv_job *job, size_t group, size_t count)
{
    size_t tiles = job->k / 16;
    const entry16 *e = job->x, *end = e + tiles, *last = e + job->entries;
    const uint8_t *base = job->w + group * job->stride, *p = base;
    const __m512i rows0 = bfp6s_row_index(), scales0 = bfp6s_scale_index();
    __m512 sum[4];
    for (size_t g = 0; g < count; g++)
        sum[g] = _mm512_setzero_ps();
    for (; e < end; p += BFP6S_SEGMENT) {
        bfp6s_segment shared[4];
        for (size_t g = 0; g < count; g++)
            shared[g] = bfp6s_open(p + g * job->stride + BFP6S_SCALES);
        __m512i rows = rows0, scales = scales0;
        for (size_t i = 0; i < 8; i++, e++) {
            for (size_t g = 0; g < count; g++) {
                _mm_prefetch((const char *)p + g * job->stride + i * 104 + PREFETCH, _MM_HINT_T0);
                _mm_prefetch((const char *)p + g * job->stride + i * 104 + PREFETCH + 64, _MM_HINT_T0);
            }
            bfp6s_tiles(shared, p + i * BFP6S_TILE, job->stride, rows, scales, e, count, sum);
            rows = _mm512_add_epi8(rows, _mm512_set1_epi8(8));
            scales = _mm512_add_epi8(scales, _mm512_set1_epi8(8));
        }
    }
    for (; e < last; e++)
        for (size_t g = 0; g < count; g++) {
            const uint8_t *at = base + g * job->stride + e->block / 8 * BFP6S_SEGMENT;
            size_t i = e->block % 8;
            __m512i step = _mm512_set1_epi8((char)(8 * i));
            bfp6s_segment shared = bfp6s_open(at + BFP6S_SCALES);
            bfp6s_tiles(&shared, at + i * BFP6S_TILE, 0, _mm512_add_epi8(rows0, step),
                        _mm512_add_epi8(scales0, step), e, 1, sum + g);
        }
    for (size_t g = 0; g < count; g++)
        store_group(job, group + g, sum[g]);
}

TARGET void avx512_gemv_bfp6s(const gemv_job *job, size_t begin, size_t end)
{
    for (; begin + 2 <= end; begin += 2)
        bfp6s_groups(job, begin, 2);
    if (begin < end)
        bfp6s_groups(job, begin, 1);
}
