/* A prompt's gated delta rule in its chunked form (Yang et al., "Parallelizing Linear Transformers with the
   Delta Rule over Sequence Length", 2024, and "Gated Delta Networks", 2024), chunks of CHUNK tokens, so that
   nothing wider than a chunk of one head is ever stored.

   The columns of values and state do not meet but in the norm of the output, so a head is worked WIDTH of
   them at a time: a panel of the state, packed for the whole call, stays in the first-level cache from its
   reads to its update. Matrices that panel_tile reads across their rows have a stride that spreads them over
   its sets. */

enum { WIDTH = 2 * VL, GAP = 16, TOKENS = CHUNK + GAP, SOLVED = HOST_ISA == 512 ? 8 : 4 };

struct delta_scratch {
    float *raw;             /* the convolution's inputs, [CHUNK + conv_k - 1, width] */
    float *k, *q;           /* [CHUNK, dk + GAP] */
    float *kt, *qt;         /* [dk, TOKENS] */
    float *kk, *kq;         /* [CHUNK, TOKENS]: k_j . k_i and k_j . q_i, read where i >= j */
    float *system, *mix;    /* the same, of one value head */
    float *v, *o;           /* [CHUNK, columns + GAP] */
    float *u, *reads;       /* [CHUNK, WIDTH] */
    float *states;          /* [value heads of the key head, columns / WIDTH, dk, WIDTH] */
    int columns;            /* dv, up to a multiple of WIDTH */
    double log_sum[CHUNK];  /* of the decays up to a token, its own included */
    float beta[CHUNK], past[CHUNK], rest[CHUNK]; /* decay up to a token, and from it to the chunk's end */
};

static int delta_scratch_of(const host_delta *d, struct delta_scratch *s)
{
    size_t dk = (size_t)d->dk, c = CHUNK, group = (size_t)(d->value_heads / d->key_heads);
    s->columns = (d->dv + WIDTH - 1) / WIDTH * WIDTH;
    size_t columns = (size_t)s->columns, wide = dk > columns ? dk : columns;
    size_t sizes[] = {(c + (size_t)d->conv_k - 1) * wide, c * (dk + GAP), c * (dk + GAP), dk * TOKENS,
                      dk * TOKENS, c * TOKENS, c * TOKENS, c * TOKENS, c * TOKENS, c * (columns + GAP),
                      c * (columns + GAP), c * WIDTH, c * WIDTH, group * dk * columns};
    float **parts[] = {&s->raw, &s->k, &s->q, &s->kt, &s->qt, &s->kk, &s->kq, &s->system, &s->mix, &s->v,
                       &s->o, &s->u, &s->reads, &s->states};
    size_t total = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        total += (sizes[i] + 15) / 16 * 16;
    float *at = host_scratch(total * sizeof(float));
    if (!at)
        return -1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; at += (sizes[i++] + 15) / 16 * 16)
        *parts[i] = at;
    return 0;
}

/* convolve, and the rows from `rows` to `padded` zero: a zero token changes nothing. */
INLINE void convolve_chunk(const struct delta_job *j, int first, int rows, int padded, int channel, int width,
                           float *raw, float *out, int64_t stride)
{
    convolve(j, first, rows, channel, width, raw, out, stride);
    for (int r = rows; r < padded; r++)
        memset(out + r * stride, 0, sizeof(float) * (size_t)width);
}

INLINE void transpose_rows(const float *from, int64_t stride, int rows, int columns, float *to)
{
    for (int i = 0; i < rows; i += PANEL)
        for (int c = 0; c < columns; c += PANEL)
            transpose8(from + i * stride + c, stride, to + c * TOKENS + i, TOKENS);
}

/* out[j, i] = k_j . x_i for i >= j, in whole blocks of 16 */
INLINE void token_products(const struct delta_scratch *s, const float *xt, int dk, int padded, float *out)
{
    for (int block = 0; block < padded; block += 16) {
        int c = block;
        for (; c + WIDTH <= padded; c += WIDTH)
            panel_rows(2, 16, dk, s->kt + block, TOKENS, xt + c, TOKENS, out + block * TOKENS + c, TOKENS,
                       NULL);
        for (; c < padded; c += VL)
            panel_rows(1, 16, dk, s->kt + block, TOKENS, xt + c, TOKENS, out + block * TOKENS + c, TOKENS,
                       NULL);
    }
}

/* Decays between two tokens are differences of log sums, each <= 0; quotients of products would overflow. For
   i > j: system[j][i] = -beta_i (k_j . k_i) decay_ij, and with the diagonal, zero below it (down to the block
   of 16), mix[j][i] = (k_j . q_i) decay_ij. */
INLINE void decayed_products(struct delta_scratch *s, int padded)
{
    float gap[CHUNK];
    for (int j = 0; j < padded; j++) {
        int from = j / 16 * 16;
        for (int i = from; i < padded; i++)
            gap[i] = (float)(s->log_sum[i] - s->log_sum[j]);
        for (int i = from; i < j; i++)
            gap[i] = -INFINITY;
        for (int i = from; i < padded; i += VL) {
            vf decay = v_exp(v_load(gap + i)), beta = v_sub(v_set(0.0f), v_load(s->beta + i));
            int at = j * TOKENS + i;
            v_store(s->system + at, v_mul(v_mul(beta, v_load(s->kk + at)), decay));
            v_store(s->mix + at, v_mul(v_load(s->kq + at), decay));
        }
    }
}

