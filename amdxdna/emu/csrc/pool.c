/* A pool of kernel threads: started when first needed, spinning briefly between runs, then asleep. */
#include "pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long a worker watches for the next run before it sleeps: past the dispatch and the host stage between two
   runs of a token, since waking it takes as long as a small run. Meanwhile it yields its core, and brings the
   memory nearer that the next run will probably read. */
enum { SPIN_NS = 400000, SPIN_BURST = 64 };

/* What is brought nearer ahead of a run: at most so much (it has to stay in the caches until it is used), so
   many bytes between two looks at the gate, so many times before the core is yielded, and so many bytes before a
   pause: a processor drops prefetches that come faster than memory answers (Zen 4: two of three). */
enum { AHEAD = 8 << 20, AHEAD_BURST = 16384, AHEAD_BURSTS = 8, AHEAD_PACE = 1024 };

/* A run on one thread looks so many times, about, whether it is to stop. */
enum { PIECES = 64 };

typedef struct {
    void *memory;
    size_t size;
} scratch;

/* `gate`: bit 0 = a run is open, bits 1..31 = workers inside it, bits 32.. = number of the run. A worker
   enters by compare-and-swap, so it cannot enter a run that has closed. */
enum { OPEN = 1, ONE = 2, INSIDE = 0x7FFFFFFE };

static struct {
    pthread_mutex_t turn;
    _Atomic uint64_t gate;
    _Atomic uint32_t bell;  /* futex: counts runs, sleepers wait on it */
    _Atomic uint32_t asleep;
    _Atomic uint32_t empty; /* futex: set when the last worker left a closed run */
    _Atomic uint64_t left;  /* items nobody has taken yet: first | end << 32 */
    pool_task task;
    void *context;
    const int *stop;
    size_t grain;
    unsigned helpers, started;
    _Atomic int cpu[POOL_THREADS]; /* where each worker was last seen in this run, -1: not yet */
    int hooked;
    scratch memory[POOL_THREADS + 1][POOL_SCRATCH];
} pool = {.turn = PTHREAD_MUTEX_INITIALIZER};

static struct {
    _Atomic uintptr_t next, end;
} ahead;

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_briefly(void)
{
    for (int i = 0; i < SPIN_BURST; i++)
        __builtin_ia32_pause();
}

/* Asks for the next piece of what the coming run will read; returns 0 when there is none. A prefetch never
   faults, so the memory need not exist any more. */
static int bring_nearer(void)
{
    uintptr_t end = atomic_load_explicit(&ahead.end, memory_order_relaxed);
    if (atomic_load_explicit(&ahead.next, memory_order_relaxed) >= end)
        return 0;
    uintptr_t at = atomic_fetch_add_explicit(&ahead.next, AHEAD_BURST, memory_order_relaxed);
    for (size_t i = 0; i < AHEAD_BURST; i += AHEAD_PACE) {
        for (size_t j = 0; j < AHEAD_PACE; j += 64)
            __builtin_prefetch((const char *)at + i + j, 0, 2);
        __builtin_ia32_pause();
    }
    return 1;
}

void pool_expect(uintptr_t memory, size_t nbytes)
{
    atomic_store_explicit(&ahead.end, 0, memory_order_relaxed);
    atomic_store_explicit(&ahead.next, memory, memory_order_release);
    atomic_store_explicit(&ahead.end, memory + (nbytes < AHEAD ? nbytes : AHEAD), memory_order_release);
}

/* A wake-up may put a worker on a core that another one already has, while a core is idle or has less
   urgent work; the kernel can take seconds to notice. Moves this thread off the others' cores, once: its
   affinity is what it was before. */
static void leave_shared_core(void)
{
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    others = allowed;
    for (unsigned i = 0; i <= pool.helpers; i++) {
        int cpu = atomic_load_explicit(&pool.cpu[i], memory_order_relaxed);
        if (cpu >= 0)
            CPU_CLR(cpu, &others);
    }
    if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others))
        sched_setaffinity(0, sizeof allowed, &allowed);
}

/* Notes where this worker runs; moves it when a worker of a lower number is there too. */
static void spread_out(unsigned worker)
{
    int cpu = sched_getcpu();
    if (cpu == atomic_exchange_explicit(&pool.cpu[worker], cpu, memory_order_relaxed))
        return;
    for (unsigned i = 0; i < worker; i++)
        if (cpu == atomic_load_explicit(&pool.cpu[i], memory_order_relaxed)) {
            leave_shared_core();
            atomic_store_explicit(&pool.cpu[worker], sched_getcpu(), memory_order_relaxed);
            return;
        }
}

/* Takes runs of items, large ones first (a run of neighbours streams well), small ones at the end (so that all
   finish together). Helpers begin at the beginning, which they have brought into their own caches; the caller
   begins at the end. */
static void work(unsigned worker)
{
    uint64_t left = atomic_load_explicit(&pool.left, memory_order_relaxed);
    for (;;) {
        size_t begin = (uint32_t)left, end = left >> 32;
        if (begin >= end || pool_stopped())
            return;
        spread_out(worker);
        size_t share = (end - begin) / (4 * (pool.helpers + 1));
        size_t take = share > pool.grain ? share : end - begin < pool.grain ? end - begin : pool.grain;
        uint64_t rest = worker ? (uint64_t)end << 32 | (begin + take) : (uint64_t)(end - take) << 32 | begin;
        if (atomic_compare_exchange_weak_explicit(&pool.left, &left, rest, memory_order_relaxed,
                                                  memory_order_relaxed)) {
            if (worker)
                pool.task(pool.context, begin, begin + take, worker);
            else
                pool.task(pool.context, end - take, end, worker);
            left = atomic_load_explicit(&pool.left, memory_order_relaxed);
        }
    }
}

