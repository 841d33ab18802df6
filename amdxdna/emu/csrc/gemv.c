/* GEMV y = W x: the driver; the arithmetic is in the variants. */
#include "internal.h"
#include "pool.h"

#include <errno.h>

/* Least bytes of weights a thread takes at a time. */
enum { PIECE = 48 << 10 };
/* Longest x the variants prepare entries for; beyond it the portable variant runs, which needs none. */
enum { MAX_PREPARED = 1 << 17 };

/* Which weights came after which: a model asks for the same ones in the same order at every token. */
enum { FOLLOWERS = 2048 };
static struct {
    uintptr_t before, w;
    size_t nbytes;
} followers[FOLLOWERS];
static uintptr_t last_w;

static size_t place_of(uintptr_t w) { return (w >> 6) * 0x9E3779B97F4A7C15u >> 53; }

/* Notes that the weights `w` are used now, and lets those that followed last time come nearer: from when a worker
   finds nothing left to do of this run. Holds the pool. */
static void expect_follower(uintptr_t w, size_t nbytes)
{
    size_t was = place_of(last_w), is = place_of(w);
    followers[was].before = last_w;
    followers[was].w = w;
    followers[was].nbytes = nbytes;
    last_w = w;
    if (followers[is].before == w)
        pool_expect(followers[is].w, followers[is].nbytes);
}

typedef struct {
    const gemv_job *job;
    void (*run)(const gemv_job *, size_t, size_t);
} gemv_run;

static void gemv_task(void *context, size_t begin, size_t end, unsigned worker)
{
    (void)worker;
    const gemv_run *run = context;
    run->run(run->job, begin, end);
}

int emu_gemv(uintptr_t x, uintptr_t w, uintptr_t y, size_t m, size_t k, uint32_t flags,
             uint32_t format, int threads, int isa, const int *stop)
{
    const isa_variant *variant = isa_variant_of(isa);
    size_t stride = group_bytes(k, format), groups = m / 8;
    gemv_job job = {(const uint8_t *)w, NULL, (uint16_t *)y, k, stride, (const void *)x, 0};
    if (flags & EMU_BIAS)
        job.bias = job.w + groups * stride;
    pool_enter(stop);
    if (variant->x_bytes && k <= MAX_PREPARED) {
        void *entries = pool_scratch(POOL_SHARED, 0, k * variant->x_bytes);
        if (!entries) {
            pool_leave();
            return -ENOMEM;
        }
        job.x = entries;
        job.entries = variant->prepare[format]((const uint16_t *)x, k, entries);
    }
    if (!job.entries) {
        variant = &isa_portable;
        job.x = (const void *)x;
    }
    size_t grain = PIECE / stride + 1;
    gemv_run run = {&job, variant->gemv[format]};
    expect_follower(w, groups * stride);
    pool_run(gemv_task, &run, groups, grain, threads);
    int stopped = pool_stopped();
    pool_leave();
    return stopped ? -ECANCELED : 0;
}