/* u_i = u_i + sum over j < i of system[j][i] u_j, SOLVED rows in registers at a time. */
INLINE void solve(const struct delta_scratch *s, int padded)
{
    for (int block = 0; block < padded; block += SOLVED) {
        float *u = s->u + block * WIDTH;
        const float *system = s->system + block;
        vf acc[SOLVED][2];
#pragma GCC unroll 8
        for (int i = 0; i < SOLVED; i++)
#pragma GCC unroll 2
            for (int l = 0; l < 2; l++)
                acc[i][l] = v_load(u + i * WIDTH + l * VL);
        for (int j = 0; j < block; j++) {
            vf one = v_load(s->u + j * WIDTH), two = v_load(s->u + j * WIDTH + VL);
#pragma GCC unroll 8
            for (int i = 0; i < SOLVED; i++) {
                vf factor = v_set(system[j * TOKENS + i]);
                acc[i][0] = v_fma(factor, one, acc[i][0]);
                acc[i][1] = v_fma(factor, two, acc[i][1]);
            }
        }
#pragma GCC unroll 8
        for (int j = 0; j < SOLVED; j++)
#pragma GCC unroll 8
            for (int i = j + 1; i < SOLVED; i++) {
                vf factor = v_set(system[(block + j) * TOKENS + i]);
                acc[i][0] = v_fma(factor, acc[j][0], acc[i][0]);
                acc[i][1] = v_fma(factor, acc[j][1], acc[i][1]);
            }
#pragma GCC unroll 8
        for (int i = 0; i < SOLVED; i++)
#pragma GCC unroll 2
            for (int l = 0; l < 2; l++)
                v_store(u + i * WIDTH + l * VL, acc[i][l]);
    }
}

/* Hints at a part of what comes next, for the second-level cache: the rows lie pages apart, which no
   prefetcher follows. */
INLINE void expect(const struct delta_job *j, int first, int count, int channel, int width)
{
    int end = first + count < j->rows ? first + count : j->rows;
    for (int64_t row = first; row < end; row++)
        for (int c = 0; c < width; c += 32)
            __builtin_prefetch(j->y + row * j->y_stride + channel + c, 0, 2);
}

/* One panel of columns of one value head: its outputs before the norm, and its state after the chunk. `empty`:
   the state is zero, of which nothing is to be read. */
INLINE void delta_panel(const struct delta_scratch *s, int dk, int padded, int column, int empty, float *state)
{
    int64_t stride = s->columns + GAP;
    float kept[WIDTH], *o = s->o + column;
    if (empty) {
        memset(s->reads, 0, sizeof(float) * (size_t)padded * WIDTH);
        for (int i = 0; i < padded; i++)
            memset(o + i * stride, 0, sizeof(float) * WIDTH);
    } else {
        panel_rows(2, padded, dk, s->kt, TOKENS, state, WIDTH, s->reads, WIDTH, NULL);
        panel_rows(2, padded, dk, s->qt, TOKENS, state, WIDTH, o, stride, NULL);
    }
    for (int i = 0; i < padded; i++) {
        vf beta = v_set(s->beta[i]), past = v_set(s->past[i]), minus = v_set(-s->past[i]);
#pragma GCC unroll 2
        for (int l = 0; l < WIDTH; l += VL) {
            vf v = v_load(s->v + i * stride + column + l), read = v_load(s->reads + i * WIDTH + l);
            v_store(s->u + i * WIDTH + l, v_mul(beta, v_fma(minus, read, v)));
            v_store(o + i * stride + l, v_mul(past, v_load(o + i * stride + l)));
        }
    }
    solve(s, padded);
    for (int i = 0; i < WIDTH; i++)
        kept[i] = 1.0f;
    for (int i = 0; i < padded; i += SOLVED)
        panel_tile(SOLVED, 2, i + SOLVED, s->mix + i, TOKENS, s->u, WIDTH, o + i * stride, stride, kept);
    for (int i = 0; i < padded; i++) {
        vf rest = v_set(s->rest[i]);
#pragma GCC unroll 2
        for (int l = 0; l < WIDTH; l += VL)
            v_store(s->u + i * WIDTH + l, v_mul(rest, v_load(s->u + i * WIDTH + l)));
    }
    for (int i = 0; i < WIDTH; i++)
        kept[i] = s->past[padded - 1];
    panel_rows(2, dk, padded, s->k, dk + GAP, s->u, WIDTH, state, WIDTH, kept);
}

