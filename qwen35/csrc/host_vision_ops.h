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

struct full_attn_job {
    const host_full_attn *d;
    const uint16_t *qkv;
    int64_t qkv_stride;
    int rows;
    const float *cosines, *sines;
    float *scratch;
    uint16_t *out;
    int64_t out_stride;
    int failed;
};

enum { FULL_TILE = 256 }; /* keys a tile of the softmax */

/* The matrix product wants columns in sixteens; keys come in whole tiles. */
static inline int full_pad(int hd) { return (hd + 15) / 16 * 16; }
static inline int64_t full_rows(int rows) { return ((int64_t)rows + FULL_TILE - 1) / FULL_TILE * FULL_TILE; }
static inline int64_t full_floats(int hd, int64_t rows_up) { return rows_up * (2 * hd + full_pad(hd)); }

#endif
