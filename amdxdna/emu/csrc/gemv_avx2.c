/* GEMV for AVX2: products of 16-bit integers, float32 sums of blocks. */
#define TARGET __attribute__((target("avx2,fma")))
#include "avx2.h"
#include "entries.h"

/* bfp16's mantissas enter times 256 and leave q 14 bits and a sign, bfp6s's doubled and leave it 15. */
enum { HEADROOM8 = 6, HEADROOM16 = 7 };

typedef struct {
    int16_t q[8];
    float unit; /* of q, times 2^-6 as a weight's exponent byte e as float bits e << 23 is 2^(e - 127), times
                   2^-8 as the products have 256 times the mantissas */
    uint32_t block;
    uint32_t pad[2];
} entry8;

typedef struct {
    int16_t q[16];
    float unit; /* of q, times 2^-6 and, as the products have twice the mantissas, 2^-1 */
    uint32_t block;
    uint32_t pad[6];
} entry16;

TARGET_INLINE void put8(void *out, size_t at, size_t block, const int32_t *q, int unit)
{
    entry8 *e = (entry8 *)out + at;
    for (int i = 0; i < 8; i++)
        e->q[i] = (int16_t)q[i];
    e->unit = pow2(unit - 14);
    e->block = (uint32_t)block;
}

TARGET_INLINE void put16(void *out, size_t at, size_t block, const int32_t *q, int unit)
{
    entry16 *e = (entry16 *)out + at;
    for (int i = 0; i < 16; i++)
        e->q[i] = (int16_t)q[i];
    e->unit = pow2(unit - 7);
    e->block = (uint32_t)block;
}

TARGET size_t avx2_prepare_bfp16(const uint16_t *x, size_t k, void *out)
{
    return fill_entries(x, k / 8, 8, HEADROOM8, HEADROOM8, 14 - 149, put8, out);
}

TARGET size_t avx2_prepare_bfp6s(const uint16_t *x, size_t k, void *out)
{
    return fill_entries(x, k / 16, 16, HEADROOM16, HEADROOM16, 7 - 149, put16, out);
}

/* Rows a and b of a block, one in each 128-bit lane, from 16 bytes each. */
TARGET_INLINE __m256i two_rows(const uint8_t *a, const uint8_t *b)
{
    __m128i low = _mm_loadu_si128((const __m128i *)a), high = _mm_loadu_si128((const __m128i *)b);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

#define BYTES(...) _mm256_setr_epi8(__VA_ARGS__)
#define __ -1

TARGET_INLINE void bfp16_block(const uint8_t *p, const entry8 *from, __m256 sum[4])
{
    __m256i x = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)from->q));
    __m256 unit = _mm256_broadcast_ss(&from->unit);
    /* Mantissas as words of 256 times themselves, exponents as the top byte of every 32 bits. */
    const __m256i m = BYTES(__, 1, __, 2, __, 3, __, 4, __, 5, __, 6, __, 7, __, 8,
                            __, 1, __, 2, __, 3, __, 4, __, 5, __, 6, __, 7, __, 8);
    const __m256i e = BYTES(__, __, __, 0, __, __, __, 0, __, __, __, 0, __, __, __, 0,
                            __, __, __, 0, __, __, __, 0, __, __, __, 0, __, __, __, 0);
    /* Row 7 is read from 7 bytes before it: 16 bytes from its start would pass the block's end. */
    const __m256i m7 = BYTES(__, 1, __, 2, __, 3, __, 4, __, 5, __, 6, __, 7, __, 8,
                             __, 8, __, 9, __, 10, __, 11, __, 12, __, 13, __, 14, __, 15);
    const __m256i e7 = BYTES(__, __, __, 0, __, __, __, 0, __, __, __, 0, __, __, __, 0,
                             __, __, __, 7, __, __, __, 7, __, __, __, 7, __, __, __, 7);
    for (int pair = 0; pair < 4; pair++) {
        const uint8_t *a = p + pair * 18;
        __m256i v = two_rows(a, pair < 3 ? a + 9 : a + 2);
        __m256i products = _mm256_madd_epi16(_mm256_shuffle_epi8(v, pair < 3 ? m : m7), x);
        __m256i scale = _mm256_srli_epi32(_mm256_shuffle_epi8(v, pair < 3 ? e : e7), 1);
        __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(products), unit);
        sum[pair] = _mm256_fmadd_ps(part, _mm256_castsi256_ps(scale), sum[pair]);
    }
}

