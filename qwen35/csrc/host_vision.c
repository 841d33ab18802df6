/* The vision stages that Python calls: the work shared out over the pool. */
#include "host_vision.h"

#include <errno.h>

#include "host_ops.h"
#include "host_pool.h"

static void norm_one(void *context, int block)
{
    struct layer_norm_job *job = context;
    if (host_ops()->layer_norm_task(job, block))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

int host_layer_norm_rows(const host_layer_norm *d, float *x, int rows, const uint16_t *const *adds,
                         const int64_t *add_strides, uint16_t *out, int64_t out_stride)
{
    struct layer_norm_job job = {d, x, rows, adds, add_strides, out, out_stride, 0};
    host_pool_run(norm_one, &job, (rows + NORM_ROWS - 1) / NORM_ROWS);
    return job.failed ? -ENOMEM : 0;
}

static void activate_one(void *context, int block)
{
    struct activate_job *job = context;
    if (host_ops()->activate_task(job, block))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

int host_activate_rows(int kind, int dim, int rows, const uint16_t *const *adds, const int64_t *add_strides,
                       int count, const float *factors, uint16_t *out, int64_t out_stride)
{
    struct activate_job job = {kind, dim, rows, count, adds, add_strides, factors, out, out_stride, 0};
    host_pool_run(activate_one, &job, (rows + NORM_ROWS - 1) / NORM_ROWS);
    return job.failed ? -ENOMEM : 0;
}

int64_t host_full_attn_floats(const host_full_attn *d, int rows)
{
    return d->heads * full_floats(d->hd, full_rows(rows));
}

static int full_attn_fits(const host_full_attn *d, int rows, int first, int end)
{
    return !(d->hd % 4 || d->hd < 4 || d->hd > 128 || first < 0 || first > end || end > rows ||
             first % FULL_TILE || (end % FULL_TILE && end != rows));
}

static void load_one(void *context, int task)
{
    struct full_attn_job *job = context;
    if (host_ops()->full_attn_load(job, task))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

static void block_one(void *context, int task)
{
    struct full_attn_job *job = context;
    if (host_ops()->full_attn_block(job, task))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

int host_full_attn_load(const host_full_attn *d, int rows, int first, int end, const uint16_t *qkv,
                        int64_t qkv_stride, const float *cosines, const float *sines, float *scratch)
{
    struct full_attn_job job = {.d = d, .rows = rows, .qkv = qkv, .qkv_stride = qkv_stride,
                                .cosines = cosines, .sines = sines, .scratch = scratch,
                                .first = first, .end = end};
    if (!full_attn_fits(d, rows, first, end))
        return -EINVAL;
    host_pool_run(load_one, &job, (end - first + FULL_TILE - 1) / FULL_TILE * full_groups(d->heads));
    return job.failed ? -ENOMEM : 0;
}

int host_full_attn_part(const host_full_attn *d, int rows, int first, int end, int key, int key_end, int head,
                        int head_end, float *scratch, uint16_t *out, int64_t out_stride)
{
    struct full_attn_job job = {.d = d, .rows = rows, .scratch = scratch, .out = out, .out_stride = out_stride,
                                .first = first, .end = end, .key = key, .key_end = key_end, .head = head};
    if (!full_attn_fits(d, rows, first, end) || !full_attn_fits(d, rows, key, key_end) || head < 0 ||
        head > head_end || head_end > d->heads)
        return -EINVAL;
    host_pool_run(block_one, &job, (end - first + FULL_BLOCK - 1) / FULL_BLOCK * (head_end - head));
    return job.failed ? -ENOMEM : 0;
}
