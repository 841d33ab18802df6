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

static void load_one(void *context, int head)
{
    host_ops()->full_attn_load(context, head);
}

static void block_one(void *context, int task)
{
    struct full_attn_job *job = context;
    if (host_ops()->full_attn_block(job, task))
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
}

int host_full_attn_rows(const host_full_attn *d, const uint16_t *qkv, int64_t qkv_stride, int rows,
                        const float *cosines, const float *sines, float *scratch, uint16_t *out,
                        int64_t out_stride)
{
    struct full_attn_job job = {d, qkv, qkv_stride, rows, cosines, sines, scratch, out, out_stride, 0};
    if (d->hd % 4 || d->hd < 4 || d->hd > 128)
        return -EINVAL;
    host_pool_run(load_one, &job, d->heads);
    host_pool_run(block_one, &job, (rows + QUERY_ROWS - 1) / QUERY_ROWS * d->heads);
    return job.failed ? -ENOMEM : 0;
}
