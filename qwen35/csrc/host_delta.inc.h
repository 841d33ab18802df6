/* The gated delta rule (DeltaNet): what a prompt and a token share, and a token in the recurrent form. One task
   is one key head with its value heads: convolution, gates, recurrence and gated norm. The prompt:
   host_delta_prompt.inc.h. */

INLINE void filter(const int taps, const float *weights, int64_t channels, const float *raw, int width,
                   int rows, float *out, int64_t stride)
{
    for (int c = 0; c < width; c += VL) {
        vf w[MAX_TAPS];
        for (int t = 0; t < taps; t++)
            w[t] = v_load(weights + t * channels + c);
        for (int r = 0; r < rows; r++) {
            vf acc = v_set(0.0f);
            for (int t = 0; t < taps; t++)
                acc = v_fma(w[t], v_load(raw + (r + t) * (int64_t)width + c), acc);
            v_store(out + r * stride + c, v_silu(acc));
        }
    }
}

/* q, k or v of `rows` tokens from `first` on, at a stride: causal depthwise convolution over `width` channels,
   then SiLU. `raw` holds rows + conv_k - 1 staged rows. */
INLINE void convolve(const struct delta_job *j, int first, int rows, int channel, int width, float *raw,
                     float *out, int64_t stride)
{
    const host_delta *d = j->d;
    int history = d->conv_k - 1;
    int64_t channels = 2 * (int64_t)d->key_heads * d->dk + (int64_t)d->value_heads * d->dv;
    for (int r = -history; r < rows; r++) {
        int64_t row = first + r;
        const uint16_t *src = row >= 0 ? j->y + row * j->y_stride : j->conv_in + (row + history) * channels;
        float *to = raw + (r + history) * (int64_t)width;
        for (int c = 0; c < width; c += VL)
            v_store(to + c, v_load_bf16(src + channel + c));
    }
    if (d->conv_k == 4)
        filter(4, d->taps + channel, channels, raw, width, rows, out, stride);
    else
        filter(d->conv_k, d->taps + channel, channels, raw, width, rows, out, stride);
}

/* The last conv_k - 1 inputs of these channels, for the next call; in place when conv_in is conv_out. */
INLINE void keep_history(const struct delta_job *j, int channel, int width)
{
    const host_delta *d = j->d;
    int history = d->conv_k - 1;
    int64_t channels = 2 * (int64_t)d->key_heads * d->dk + (int64_t)d->value_heads * d->dv;
    for (int r = 0; r < history; r++) {
        int64_t row = (int64_t)j->rows - history + r;
        const uint16_t *src = row >= 0 ? j->y + row * j->y_stride : j->conv_in + (row + history) * channels;
        memmove(j->conv_out + r * channels + channel, src + channel, sizeof(uint16_t) * (size_t)width);
    }
}

INLINE void l2_normalise(float *x, int count, float factor)
{
    vf scale = v_set(inverse_norm(x, count, 1.0f, 1e-6f) * factor);
    for (int i = 0; i < count; i += VL)
        v_store(x + i, v_mul(v_load(x + i), scale));
}

/* log g = A softplus(a + dt_bias), always <= 0; softplus is linear above 20 as torch's */
INLINE float log_decay(const host_delta *d, const float *gates, int head)
{
    float a = gates[d->value_heads + head] + d->dt_bias[head];
    return d->decay[head] * (a > 20.0f ? a : log1pf(expf(a)));
}

INLINE float write_strength(const float *gates, int head)
{
    return 1.0f / (1.0f + expf(-gates[head]));
}

/* rms(o) * norm * silu(z), to bf16 */
INLINE void gated_norm(const host_delta *d, const float *o, const uint16_t *z, uint16_t *out)
{
    vf scale = v_set(inverse_norm(o, d->dv, (float)d->dv, d->eps));
    for (int i = 0; i < d->dv; i += VL) {
        vf normed = v_mul(v_mul(v_load(o + i), scale), v_load(d->norm + i));
        v_store_bf16(out + i, v_mul(normed, v_silu(v_load_bf16(z + i))));
    }
}

/* What a step leaves to its second half, in floats: a key head's k; a value head's decay and delta. */
INLINE float *step_key(const struct delta_job *j, int key_head)
{
    return j->rest + key_head * (int64_t)j->d->dk;
}

INLINE float *step_delta(const struct delta_job *j, int head)
{
    const host_delta *d = j->d;
    return j->rest + d->key_heads * (int64_t)d->dk + head * (int64_t)(d->dv + 16);
}

/* One pass over the state [dk, dv]: kv = (g S)^T k and (g S)^T q give delta, and o = S'^T q of the state
   S' = g S + k delta^T that delta_replace writes. */
