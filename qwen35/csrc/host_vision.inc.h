/* The vision tower: LayerNorm, GELU and full attention. */

/* into[0..count) = factors * (sum of the adds' row `row`) */
INLINE void sum_row(const uint16_t *const *adds, const int64_t *strides, int count, int64_t row, int dim,
                    const float *factors, float *into)
{
    for (int i = 0; i < dim; i += VL) {
        int whole = i + VL <= dim;
        float tail[VL] = {0};
        vf sum = v_set(0.0f);
        for (int s = 0; s < count; s++) {
            const uint16_t *p = adds[s] + row * strides[s] + i;
            if (whole) {
                sum = v_add(sum, v_load_bf16(p));
            } else {
                for (int j = 0; i + j < dim; j++)
                    tail[j] += f32_of_bf16(p[j]);
            }
        }
        if (whole) {
            v_store(into + i, factors ? v_mul(sum, v_load(factors + i)) : sum);
        } else {
            for (int j = 0; i + j < dim; j++)
                into[i + j] = factors ? tail[j] * factors[i + j] : tail[j];
        }
    }
}

/* Two passes, so that a large mean costs no accuracy. */
INLINE void layer_norm_row(const host_layer_norm *d, const float *x, float *out)
{
    int dim = d->dim, i = 0;
    vf total = v_set(0.0f);
    for (; i + VL <= dim; i += VL)
        total = v_add(total, v_load(x + i));
    float mean = v_sum(total);
    for (; i < dim; i++)
        mean += x[i];
    mean /= (float)dim;
    vf center = v_set(mean), squares = v_set(0.0f);
    for (i = 0; i + VL <= dim; i += VL) {
        vf off = v_sub(v_load(x + i), center);
        squares = v_fma(off, off, squares);
    }
    float variance = v_sum(squares);
    for (; i < dim; i++)
        variance += (x[i] - mean) * (x[i] - mean);
    float scale = 1.0f / sqrtf(variance / (float)dim + d->eps);
    vf scales = v_set(scale);
    for (i = 0; i + VL <= dim; i += VL) {
        vf unit = v_mul(v_sub(v_load(x + i), center), scales);
        v_store(out + i, v_fma(unit, v_load(d->weight + i), v_load(d->bias + i)));
    }
    for (; i < dim; i++)
        out[i] = (x[i] - mean) * scale * d->weight[i] + d->bias[i];
}

static int layer_norm_task(const struct layer_norm_job *j, int block)
{
    int dim = j->d->dim, end = (block + 1) * NORM_ROWS < j->rows ? (block + 1) * NORM_ROWS : j->rows;
    float *line = host_scratch(sizeof(float) * (size_t)dim);
    if (!line)
        return -1;
    for (int64_t r = block * NORM_ROWS; r < end; r++) {
        float *x = j->x + r * dim;
        if (j->d->adds) {
            sum_row(j->adds, j->add_strides, j->d->adds, r, dim, j->d->factors, line);
            for (int i = 0; i < dim; i++)
                x[i] += line[i];
        }
        layer_norm_row(j->d, x, line);
        f32_to_bf16(line, j->out + r * j->out_stride, dim);
    }
    return 0;
}

/* 0.5 x (1 + tanh(y)) = x / (1 + e^(-2y)), y = sqrt(2 / pi) (x + 0.044715 x^3) */
INLINE vf gelu_tanh(vf x)
{
    vf cube = v_mul(v_mul(x, x), x);
    vf y = v_mul(v_set(-2.0f * 0.79788456080286536f), v_fma(v_set(0.044715f), cube, x));
    return v_div(x, v_add(v_set(1.0f), v_exp(y)));
}

static int activate_task(const struct activate_job *j, int block)
{
    int dim = j->dim, padded = (dim + VL - 1) / VL * VL;
    int end = (block + 1) * NORM_ROWS < j->rows ? (block + 1) * NORM_ROWS : j->rows;
    float *line = host_scratch(sizeof(float) * (size_t)padded);
    if (!line)
        return -1;
    memset(line + dim, 0, sizeof(float) * (size_t)(padded - dim));
    for (int64_t r = block * NORM_ROWS; r < end; r++) {
        sum_row(j->adds, j->add_strides, j->count, r, dim, j->factors, line);
        if (j->kind == 1)
            for (int i = 0; i < dim; i += VL)
                v_store(line + i, gelu_tanh(v_load(line + i)));
        else if (j->kind == 2)
            for (int i = 0; i < dim; i++)
                line[i] = 0.5f * line[i] * (1.0f + erff(line[i] * 0.70710678118654752f));
        f32_to_bf16(line, j->out + r * j->out_stride, dim);
    }
    return 0;
}

