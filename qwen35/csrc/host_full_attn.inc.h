/* Full attention of a picture: every query sees every key. Blocks of 32 queries, one a lane, against tiles of 64
   keys with a running softmax, so that maxima, totals and factors are vectors and no row is ever summed across.
   Where the processor multiplies pairs of bf16 (HOST_BF16: two products in the time of one float32's), q, k, v
   and the softmax's weights are rounded to bf16, sums stay float32.

   What the products read are cells of four bytes: a float, or two bf16 that stand one after the other in the
   dimension that is summed over. */

#if HOST_BF16
typedef uint16_t full_elem;
typedef uint32_t __attribute__((may_alias)) full_cell;
enum { PACK = 2 };
INLINE vf full_fma(full_cell a, const full_cell *b, vf c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)_mm512_loadu_si512(b));
}
#else
typedef float full_elem;
typedef float full_cell;
enum { PACK = 1 };
INLINE vf full_fma(full_cell a, const full_cell *b, vf c) { return v_fma(v_set(a), v_load(b), c); }
#endif

/* One head's part of the scratch. */
struct full_head {
    full_elem *q; /* cells [rows_up / 32, hd / PACK, 32] */
    full_elem *k; /* [rows_up, hd] */
    full_elem *v; /* cells [rows_up / 64, hd, 64 / PACK] */
    float *state; /* [rows_up / 32, hd + 2, 32]: sums, maxima, totals of what has seen some of the keys */
};

INLINE struct full_head full_head(const struct full_attn_job *j, int head)
{
    int64_t up = full_rows(j->rows), hd = j->d->hd;
    float *at = j->scratch + head * full_floats((int)hd, up);
    return (struct full_head){(full_elem *)at, (full_elem *)(at + up * hd), (full_elem *)(at + 2 * up * hd),
                              at + 3 * up * hd};
}

INLINE void full_narrow(const float *src, full_elem *dst, int count)
{
#if HOST_BF16
    f32_to_bf16(src, dst, count);
#else
    memcpy(dst, src, sizeof(float) * (size_t)count);
#endif
}

#if HOST_ISA == 512
/* 16 x 16 floats: pairs, fours, then quarters of registers change places. */
INLINE void full_transpose16(const float *in, int columns, float *out, int rows)
{
    vf a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = v_load(in + i * columns);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m512d one = _mm512_castps_pd(b[i + h]), two = _mm512_castps_pd(b[i + h + 2]);
            a[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(one, two));
            a[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(one, two));
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vf even = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), odd = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xDD);
        vf even2 = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        vf odd2 = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xDD);
        v_store(out + i * rows, _mm512_shuffle_f32x4(even, even2, 0x88));
        v_store(out + (i + 4) * rows, _mm512_shuffle_f32x4(odd, odd2, 0x88));
        v_store(out + (i + 8) * rows, _mm512_shuffle_f32x4(even, even2, 0xDD));
        v_store(out + (i + 12) * rows, _mm512_shuffle_f32x4(odd, odd2, 0xDD));
    }
}
#endif

/* out[c * rows + r] = in[r * columns + c] */
INLINE void full_transpose(const float *in, int rows, int columns, float *out)
{
    int whole_rows = 0, whole_columns = 0;
#if HOST_ISA == 512
    whole_rows = rows / 16 * 16, whole_columns = columns / 16 * 16;
    for (int r = 0; r < whole_rows; r += 16)
        for (int c = 0; c < whole_columns; c += 16)
            full_transpose16(in + r * columns + c, columns, out + c * rows + r, rows);
#endif
    for (int c = 0; c < columns; c++)
        for (int r = c < whole_columns ? whole_rows : 0; r < rows; r++)
            memcpy(out + c * rows + r, in + r * columns + c, sizeof *out);
}

enum { FULL_AHEAD = 4 }; /* rows, too far apart for the processor to foresee */

