/* Jobs of the vision tower's host stages, shared by the instruction sets and by host_vision.c. */
#ifndef HOST_VISION_OPS_H
#define HOST_VISION_OPS_H

#include "host_vision.h"

struct layer_norm_job {
    const host_layer_norm *d;
    float *x;
    int rows;
    const uint16_t *const *adds;
    const int64_t *add_strides;
    uint16_t *out;
    int64_t out_stride;
    int failed;
};

struct activate_job {
    int kind, dim, rows, count;
    const uint16_t *const *adds;
    const int64_t *add_strides;
    const float *factors;
    uint16_t *out;
    int64_t out_stride;
    int failed;
};

/* Rotation and scratch are of the whole picture; qkv and out begin with row `first`. */
struct full_attn_job {
    const host_full_attn *d;
    const uint16_t *qkv;
    int64_t qkv_stride;
    int rows;
    const float *cosines, *sines;
    float *scratch;
    uint16_t *out;
    int64_t out_stride;
    int64_t first, end;   /* first a multiple of FULL_TILE; so is end, but for the picture's */
    int64_t key, key_end; /* the keys that a block's queries see now, after those before */
    int head;             /* the first */
    int failed;
};

enum {
    FULL_BLOCK = 32, /* queries of a task */
    FULL_TILE = 64,  /* keys of a tile */
    FULL_HEADS = 4   /* heads of a task that loads */
};

static inline int64_t full_rows(int rows) { return ((int64_t)rows + FULL_TILE - 1) / FULL_TILE * FULL_TILE; }
static inline int full_groups(int heads) { return (heads + FULL_HEADS - 1) / FULL_HEADS; }
static inline int64_t full_floats(int hd, int64_t rows_up) { return rows_up * (4 * hd + 2); }

#endif
