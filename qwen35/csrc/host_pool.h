#ifndef HOST_POOL_H
#define HOST_POOL_H

#include <stddef.h>

/* Runs task(context, i) once for every i in [0, count) on the caller and the pool's threads, and returns when
   all have ended. Which thread runs which i is left open, so a task's result may depend on i alone. A caller
   that finds the pool busy (another thread, or a task itself) runs its tasks alone. Usable after fork. */
typedef void host_task(void *context, int index);
void host_pool_run(host_task *task, void *context, int count);

/* This thread's scratch, 64-byte aligned, at least `bytes`; kept until the thread ends; NULL without memory. */
void *host_scratch(size_t bytes);

#endif
