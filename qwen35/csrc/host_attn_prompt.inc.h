/* A prompt's gated GQA attention: blocks of query positions against tiles of keys with a running softmax (Dao
   et al., "FlashAttention", 2022), so memory does not grow with the length.

   Everything is transposed, so that a vector holds queries: a lane is one query head at one position, the
   heads of one key head side by side. Scores are keys x queries, their softmax needs no sum across a vector, a
   masked key costs a compare, and values are read as they lie. A lane's result does not depend on the lanes
   beside it: tiles begin at multiples of KEYS of the cache, and a key that a lane does not see changes no bit
   of it. A panel is what panel_tile takes at once: LANES queries. */

enum {
    KEYS = 128,
    LANES = PANEL_VECTORS * VL,
    VALUES = KEYS * PANEL + 16 /* no multiple of a page: its columns would share one set of the cache */
};

struct attn_tile {
    float *keys;   /* [KEYS / PANEL, hd, PANEL] */
    float *values; /* [hd / PANEL, KEYS, PANEL], VALUES from one panel of columns to the next */
    float *lines;  /* [PANEL, hd] */
};

struct attn_panel {
    float *queries, *sums;                     /* [hd, LANES] */
    float *maxima, *totals, *places, *factors; /* [LANES]; places: positions from the block's first on */
    int first, last;                           /* positions of its first and last lane, likewise */
};

/* Rows [first, first + count) of the cache as f32, up to a whole panel of zeros. */
INLINE void load_tile(const struct attn_job *j, const struct attn_tile *t, int64_t first, int count,
                      int kv_head)
{
    int hd = j->d->hd;
    int64_t wide = (int64_t)j->d->kv_heads * hd;
    for (int base = 0; base < count; base += PANEL) {
        int rows = count - base < PANEL ? count - base : PANEL;
        const uint16_t *keys = j->keys + (first + base) * wide + kv_head * hd;
        const uint16_t *values = j->values + (first + base) * wide + kv_head * hd;
        /* the next rows: a head's lie too far apart for the processor to foresee */
        for (int64_t r = PANEL; r < 2 * PANEL; r++)
            for (int i = 0; i < hd; i += 32) {
                __builtin_prefetch(keys + r * wide + i, 0, 2);
                __builtin_prefetch(values + r * wide + i, 0, 2);
            }
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < hd; i += VL)
                v_store(t->lines + r * hd + i, v_load_f16(keys + r * wide + i));
        memset(t->lines + rows * hd, 0, sizeof(float) * (size_t)(PANEL - rows) * (size_t)hd);
        for (int i = 0; i < hd; i += PANEL)
            transpose8(t->lines + i, hd, t->keys + base * hd + i * PANEL, PANEL);
        for (int r = 0; r < PANEL; r++) {
            float *to = t->values + (base + r) * PANEL;
            for (int i = 0; i < hd; i += PANEL, to += VALUES)
                if (r < rows)
                    load8_bf16(values + r * wide + i, to);
                else
                    memset(to, 0, sizeof(float) * PANEL);
        }
    }
}

/* Scores [count, LANES] become weights under the running maxima; factors: what the sums so far shrink by. */
INLINE void soften_panel(const int vectors, const struct attn_panel *p, float *scores, int count)
{
    vf top[PANEL_VECTORS], all[PANEL_VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++)
        top[v] = v_load(p->maxima + v * VL);
    for (int c = 0; c < count; c++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++)
            top[v] = v_max(v_load(scores + c * LANES + v * VL), top[v]);
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++) {
        vf factor = v_exp2_down(v_sub(v_load(p->maxima + v * VL), top[v]));
        v_store(p->factors + v * VL, factor);
        v_store(p->maxima + v * VL, top[v]);
        all[v] = v_mul(v_load(p->totals + v * VL), factor);
    }
    for (int c = 0; c < count; c++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) {
            float *at = scores + c * LANES + v * VL;
            vf weight = v_exp2_down(v_sub(v_load(at), top[v]));
            v_store(at, weight);
            all[v] = v_add(all[v], weight);
        }
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++)
        v_store(p->totals + v * VL, all[v]);
}

/* One panel against the first `seen` keys of a tile, those from `masked` on not seen by every lane. `ahead`:
   the tile's first key less the block's first position. */
INLINE void attend(const int vectors, const struct attn_tile *t, const struct attn_panel *p, int hd, int seen,
                   int masked, int64_t ahead, float *scores)
{
    int count = (seen + PANEL - 1) / PANEL * PANEL;
    for (int r = 0; r < count; r += PANEL_ROWS)
        panel_tile(PANEL_ROWS, vectors, hd, t->keys + r / PANEL * PANEL * hd + r % PANEL, PANEL, p->queries,
                   LANES, scores + r * LANES, LANES, NULL);
    for (int c = masked; c < count; c++)
        for (int v = 0; v < vectors; v++) {
            float *at = scores + c * LANES + v * VL;
            vf place = v_load(p->places + v * VL), key = v_set((float)(ahead + c));
            v_store(at, v_below(place, key, v_set(-INFINITY), v_load(at)));
        }
    soften_panel(vectors, p, scores, count);
    for (int i = 0; i < hd; i += PANEL_ROWS)
        panel_tile(PANEL_ROWS, vectors, count, t->values + i / PANEL * VALUES + i % PANEL, PANEL, scores,
                   LANES, p->sums + i * LANES, LANES, p->factors);
}

