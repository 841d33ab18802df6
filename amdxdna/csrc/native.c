#include "native.h"
#include "user_copy.h"

#include <cpuid.h>
#include <errno.h>
#include <immintrin.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CACHE_LINE = 64 }; /* every x86-64 part that carries an NPU */

/* One attempt: EINTR goes back to Python, where pending signal handlers run before the retry. */
int xdna_ioctl(int fd, unsigned long request, uintptr_t arg)
{
    int value = ioctl(fd, request, arg);
    return value < 0 ? -errno : value;
}

void xdna_ioctl_pairs(int fd, unsigned long first, uintptr_t first_arg, unsigned long second, uintptr_t second_arg,
                      int count)
{
    for (int i = 0; i < count; i++) {
        ioctl(fd, first, first_arg);
        ioctl(fd, second, second_arg);
    }
}

intptr_t xdna_mmap(uintptr_t address, size_t length, int prot, int flags, int fd, uint64_t offset)
{
    void *mapped = mmap((void *)address, length, prot, flags, fd, (off_t)offset);
    return mapped == MAP_FAILED ? -(intptr_t)errno : (intptr_t)mapped;
}

int xdna_munmap(uintptr_t address, size_t length)
{
    return munmap((void *)address, length) ? -errno : 0;
}

int xdna_has_clflushopt(void)
{
    unsigned int a, b = 0, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1); /* leaf 7 EBX bit 23 */
}

static int overlapping;

__attribute__((constructor)) static void choose_flush(void)
{
    overlapping = xdna_has_clflushopt();
}

/* clflushopt is weakly ordered with itself: flushes overlap, which is several times as fast on a large range. */
__attribute__((target("clflushopt"))) static void flush_lines(uintptr_t line, uintptr_t end)
{
    for (; line < end; line += CACHE_LINE)
        if (overlapping)
            _mm_clflushopt((void *)line);
        else
            _mm_clflush((const void *)line);
}

/* Writes back and invalidates the lines of [address, address + length): the NPU does not snoop.
 * The fence before orders earlier stores with clflushopt, the one after orders the flush with what
 * follows: a submit, or the reads of a result. */
void xdna_flush(uintptr_t address, size_t length)
{
    if (!length)
        return;
    _mm_mfence();
    flush_lines(address & ~(uintptr_t)(CACHE_LINE - 1), address + length);
    _mm_mfence();
}

static void flush_places(const uintptr_t *places, size_t count)
{
    _mm_mfence();
    for (size_t i = 0; i < count; i++)
        flush_lines(places[i] & ~(uintptr_t)(CACHE_LINE - 1), places[i] + 1);
    _mm_mfence();
}

void xdna_mark(const uintptr_t *places, size_t count, uint16_t value)
{
    for (size_t i = 0; i < count; i++)
        *(volatile uint16_t *)places[i] = value;
    flush_places(places, count);
}

/* First the lines of `ranges`, pairs of an address and a length, are written back and invalidated. */
size_t xdna_marked(const uintptr_t *places, size_t count, uint16_t value, const uintptr_t *ranges, size_t pairs)
{
    size_t found = 0;
    _mm_mfence();
    for (size_t i = 0; i < 2 * pairs; i += 2)
        flush_lines(ranges[i] & ~(uintptr_t)(CACHE_LINE - 1), ranges[i] + ranges[i + 1]);
    flush_places(places, count);
    for (size_t i = 0; i < count; i++)
        found += *(volatile const uint16_t *)places[i] == value;
    return found;
}

/* getpid() is a system call, which a dispatch on the emulated NPU would make seven times. */
static int own_pid;

static void learn_pid(void)
{
    own_pid = getpid();
}

__attribute__((constructor)) static void keep_pid(void)
{
    learn_pid();
    pthread_atfork(NULL, NULL, learn_pid);
}

/* A kernel's copy_from_user and copy_to_user for the emulated driver: a bad address is EFAULT, never a fault. */
static int vm_copy(int pid, uintptr_t remote, void *local, size_t length, int out)
{
    if (!length)
        return 0;
    if (length <= USER_COPY_MOST && pid == own_pid) {
        int result = user_copy(remote, local, length, out);
        if (result != -ENOSYS)
            return result;
    }
    struct iovec here = {local, length}, there = {(void *)remote, length};
    ssize_t moved = out ? process_vm_writev(pid, &here, 1, &there, 1, 0)
                        : process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (moved < 0)
        return -errno;
    return (size_t)moved == length ? 0 : -EFAULT;
}

int xdna_vm_read(int pid, uintptr_t remote, void *local, size_t length)
{
    return vm_copy(pid, remote, local, length, 0);
}

int xdna_vm_write(int pid, uintptr_t remote, const void *local, size_t length)
{
    return vm_copy(pid, remote, (void *)local, length, 1);
}
