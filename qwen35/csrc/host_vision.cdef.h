/* Host math of the vision tower. Matrices are row-major, strides count elements, bf16 travels as uint16_t.
   Results do not depend on the number of threads. Return 0, -ENOMEM or -EINVAL.
   layer_norm: x += factors * (sum of adds); out = bf16(layer norm of x).
   activate: out = bf16(act(factors * sum of `count` matrices)); kind 0: none, 1: GELU by tanh, 2: GELU by erf.
   full_attn: q, k rotated over the whole head (half-split), softmax(q k^T / sqrt(hd)) v for every head, of a
   picture of `rows` patches. load takes qkv [end - first, 3 heads hd], the rows [first, end), over into the scratch
   (of host_full_attn_floats floats); cosines, sines [rows, hd / 2]. part lets the queries [first, end) of the heads
   [head, head_end) see the keys [key, key_end), after those before: the part that ends with the last key writes
   out [end - first, heads hd]. All of these rows begin at multiples of 64 and end so or with the picture. How keys are
   shared out over parts changes no bit. */
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
int host_full_attn_load(const host_full_attn *d, int rows, int first, int end, const uint16_t *qkv,
                        int64_t qkv_stride, const float *cosines, const float *sines, float *scratch);
int host_full_attn_part(const host_full_attn *d, int rows, int first, int end, int key, int key_end, int head,
                        int head_end, float *scratch, uint16_t *out, int64_t out_stride);
