/* The whole sequence of the interface on one node: `sequence NODE PDI INSTRUCTIONS`.
 *
 * The PDI is the copy kernel's and the instructions add 1 to each of 1,024 words. Prints a line for each part
 * that holds; a part that does not ends the program with status 1. The same on the emulated node and on
 * Linux's own driver. */
#include "npu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1024, COMPLETED = 4, THREADS = 3, ROUNDS = 8 };
#define SECOND 1000000000L

static const char *node, *pdi, *code;

static void ok(const char *what)
{
    printf("ok: %s\n", what);
    fflush(stdout);
}

/* Runs the kernel once and checks every word. */
static void run(const struct npu *npu, uint32_t seed)
{
    struct bo source = npu_share(npu->fd, WORDS * 4, AMDXDNA_BO_SHARE);
    struct bo target = npu_share(npu->fd, WORDS * 4, AMDXDNA_BO_SHARE);
    struct bo command = npu_share(npu->fd, PAGE, AMDXDNA_BO_CMD);
    uint32_t *in = source.host, *out = target.host;
    for (uint32_t i = 0; i < WORDS; i++)
        in[i] = i * 2654435761u + seed;
    npu_flush(in, source.size);
    npu_flush(out, target.size);
    npu_pack(npu, &command, &source, &target);
    const uint32_t bos[] = {source.handle, target.handle, npu->code.handle};
    uint64_t seq;
    errno = npu_submit(npu->fd, npu->context, command.handle, bos, 3, &seq);
    CHECK(!errno);
    errno = npu_wait(npu->fd, npu->syncobj, seq, 60 * SECOND);
    CHECK(!errno);
    CHECK(npu_state(&command) == COMPLETED);
    npu_flush(out, target.size);
    for (uint32_t i = 0; i < WORDS; i++)
        CHECK(out[i] == in[i] + 1);
    const struct bo all[] = {source, target, command};
    for (int i = 0; i < 3; i++) {
        npu_close_bo(npu->fd, all[i].handle);
        CHECK(!munmap(all[i].host, all[i].size));
    }
}

static void identity(int fd)
{
    char name[32] = {0}, description[64] = {0};
    struct drm_version version = {.name = (uintptr_t)name, .name_len = sizeof name - 1,
                                  .desc = (uintptr_t)description, .desc_len = sizeof description - 1};
    struct stat status;
    errno = npu_call(fd, DRM_IOCTL_VERSION, &version);
    CHECK(!errno);
    CHECK(!strcmp(name, "amdxdna_accel_driver"));
    CHECK(version.version_major == 0 && version.version_minor >= 0);
    CHECK(!fstat(fd, &status) && S_ISCHR(status.st_mode) && major(status.st_rdev) == 261);
    CHECK(!stat(node, &status) && S_ISCHR(status.st_mode));
    CHECK(!access(node, R_OK | W_OK));
    ok("the node is the driver's character device");
}

static void metadata(int fd)
{
    struct amdxdna_drm_query_aie_metadata data = {0};
    struct amdxdna_drm_get_info args = {
        .param = DRM_AMDXDNA_QUERY_AIE_METADATA, .buffer_size = sizeof data, .buffer = (uintptr_t)&data};
    errno = npu_call(fd, DRM_IOCTL_AMDXDNA_GET_INFO, &args);
    CHECK(!errno);
    CHECK(data.cols == 8 && data.rows == 6 && data.core.row_count == 4);
    args.param = 9999;
    CHECK(npu_call(fd, DRM_IOCTL_AMDXDNA_GET_INFO, &args) == EOPNOTSUPP);
    args.param = DRM_AMDXDNA_QUERY_AIE_METADATA;
    args.buffer = 8;
    CHECK(npu_call(fd, DRM_IOCTL_AMDXDNA_GET_INFO, &args) == EFAULT);
    ok("queries answer, and refuse what they must");
}

static void mistakes(const struct npu *npu)
{
    uint64_t seq;
    struct bo command = npu_share(npu->fd, PAGE, AMDXDNA_BO_CMD);
    const uint32_t twice[] = {command.handle, command.handle}, none[] = {9999};
    npu_pack(npu, &command, &command, &command);
    CHECK(npu_submit(npu->fd, npu->context, command.handle, none, 1, &seq) == ENOENT);
    CHECK(npu_submit(npu->fd, npu->context, command.handle, twice, 2, &seq) == EALREADY);
    CHECK(npu_submit(npu->fd, 77, command.handle, NULL, 0, &seq) == EINVAL);
    CHECK(npu_wait(npu->fd, npu->syncobj, 1 << 20, 0) == ETIME);
    CHECK(npu_wait(npu->fd, 77, 0, 0) == ENOENT);
    CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, npu->fd, 1L << 45) == MAP_FAILED);
    CHECK(errno == EINVAL);
    CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, npu->fd, 1L << 45) == MAP_FAILED);
    CHECK(npu_configure(npu->fd, npu->context, npu->pdi.handle) == EINVAL); /* it is configured */
    npu_close_bo(npu->fd, command.handle);
    CHECK(!munmap(command.host, command.size));
    ok("mistakes have the driver's errno");
}

