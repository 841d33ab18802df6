/* Seeded nonsense at an emulated node, through the kernel: fuzz NODE PDI CODE SEED CALLS. Ends with one line. */
#define _GNU_SOURCE
#include "npu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SCRATCH = 1 << 16, FDS = 8, NODES = 4, VIEWS = 32 }; /* the first descriptors stay the node's */

static uint64_t state;
static unsigned char *scratch;
static struct npu npu;
static int fds[FDS];
static struct {
    void *at;
    size_t size;
} views[VIEWS];
static uint64_t offsets[VIEWS];

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint64_t below(uint64_t n)
{
    return draw() % n;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A number that some check may trip over. */
static uint64_t value(void)
{
    static const uint64_t odd[] = {0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 255, 256, 4095, 4096, 4097,
                                   8192, 1 << 16, 1 << 20, 64 << 20, 1 << 30, 1UL << 31, 0xFFFFFFFF, 1UL << 32,
                                   1UL << 40, 1UL << 47, 1UL << 62, 1UL << 63, ~0UL, ~0UL - 7, ~0UL - 4095};
    switch (below(8)) {
    case 0:
        return (uintptr_t)scratch + below(SCRATCH);
    case 1:
        return (uintptr_t)scratch + (below(SCRATCH) & ~(PAGE - 1));
    case 2:
        return (uint64_t)fds[below(FDS)];
    case 3:
        return draw() >> below(64);
    case 4:
        return offsets[below(VIEWS)];
    default:
        return odd[below(sizeof odd / sizeof *odd)];
    }
}

static void request(void)
{
    static const uint32_t known[] = {
        DRM_IOCTL_VERSION, DRM_IOCTL_GEM_CLOSE, DRM_IOCTL_PRIME_HANDLE_TO_FD, DRM_IOCTL_PRIME_FD_TO_HANDLE,
        DRM_IOCTL_SYNCOBJ_DESTROY, DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, DRM_IOCTL_AMDXDNA_CREATE_HWCTX,
        DRM_IOCTL_AMDXDNA_DESTROY_HWCTX, DRM_IOCTL_AMDXDNA_CONFIG_HWCTX, DRM_IOCTL_AMDXDNA_CREATE_BO,
        DRM_IOCTL_AMDXDNA_CREATE_BO, DRM_IOCTL_AMDXDNA_GET_BO_INFO, DRM_IOCTL_AMDXDNA_SYNC_BO,
        DRM_IOCTL_AMDXDNA_EXEC_CMD, DRM_IOCTL_AMDXDNA_GET_INFO, DRM_IOCTL_AMDXDNA_SET_STATE,
        DRM_IOCTL_AMDXDNA_WAIT_CMD, DRM_IOCTL_AMDXDNA_GET_ARRAY};
    uint64_t words[16];
    for (int i = 0; i < 16; i++)
        words[i] = below(3) ? value() : (value() & 0xFFFFFFFF) | value() << 32;
    uint32_t what = known[below(sizeof known / sizeof *known)];
    if (!below(8))
        what = (uint32_t)(below(4) << 30 | below(200) << 16 | 'd' << 8 | below(256));
    if ((what & 0xFF) == 0xCA) /* whatever waits for a time must not wait for centuries */
        words[2] = (uint64_t)(seconds() * 1e9) + below(2000000);
    if (what == DRM_IOCTL_AMDXDNA_CREATE_BO && below(2))
        words[0] = words[1] = 0, words[2] = PAGE << below(12), words[3] = 1 + below(4);
    void *argument = below(10) ? (void *)words : (void *)(uintptr_t)(below(2) ? value() : ~below(64));
    int fd = fds[below(below(8) ? NODES : FDS)];
    int failed = ioctl(fd, what, argument);
    if (!failed && what == DRM_IOCTL_AMDXDNA_GET_BO_INFO)
        offsets[below(VIEWS)] = ((struct amdxdna_drm_get_bo_info *)argument)->map_offset;
    if (!failed && what == DRM_IOCTL_PRIME_HANDLE_TO_FD) {
        int *given = &((struct drm_prime_handle *)argument)->fd;
        int at = NODES + (int)below(FDS - NODES);
        close(fds[at]);
        fds[at] = *given;
    }
}

static void map(void)
{
    size_t at = below(VIEWS), size = (1 + below(64)) * PAGE;
    if (views[at].at)
        munmap(views[at].at, views[at].size);
    views[at].at = NULL;
    void *where = mmap(NULL, size, PROT_READ | PROT_WRITE, (below(4) ? MAP_SHARED : MAP_PRIVATE) | MAP_NORESERVE,
                       fds[below(FDS)], (off_t)(below(4) ? offsets[below(VIEWS)] : value() & ~(PAGE - 1)));
    if (where == MAP_FAILED)
        return;
    if (!below(8)) {
        void *moved = mremap(where, size, size + PAGE * below(64), MREMAP_MAYMOVE);
        where = moved == MAP_FAILED ? where : moved;
    }
    views[at].at = where;
    views[at].size = size;
}

/* Paths about the device, some of them damaged. */
static void path(void)
{
    static const char *const paths[] = {
        "/dev/accel/accel0", "/dev/accel", "/sys/class/accel/accel0/device/vendor", "/sys/class/accel/",
        "/sys/bus/pci/devices/0000:c5:00.1/subsystem/devices", "/sys/bus/pci/devices", "/sys/dev/char/261:0/dev",
        "/sys/module/amdxdna/initstate", "/sys/bus/pci/drivers/amdxdna/module/../../amdxdna", "/proc/self/fd/3",
        "/sys/class/accel/../../class/accel/accel0/uevent", "/dev/accel/../accel/accel0/", "/proc/self/fd/"};
    char name[4200], target[64];
    struct stat status;
    struct statx more;
    snprintf(name, sizeof name, "%s", paths[below(sizeof paths / sizeof *paths)]);
    if (!below(3))
        name[below(strlen(name))] = (char)(1 + below(255));
    if (!below(16)) {
        memset(name, '/', sizeof name - 1);
        name[sizeof name - 1 - below(40)] = 0;
        memcpy(name, "/dev/accel", 10);
    }
    const char *where = below(16) ? name : (const char *)(uintptr_t)value();
    void *into = below(16) ? (void *)&status : (void *)(uintptr_t)value();
    int folder = below(2) ? AT_FDCWD : fds[below(FDS)];
    switch (below(8)) {
    case 0:
        syscall(SYS_newfstatat, folder, where, into, below(2) ? 0 : (int)value());
        break;
    case 1:
        syscall(SYS_statx, folder, where, (int)value() & 0xFFFF, 0x7FF, below(16) ? (void *)&more : into);
        break;
    case 2:
        syscall(SYS_readlinkat, folder, where, below(8) ? target : (char *)into, below(sizeof target));
        break;
    case 3:
        faccessat(folder, where, (int)below(8), 0);
        break;
    case 4:
        syscall(SYS_getxattr, where, "user.x", target, sizeof target);
        break;
    case 5:
        fstat(fds[below(FDS)], &status);
        break;
    case 6: {
        uint64_t how[3] = {value() & (O_ACCMODE | O_CLOEXEC | O_PATH | O_NOFOLLOW), 0, 0};
        int fd = (int)syscall(SYS_openat2, folder, where, below(8) ? (void *)how : into, sizeof how);
        close(fd);
        break;
    }
    default: {
        int at = NODES + (int)below(FDS - NODES);
        int flags = below(2) ? O_RDWR : (int)(value() & (O_ACCMODE | O_DIRECTORY | O_PATH | O_NOFOLLOW | O_CLOEXEC));
        int fd = openat(folder, where, flags | O_NONBLOCK);
        if (fd >= 0 && fd < 900) {
            close(fds[at]);
            fds[at] = fd;
        }
    }
    }
}

int main(int count, char **words)
{
    CHECK(count == 6);
    state = strtoull(words[4], NULL, 0) * 0x9E3779B97F4A7C15 + 1;
    long calls = strtol(words[5], NULL, 0);
    scratch = mmap(NULL, SCRATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < FDS; i++)
        fds[i] = npu_open(words[1]);
    npu_start(&npu, words[1], words[2], words[3]);
    dup2(npu.fd, fds[0]);
    double slowest = 0;
    for (long i = 0; i < calls; i++) {
        if (!below(4))
            ((uint64_t *)scratch)[below(SCRATCH / 8)] = value();
        double began = seconds();
        uint64_t kind = below(16);
        if (kind < 10)
            request();
        else if (kind < 13)
            path();
        else
            map();
        double took = seconds() - began;
        slowest = took > slowest ? took : slowest;
    }
    for (int i = 0; i < FDS; i++)
        close(fds[i]);
    close(npu.fd);
    for (int i = 0; i < VIEWS; i++)
        if (views[i].at)
            munmap(views[i].at, views[i].size);
    struct bo source, target, command;
    uint64_t seq;
    npu_start(&npu, words[1], words[2], words[3]);
    source = npu_share(npu.fd, PAGE, AMDXDNA_BO_SHARE);
    target = npu_share(npu.fd, PAGE, AMDXDNA_BO_SHARE);
    command = npu_share(npu.fd, PAGE, AMDXDNA_BO_CMD);
    npu_pack(&npu, &command, &source, &target);
    errno = npu_submit(npu.fd, npu.context, command.handle, NULL, 0, &seq);
    CHECK(!errno);
    errno = npu_wait(npu.fd, npu.syncobj, seq, 60000000000L);
    CHECK(!errno);
    CHECK(npu_state(&command) == 4);
    long most = 0;
    char name[40], line[256];
    snprintf(name, sizeof name, "/proc/%d/status", getppid());
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "VmHWM: %ld", &most);
    printf("works, %ld MiB, slowest %.1f s\n", most >> 10, slowest);
    return 0;
}
