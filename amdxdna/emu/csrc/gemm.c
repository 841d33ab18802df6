/* GEMM C = A B: the driver. Rows of A that are all zero (a chunk's padding) are found first and only get
   the epilogue of nothing; the others are packed in tiles. Then threads take panels of 64 outputs: a panel's
   weights are decoded once and multiplied with every tile. */
#include "internal.h"
#include "pool.h"

#include <errno.h>
#include <stdatomic.h>

/* Rows of A packed at a time: bounds the packed copy; more rows decode the weights again. */
enum { MAX_ROWS = 2048 };
enum { MAX_TILE = 16 };

typedef struct {
    const isa_variant *variant;
    const uint16_t *a;
    const uint8_t *b;
    const uint8_t *bias;
    uint16_t *c;
    size_t rows, k, n, lda, c_stride, stride, first;
    epilogue kind;
    size_t second;                /* bytes from a stream to the one it is summed with, or 0 */
    uint32_t format;
    uint8_t busy[MAX_ROWS];       /* the row has a value other than zero */
    uint16_t list[MAX_ROWS];      /* busy rows */
    size_t count, tiles;
    uint8_t *packed;
    size_t tile_bytes;
    uint16_t *idle;               /* C's row for a zero row of A */
    _Atomic int failed;
} gemm_job;

static int all_zero(const uint16_t *row, size_t k)
{
    size_t i = 0;
    for (; i + 32 <= k; i += 32) {
        uint16_t any = 0;
        for (size_t j = 0; j < 32; j++)
            any |= row[i + j];
        if (any & 0x7FFF)
            return 0;
    }
    for (; i < k; i++)
        if (row[i] & 0x7FFF)
            return 0;
    return 1;
}

static void scan_task(void *context, size_t begin, size_t end, unsigned worker)
{
    (void)worker;
    gemm_job *job = context;
    for (size_t r = begin; r < end; r++)
        job->busy[r] = !all_zero(job->a + (job->first + r) * job->lda, job->k);
}

/* Tiles differ in size by at most one row. */
static size_t tile_start(const gemm_job *job, size_t tile) { return tile * job->count / job->tiles; }

static void pack_task(void *context, size_t begin, size_t end, unsigned worker)
{
    (void)worker;
    gemm_job *job = context;
    for (size_t tile = begin; tile < end; tile++) {
        const uint16_t *rows[MAX_TILE] = {0};
        size_t from = tile_start(job, tile), count = tile_start(job, tile + 1) - from;
        for (size_t i = 0; i < count; i++)
            rows[i] = job->a + (job->first + job->list[from + i]) * job->lda;
        job->variant->pack(rows, (unsigned)count, job->k, job->packed + tile * job->tile_bytes);
    }
}

static void panel_bias(const gemm_job *job, size_t column, size_t count, float *bias)
{
    memset(bias, 0, PANEL * sizeof *bias);
    if (job->bias)
        memcpy(bias, job->bias + 4 * column, 4 * count);
}

static uint16_t *output(const gemm_job *job, uint16_t *row, size_t column)
{
    return row + (job->kind == SWIGLU ? column / 2 : column);
}

static void panel_task(void *context, size_t begin, size_t end, unsigned worker)
{
    gemm_job *job = context;
    const isa_variant *variant = job->variant;
    size_t half_bytes = job->k * HALF * variant->element;
    uint8_t *panel = pool_scratch(worker, 0, (job->second ? 4 : 2) * half_bytes);
    if (!panel) {
        atomic_store(&job->failed, 1);
        return;
    }
    for (size_t p = begin; p < end && !pool_stopped(); p++) {
        size_t column = p * PANEL, width = job->n - column < PANEL ? job->n - column : PANEL;
        size_t halves = width > HALF ? 2 : 1;
        for (size_t h = 0; h < halves; h++) {
            size_t wide = width - h * HALF < HALF ? width - h * HALF : HALF;
            const uint8_t *groups = job->b + (column + h * HALF) / 8 * job->stride;
            variant->decode[job->format](groups, wide / 8, job->k, panel + h * half_bytes);
            if (job->second)
                variant->decode[job->format](groups + job->second, wide / 8, job->k, panel + (2 + h) * half_bytes);
        }
        float bias[PANEL], sums[MAX_TILE * PANEL] __attribute__((aligned(64)));
        float rest[MAX_TILE * PANEL] __attribute__((aligned(64)));
        panel_bias(job, column, width, bias);
        for (size_t tile = 0; tile < job->tiles && !pool_stopped(); tile++) {
            size_t from = tile_start(job, tile), count = tile_start(job, tile + 1) - from;
            for (size_t h = 0; h < halves; h++)
                variant->tile(job->packed + tile * job->tile_bytes, panel + h * half_bytes, (unsigned)count,
                              job->k, sums + h * HALF);
            for (size_t h = 0; job->second && h < halves; h++) {
                variant->tile(job->packed + tile * job->tile_bytes, panel + (2 + h) * half_bytes,
                              (unsigned)count, job->k, rest + h * HALF);
                for (size_t i = 0; i < count; i++)
                    for (size_t j = h * HALF; j < (h + 1) * HALF; j++)
                        sums[i * PANEL + j] += rest[i * PANEL + j];
            }
            for (size_t i = 0; i < count; i++)
                variant->finish(sums + i * PANEL, bias, job->kind, (unsigned)width,
                                output(job, job->c + (job->first + job->list[from + i]) * job->c_stride, column));
        }
    }
}

