/* This process's own memory, reached as a kernel reaches a user's: through copies that fail instead of faulting.
 * A window is a page of a memfd that is mapped here too: pwrite to it copies from an address, pread to one, for
 * half of what process_vm_readv takes to find and pin pages. */
#include "own.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WINDOWS = 64 };

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(char *) base; /* WINDOWS pages, or NULL before the first use */
static _Atomic uint64_t taken;
static int file = -1;

/* A forked child shares the pages with its parent: it makes its own. */
static void forget(void)
{
    pthread_mutex_init(&making, NULL);
    atomic_store(&base, NULL);
    atomic_store(&taken, 0);
    if (file >= 0)
        close(file);
    file = -1;
}

static char *make_windows(void)
{
    static int hooked;
    pthread_mutex_lock(&making);
    char *pages = atomic_load(&base);
    if (!pages) {
        if (!hooked)
            hooked = pthread_atfork(NULL, NULL, forget) == 0;
        int fd = hooked ? memfd_create("amdxdna-copy", MFD_CLOEXEC) : -1;
        if (fd >= 0 && !ftruncate(fd, WINDOWS * OWN_WINDOW)) {
            pages = mmap(NULL, WINDOWS * OWN_WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (pages == MAP_FAILED)
                pages = NULL;
        }
        if (pages)
            file = fd;
        else if (fd >= 0)
            close(fd);
        atomic_store(&base, pages);
    }
    pthread_mutex_unlock(&making);
    return pages;
}

static int take(void)
{
    uint64_t now = atomic_load_explicit(&taken, memory_order_relaxed);
    while (~now) {
        int window = __builtin_ctzll(~now);
        if (atomic_compare_exchange_weak_explicit(&taken, &now, now | 1ull << window, memory_order_acquire,
                                                  memory_order_relaxed))
            return window;
    }
    return -1;
}

int own_copy(uintptr_t remote, void *local, size_t length, int out)
{
    char *pages = atomic_load(&base);
    if (!pages && !(pages = make_windows()))
        return -ENOSYS;
    int window = take();
    if (window < 0)
        return -ENOSYS;
    char *page = pages + (size_t)window * OWN_WINDOW;
    off_t offset = (off_t)window * OWN_WINDOW;
    ssize_t moved;
    if (out) {
        memcpy(page, local, length);
        moved = pread(file, (void *)remote, length, offset);
    } else {
        moved = pwrite(file, (const void *)remote, length, offset);
        memcpy(local, page, length);
    }
    int failed = moved == (ssize_t)length ? 0 : moved < 0 ? -errno : -EFAULT;
    atomic_fetch_and_explicit(&taken, ~(1ull << window), memory_order_release);
    return failed;
}