/* Enters the open run unless it is `seen`, the one this worker has left already. */
static int enter(unsigned worker, uint32_t *seen)
{
    uint64_t gate = atomic_load_explicit(&pool.gate, memory_order_acquire);
    while (gate & OPEN && (uint32_t)(gate >> 32) != *seen) {
        if (atomic_compare_exchange_weak_explicit(&pool.gate, &gate, gate + ONE, memory_order_acquire,
                                                  memory_order_acquire)) {
            *seen = (uint32_t)(gate >> 32);
            if (worker <= pool.helpers)
                return 1;
            /* Not asked for: leave at once. */
            gate = atomic_fetch_sub_explicit(&pool.gate, ONE, memory_order_release) - ONE;
            if (!(gate & (OPEN | INSIDE))) {
                atomic_store(&pool.empty, 1);
                futex_wake(&pool.empty);
            }
            return 0;
        }
    }
    return 0;
}

static void *worker_main(void *argument)
{
    unsigned worker = (unsigned)(uintptr_t)argument;
    uint32_t seen = 0;
    for (;;) {
        int64_t deadline = now_ns() + SPIN_NS;
        int in = enter(worker, &seen);
        while (!in && now_ns() < deadline) {
            int brought = 0;
            while (!in && brought < AHEAD_BURSTS && bring_nearer()) {
                in = enter(worker, &seen);
                brought++;
            }
            if (in)
                break;
            if (!brought)
                pause_briefly();
            sched_yield();
            in = enter(worker, &seen);
        }
        if (!in) {
            uint32_t bell = atomic_load(&pool.bell);
            atomic_fetch_add(&pool.asleep, 1);
            in = enter(worker, &seen);
            if (!in)
                futex_wait(&pool.bell, bell);
            atomic_fetch_sub(&pool.asleep, 1);
            if (!in)
                continue;
        }
        work(worker);
        uint64_t gate = atomic_fetch_sub_explicit(&pool.gate, ONE, memory_order_release) - ONE;
        if (!(gate & (OPEN | INSIDE))) {
            atomic_store(&pool.empty, 1);
            futex_wake(&pool.empty);
        }
    }
    return NULL;
}

/* In a forked child only the forking thread lives: forget the workers, keep the scratch memory. */
static void forget_workers(void)
{
    pthread_mutex_init(&pool.turn, NULL);
    atomic_store(&pool.gate, 0);
    atomic_store(&pool.asleep, 0);
    pool.started = 0;
}

static void start_workers(unsigned helpers)
{
    if (pool.started >= helpers)
        return;
    if (!pool.hooked)
        pool.hooked = pthread_atfork(NULL, NULL, forget_workers) == 0;
    if (!pool.hooked)
        return;
    /* Signals are the program's business: none is delivered to a kernel thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.started < helpers) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker_main, (void *)(uintptr_t)(pool.started + 1)))
            break;
        pthread_detach(thread);
        pool.started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void pool_enter(const int *stop)
{
    pthread_mutex_lock(&pool.turn);
    pool.stop = stop;
}

void pool_leave(void) { pthread_mutex_unlock(&pool.turn); }

int pool_stopped(void) { return pool.stop && __atomic_load_n(pool.stop, __ATOMIC_RELAXED); }

unsigned pool_width(int threads)
{
    if (threads <= 0) {
        cpu_set_t set;
        threads = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    }
    return threads > POOL_THREADS ? POOL_THREADS : (unsigned)threads;
}

void pool_run(pool_task task, void *context, size_t items, size_t grain, int threads)
{
    unsigned width = pool_width(threads);
    if (width == 1 || items <= grain) {
        size_t piece = items / PIECES > grain ? items / PIECES : grain;
        for (size_t at = 0; at < items && !pool_stopped(); at += piece)
            task(context, at, items - at < piece ? items : at + piece, 0);
        return;
    }
    start_workers(width - 1);
    pool.task = task;
    pool.context = context;
    pool.grain = grain;
    pool.helpers = width - 1;
    for (unsigned i = 0; i < width; i++)
        atomic_store_explicit(&pool.cpu[i], -1, memory_order_relaxed);
    atomic_store(&pool.left, (uint64_t)items << 32);
    atomic_store(&pool.empty, 0);
    uint64_t number = (atomic_load(&pool.gate) >> 32) + 1;
    if (!(uint32_t)number)
        number = 1;
    atomic_store(&pool.gate, number << 32 | OPEN);
    atomic_fetch_add(&pool.bell, 1);
    if (atomic_load(&pool.asleep))
        futex_wake(&pool.bell);
    work(0);
    uint64_t gate = atomic_fetch_and(&pool.gate, ~(uint64_t)OPEN);
    int64_t deadline = 0;
    while (gate & INSIDE) {
        pause_briefly();
        gate = atomic_load_explicit(&pool.gate, memory_order_acquire);
        if (!(gate & INSIDE))
            break;
        if (!deadline)
            deadline = now_ns() + SPIN_NS;
        else if (now_ns() > deadline)
            futex_wait(&pool.empty, 0);
    }
}

void *pool_scratch(unsigned worker, unsigned use, size_t nbytes)
{
    scratch *held = &pool.memory[worker][use];
    if (held->size < nbytes) {
        free(held->memory);
        held->size = (nbytes + 4095) & ~(size_t)4095;
        held->memory = aligned_alloc(64, held->size);
        if (!held->memory)
            held->size = 0;
    }
    return held->memory;
}