/* One head's q (scaled), k and v in float32, padded with zeros: q [rows_up, hd], k transposed tile by tile
   [rows_up / FULL_TILE, hd, FULL_TILE], v [rows_up, hd_up]. */
static void full_attn_load(const struct full_attn_job *j, int head)
{
    const host_full_attn *d = j->d;
    int hd = d->hd, half = hd / 2, up = full_pad(hd);
    int64_t rows_up = full_rows(j->rows), width = (int64_t)d->heads * hd;
    float *q = j->scratch + head * full_floats(hd, rows_up), *k = q + rows_up * hd, *v = k + rows_up * hd;
    float scale = 1.0f / sqrtf((float)hd), line[3][128];
    memset(q, 0, sizeof(float) * (size_t)full_floats(hd, rows_up));
    for (int64_t r = 0; r < j->rows; r++) {
        float *key = k + r / FULL_TILE * FULL_TILE * hd + r % FULL_TILE;
        const float *c = j->cosines + r * half, *s = j->sines + r * half;
        for (int part = 0; part < 3; part++) {
            int64_t column = part * width + (int64_t)head * hd;
            const uint16_t *src = j->qkv + r * j->qkv_stride + column;
            for (int i = 0; i < hd; i++)
                line[part][i] = f32_of_bf16(src[i]);
            if (d->factors)
                for (int i = 0; i < hd; i++)
                    line[part][i] *= d->factors[column + i];
        }
        for (int i = 0; i < half; i++) {
            const float *a = line[0], *b = line[1];
            q[r * hd + i] = (a[i] * c[i] - a[i + half] * s[i]) * scale;
            q[r * hd + i + half] = (a[i + half] * c[i] + a[i] * s[i]) * scale;
            key[i * FULL_TILE] = b[i] * c[i] - b[i + half] * s[i];
            key[(i + half) * FULL_TILE] = b[i + half] * c[i] + b[i] * s[i];
        }
        memcpy(v + r * up, line[2], sizeof(float) * (size_t)hd);
    }
}

static int full_attn_block(const struct full_attn_job *j, int task)
{
    const host_full_attn *d = j->d;
    int hd = d->hd, up = full_pad(hd), head = task % d->heads;
    int64_t rows_up = full_rows(j->rows), first = (int64_t)(task / d->heads) * QUERY_ROWS;
    int count = j->rows - first < QUERY_ROWS ? (int)(j->rows - first) : QUERY_ROWS;
    const float *q = j->scratch + head * full_floats(hd, rows_up), *k = q + rows_up * hd, *v = k + rows_up * hd;
    float *scores = host_scratch(sizeof(float) * QUERY_ROWS * (size_t)(FULL_TILE + up + 2));
    if (!scores)
        return -1;
    float *sums = scores + QUERY_ROWS * FULL_TILE, *maxima = sums + QUERY_ROWS * up, *totals = maxima + QUERY_ROWS;
    memset(sums, 0, sizeof(float) * (size_t)(QUERY_ROWS * up));
    for (int r = 0; r < count; r++) {
        maxima[r] = -INFINITY;
        totals[r] = 0.0f;
    }
    for (int64_t at = 0; at < j->rows; at += FULL_TILE) {
        int present = j->rows - at < FULL_TILE ? (int)(j->rows - at) : FULL_TILE, tile = full_pad(present);
        gemm(count, tile, hd, q + first * hd, hd, k + at * hd, FULL_TILE, scores, FULL_TILE, 0.0f);
        for (int r = 0; r < count; r++) {
            for (int c = present; c < tile; c++)
                scores[r * FULL_TILE + c] = -INFINITY;
            soften(scores + r * FULL_TILE, tile, maxima + r, totals + r, sums + (int64_t)r * up, up);
        }
        gemm(count, up, tile, scores, FULL_TILE, v + at * up, up, sums, up, 1.0f);
    }
    for (int r = 0; r < count; r++) {
        float *line = sums + (int64_t)r * up, inverse = 1.0f / totals[r];
        for (int i = 0; i < hd; i++)
            line[i] *= inverse;
        f32_to_bf16(line, j->out + (first + r) * j->out_stride + (int64_t)head * hd, hd);
    }
    return 0;
}