/* out[0..count) = factors * in; `factors` NULL: all one */
INLINE void full_widen(const uint16_t *in, const float *factors, float *out, int count)
{
    int i = 0;
    for (; i + VL <= count; i += VL) {
        vf x = v_load_bf16(in + i);
        v_store(out + i, factors ? v_mul(x, v_load(factors + i)) : x);
    }
    for (; i < count; i++)
        out[i] = factors ? f32_of_bf16(in[i]) * factors[i] : f32_of_bf16(in[i]);
}

INLINE void full_rotate(const float *in, const float *c, const float *s, int half, float scale, float *out)
{
    int i = 0;
    for (; i + VL <= half; i += VL) {
        vf a = v_load(in + i), b = v_load(in + i + half), cosine = v_load(c + i), sine = v_load(s + i);
        v_store(out + i, v_mul(v_sub(v_mul(a, cosine), v_mul(b, sine)), v_set(scale)));
        v_store(out + i + half, v_mul(v_add(v_mul(b, cosine), v_mul(a, sine)), v_set(scale)));
    }
    for (; i < half; i++) {
        out[i] = (in[i] * c[i] - in[i + half] * s[i]) * scale;
        out[i + half] = (in[i + half] * c[i] + in[i] * s[i]) * scale;
    }
}

/* 64 rows of queries and of values of one head, as they came, into the cells of its scratch. */
INLINE void full_cells(full_elem *q, full_elem *v, const struct full_head *to, int64_t first, int hd)
{
    for (int r = 0; r < FULL_TILE; r += FULL_BLOCK)
        full_transpose((const float *)(q + r * hd), FULL_BLOCK, hd / PACK, (float *)(to->q + (first + r) * hd));
#if HOST_BF16
    full_cell *pairs = (full_cell *)q;
    for (int r = 0; r < FULL_TILE / 2; r++)
        for (int i = 0; i < hd; i++)
            pairs[r * hd + i] = v[2 * r * hd + i] | (uint32_t)v[(2 * r + 1) * hd + i] << 16;
    full_transpose((const float *)pairs, FULL_TILE / 2, hd, (float *)(to->v + first * hd));
#else
    full_transpose(v, FULL_TILE, hd, to->v + first * hd);
#endif
}

/* Task: 64 rows of some heads, whose columns are neighbours, into their scratch; rows past the end are zero. */
static int full_attn_load(const struct full_attn_job *j, int task)
{
    const host_full_attn *d = j->d;
    int hd = d->hd, half = hd / 2, groups = full_groups(d->heads), head = task % groups * FULL_HEADS;
    int heads = d->heads - head < FULL_HEADS ? d->heads - head : FULL_HEADS, tile = FULL_TILE * hd;
    int64_t first = j->first + (int64_t)(task / groups) * FULL_TILE, width = (int64_t)d->heads * hd;
    int count = j->end - first < FULL_TILE ? (int)(j->end - first) : FULL_TILE;
    full_elem *q = host_scratch(sizeof(full_elem) * 2 * FULL_HEADS * (size_t)tile), *v = q + FULL_HEADS * tile;
    if (!q)
        return -1;
    /* The softmax's powers are of two. */
    float scale = 1.44269504088896341f / sqrtf((float)hd), line[128], turned[128];
    for (int h = 0; h < heads; h++) {
        memset(q + h * tile + count * hd, 0, sizeof(full_elem) * (size_t)(tile - count * hd));
        memset(v + h * tile + count * hd, 0, sizeof(full_elem) * (size_t)(tile - count * hd));
    }
    for (int r = 0; r < count; r++) {
        const float *c = j->cosines + (first + r) * half, *s = j->sines + (first + r) * half;
        for (int part = 0; part < 3; part++) {
            int64_t column = part * width + (int64_t)head * hd;
            const uint16_t *src = j->qkv + (first - j->first + r) * j->qkv_stride + column;
            for (int i = 0; i < heads * hd && r + FULL_AHEAD < count; i += 32)
                __builtin_prefetch(src + FULL_AHEAD * j->qkv_stride + i);
            for (int h = 0; h < heads; h++) {
                full_widen(src + h * hd, d->factors ? d->factors + column + h * hd : NULL, line, hd);
                if (part < 2)
                    full_rotate(line, c, s, half, part ? 1.0f : scale, turned);
                if (part == 0)
                    full_narrow(turned, q + h * tile + r * hd, hd);
                else if (part == 1)
                    full_narrow(turned, full_head(j, head + h).k + (first + r) * hd, hd);
                else
                    full_narrow(line, v + h * tile + r * hd, hd);
            }
        }
    }
    for (int h = 0; h < heads; h++) {
        struct full_head to = full_head(j, head + h);
        full_cells(q + h * tile, v + h * tile, &to, first, hd);
    }
    return 0;
}

