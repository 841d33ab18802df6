/* The functions Python calls: the instruction set is chosen here and the work shared out over the pool. */
#include "host.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host_ops.h"
#include "host_pool.h"

static _Atomic(const struct host_ops *) chosen;

static const struct host_ops *find(const char *name)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16") && (!name || !strcmp(name, "avx512bf16")))
        return &host_ops_avx512bf16;
    if (avx512 && (!name || !strcmp(name, "avx512")))
        return &host_ops_avx512;
    if (avx2 && (!name || !strcmp(name, "avx2")))
        return &host_ops_avx2;
#endif
    return !name || !strcmp(name, "portable") ? &host_ops_portable : NULL;
}

const struct host_ops *host_ops(void)
{
    const struct host_ops *own = atomic_load(&chosen);
    if (!own) {
        own = find(getenv("QWEN35_ISA"));
        own = own ? own : find(NULL);
        atomic_store(&chosen, own);
    }
    return own;
}

const char *host_isa(void)
{
    return host_ops()->name;
}

/* portable, avx2, avx512, avx512bf16, or NULL for the best; -EINVAL where this processor lacks it. */
int host_set_isa(const char *name)
{
    const struct host_ops *own = find(name);
    if (!own)
        return -EINVAL;
    atomic_store(&chosen, own);
    return 0;
}

