/* The vision tower: LayerNorm and GELU. */

/* into[0..dim) = factors * (sum of the adds' row `row`); `count` is a constant where it matters. */
INLINE void sum_row_of(const int count, const uint16_t *const *adds, const int64_t *strides, int64_t row,
                       int dim, const float *factors, float *into)
{
    int i = 0;
    for (; i + VL <= dim; i += VL) {
        vf sum = v_set(0.0f);
#pragma GCC unroll 4
        for (int s = 0; s < count; s++)
            sum = v_add(sum, v_load_bf16(adds[s] + row * strides[s] + i));
        v_store(into + i, factors ? v_mul(sum, v_load(factors + i)) : sum);
    }
    for (; i < dim; i++) {
        float sum = 0.0f;
        for (int s = 0; s < count; s++)
            sum += f32_of_bf16(adds[s][row * strides[s] + i]);
        into[i] = factors ? sum * factors[i] : sum;
    }
}

INLINE void sum_row(const uint16_t *const *adds, const int64_t *strides, int count, int64_t row, int dim,
                    const float *factors, float *into)
{
    if (count == 1)
        sum_row_of(1, adds, strides, row, dim, factors, into);
    else if (count == 4)
        sum_row_of(4, adds, strides, row, dim, factors, into);
    else
        sum_row_of(count, adds, strides, row, dim, factors, into);
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

/* One matrix: nothing but the row itself is read or written. */
INLINE void gelu_row(const uint16_t *in, const float *factors, uint16_t *out, int dim)
{
    int i = 0;
    for (; i + VL <= dim; i += VL) {
        vf x = v_load_bf16(in + i);
        v_store_bf16(out + i, gelu_tanh(factors ? v_mul(x, v_load(factors + i)) : x));
    }
    if (i == dim)
        return;
    float line[VL] = {0};
    for (int l = 0; i + l < dim; l++)
        line[l] = factors ? f32_of_bf16(in[i + l]) * factors[i + l] : f32_of_bf16(in[i + l]);
    v_store(line, gelu_tanh(v_load(line)));
    for (int l = 0; i + l < dim; l++)
        out[i + l] = bf16_of(line[l]);
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
        uint16_t *out = j->out + r * j->out_stride;
        if (j->kind == 1 && j->count == 1) {
            gelu_row(j->adds[0] + r * j->add_strides[0], j->factors, out, dim);
            continue;
        }
        sum_row(j->adds, j->add_strides, j->count, r, dim, j->factors, line);
        if (j->kind == 1)
            for (int i = 0; i < dim; i += VL)
                v_store(line + i, gelu_tanh(v_load(line + i)));
        else if (j->kind == 2)
            for (int i = 0; i < dim; i++)
                line[i] = 0.5f * line[i] * (1.0f + erff(line[i] * 0.70710678118654752f));
        f32_to_bf16(line, out, dim);
    }
    return 0;
}
