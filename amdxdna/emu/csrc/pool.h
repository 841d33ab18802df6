#ifndef POOL_H
#define POOL_H

#include <stddef.h>
#include <stdint.h>

/* Runs items [0, items) as task(context, begin, end, worker), `grain` items or more a call, on up to `threads`
   threads (0: one a core), the caller among them. Any item may run on any thread; returns when all are done.
   Callers hold the pool (pool_enter .. pool_leave); worker numbers are 0 .. POOL_THREADS - 1. */
typedef void (*pool_task)(void *context, size_t begin, size_t end, unsigned worker);

enum { POOL_THREADS = 64 };

/* `stop`: an int that another thread may make non-zero, or NULL. Runs end early then, items left out; the
   holder asks pool_stopped() and so may a task that takes long. */
void pool_enter(const int *stop);
void pool_leave(void);
int pool_stopped(void);
unsigned pool_width(int threads);
void pool_run(pool_task task, void *context, size_t items, size_t grain, int threads);

/* The next run will probably read this memory from its beginning: workers that watch for it bring it nearer
   meanwhile. A wrong guess costs nothing but their time; the memory may be gone. */
void pool_expect(uintptr_t memory, size_t nbytes);

/* 64-byte aligned memory of one of a few uses (0 .. POOL_SCRATCH - 1) of one worker, or of the whole run
   (POOL_SHARED), kept between runs but not its contents. NULL when there is none. A worker asks for its own,
   the pool's holder for the shared. */
enum { POOL_SCRATCH = 2, POOL_SHARED = POOL_THREADS };
void *pool_scratch(unsigned worker, unsigned use, size_t nbytes);

#endif
