/* GEMV for AVX-512 VNNI: x as high and low bytes, q = 256 high + low with |q| < 2^15; products of bytes with
   exact 32-bit sums of a block, then float32 sums. */
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")))
#include "avx512.h"
#include "entries.h"

enum { HEADROOM = 7 };

typedef struct {
    uint8_t low[8];
    int8_t high[8];
    int32_t offset[2]; /* -128 times the sum of four highs: mantissas enter as m + 128 */
    float unit;        /* of q, times 2^-6: an exponent byte e as float bits e << 23 is 2^(e - 127) */
    uint32_t block;
} entry8;

typedef struct {
    uint8_t low[16];
    int8_t high[16];
    int32_t offset[2]; /* both halves' */
    float unit;
    uint32_t block;
} entry16;

TARGET_INLINE void put_bytes(const int32_t *q, uint8_t *low, int8_t *high, int32_t offset[2])
{
    __m256i v = _mm256_load_si256((const __m256i *)q);
    _mm_storel_epi64((__m128i *)low, _mm256_cvtepi32_epi8(v));
    __m128i h = _mm256_cvtepi32_epi8(_mm256_srai_epi32(v, 8));
    _mm_storel_epi64((__m128i *)high, h);
    __m128i sums = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(-128), h);
    __m128i before = _mm_loadl_epi64((const __m128i *)offset);
    _mm_storel_epi64((__m128i *)offset, _mm_sub_epi32(before, sums));
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
    return fill_entries(x, k / 8, 8, HEADROOM, put8, out);
}

TARGET size_t avx512_prepare_bfp6s(const uint16_t *x, size_t k, void *out)
{
    return fill_entries(x, k / 16, 16, HEADROOM, put16, out);
}

TARGET_INLINE __m512i broadcast8(const void *at)
{
    return _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)at));
}

/* Lane 2 r + h gets the products of row r with k 4 h .. 4 h + 3. */
TARGET_INLINE __m512 bfp16_block(const uint8_t *p, const entry8 *e, __m512 sum)
{
    __m512i raw, m = bfp16_mantissas(p, &raw);
    __m512i shifted = _mm512_xor_si512(m, _mm512_set1_epi8(-128));
    __m512i products = _mm512_dpbusd_epi32(broadcast8(e->offset), shifted, broadcast8(e->high));
    products = _mm512_dpbusd_epi32(_mm512_slli_epi32(products, 8), broadcast8(e->low), m);
    __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(products), _mm512_set1_ps(e->unit));
    return _mm512_fmadd_ps(part, bfp16_scales(raw), sum);
}

TARGET_INLINE __m512 bfp6s_tile(const uint8_t *tile, const uint8_t *scales, const entry16 *e, __m512 sum)
{
    __m512i m[2];
    const __m512i sign = _mm512_set1_epi8(-128);
    bfp6s_mantissas(tile, scales, m);
    __m512i products = _mm512_dpbusd_epi32(broadcast8(e->offset), _mm512_xor_si512(m[0], sign), broadcast8(e->high));
    products = _mm512_dpbusd_epi32(products, _mm512_xor_si512(m[1], sign), broadcast8(e->high + 8));
    products = _mm512_dpbusd_epi32(_mm512_slli_epi32(products, 8), broadcast8(e->low), m[0]);
    products = _mm512_dpbusd_epi32(products, broadcast8(e->low + 8), m[1]);
    __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(products), _mm512_set1_ps(e->unit));
    return _mm512_fmadd_ps(part, bfp6s_scales(scales), sum);
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

TARGET void avx512_gemv_bfp6s(const gemv_job *job, size_t begin, size_t end)
{
    size_t tiles = job->k / 16;
    const entry16 *entries = job->x;
    for (size_t group = begin; group < end; group++) {
        const uint8_t *base = job->w + group * job->stride, *segment = base;
        __m512 sum = _mm512_setzero_ps();
        for (size_t t = 0; t < tiles; segment += BFP6S_SEGMENT)
            for (int i = 0; i < 8; i++, t++) {
                _mm_prefetch((const char *)segment + i * 104 + PREFETCH, _MM_HINT_T0);
                _mm_prefetch((const char *)segment + i * 104 + PREFETCH + 64, _MM_HINT_T0);
                sum = bfp6s_tile(segment + i * BFP6S_TILE, segment + BFP6S_SCALES + i * 8, entries + t, sum);
            }
        for (size_t t = tiles; t < job->entries; t++) {
            size_t at = entries[t].block;
            const uint8_t *from = base + at / 8 * BFP6S_SEGMENT;
            sum = bfp6s_tile(from + at % 8 * BFP6S_TILE, from + BFP6S_SCALES + at % 8 * 8, entries + t, sum);
        }
        store_group(job, group, sum);
    }
}