/* A block's lanes: query `lane` is head `lane % group` of the key head at position first + lane / group. */
struct attn_lanes {
    const struct attn_job *j;
    int first, kv_head, group, count; /* count: lanes */
};

INLINE void load_queries(const struct attn_lanes *b, const struct attn_panel *p, int from, float *lines)
{
    const host_attn *d = b->j->d;
    int hd = d->hd, half = d->rope_dim / 2;
    float factor = 1.44269504088896341f / sqrtf((float)hd); /* scores in powers of two */
    for (int base = 0; base < LANES; base += PANEL) {
        for (int l = 0; l < PANEL; l++) {
            int lane = from + base + l, within = lane < b->count;
            int64_t row = b->first + lane / b->group;
            int64_t head = b->kv_head * b->group + lane % b->group;
            if (within)
                norm_rotate(d, b->j->y + row * b->j->y_stride + head * 2 * hd, d->q_norm,
                            b->j->cosines + row * half, b->j->sines + row * half, factor, lines + l * hd);
            else
                memset(lines + l * hd, 0, sizeof(float) * (size_t)hd);
            p->places[base + l] = (float)(within ? lane / b->group : p->last);
            p->maxima[base + l] = -INFINITY;
            p->totals[base + l] = 0.0f;
        }
        for (int i = 0; i < hd; i += PANEL)
            transpose8(lines + i, hd, p->queries + i * LANES + base, LANES);
    }
    memset(p->sums, 0, sizeof(float) * LANES * (size_t)hd);
}

INLINE void store_outputs(const struct attn_lanes *b, const struct attn_panel *p, int from, float *lines)
{
    int hd = b->j->d->hd;
    for (int base = 0; base < LANES && from + base < b->count; base += PANEL) {
        for (int i = 0; i < hd; i += PANEL)
            transpose8(p->sums + i * LANES + base, LANES, lines + i, hd);
        for (int l = 0; l < PANEL && from + base + l < b->count; l++) {
            int lane = from + base + l;
            int64_t row = b->first + lane / b->group, head = b->kv_head * b->group + lane % b->group;
            gated_output(lines + l * hd, p->totals[base + l],
                         b->j->y + row * b->j->y_stride + (2 * head + 1) * hd,
                         b->j->out + row * b->j->out_stride + head * hd, hd);
        }
    }
}

/* Task: one block of query positions (the longest rows first) for one key head's query heads. */
static int attn_block(const struct attn_job *j, int task)
{
    const host_attn *d = j->d;
    int hd = d->hd, group = d->heads / d->kv_heads, blocks = (j->rows + PROMPT_ROWS - 1) / PROMPT_ROWS;
    int first = (blocks - 1 - task / d->kv_heads) * PROMPT_ROWS;
    int rows = j->rows - first < PROMPT_ROWS ? j->rows - first : PROMPT_ROWS;
    struct attn_lanes lanes = {j, first, task % d->kv_heads, group, group * rows};
    int panels = (lanes.count + LANES - 1) / LANES;
    size_t matrix = LANES * (size_t)hd, one = 2 * matrix + 4 * LANES, tile = KEYS * (size_t)hd,
           columns = VALUES * (size_t)hd / PANEL;
    float *keys = host_scratch(sizeof(float) *
                               (tile + columns + PANEL * (size_t)hd + KEYS * LANES + (size_t)panels * one));
    if (!keys)
        return -1;
    struct attn_tile t = {keys, keys + tile, keys + tile + columns};
    float *scores = t.lines + PANEL * hd, *start = scores + KEYS * LANES;
#define PANEL_AT(n)                                                                                      \
    {start + (n) * one, start + (n) * one + matrix, start + (n) * one + 2 * matrix,                      \
     start + (n) * one + 2 * matrix + LANES, start + (n) * one + 2 * matrix + 2 * LANES,                 \
     start + (n) * one + 2 * matrix + 3 * LANES, (int)(n) * LANES / group,                               \
     ((int)((n) + 1) * LANES < lanes.count ? (int)((n) + 1) * LANES - 1 : lanes.count - 1) / group}
    for (int n = 0; n < panels; n++) {
        struct attn_panel p = PANEL_AT((size_t)n);
        load_queries(&lanes, &p, n * LANES, t.lines);
    }
    int64_t place = j->past + first, visible = place + rows; /* what some query sees */
    for (int64_t at = 0; at < visible; at += KEYS) {
        load_tile(j, &t, at, visible - at < KEYS ? (int)(visible - at) : KEYS, lanes.kv_head);
        for (int n = 0; n < panels; n++) {
            struct attn_panel p = PANEL_AT((size_t)n);
            int64_t seen = place + p.last + 1 - at, all = place + p.first + 1 - at;
            if (seen <= 0)
                continue;
            int upto = seen < KEYS ? (int)seen : KEYS, masked = all < 0 ? 0 : all < KEYS ? (int)all : KEYS;
            int vectors = (lanes.count - n * LANES + VL - 1) / VL;
            if (vectors >= PANEL_VECTORS)
                attend(PANEL_VECTORS, &t, &p, hd, upto, masked, at - place, scores);
            else if (vectors == 2)
                attend(2, &t, &p, hd, upto, masked, at - place, scores);
            else
                attend(1, &t, &p, hd, upto, masked, at - place, scores);
        }
    }
    for (int n = 0; n < panels; n++) {
        struct attn_panel p = PANEL_AT((size_t)n);
        store_outputs(&lanes, &p, n * LANES, t.lines);
    }
    return 0;
}
