#ifndef HOST_VISION_H
#define HOST_VISION_H

#include <stdint.h>

typedef struct {
    int dim;             /* row length */
    int adds;            /* bf16 matrices summed, in order, before the factors */
    float eps;
    const float *weight, *bias; /* [dim] */
    const float *factors;       /* [dim], or NULL: all one */
} host_layer_norm;

typedef struct {
    int heads, hd;         /* hd a multiple of 4, at most 128 */
    const float *factors;  /* [3 heads hd] of the q | k | v columns, or NULL: all one */
} host_full_attn;

int host_layer_norm_rows(const host_layer_norm *d, float *x, int rows, const uint16_t *const *adds,
                         const int64_t *add_strides, uint16_t *out, int64_t out_stride);
int host_activate_rows(int kind, int dim, int rows, const uint16_t *const *adds, const int64_t *add_strides,
                       int count, const float *factors, uint16_t *out, int64_t out_stride);
int64_t host_full_attn_floats(const host_full_attn *d, int rows);
int host_full_attn_rows(const host_full_attn *d, const uint16_t *qkv, int64_t qkv_stride, int rows,
                        const float *cosines, const float *sines, float *scratch, uint16_t *out,
                        int64_t out_stride);

#endif