INLINE void delta_read(int dk, int dv, const float *q, const float *k, const float *v, float decay, float beta,
                       const float *state, float *delta, float *o)
{
    float dot = 0.0f;
    vf partial = v_set(0.0f);
    for (int i = 0; i < dk; i += VL)
        partial = v_fma(v_load(q + i), v_load(k + i), partial);
    dot = v_sum(partial);
    vf g = v_set(decay), strength = v_set(beta), overlap = v_set(dot);
    enum { WIDE = HOST_ISA == 512 ? 8 : 4 };
    int c = 0;
    for (; c + WIDE * VL <= dv; c += WIDE * VL) {
        vf by_k[WIDE], by_q[WIDE];
#pragma GCC unroll 8
        for (int l = 0; l < WIDE; l++)
            by_k[l] = by_q[l] = v_set(0.0f);
        for (int i = 0; i < dk; i++) {
            vf ki = v_set(k[i]), qi = v_set(q[i]);
#pragma GCC unroll 8
            for (int l = 0; l < WIDE; l++) {
                vf s = v_load(state + i * (int64_t)dv + c + l * VL);
                by_k[l] = v_fma(ki, s, by_k[l]);
                by_q[l] = v_fma(qi, s, by_q[l]);
            }
        }
#pragma GCC unroll 8
        for (int l = 0; l < WIDE; l++) {
            vf change = v_mul(v_sub(v_load(v + c + l * VL), v_mul(g, by_k[l])), strength);
            v_store(delta + c + l * VL, change);
            v_store(o + c + l * VL, v_fma(change, overlap, v_mul(g, by_q[l])));
        }
    }
    for (; c < dv; c += VL) {
        vf by_k = v_set(0.0f), by_q = by_k;
        for (int i = 0; i < dk; i++) {
            vf s = v_load(state + i * (int64_t)dv + c);
            by_k = v_fma(v_set(k[i]), s, by_k);
            by_q = v_fma(v_set(q[i]), s, by_q);
        }
        vf change = v_mul(v_sub(v_load(v + c), v_mul(g, by_k)), strength);
        v_store(delta + c, change);
        v_store(o + c, v_fma(change, overlap, v_mul(g, by_q)));
    }
}

/* to = decay * from + k delta^T, past the caches: the next token is the first to read it. */
INLINE void delta_replace(int dk, int dv, const float *k, const float *delta, float decay, const float *from,
                          float *to)
{
    vf g = v_set(decay);
    for (int i = 0; i < dk; i++) {
        vf ki = v_set(k[i]);
        for (int c = 0; c < dv; c += VL) {
            int64_t at = i * (int64_t)dv + c;
            v_stream(to + at, v_fma(ki, v_load(delta + c), v_mul(g, v_load(from + at))));
        }
    }
}

static int delta_step(const struct delta_job *j, int key_head)
{
    const host_delta *d = j->d;
    int dk = d->dk, dv = d->dv, group = d->value_heads / d->key_heads, keys = d->key_heads * dk;
    int wide = dk > dv ? dk : dv, z_at = 2 * keys + d->value_heads * dv;
    float *q = host_scratch(sizeof(float) * (size_t)(dk + 2 * dv + d->conv_k * wide));
    if (!q)
        return -1;
    float *k = step_key(j, key_head), *v = q + dk, *o = v + dv, *raw = o + dv;
    convolve(j, 0, 1, key_head * dk, dk, raw, q, dk);
    convolve(j, 0, 1, keys + key_head * dk, dk, raw, k, dk);
    l2_normalise(q, dk, 1.0f / sqrtf((float)dk));
    l2_normalise(k, dk, 1.0f);
    for (int g = 0; g < group; g++) {
        int head = key_head * group + g;
        float *delta = step_delta(j, head), decay = expf(log_decay(d, j->gates, head));
        convolve(j, 0, 1, 2 * keys + head * dv, dv, raw, v, dv);
        delta_read(dk, dv, q, k, v, decay, write_strength(j->gates, head),
                   j->state_in + (size_t)head * (size_t)dk * (size_t)dv, delta, o);
        delta[dv] = decay;
        gated_norm(d, o, j->y + z_at + head * dv, j->out + head * dv);
    }
    return 0;
}

static int delta_write(const struct delta_job *j, int key_head)
{
    const host_delta *d = j->d;
    int dk = d->dk, dv = d->dv, group = d->value_heads / d->key_heads, keys = d->key_heads * dk;
    for (int g = 0; g < group; g++) {
        int head = key_head * group + g;
        size_t at = (size_t)head * (size_t)dk * (size_t)dv;
        const float *delta = step_delta(j, head);
        delta_replace(dk, dv, step_key(j, key_head), delta, delta[dv], j->state_in + at, j->state_out + at);
    }
    keep_history(j, key_head * dk, dk);
    keep_history(j, keys + key_head * dk, dk);
    keep_history(j, 2 * keys + key_head * group * dv, group * dv);
#if HOST_ISA
    _mm_sfence();
#endif
    return 0;
}