static void norm_one(void *context, int block)
{
    struct norm_job *job = context;
    if (host_ops()->norm_task(job, block))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

int host_norm_rows(const host_norm *d, float *x, int rows, const uint16_t *const *adds,
                   const int64_t *add_strides, uint16_t *out, int64_t out_stride, float *proj_out)
{
    struct norm_job job = {d, x, rows, adds, add_strides, out, out_stride, proj_out, 0};
    host_pool_run(norm_one, &job, (rows + NORM_ROWS - 1) / NORM_ROWS);
    return job.failed ? -ENOMEM : 0;
}

void host_swiglu_pairs(const uint16_t *pairs, int64_t count, uint16_t *out)
{
    host_ops()->swiglu_pairs(pairs, count, out);
}

void host_bf16_to_f32(const uint16_t *src, float *dst, int64_t count)
{
    host_ops()->bf16_to_f32(src, dst, count);
}

void host_f32_to_bf16(const float *src, uint16_t *dst, int64_t count)
{
    host_ops()->f32_to_bf16(src, dst, count);
}

void host_matmul(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc, int m, int n,
                 int k)
{
    host_ops()->matmul(m, n, k, a, lda, b, ldb, c, ldc);
}

static void fma_one(void *context, int index)
{
    volatile float result = host_ops()->fma_loop(*(int64_t *)context);
    (void)result;
}

int64_t host_fma(int64_t rounds)
{
    int threads = host_threads();
    host_pool_run(fma_one, &rounds, threads);
    return 2 * rounds * FMA_CHAINS * host_ops()->vector * threads;
}

/* Makes the pages of a fresh shared mapping, ready to be written: several times as fast as the faults of a read
   into it one by one. `start` is page-aligned. -errno where the kernel (before 5.14) or the mapping cannot. */
int host_populate(void *start, int64_t bytes)
{
    enum { POPULATE_WRITE = 23 }; /* MADV_POPULATE_WRITE, missing from older headers */
    return madvise(start, (size_t)bytes, POPULATE_WRITE) ? -errno : 0;
}

/* Reads memory that is wanted soon into the calling thread's caches, as far as they hold it: its beginning, which
   is wanted first, last. Loads, as a processor may drop hints. */
void host_fetch(const void *start, int64_t bytes)
{
    const volatile char *from = start;
    for (int64_t at = (bytes - 1) & ~(int64_t)63; at >= 0; at -= 64)
        (void)from[at];
}

/* madvise(WILLNEED) of the pages of `bytes` bytes at each address; what cannot be hinted is left alone. */
void host_will_need(const int64_t *starts, int64_t count, int64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = 0;
    for (int64_t i = 0; i < count; i++) {
        uintptr_t first = (uintptr_t)starts[i] & ~(page - 1), last = (uintptr_t)starts[i] + (uintptr_t)bytes;
        first = first < end ? end : first;
        if (first < last && !madvise((void *)first, last - first, MADV_WILLNEED))
            end = (last + page - 1) & ~(page - 1);
    }
}

static void delta_one(void *context, int key_head)
{
    struct delta_job *job = context;
    if (host_ops()->delta_prefill(job, key_head))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

static void delta_step_one(void *context, int key_head)
{
    struct delta_job *job = context;
    if (host_ops()->delta_step(job, key_head))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

static void delta_write_one(void *context, int key_head)
{
    host_ops()->delta_write(context, key_head);
}

/* Head dims must be multiples of 16; the states must be 64-byte aligned (non-temporal stores). */
static int delta_fits(const host_delta *d, const void *state)
{
    return d->conv_k >= 1 && d->conv_k <= MAX_TAPS && d->dk % 16 == 0 && d->dv % 16 == 0 && d->dk > 0 &&
           d->dv > 0 && d->key_heads > 0 && d->value_heads % d->key_heads == 0 && (uintptr_t)state % 64 == 0;
}

int host_delta_prefill(const host_delta *d, const uint16_t *y, int64_t y_stride, const float *gates,
                       int rows, const uint16_t *conv_in, uint16_t *conv_out, const float *state_in,
                       float *state_out, uint16_t *out, int64_t out_stride)
{
    struct delta_job job = {.d = d, .y = y, .y_stride = y_stride, .gates = gates, .rows = rows,
                            .conv_in = conv_in, .conv_out = conv_out, .state_in = state_in,
                            .state_out = state_out, .out = out, .out_stride = out_stride};
    if (!delta_fits(d, state_out))
        return -EINVAL;
    host_pool_run(delta_one, &job, d->key_heads);
    return job.failed ? -ENOMEM : 0;
}

int64_t host_delta_rest(const host_delta *d)
{
    return d->key_heads * (int64_t)d->dk + d->value_heads * (int64_t)(d->dv + 16);
}

int host_delta_step(const host_delta *d, const uint16_t *y, const float *gates, const uint16_t *conv_in,
                    const float *state_in, uint16_t *out, float *rest)
{
    struct delta_job job = {.d = d, .y = y, .gates = gates, .rows = 1, .conv_in = conv_in,
                            .state_in = state_in, .out = out, .rest = rest};
    if (!delta_fits(d, state_in))
        return -EINVAL;
    /* out of its own cache one thread has read so much before another is awake */
    if (sizeof(float) * (size_t)d->dk * (size_t)d->dv * (size_t)d->value_heads <= 1 << 20)
        for (int head = 0; head < d->key_heads; head++)
            delta_step_one(&job, head);
    else
        host_pool_run(delta_step_one, &job, d->key_heads);
    return job.failed ? -ENOMEM : 0;
}

int host_delta_write(const host_delta *d, const uint16_t *y, const uint16_t *conv_in, uint16_t *conv_out,
                     const float *state_in, float *state_out, float *rest)
{
    struct delta_job job = {.d = d, .y = y, .rows = 1, .conv_in = conv_in, .conv_out = conv_out,
                            .state_in = state_in, .state_out = state_out, .rest = rest};
    if (!delta_fits(d, state_out))
        return -EINVAL;
    host_pool_run(delta_write_one, &job, d->key_heads);
    return 0;
}

static int attn_fits(const host_attn *d)
{
    return d->hd > 0 && d->hd % 16 == 0 && d->hd <= MAX_HEAD && d->rope_dim >= 0 && d->rope_dim <= d->hd &&
           d->rope_dim % 2 == 0 && d->kv_heads > 0 && d->heads % d->kv_heads == 0;
}

static void append_one(void *context, int block)
{
    host_ops()->attn_append(context, block);
}

static void block_one(void *context, int task)
{
    struct attn_job *job = context;
    if (host_ops()->attn_block(job, task))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

static void piece_one(void *context, int task)
{
    host_ops()->attn_piece(context, task);
}

int host_attn_prefill(const host_attn *d, const uint16_t *y, int64_t y_stride, int rows, int64_t past,
                      const float *cosines, const float *sines, uint16_t *keys, uint16_t *values,
                      uint16_t *out, int64_t out_stride)
{
    struct attn_job job = {.d = d, .y = y, .y_stride = y_stride, .rows = rows, .past = past,
                           .cosines = cosines, .sines = sines, .keys = keys, .values = values,
                           .out = out, .out_stride = out_stride};
    if (!attn_fits(d))
        return -EINVAL;
    host_pool_run(append_one, &job, (rows + APPEND_ROWS - 1) / APPEND_ROWS);
    host_pool_run(block_one, &job, (rows + PROMPT_ROWS - 1) / PROMPT_ROWS * d->kv_heads);
    return job.failed ? -ENOMEM : 0;
}

/* The caller's scratch holds the queries and the pieces' results while the pool's threads fill them. */
int host_attn_step(const host_attn *d, const uint16_t *y, int64_t past, const float *cosines,
                   const float *sines, uint16_t *keys, uint16_t *values, uint16_t *out)
{
    if (!attn_fits(d))
        return -EINVAL;
    int pieces = (int)(past / PIECE_ROWS + 1);
    size_t heads = (size_t)d->heads, hd = (size_t)d->hd;
    float *query = host_scratch(sizeof(float) * (heads * hd + heads * (size_t)pieces * (hd + 2)));
    if (!query)
        return -ENOMEM;
    struct attn_job job = {.d = d, .y = y, .rows = 1, .past = past, .cosines = cosines, .sines = sines,
                           .keys = keys, .values = values, .out = out, .query = query,
                           .partial = query + heads * hd, .pieces = pieces};
    host_ops()->attn_query(&job);
    host_pool_run(piece_one, &job, pieces * d->kv_heads);
    host_ops()->attn_merge(&job);
    return 0;
}
