/* Host math of the text model. Functions that can run out of scratch memory return 0 or -ENOMEM, the rest
   nothing. Matrices are row-major; strides count elements; bf16 travels as uint16_t. Results do not depend
   on the number of threads. */

typedef struct {
    int dim;             /* row length */
    int adds;            /* bf16 rows added to x, in order, before the norm */
    int proj_cols;       /* columns of proj, a multiple of 16; 0: none */
    float eps;
    const float *weight; /* [dim], an offset from one */
    const float *proj;   /* [dim, proj_cols]: proj_out = norm(x) proj in float32 */
} host_norm;

typedef struct {
    int key_heads, value_heads, dk, dv, conv_k;
    int gate_cols;       /* row stride of the b | a matrix */
    float eps;
    const float *taps;   /* [conv_k, 2 key_heads dk + value_heads dv] */
    const float *decay;  /* [value_heads], -exp(A_log) */
    const float *dt_bias;
    const float *norm;   /* [dv], plain weight */
} host_delta;

typedef struct {
    int heads, kv_heads, hd, rope_dim;
    float eps;
    const float *q_norm, *k_norm; /* [hd], offsets from one */
} host_attn;

int host_set_threads(int count);
int host_threads(void);
const char *host_isa(void);
int host_set_isa(const char *name);

/* Without `out` or `proj_out` (NULL) that result is not computed. */
int host_norm_rows(const host_norm *d, float *x, int rows, const uint16_t *const *adds,
                   const int64_t *add_strides, uint16_t *out, int64_t out_stride, float *proj_out);
void host_swiglu_pairs(const uint16_t *pairs, int64_t count, uint16_t *out);
void host_bf16_to_f32(const uint16_t *src, float *dst, int64_t count);
void host_f32_to_bf16(const float *src, uint16_t *dst, int64_t count);
void host_will_need(const int64_t *starts, int64_t count, int64_t bytes);
void host_fetch(const void *start, int64_t bytes);
int host_populate(void *start, int64_t bytes);
int64_t host_fma(int64_t rounds); /* runs FMAs in registers on every thread; returns the operations done */
void host_matmul(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc,
                 int m, int n, int k);

enum { HOST_DELTA_CHUNK = 64 }; /* tokens of a chunk of the recurrence, counted from a call's first */

int host_delta_prefill(const host_delta *d, const uint16_t *y, int64_t y_stride, const float *gates,
                       int rows, const uint16_t *conv_in, uint16_t *conv_out, const float *state_in,
                       float *state_out, uint16_t *out, int64_t out_stride);
/* A token in two halves: the output, which leaves `rest` (host_delta_rest floats) to the second one, and the
   new state. state_in and conv_in are the same in both, state_out and conv_out other memory. */
int64_t host_delta_rest(const host_delta *d);
int host_delta_step(const host_delta *d, const uint16_t *y, const float *gates, const uint16_t *conv_in,
                    const float *state_in, uint16_t *out, float *rest);
int host_delta_write(const host_delta *d, const uint16_t *y, const uint16_t *conv_in, uint16_t *conv_out,
                     const float *state_in, float *state_out, float *rest);

int host_attn_prefill(const host_attn *d, const uint16_t *y, int64_t y_stride, int rows, int64_t past,
                      const float *cosines, const float *sines, uint16_t *keys, uint16_t *values,
                      uint16_t *out, int64_t out_stride);
int host_attn_step(const host_attn *d, const uint16_t *y, int64_t past, const float *cosines,
                   const float *sines, uint16_t *keys, uint16_t *values, uint16_t *out);
