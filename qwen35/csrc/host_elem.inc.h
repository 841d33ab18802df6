/* Row-wise work: norms, conversions, gate products. */

static void add_row(float *x, const uint16_t *add, int count)
{
    int i = 0;
    for (; i + VL <= count; i += VL)
        v_store(x + i, v_add(v_load(x + i), v_load_bf16(add + i)));
    for (; i < count; i++)
        x[i] += f32_of_bf16(add[i]);
}

/* RMSNorm: 1 / sqrt(sum of squares / divisor + eps) */
INLINE float inverse_norm(const float *x, int count, float divisor, float eps)
{
    vf a = v_set(0.0f), b = a;
    int i = 0;
    for (; i + 2 * VL <= count; i += 2 * VL) {
        vf p = v_load(x + i), q = v_load(x + i + VL);
        a = v_fma(p, p, a);
        b = v_fma(q, q, b);
    }
    float sum = v_sum(v_add(a, b));
    for (; i < count; i++)
        sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / divisor + eps);
}

/* x * scale * (1 + weight) */
INLINE void scale_offset(const float *x, const float *weight, float scale, float *out, int count)
{
    vf s = v_set(scale), one = v_set(1.0f);
    int i = 0;
    for (; i + VL <= count; i += VL)
        v_store(out + i, v_mul(v_mul(v_load(x + i), s), v_add(one, v_load(weight + i))));
    for (; i < count; i++)
        out[i] = x[i] * scale * (1.0f + weight[i]);
}

static void f32_to_bf16(const float *src, uint16_t *dst, int64_t count)
{
    int64_t i = 0;
    for (; i + VL <= count; i += VL)
        v_store_bf16(dst + i, v_load(src + i));
    for (; i < count; i++)
        dst[i] = bf16_of(src[i]);
}

static void bf16_to_f32(const uint16_t *src, float *dst, int64_t count)
{
    int64_t i = 0;
    for (; i + VL <= count; i += VL)
        v_store(dst + i, v_load_bf16(src + i));
    for (; i < count; i++)
        dst[i] = f32_of_bf16(src[i]);
}

static int norm_task(const struct norm_job *j, int block)
{
    const host_norm *d = j->d;
    int64_t dim = d->dim, row_floats = (dim + 15) / 16 * 16;
    int first = block * NORM_ROWS, rows = j->rows - first < NORM_ROWS ? j->rows - first : NORM_ROWS;
    float *normed = host_scratch(sizeof(float) * (size_t)row_floats * NORM_ROWS);
    if (!normed)
        return -1;
    for (int r = 0; r < rows; r++) {
        float *x = j->x + (first + r) * dim;
        for (int s = 0; s < d->adds; s++)
            add_row(x, j->adds[s] + (first + r) * j->add_strides[s], d->dim);
        float scale = inverse_norm(x, d->dim, (float)dim, d->eps);
        scale_offset(x, d->weight, scale, normed + r * row_floats, d->dim);
        if (j->out)
            f32_to_bf16(normed + r * row_floats, j->out + (first + r) * j->out_stride, dim);
    }
    if (j->proj_out && d->proj_cols)
        matmul(rows, d->proj_cols, d->dim, normed, row_floats, d->proj, d->proj_cols,
               j->proj_out + (int64_t)first * d->proj_cols, d->proj_cols);
    return 0;
}

/* count outputs silu(gate) * up from blocks of 32 gate | 32 up */
static void swiglu_pairs(const uint16_t *pairs, int64_t count, uint16_t *out)
{
    for (int64_t i = 0; i < count; i += 32) {
        const uint16_t *gate = pairs + 2 * i, *up = gate + 32;
        for (int l = 0; l < 32; l += VL)
            v_store_bf16(out + i + l, v_mul(v_silu(v_load_bf16(gate + l)), v_load_bf16(up + l)));
    }
}