/* More submits than the four in flight: the call waits, nothing is lost. */
static void queue(const struct npu *npu)
{
    struct bo source = npu_share(npu->fd, WORDS * 4, AMDXDNA_BO_SHARE);
    struct bo target[ROUNDS], command[ROUNDS];
    uint64_t seq = 0, last = 0;
    for (int i = 0; i < ROUNDS; i++) {
        target[i] = npu_share(npu->fd, WORDS * 4, AMDXDNA_BO_SHARE);
        command[i] = npu_share(npu->fd, PAGE, AMDXDNA_BO_CMD);
        npu_pack(npu, &command[i], &source, &target[i]);
    }
    for (int i = 0; i < ROUNDS; i++) {
        errno = npu_submit(npu->fd, npu->context, command[i].handle, NULL, 0, &seq);
        CHECK(!errno && (!i || seq == last + 1));
        last = seq;
    }
    errno = npu_wait(npu->fd, npu->syncobj, seq, 60 * SECOND);
    CHECK(!errno);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(npu_state(&command[i]) == COMPLETED);
        CHECK(*(uint32_t *)target[i].host == 1 && ((uint32_t *)target[i].host)[WORDS - 1] == 1);
    }
    ok("eight commands in a queue of four");
}

static void *threaded(void *argument)
{
    struct npu mine = *(const struct npu *)argument;
    errno = npu_context(mine.fd, &mine.context, &mine.syncobj);
    CHECK(!errno);
    errno = npu_configure(mine.fd, mine.context, mine.pdi.handle);
    CHECK(!errno);
    for (uint32_t i = 0; i < ROUNDS; i++)
        run(&mine, i);
    CHECK(!npu_destroy(mine.fd, mine.context));
    return NULL;
}

static void threads(const struct npu *npu)
{
    pthread_t each[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&each[i], NULL, threaded, (void *)npu));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(each[i], NULL));
    ok("threads with a context each");
}

static void join(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

/* A duplicate is the same open; closing one leaves the other alive. */
static void duplicates(const struct npu *npu)
{
    struct npu other = *npu;
    struct stat status;
    other.fd = dup(npu->fd);
    CHECK(other.fd >= 0 && !fstat(other.fd, &status) && S_ISCHR(status.st_mode));
    run(&other, 5);
    CHECK(!close(other.fd));
    run(npu, 6);
    ok("dup and close");
}

/* A child sees the parent's pages, and opens the device for itself. */
static void forks(const struct npu *npu)
{
    struct bo shared = npu_share(npu->fd, PAGE, AMDXDNA_BO_SHARE);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        struct npu own;
        *(volatile uint32_t *)shared.host = 42;
        npu_start(&own, node, pdi, code);
        run(&own, 7);
        _exit(0);
    }
    join(child);
    CHECK(*(volatile uint32_t *)shared.host == 42);
    run(npu, 8);
    ok("fork");
}

/* A killed child's context is given back. */
static void kills(const struct npu *npu)
{
    int ready[2];
    char byte;
    CHECK(!pipe(ready));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        struct npu own;
        npu_start(&own, node, pdi, code);
        CHECK(write(ready[1], "x", 1) == 1);
        pause();
        _exit(1);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(!kill(child, SIGKILL));
    CHECK(waitpid(child, NULL, 0) == child);
    struct amdxdna_drm_hwctx_entry entries[32];
    struct amdxdna_drm_get_array args = {
        .param = DRM_AMDXDNA_HW_CONTEXT_ALL, .element_size = sizeof entries[0], .num_element = 32,
        .buffer = (uintptr_t)entries};
    errno = npu_call(npu->fd, DRM_IOCTL_AMDXDNA_GET_ARRAY, &args);
    CHECK(!errno);
    for (uint32_t i = 0; i < args.num_element; i++)
        CHECK(entries[i].pid != child);
    run(npu, 9);
    ok("kill");
}

/* A dma-buf of a mapped BO: the same pages, in this process and through another open. */
static void exports(const struct npu *npu)
{
    struct bo bo = npu_share(npu->fd, PAGE, AMDXDNA_BO_SHARE);
    struct drm_prime_handle out = {.handle = bo.handle, .flags = O_RDWR | O_CLOEXEC, .fd = -1};
    *(volatile uint32_t *)bo.host = 11;
    errno = npu_call(npu->fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, &out);
    CHECK(!errno && out.fd >= 0);
    CHECK(fcntl(out.fd, F_GETFD) == FD_CLOEXEC);
    volatile uint32_t *view = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, out.fd, 0);
    CHECK(view != MAP_FAILED && *view == 11);
    *view = 12;
    CHECK(*(volatile uint32_t *)bo.host == 12);
    int second = npu_open(node);
    struct drm_prime_handle in = {.fd = out.fd};
    errno = npu_call(second, DRM_IOCTL_PRIME_FD_TO_HANDLE, &in);
    CHECK(!errno);
    struct amdxdna_drm_get_bo_info where = {.handle = in.handle};
    errno = npu_call(second, DRM_IOCTL_AMDXDNA_GET_BO_INFO, &where);
    CHECK(!errno);
    volatile uint32_t *theirs = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, second,
                                     (off_t)where.map_offset);
    CHECK(theirs != MAP_FAILED && *theirs == 12);
    *theirs = 13;
    CHECK(*(volatile uint32_t *)bo.host == 13);
    CHECK(!close(out.fd) && !close(second));
    ok("dma-buf");
}