/* C's row where A's is zero: the epilogue of the bias alone. */
static void idle_row(gemm_job *job)
{
    static const float zero[PANEL];
    float bias[PANEL];
    for (size_t column = 0; column < job->n; column += PANEL) {
        size_t width = job->n - column < PANEL ? job->n - column : PANEL;
        panel_bias(job, column, width, bias);
        job->variant->finish(zero, bias, job->kind, (unsigned)width, output(job, job->idle, column));
    }
}

static void idle_task(void *context, size_t begin, size_t end, unsigned worker)
{
    (void)worker;
    const gemm_job *job = context;
    size_t nbytes = 2 * (job->kind == SWIGLU ? job->n / 2 : job->n);
    for (size_t r = begin; r < end; r++)
        if (!job->busy[r])
            memcpy(job->c + (job->first + r) * job->c_stride, job->idle, nbytes);
}

static int run_rows(gemm_job *job, size_t rows, int threads)
{
    pool_run(scan_task, job, rows, 16, threads);
    job->count = 0;
    for (size_t r = 0; r < rows; r++)
        if (job->busy[r])
            job->list[job->count++] = (uint16_t)r;
    if (pool_stopped())
        return -ECANCELED; /* rows that nobody looked at */
    if (job->count < rows)
        pool_run(idle_task, job, rows, 16, threads);
    if (!job->count)
        return 0;
    job->tiles = (job->count + job->variant->tile_rows - 1) / job->variant->tile_rows;
    job->tile_bytes = (job->k * job->variant->tile_rows * job->variant->element + 63) & ~(size_t)63;
    job->packed = pool_scratch(POOL_SHARED, 1, job->tiles * job->tile_bytes);
    if (!job->packed)
        return -ENOMEM;
    pool_run(pack_task, job, job->tiles, 1, threads);
    pool_run(panel_task, job, (job->n + PANEL - 1) / PANEL, 1, threads);
    return job->failed ? -ENOMEM : pool_stopped() ? -ECANCELED : 0;
}

int emu_gemm(uintptr_t a, uintptr_t b, uintptr_t c, size_t rows, size_t k, size_t n, size_t lda,
             size_t c_stride, uint32_t flags, uint32_t format, int threads, int isa, const int *stop)
{
    int status = 0;
    pool_enter(stop);
    gemm_job *job = pool_scratch(POOL_SHARED, 0, sizeof *job + 2 * n);
    if (!job) {
        pool_leave();
        return -ENOMEM;
    }
    memset(job, 0, sizeof *job);
    job->variant = isa_variant_of(isa);
    job->a = (const uint16_t *)a;
    job->b = (const uint8_t *)b;
    job->c = (uint16_t *)c;
    job->k = k;
    job->n = n;
    job->lda = lda;
    job->c_stride = c_stride;
    job->stride = group_bytes(k, format);
    job->second = flags & EMU_PAIR ? n / 8 * job->stride : 0;
    job->bias = flags & EMU_BIAS ? job->b + job->second + n / 8 * job->stride : NULL;
    job->kind = flags & EMU_SWIGLU ? SWIGLU : flags & EMU_GELU ? GELU : PLAIN;
    job->format = format;
    job->idle = (uint16_t *)(job + 1);
    idle_row(job);
    for (job->first = 0; job->first < rows && !status; job->first += MAX_ROWS) {
        size_t left = rows - job->first;
        status = run_rows(job, left < MAX_ROWS ? left : MAX_ROWS, threads);
    }
    pool_leave();
    return status;
}
