/* Gated GQA attention over a KV cache: what a prompt and a token share, and a token, whose pieces of the cache
   are worked in parallel and merged in order. The prompt: host_attn_prompt.inc.h. */

enum { STEP_TILE = 32 };

/* Per-head rms norm, RoPE over the first rope_dim dims (half-split), then a factor. */
INLINE void norm_rotate(const host_attn *d, const uint16_t *src, const float *weight, const float *cosines,
                        const float *sines, float factor, float *out)
{
    for (int i = 0; i < d->hd; i += VL)
        v_store(out + i, v_load_bf16(src + i));
    float scale = inverse_norm(out, d->hd, (float)d->hd, d->eps);
    scale_offset(out, weight, scale * factor, out, d->hd);
    int half = d->rope_dim / 2;
    for (int i = 0; i < half; i++) {
        float a = out[i], b = out[half + i];
        out[i] = a * cosines[i] - b * sines[i];
        out[half + i] = b * cosines[i] + a * sines[i];
    }
}

/* Keys (normed, rotated, f16) and values (bf16 as they came) of one token into its cache row. */
INLINE void append_row(const struct attn_job *j, int row, float *key)
{
    const host_attn *d = j->d;
    int hd = d->hd, half = d->rope_dim / 2, wide = d->kv_heads * hd;
    const uint16_t *k = j->y + row * j->y_stride + 2 * (int64_t)d->heads * hd;
    int64_t at = (j->past + row) * wide;
    for (int h = 0; h < d->kv_heads; h++) {
        norm_rotate(d, k + h * hd, d->k_norm, j->cosines + (int64_t)row * half,
                    j->sines + (int64_t)row * half, 1.0f, key);
        for (int i = 0; i < hd; i += VL)
            v_store_f16(j->keys + at + h * hd + i, v_load(key + i));
    }
    memcpy(j->values + at, k + wide, sizeof(uint16_t) * (size_t)wide);
}

static void attn_append(const struct attn_job *j, int block)
{
    float key[MAX_HEAD];
    int end = (block + 1) * APPEND_ROWS < j->rows ? (block + 1) * APPEND_ROWS : j->rows;
    for (int row = block * APPEND_ROWS; row < end; row++)
        append_row(j, row, key);
}

/* One row of scores becomes weights under the running maximum; the row of sums so far is rescaled. */
INLINE void soften(float *scores, int count, float *maximum, float *total, float *sums, int hd)
{
    vf top = v_load(scores);
    for (int c = VL; c < count; c += VL)
        top = v_max(top, v_load(scores + c));
    float largest = v_top(top), before = *maximum;
    largest = largest > before ? largest : before;
    vf shift = v_set(largest), all = v_set(0.0f);
    for (int c = 0; c < count; c += VL) {
        vf weight = v_exp(v_sub(v_load(scores + c), shift));
        v_store(scores + c, weight);
        all = v_add(all, weight);
    }
    float keep = before == largest ? 1.0f : expf(before - largest);
    *total = *total * keep + v_sum(all);
    *maximum = largest;
    if (keep != 1.0f)
        for (int i = 0; i < hd; i += VL)
            v_store(sums + i, v_mul(v_set(keep), v_load(sums + i)));
}

INLINE void gated_output(const float *sums, float total, const uint16_t *gate, uint16_t *out, int hd)
{
    vf scale = v_set(1.0f / total);
    for (int i = 0; i < hd; i += VL)
        v_store_bf16(out + i, v_mul(v_mul(v_load(sums + i), scale), v_sigmoid(v_load_bf16(gate + i))));
}

static void attn_query(const struct attn_job *j)
{
    const host_attn *d = j->d;
    append_row(j, 0, j->query);
    for (int h = 0; h < d->heads; h++)
        norm_rotate(d, j->y + h * 2 * d->hd, d->q_norm, j->cosines, j->sines, 1.0f / sqrtf((float)d->hd),
                    j->query + h * d->hd);
}