/* A BO made of the program's own memory. */
static void user_memory(const struct npu *npu)
{
    struct npu changed = *npu;
    struct {
        struct amdxdna_drm_va_tbl head;
        struct amdxdna_drm_va_entry entry;
    } table;
    uint32_t *memory = mmap(NULL, WORDS * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (uint32_t i = 0; i < WORDS; i++)
        memory[i] = 3 * i;
    table.head = (struct amdxdna_drm_va_tbl){.dmabuf_fd = -1, .num_entries = 1};
    table.entry = (struct amdxdna_drm_va_entry){(uintptr_t)memory, WORDS * 4};
    struct amdxdna_drm_create_bo args = {.vaddr = (uintptr_t)&table, .size = WORDS * 4, .type = AMDXDNA_BO_SHARE};
    int failed = npu_call(npu->fd, DRM_IOCTL_AMDXDNA_CREATE_BO, &args);
    if (failed == EPERM || failed == ENOMEM) { /* the locked-memory limit */
        ok("user memory is refused by the limit");
        return;
    }
    errno = failed;
    CHECK(!failed);
    struct amdxdna_drm_get_bo_info where = {.handle = args.handle};
    errno = npu_call(npu->fd, DRM_IOCTL_AMDXDNA_GET_BO_INFO, &where);
    CHECK(!errno);
    struct bo source = {args.handle, WORDS * 4,
                        where.xdna_addr == AMDXDNA_INVALID_ADDR ? (uintptr_t)memory : where.xdna_addr, memory};
    struct bo target = npu_share(npu->fd, WORDS * 4, AMDXDNA_BO_SHARE);
    struct bo command = npu_share(npu->fd, PAGE, AMDXDNA_BO_CMD);
    memory[5] = 55;
    npu_flush(memory, WORDS * 4);
    npu_pack(&changed, &command, &source, &target);
    uint64_t seq;
    errno = npu_submit(npu->fd, npu->context, command.handle, &source.handle, 1, &seq);
    CHECK(!errno);
    errno = npu_wait(npu->fd, npu->syncobj, seq, 60 * SECOND);
    CHECK(!errno && npu_state(&command) == COMPLETED);
    npu_flush(target.host, target.size);
    for (uint32_t i = 0; i < WORDS; i++)
        CHECK(((uint32_t *)target.host)[i] == (i == 5 ? 55 : 3 * i) + 1);
    npu_close_bo(npu->fd, args.handle);
    CHECK(memory[5] == 55);
    CHECK(!munmap(memory, WORDS * 4));
    ok("user memory");
}

static void handler(int number)
{
    (void)number;
}

/* A signal ends a wait (and npu_call goes on with it): nothing is lost, the time limit holds. It comes again
 * and again: the first may come before the wait. */
static void signals(const struct npu *npu)
{
    struct sigaction action = {.sa_handler = handler};
    CHECK(!sigaction(SIGALRM, &action, NULL));
    struct itimerval often = {{0, 100000}, {0, 100000}}, never = {{0, 0}, {0, 0}};
    CHECK(!setitimer(ITIMER_REAL, &often, NULL));
    struct drm_syncobj_timeline_wait args = {
        .handles = (uintptr_t)&npu->syncobj, .points = (uintptr_t) & (uint64_t){1 << 20},
        .timeout_nsec = INT64_MAX, .count_handles = 1, .flags = DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT};
    extern int ioctl(int, unsigned long, ...);
    CHECK(ioctl(npu->fd, DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, &args) < 0 && errno == EINTR);
    CHECK(!setitimer(ITIMER_REAL, &never, NULL));
    run(npu, 10);
    ok("a signal ends a wait");
}

int main(int count, char **words)
{
    struct npu npu;
    CHECK(count == 4);
    node = words[1];
    pdi = words[2];
    code = words[3];
    npu_start(&npu, node, pdi, code);
    identity(npu.fd);
    metadata(npu.fd);
    run(&npu, 1);
    ok("one command");
    mistakes(&npu);
    queue(&npu);
    threads(&npu);
    duplicates(&npu);
    forks(&npu);
    kills(&npu);
    exports(&npu);
    user_memory(&npu);
    signals(&npu);
    CHECK(!npu_destroy(npu.fd, npu.context));
    CHECK(npu_destroy(npu.fd, npu.context) == EINVAL);
    CHECK(!close(npu.fd));
    CHECK(npu_call(npu.fd, DRM_IOCTL_VERSION, &(struct drm_version){0}) == EBADF);
    ok("the end");
    return 0;
}