/* Sums of a register's 128-bit lanes. */
TARGET_INLINE void store_lanes(__m256 v, float *low, float *high)
{
    __m256 s = _mm256_hadd_ps(v, v);
    s = _mm256_hadd_ps(s, s);
    *low = _mm256_cvtss_f32(s);
    *high = _mm_cvtss_f32(_mm256_extractf128_ps(s, 1));
}

TARGET_INLINE void store_group(const gemv_job *job, size_t group, const float sums[8])
{
    for (size_t r = 0; r < 8; r++) {
        size_t row = group * 8 + r;
        job->y[row] = to_bf16(job->bias ? sums[r] + load_float(job->bias + 4 * row) : sums[r]);
    }
}

TARGET void avx2_gemv_bfp16(const gemv_job *job, size_t begin, size_t end)
{
    size_t blocks = job->k / 8;
    const entry8 *entries = job->x;
    prefetch_lines(job->w + begin * job->stride, PREFETCH / 64);
    for (size_t group = begin; group < end; group++) {
        const uint8_t *base = job->w + group * job->stride;
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        const entry8 *e = entries;
        const uint8_t *p = base;
        for (; e + 8 <= entries + blocks; e += 8, p += 8 * BFP16_BLOCK) {
            prefetch_lines(p + PREFETCH, 1);
            for (size_t i = 0; i < 8; i++) {
                prefetch_lines(p + PREFETCH + 64 * (i + 1), 1);
                bfp16_block(p + i * BFP16_BLOCK, e + i, sum);
            }
        }
        for (; e < entries + blocks; e++, p += BFP16_BLOCK)
            bfp16_block(p, e, sum);
        for (; e < entries + job->entries; e++)
            bfp16_block(base + (size_t)e->block * BFP16_BLOCK, e, sum);
        float sums[8];
        for (int pair = 0; pair < 4; pair++)
            store_lanes(sum[pair], sums + 2 * pair, sums + 2 * pair + 1);
        store_group(job, group, sums);
    }
}

/* sum[0..3]: rows 0 | 2, 1 | 3, 4 | 6, 5 | 7. */
TARGET_INLINE void bfp6s_tile(const uint8_t *tile, const uint8_t *scales, const entry16 *e, __m256 sum[4])
{
    bfp6s_rows rows = bfp6s_open(scales);
    __m256 factor = _mm256_mul_ps(bfp6s_scales(scales), _mm256_broadcast_ss(&e->unit));
    __m256i x0 = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)e->q));
    __m256i x1 = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)e->q + 1));
    for (int part = 0; part < 2; part++) {
        __m256i u0, u1;
        bfp6s_unpack(tile, part, &u0, &u1);
        __m256i t0 = bfp6s_thirds(u0), t1 = bfp6s_thirds(u1);
        for (int odd = 0; odd < 2; odd++) {
            int row = 4 * part + odd, i = 2 * part + odd;
            __m256i m0 = bfp6s_doubled(&rows, u0, t0, part, odd), m1 = bfp6s_doubled(&rows, u1, t1, part, odd);
            __m256i products = _mm256_add_epi32(_mm256_madd_epi16(m0, x0), _mm256_madd_epi16(m1, x1));
            __m256i pick = _mm256_setr_epi32(row, row, row, row, row + 2, row + 2, row + 2, row + 2);
            sum[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), _mm256_permutevar8x32_ps(factor, pick), sum[i]);
        }
    }
}

TARGET void avx2_gemv_bfp6s(const gemv_job *job, size_t begin, size_t end)
{
    size_t tiles = job->k / 16;
    const entry16 *entries = job->x;
    prefetch_lines(job->w + begin * job->stride, PREFETCH / 64);
    for (size_t group = begin; group < end; group++) {
        const uint8_t *base = job->w + group * job->stride;
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        const uint8_t *segment = base;
        for (size_t t = 0; t < tiles; segment += BFP6S_SEGMENT) {
            prefetch_lines(segment + PREFETCH, 5);
            for (int i = 0; i < 8; i++, t++) {
                prefetch_lines(segment + PREFETCH + 64 * (5 + i), 1);
                bfp6s_tile(segment + i * BFP6S_TILE, segment + BFP6S_SCALES + i * 8, entries + t, sum);
            }
        }
        for (size_t t = tiles; t < job->entries; t++) {
            size_t at = entries[t].block;
            const uint8_t *from = base + at / 8 * BFP6S_SEGMENT;
            bfp6s_tile(from + at % 8 * BFP6S_TILE, from + BFP6S_SCALES + at % 8 * 8, entries + t, sum);
        }
        float sums[8];
        for (int i = 0; i < 4; i++) {
            int row = i / 2 * 4 + i % 2;
            store_lanes(sum[i], sums + row, sums + row + 2);
        }
        store_group(job, group, sums);
    }
}
