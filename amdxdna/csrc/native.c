#include "native.h"

#include <emmintrin.h>
#include <errno.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { CACHE_LINE = 64 }; /* every x86-64 part that carries an NPU */

/* One attempt: EINTR goes back to Python, where pending signal handlers run before the retry. */
int xdna_ioctl(int fd, unsigned long request, uintptr_t arg)
{
    int value = ioctl(fd, request, arg);
    return value < 0 ? -errno : value;
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

/* Writes back and invalidates the lines of [address, address + length): the NPU does not snoop. */
void xdna_flush(uintptr_t address, size_t length)
{
    uintptr_t line = address & ~(uintptr_t)(CACHE_LINE - 1);
    _mm_mfence();
    for (; line < address + length; line += CACHE_LINE)
        _mm_clflush((const void *)line);
    _mm_mfence();
}

static int vm_result(ssize_t moved, size_t length)
{
    if (moved < 0)
        return -errno;
    return (size_t)moved == length ? 0 : -EFAULT;
}

/* A kernel's copy_from_user for the emulated driver: a bad address is EFAULT, never a fault here. */
int xdna_vm_read(int pid, uintptr_t remote, void *local, size_t length)
{
    struct iovec here = {local, length}, there = {(void *)remote, length};
    return length ? vm_result(process_vm_readv(pid, &here, 1, &there, 1, 0), length) : 0;
}

int xdna_vm_write(int pid, uintptr_t remote, const void *local, size_t length)
{
    struct iovec here = {(void *)local, length}, there = {(void *)remote, length};
    return length ? vm_result(process_vm_writev(pid, &here, 1, &there, 1, 0), length) : 0;
}
