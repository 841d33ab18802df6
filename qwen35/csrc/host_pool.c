/* A small thread pool. A region's next index lives in one word with the region's number, so a thread that
   wakes late can neither run a finished region's task nor hold up the caller. */
#include "host_pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "host.h"

enum { MAX_THREADS = 64, SPINS = 4000 };

static struct {
    pthread_mutex_t region; /* held by the caller that owns the pool */
    pthread_mutex_t lock;   /* guards the fields down to `context` */
    pthread_cond_t wake, finished;
    uint32_t number;        /* of the current region */
    int count;
    host_task *task;
    void *context;
    _Atomic uint64_t ticket; /* region number << 32 | next index */
    _Atomic int left;        /* tasks not finished */
    _Atomic int threads;     /* wanted, with the caller; 0: not decided */
    int started;             /* workers alive */
} pool = {.region = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER, .finished = PTHREAD_COND_INITIALIZER};

static void after_fork(void)
{
    pthread_mutex_init(&pool.region, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.finished, NULL);
    pool.started = 0;
}

static void run_tasks(uint32_t number, int count, host_task *task, void *context)
{
    uint64_t ticket = atomic_load(&pool.ticket);
    while ((uint32_t)(ticket >> 32) == number && (int)(uint32_t)ticket < count) {
        if (!atomic_compare_exchange_weak(&pool.ticket, &ticket, ticket + 1))
            continue;
        task(context, (int)(uint32_t)ticket);
        if (atomic_fetch_sub(&pool.left, 1) == 1) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_signal(&pool.finished);
            pthread_mutex_unlock(&pool.lock);
            return;
        }
        ticket = atomic_load(&pool.ticket);
    }
}

static void *worker(void *slot)
{
    uint32_t seen = 0;
    int index = (int)(intptr_t)slot;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.number == seen && index < pool.threads)
            pthread_cond_wait(&pool.wake, &pool.lock);
        if (index >= pool.threads)
            break;
        seen = pool.number;
        int count = pool.count;
        host_task *task = pool.task;
        void *context = pool.context;
        pthread_mutex_unlock(&pool.lock);
        run_tasks(seen, count, task, context);
        pthread_mutex_lock(&pool.lock);
    }
    pool.started--;
    pthread_cond_broadcast(&pool.finished);
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

static int default_threads(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return count > 16 ? 16 : count < 1 ? 1 : count;
}

/* Called with `region` held. A thread that cannot be had is done without. */
static void start_workers(void)
{
    static int registered;
    if (!registered)
        registered = !pthread_atfork(NULL, NULL, after_fork);
    if (!pool.threads)
        pool.threads = default_threads();
    if (pool.started >= pool.threads - 1)
        return;
    sigset_t all, before;
    sigfillset(&all); /* signals stay with the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; pool.started < pool.threads - 1; pool.started++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, (void *)(intptr_t)(pool.started + 1)))
            break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void alone(host_task *task, void *context, int count)
{
    for (int i = 0; i < count; i++)
        task(context, i);
}

void host_pool_run(host_task *task, void *context, int count)
{
    if (count <= 0)
        return;
    if (count == 1 || pool.threads == 1 || pthread_mutex_trylock(&pool.region)) {
        alone(task, context, count);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    start_workers();
    if (!pool.started) {
        pthread_mutex_unlock(&pool.lock);
        pthread_mutex_unlock(&pool.region);
        alone(task, context, count);
        return;
    }
    uint32_t number = ++pool.number ? pool.number : ++pool.number;
    pool.count = count;
    pool.task = task;
    pool.context = context;
    atomic_store(&pool.left, count);
    atomic_store(&pool.ticket, (uint64_t)number << 32);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    run_tasks(number, count, task, context);
    for (int spin = 0; spin < SPINS && atomic_load(&pool.left) > 0; spin++)
        __builtin_ia32_pause();
    if (atomic_load(&pool.left) > 0) {
        pthread_mutex_lock(&pool.lock);
        while (atomic_load(&pool.left) > 0)
            pthread_cond_wait(&pool.finished, &pool.lock);
        pthread_mutex_unlock(&pool.lock);
    }
    pthread_mutex_unlock(&pool.region);
}

/* Sets the threads that share a region, the caller among them (0: one a processor, at most 16). Waits for
   surplus threads to end. Returns the number before, or -EINVAL. */
int host_set_threads(int count)
{
    if (count < 0 || count > MAX_THREADS)
        return -EINVAL;
    pthread_mutex_lock(&pool.region);
    pthread_mutex_lock(&pool.lock);
    int before = pool.threads ? pool.threads : default_threads();
    pool.threads = count ? count : default_threads();
    pthread_cond_broadcast(&pool.wake);
    while (pool.started > pool.threads - 1)
        pthread_cond_wait(&pool.finished, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.region);
    return before;
}

int host_threads(void)
{
    return pool.threads ? pool.threads : default_threads();
}

static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static pthread_key_t scratch_key;

struct scratch {
    size_t bytes;
    void *data;
};

static void scratch_free(void *value)
{
    struct scratch *own = value;
    free(own->data);
    free(own);
}

static void scratch_init(void)
{
    pthread_key_create(&scratch_key, scratch_free);
}

void *host_scratch(size_t bytes)
{
    pthread_once(&scratch_once, scratch_init);
    struct scratch *own = pthread_getspecific(scratch_key);
    if (!own) {
        own = calloc(1, sizeof *own);
        if (!own || pthread_setspecific(scratch_key, own)) {
            free(own);
            return NULL;
        }
    }
    if (own->bytes < bytes) {
        free(own->data);
        own->bytes = (bytes + 4095) & ~(size_t)4095;
        own->data = aligned_alloc(64, own->bytes);
        if (!own->data)
            own->bytes = 0;
    }
    return own->data;
}