/* rows x (2 VL) of C = keep * C + A B; B and C have 32 columns; a `keep` of NULL never reads C. */
INLINE void full_rows_product(const int rows, int k, const full_cell *a, int64_t lda, const full_cell *b,
                              const float *keep, float *c)
{
    vf acc[MR][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int l = 0; l < 2; l++)
            acc[i][l] = keep ? v_mul(v_load(keep + l * VL), v_load(c + i * FULL_BLOCK + l * VL)) : v_set(0.0f);
    for (int p = 0; p < k; p++)
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int l = 0; l < 2; l++)
                acc[i][l] = full_fma(a[i * lda + p], b + p * FULL_BLOCK + l * VL, acc[i][l]);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int l = 0; l < 2; l++)
            v_store(c + i * FULL_BLOCK + l * VL, acc[i][l]);
}

INLINE void full_product(int m, int k, const full_cell *a, int64_t lda, const full_cell *b, const float *keep,
                         float *c)
{
    for (int l = 0; l < FULL_BLOCK; l += 2 * VL) {
        int i = 0;
        for (; i + MR <= m; i += MR)
            full_rows_product(MR, k, a + i * lda, lda, b + l, keep ? keep + l : NULL, c + i * FULL_BLOCK + l);
        for (; i < m; i++)
            full_rows_product(1, k, a + i * lda, lda, b + l, keep ? keep + l : NULL, c + i * FULL_BLOCK + l);
    }
}

/* 2^x of x <= 0, to a few ulp of what the weights are kept in; below -125 as there. The rounding adds 1.5 * 2^23,
   which leaves the integer in the last bits. Taylor's series of e^(r ln 2) for |r| <= 1/2. */
INLINE vf full_exp2(vf x)
{
    vf shift = v_set(12582912.0f);
    x = v_max(v_set(-125.0f), x);
    vf whole = v_add(x, shift), r = v_sub(x, v_sub(whole, shift));
#if HOST_BF16
    vf p = v_fma(v_set(9.6181291076e-3f), r, v_set(5.5504108665e-2f));
#else
    vf p = v_fma(v_set(1.5252733804e-5f), r, v_set(1.5403530393e-4f));
    p = v_fma(p, r, v_set(1.3333558146e-3f));
    p = v_fma(p, r, v_set(9.6181291076e-3f));
    p = v_fma(p, r, v_set(5.5504108665e-2f));
#endif
    p = v_fma(p, r, v_set(2.4022650696e-1f));
    p = v_fma(p, r, v_set(6.9314718056e-1f));
    p = v_fma(p, r, v_set(1.0f));
#if HOST_ISA == 512
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(whole), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
#elif HOST_ISA == 256
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(whole), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
#else
    typedef uint32_t vu __attribute__((vector_size(16)));
    return (vf)((vu)p + ((vu)whole << 23));
#endif
}

/* Scores [count, 32] of `count` keys become weights, cells [count / PACK, 32]; `keep`: what the sums so far are
   multiplied by. */