/* scores[h * STEP_TILE + r] of `heads` (a constant, at most 4) query heads against two cache rows. */
INLINE void score_pair(const int heads, const float *query, const uint16_t *key, int64_t next, int hd,
                       float *scores)
{
    vf one[4], two[4];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
        one[h] = two[h] = v_set(0.0f);
    for (int i = 0; i < hd; i += VL) {
        vf a = v_load_f16(key + i), b = v_load_f16(key + next + i);
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) {
            vf q = v_load(query + h * hd + i);
            one[h] = v_fma(q, a, one[h]);
            two[h] = v_fma(q, b, two[h]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) {
        scores[h * STEP_TILE] = v_sum(one[h]);
        scores[h * STEP_TILE + 1] = v_sum(two[h]);
    }
}

/* sums[h] += weights[h] values over `count` rows, for `vectors` (a constant) vectors of columns */
INLINE void weigh_columns(const int heads, const int vectors, const float *weights, const uint16_t *value,
                          int64_t next, int count, int hd, float *sums)
{
    vf acc[4][2];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 2
        for (int l = 0; l < vectors; l++)
            acc[h][l] = v_load(sums + h * hd + l * VL);
    for (int r = 0; r < count; r++) {
        vf part[2];
#pragma GCC unroll 2
        for (int l = 0; l < vectors; l++)
            part[l] = v_load_bf16(value + r * next + l * VL);
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) {
            vf w = v_set(weights[h * STEP_TILE + r]);
#pragma GCC unroll 2
            for (int l = 0; l < vectors; l++)
                acc[h][l] = v_fma(w, part[l], acc[h][l]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 2
        for (int l = 0; l < vectors; l++)
            v_store(sums + h * hd + l * VL, acc[h][l]);
}

INLINE void weigh(const int heads, const float *weights, const uint16_t *value, int64_t next, int count,
                  int hd, float *sums)
{
    int i = 0;
    for (; i + 2 * VL <= hd; i += 2 * VL)
        weigh_columns(heads, 2, weights, value + i, next, count, hd, sums + i);
    for (; i < hd; i += VL)
        weigh_columns(heads, 1, weights, value + i, next, count, hd, sums + i);
}

/* `heads` query heads from `head` on over rows [first, end): their running maximum, total and sums. */
INLINE void piece_heads(const int heads, const struct attn_job *j, int head, int kv_head, int64_t first,
                        int64_t end, float *const *results)
{
    const host_attn *d = j->d;
    int hd = d->hd;
    int64_t wide = (int64_t)d->kv_heads * hd;
    float scores[4 * STEP_TILE], sums[4 * MAX_HEAD], maxima[4], totals[4] = {0};
    memset(sums, 0, sizeof(float) * (size_t)(heads * hd));
    for (int h = 0; h < heads; h++)
        maxima[h] = -INFINITY;
    for (int64_t at = first; at < end; at += STEP_TILE) {
        int count = end - at < STEP_TILE ? (int)(end - at) : STEP_TILE;
        const uint16_t *key = j->keys + at * wide + kv_head * hd, *value = j->values + at * wide + kv_head * hd;
        for (int r = 0; r < count; r += 2) {
            /* the next tile, into the second-level cache: hints to the first stall once its few dozen line
               buffers are taken */
            for (int ahead = r + STEP_TILE; ahead < r + STEP_TILE + 2; ahead++)
                for (int i = 0; i < hd; i += 32) {
                    __builtin_prefetch(key + ahead * wide + i, 0, 2);
                    __builtin_prefetch(value + ahead * wide + i, 0, 2);
                }
            score_pair(heads, j->query + head * hd, key + r * wide, r + 1 < count ? wide : 0, hd, scores + r);
        }
        for (int h = 0; h < heads; h++) {
            for (int r = count; r < STEP_TILE; r++)
                scores[h * STEP_TILE + r] = -INFINITY;
            soften(scores + h * STEP_TILE, STEP_TILE, maxima + h, totals + h, sums + h * hd, hd);
        }
        weigh(heads, scores, value, wide, count, hd, sums);
    }
    for (int h = 0; h < heads; h++) {
        results[h][0] = maxima[h];
        results[h][1] = totals[h];
        memcpy(results[h] + 2, sums + h * hd, sizeof(float) * (size_t)hd);
    }
}

static int attn_piece(const struct attn_job *j, int task)
{
    const host_attn *d = j->d;
    int kv_head = task % d->kv_heads, piece = task / d->kv_heads, group = d->heads / d->kv_heads;
    int64_t first = (int64_t)piece * PIECE_ROWS, end = first + PIECE_ROWS, length = j->past + 1;
    end = end < length ? end : length;
    for (int g = 0; g < group;) {
        int head = kv_head * group + g, heads = group - g >= 4 ? 4 : group - g >= 2 ? 2 : 1;
        float *results[4] = {0};
        for (int h = 0; h < heads; h++)
            results[h] = j->partial + ((int64_t)(head + h) * j->pieces + piece) * (d->hd + 2);
        if (heads == 4)
            piece_heads(4, j, head, kv_head, first, end, results);
        else if (heads == 2)
            piece_heads(2, j, head, kv_head, first, end, results);
        else
            piece_heads(1, j, head, kv_head, first, end, results);
        g += heads;
    }
    return 0;
}

static void attn_merge(const struct attn_job *j)
{
    const host_attn *d = j->d;
    int hd = d->hd;
    float sums[MAX_HEAD];
    for (int h = 0; h < d->heads; h++) {
        const float *partial = j->partial + (int64_t)h * j->pieces * (hd + 2);
        float maximum = -INFINITY, total = 0.0f;
        for (int p = 0; p < j->pieces; p++)
            maximum = partial[p * (hd + 2)] > maximum ? partial[p * (hd + 2)] : maximum;
        memset(sums, 0, sizeof(float) * (size_t)hd);
        for (int p = 0; p < j->pieces; p++) {
            const float *part = partial + p * (hd + 2);
            float keep = expf(part[0] - maximum);
            total += keep * part[1];
            for (int i = 0; i < hd; i += VL)
                v_store(sums + i, v_fma(v_set(keep), v_load(part + 2 + i), v_load(sums + i)));
        }
        gated_output(sums, total, j->y + (2 * h + 1) * hd, j->out + h * hd, hd);
    }
}
