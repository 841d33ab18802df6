/* What each instruction set provides: single-threaded pieces of work, called through the pool by host.c. */
#ifndef HOST_OPS_H
#define HOST_OPS_H

#include "host.h"
#include "host_vision_ops.h"

/* One prompt (or step) of a DeltaNet layer; the arguments of host_delta_prefill. */
struct delta_job {
    const host_delta *d;
    const uint16_t *y;
    int64_t y_stride;
    const float *gates;
    int rows;
    const uint16_t *conv_in;
    uint16_t *conv_out;
    const float *state_in;
    float *state_out;
    uint16_t *out;
    int64_t out_stride;
    float *rest; /* what a step leaves to its write: host_delta_rest floats */
    int failed;
};

/* One prompt (or step) of an attention layer. A cache row holds [kv_heads, hd]; keys in f16, values in bf16. */
struct attn_job {
    const host_attn *d;
    const uint16_t *y;
    int64_t y_stride;
    int rows;
    int64_t past;
    const float *cosines, *sines; /* [rows, rope_dim / 2] */
    uint16_t *keys, *values;
    uint16_t *out;
    int64_t out_stride;
    float *query, *partial; /* a step's rotated queries and its pieces' results */
    int pieces;
    int failed;
};

struct norm_job {
    const host_norm *d;
    float *x;
    int rows;
    const uint16_t *const *adds;
    const int64_t *add_strides;
    uint16_t *out;
    int64_t out_stride;
    float *proj_out;
    int failed;
};

enum {
    NORM_ROWS = 16,   /* rows of a norm task */
    APPEND_ROWS = 32, /* rows of a cache append task */
    QUERY_ROWS = 64,  /* query positions of a task of the vision tower's attention */
    PROMPT_ROWS = 48, /* query positions of a task of a prompt's attention */
    PIECE_ROWS = 256, /* cache rows of a step's task */
    FMA_CHAINS = 12,  /* independent sums of the FMA loop */
    CHUNK = HOST_DELTA_CHUNK,
    MAX_TAPS = 8,     /* of the causal convolution */
    MAX_HEAD = 512    /* head dim of attention */
};

struct host_ops {
    const char *name;
    int vector; /* floats */
    float (*fma_loop)(int64_t rounds);
    int (*norm_task)(const struct norm_job *, int block);
    void (*swiglu_pairs)(const uint16_t *pairs, int64_t count, uint16_t *out);
    void (*bf16_to_f32)(const uint16_t *, float *, int64_t);
    void (*f32_to_bf16)(const float *, uint16_t *, int64_t);
    void (*matmul)(int m, int n, int k, const float *a, int64_t lda, const float *b, int64_t ldb,
                   float *c, int64_t ldc);
    int (*delta_prefill)(const struct delta_job *, int key_head);
    int (*delta_step)(const struct delta_job *, int key_head);
    int (*delta_write)(const struct delta_job *, int key_head);
    void (*attn_append)(const struct attn_job *, int block);
    int (*attn_block)(const struct attn_job *, int task);
    void (*attn_query)(const struct attn_job *);
    int (*attn_piece)(const struct attn_job *, int task);
    void (*attn_merge)(const struct attn_job *);
    int (*layer_norm_task)(const struct layer_norm_job *, int block);
    int (*activate_task)(const struct activate_job *, int block);
    int (*full_attn_load)(const struct full_attn_job *, int task);
    int (*full_attn_block)(const struct full_attn_job *, int task);
};

/* The set in use: QWEN35_ISA's, host_set_isa's or the best this processor has. */
const struct host_ops *host_ops(void);

extern const struct host_ops host_ops_portable;
#if defined(__x86_64__)
extern const struct host_ops host_ops_avx2, host_ops_avx512, host_ops_avx512bf16;
#endif

#endif
