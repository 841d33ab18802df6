/* COPY, the probe of read bandwidth, and timer slack. */
#include "internal.h"
#include "pool.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/prctl.h>

/* Bytes between two looks at whether to stop. */
enum { COPIED = 64 << 20 };

int emu_copy(uintptr_t src, uintptr_t dst, size_t nbytes, uint32_t addend, const int *stop)
{
    for (size_t begin = 0; begin < nbytes; begin += COPIED) {
        if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
            return -ECANCELED;
        size_t end = nbytes - begin < COPIED ? nbytes : begin + COPIED;
        for (size_t at = begin; at < end; at += 4) {
            uint32_t word;
            memcpy(&word, (const void *)(src + at), 4);
            word += addend;
            memcpy((void *)(dst + at), &word, 4);
        }
    }
    return 0;
}

typedef uint64_t lanes __attribute__((vector_size(64), aligned(8), may_alias));

typedef struct {
    uintptr_t src;
    _Atomic uint64_t sum;
} read_job;

__attribute__((target_clones("avx512f", "avx2", "default")))
static uint64_t read_span(uintptr_t src, size_t begin, size_t end)
{
    lanes a = {0}, b = {0}, c = {0}, d = {0};
    size_t i = begin;
    for (; i + 4 <= end; i += 4) {
        const lanes *p = (const lanes *)(src + 64 * i);
        a ^= p[0];
        b ^= p[1];
        c ^= p[2];
        d ^= p[3];
    }
    for (; i < end; i++)
        a ^= *(const lanes *)(src + 64 * i);
    a ^= b ^ c ^ d;
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

static void read_task(void *context, size_t begin, size_t end, unsigned worker)
{
    (void)worker;
    read_job *job = context;
    atomic_fetch_xor(&job->sum, read_span(job->src, begin, end));
}

uint64_t emu_read(uintptr_t src, size_t nbytes, int threads)
{
    read_job job = {src, 0};
    pool_enter(NULL);
    pool_run(read_task, &job, nbytes / 64, 2048, threads);
    pool_leave();
    return job.sum;
}

long emu_timer_slack(long nanoseconds)
{
    long before = prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
    prctl(PR_SET_TIMERSLACK, (unsigned long)nanoseconds, 0UL, 0UL, 0UL);
    return before;
}