INLINE void full_soften(const float *scores, int count, full_cell *weights, float *maxima, float *totals,
                        float *keep)
{
    for (int l = 0; l < FULL_BLOCK; l += VL) {
        vf before = v_load(maxima + l), one = before, two = before;
        int r = 0;
        for (; r + 2 <= count; r += 2) {
            one = v_max(one, v_load(scores + r * FULL_BLOCK + l));
            two = v_max(two, v_load(scores + (r + 1) * FULL_BLOCK + l));
        }
        if (r < count)
            one = v_max(one, v_load(scores + r * FULL_BLOCK + l));
        vf top = v_max(one, two), factor = full_exp2(v_sub(before, top)), all = v_set(0.0f);
        for (r = 0; r < count; r += PACK) {
            vf first = full_exp2(v_sub(v_load(scores + r * FULL_BLOCK + l), top));
            all = v_add(all, first);
#if HOST_BF16
            vf second = v_set(0.0f);
            if (r + 1 < count) {
                second = full_exp2(v_sub(v_load(scores + (r + 1) * FULL_BLOCK + l), top));
                all = v_add(all, second);
            }
            const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                                   23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
            _mm512_storeu_si512(weights + r / 2 * FULL_BLOCK + l, _mm512_permutexvar_epi16(order, both));
#else
            v_store(weights + r * FULL_BLOCK + l, first);
#endif
        }
        v_store(maxima + l, top);
        v_store(totals + l, v_fma(v_load(totals + l), factor, all));
        v_store(keep + l, factor);
    }
}

/* Task: one block of queries of one head, all blocks of a head in a row, so that its keys stay in the cache. */
static int full_attn_block(const struct full_attn_job *j, int task)
{
    const host_full_attn *d = j->d;
    int hd = d->hd, blocks = (int)((j->end - j->first + FULL_BLOCK - 1) / FULL_BLOCK);
    int head = j->head + task / blocks;
    int64_t first = j->first + (int64_t)(task % blocks) * FULL_BLOCK;
    int count = j->end - first < FULL_BLOCK ? (int)(j->end - first) : FULL_BLOCK;
    struct full_head from = full_head(j, head);
    float *scores = host_scratch(sizeof(float) * FULL_BLOCK * (size_t)(2 * FULL_TILE + hd + 3)); /* hd <= 128 */
    if (!scores)
        return -1;
    full_cell *weights = (full_cell *)(scores + FULL_BLOCK * FULL_TILE);
    float *keep = scores + FULL_BLOCK * 2 * FULL_TILE, *sums = keep + FULL_BLOCK;
    if (j->key > 0 || j->key_end < j->rows)
        sums = from.state + first * (hd + 2);
    float *maxima = sums + FULL_BLOCK * hd, *totals = maxima + FULL_BLOCK;
    if (j->key == 0) {
        memset(sums, 0, sizeof(float) * FULL_BLOCK * (size_t)hd);
        memset(totals, 0, sizeof(float) * FULL_BLOCK);
        for (int r = 0; r < FULL_BLOCK; r++)
            maxima[r] = -INFINITY;
    }
    const full_cell *q = (const full_cell *)(from.q + first * hd);
    for (int64_t at = j->key; at < j->key_end; at += FULL_TILE) {
        int present = j->key_end - at < FULL_TILE ? (int)(j->key_end - at) : FULL_TILE;
        full_product(present, hd / PACK, (const full_cell *)(from.k + at * hd), hd / PACK, q, NULL, scores);
        full_soften(scores, present, weights, maxima, totals, keep);
        full_product(hd, (present + PACK - 1) / PACK, (const full_cell *)(from.v + at * hd), FULL_TILE / PACK,
                     weights, keep, sums);
    }
    if (j->key_end < j->rows)
        return 0;
    for (int l = 0; l < FULL_BLOCK; l += VL) {
        vf inverse = v_div(v_set(1.0f), v_load(totals + l));
        for (int i = 0; i < hd; i++)
            v_store(sums + i * FULL_BLOCK + l, v_mul(inverse, v_load(sums + i * FULL_BLOCK + l)));
    }
    float *lines = scores; /* [32, hd], where scores and weights were */
    full_transpose(sums, hd, FULL_BLOCK, lines);
    for (int r = 0; r < count; r++)
        f32_to_bf16(lines + r * hd, j->out + (first - j->first + r) * j->out_stride + (int64_t)head * hd, hd);
    return 0;
}