/* One value head of one chunk, given what its key head shares. */
static void delta_chunk(const struct delta_job *j, struct delta_scratch *s, int first, int rows, int padded,
                        int head, float *state)
{
    const host_delta *d = j->d;
    int dk = d->dk, dv = d->dv, keys = d->key_heads * dk, z_at = 2 * keys + d->value_heads * dv;
    int64_t stride = s->columns + GAP;
    double sum = 0.0;
    for (int i = 0; i < padded; i++) {
        const float *gates = j->gates + (int64_t)(first + i) * d->gate_cols;
        sum += i < rows ? log_decay(d, gates, head) : 0.0;
        s->log_sum[i] = sum;
        s->past[i] = (float)sum;
        s->beta[i] = i < rows ? write_strength(gates, head) : 0.0f;
    }
    for (int i = 0; i < padded; i++)
        s->rest[i] = (float)(sum - s->log_sum[i]);
    for (int i = 0; i < padded; i += VL) {
        v_store(s->past + i, v_exp(v_load(s->past + i)));
        v_store(s->rest + i, v_exp(v_load(s->rest + i)));
    }
    convolve_chunk(j, first, rows, padded, 2 * keys + head * dv, dv, s->raw, s->v, stride);
    for (int i = 0; i < padded && dv < s->columns; i++)
        memset(s->v + i * stride + dv, 0, sizeof(float) * (size_t)(s->columns - dv));
    decayed_products(s, padded);
    for (int column = 0; column < s->columns; column += WIDTH) {
        int part = CHUNK * WIDTH / s->columns, from = first + column / WIDTH * part;
        expect(j, from, part, z_at + head * dv, dv);
        expect(j, from + CHUNK, part, 2 * keys + head * dv, dv);
        if (head * d->key_heads % d->value_heads == 0) {
            int key_head = head * d->key_heads / d->value_heads;
            expect(j, from + CHUNK, part, key_head * dk, dk);
            expect(j, from + CHUNK, part, keys + key_head * dk, dk);
        }
        delta_panel(s, dk, padded, column, !first && !j->state_in, state + (int64_t)column * dk);
    }
    for (int i = 0; i < rows; i++) {
        int64_t row = first + i;
        gated_norm(d, s->o + i * stride, j->y + row * j->y_stride + z_at + head * dv,
                   j->out + row * j->out_stride + head * dv);
    }
}

/* state [heads, dk, dv] to panels, `in` NULL: zeros; and back. */
INLINE void pack_states(const struct delta_scratch *s, const host_delta *d, int heads, const float *in)
{
    for (int64_t h = 0; h < heads; h++)
        for (int64_t column = 0; column < s->columns; column += VL)
            for (int64_t i = 0; i < d->dk; i++) {
                int held = in && column < d->dv;
                v_store(s->states + h * d->dk * s->columns + column / WIDTH * WIDTH * d->dk + i * WIDTH +
                            column % WIDTH,
                        held ? v_load(in + (h * d->dk + i) * d->dv + column) : v_set(0.0f));
            }
}

INLINE void unpack_states(const struct delta_scratch *s, const host_delta *d, int heads, float *out)
{
    for (int64_t h = 0; h < heads; h++)
        for (int64_t column = 0; column < d->dv; column += VL)
            for (int64_t i = 0; i < d->dk; i++)
                v_store(out + (h * d->dk + i) * d->dv + column,
                        v_load(s->states + h * d->dk * s->columns + column / WIDTH * WIDTH * d->dk +
                               i * WIDTH + column % WIDTH));
}

static int delta_prefill(const struct delta_job *j, int key_head)
{
    const host_delta *d = j->d;
    struct delta_scratch s;
    int dk = d->dk, dv = d->dv, group = d->value_heads / d->key_heads, keys = d->key_heads * dk;
    if (delta_scratch_of(d, &s))
        return -1;
    int64_t from = (int64_t)key_head * group * dk * dv, stride = dk + GAP;
    pack_states(&s, d, group, j->state_in ? j->state_in + from : NULL);
    for (int first = 0; first < j->rows; first += CHUNK) {
        int rows = j->rows - first < CHUNK ? j->rows - first : CHUNK, padded = (rows + 15) / 16 * 16;
        convolve_chunk(j, first, rows, padded, key_head * dk, dk, s.raw, s.q, stride);
        convolve_chunk(j, first, rows, padded, keys + key_head * dk, dk, s.raw, s.k, stride);
        for (int i = 0; i < rows; i++) {
            l2_normalise(s.k + i * stride, dk, 1.0f);
            l2_normalise(s.q + i * stride, dk, 1.0f / sqrtf((float)dk));
        }
        transpose_rows(s.k, stride, padded, dk, s.kt);
        transpose_rows(s.q, stride, padded, dk, s.qt);
        token_products(&s, s.kt, dk, padded, s.kk);
        token_products(&s, s.qt, dk, padded, s.kq);
        for (int g = 0; g < group; g++)
            delta_chunk(j, &s, first, rows, padded, key_head * group + g,
                        s.states + (int64_t)g * dk * s.columns);
    }
    unpack_states(&s, d, group, j->state_out + from);
    keep_history(j, key_head * dk, dk);
    keep_history(j, keys + key_head * dk, dk);
    keep_history(j, 2 * keys + key_head * group * dv, group * dv);
    return 0;
}
