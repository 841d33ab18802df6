/* What a program may try against whoever emulates the device for it: hostile NODE PDI CODE CASE. Prints one line
 * for each answer. */
#define _GNU_SOURCE
#include "npu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COMPLETED = 4, WORDS = 1024 };
static const int64_t SECONDS = 60000000000L;

struct table {
    struct amdxdna_drm_va_tbl head;
    struct amdxdna_drm_va_entry entries[4];
};

static struct npu npu;
static struct bo mine, command;

static int wrap(struct table *t, uint32_t count, uint32_t *handle)
{
    t->head.dmabuf_fd = -1;
    t->head.num_entries = count;
    struct amdxdna_drm_create_bo args = {.vaddr = (uintptr_t)t, .size = PAGE, .type = AMDXDNA_BO_SHARE};
    int failed = npu_call(npu.fd, DRM_IOCTL_AMDXDNA_CREATE_BO, &args);
    *handle = args.handle;
    return failed;
}

static int export(uint32_t handle)
{
    struct drm_prime_handle out = {.handle = handle, .flags = O_RDWR | O_CLOEXEC, .fd = -1};
    errno = npu_call(npu.fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, &out);
    CHECK(!errno);
    return out.fd;
}

static int import(int fd, uint32_t *handle)
{
    struct drm_prime_handle in = {.fd = fd};
    int failed = npu_call(npu.fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &in);
    *handle = in.handle;
    return failed;
}

/* Makes the supervisor look at this process's maps. */
static void look(uint32_t handle)
{
    struct amdxdna_drm_get_bo_info args = {.handle = handle};
    npu_call(npu.fd, DRM_IOCTL_AMDXDNA_GET_BO_INFO, &args);
}

/* Copies a page from `from` to `to`; the packet's state, or -errno. */
static int copy(uint64_t from, uint64_t to)
{
    struct bo source = {.device = from}, target = {.device = to};
    uint64_t seq;
    npu_pack(&npu, &command, &source, &target);
    int failed = npu_submit(npu.fd, npu.context, command.handle, NULL, 0, &seq);
    if (!failed)
        failed = npu_wait(npu.fd, npu.syncobj, seq, SECONDS);
    return failed ? -failed : (int)npu_state(&command);
}

/* Whether a copy from there, and one to there, is refused without a byte having come over. */
static int refused(uint64_t address)
{
    memset(mine.host, 0x41, PAGE);
    if (copy(address, (uintptr_t)mine.host) == COMPLETED || copy((uintptr_t)mine.host, address) == COMPLETED)
        return 0;
    for (size_t i = 0; i < PAGE; i++)
        if (((char *)mine.host)[i] != 0x41)
            return 0;
    return 1;
}

static const char *works(void)
{
    struct bo other = npu_share(npu.fd, PAGE, AMDXDNA_BO_SHARE);
    int state = copy((uintptr_t)mine.host, (uintptr_t)other.host);
    npu_close_bo(npu.fd, other.handle);
    munmap(other.host, PAGE);
    return state == COMPLETED ? "works" : "is broken";
}

/* A mapping of an exported BO that is larger than it. */
static void larger(void)
{
    struct bo bo = npu_share(npu.fd, PAGE, AMDXDNA_BO_SHARE);
    int fd = export(bo.handle);
    char *view = mmap(NULL, 1UL << 32, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    CHECK(view != MAP_FAILED);
    look(bo.handle);
    memset(bo.host, 7, PAGE);
    printf("inside %d\n", copy((uintptr_t)view, (uintptr_t)mine.host));
    for (uint64_t at = 64; at < 1UL << 32; at = at * 4)
        printf("%s\n", refused((uintptr_t)view + at) ? "refused" : "went through");
}

/* Wrapped memory that grows, moves and grows. */
static void grown(void)
{
    char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct table t = {.entries = {{(uintptr_t)memory, PAGE}}};
    uint32_t handle;
    errno = wrap(&t, 1, &handle);
    CHECK(!errno);
    printf("inside %d\n", copy((uintptr_t)memory, (uintptr_t)mine.host));
    char *more = mremap(memory, PAGE, 1 << 20, MREMAP_MAYMOVE);
    CHECK(more != MAP_FAILED);
    look(handle);
    printf("inside %d\n", copy((uintptr_t)more, (uintptr_t)mine.host));
    for (uint64_t at = 4; at < 1 << 20; at *= 8)
        printf("%s\n", refused((uintptr_t)more + at) ? "refused" : "went through");
}

/* The only mapping of a BO without a handle moves: the BO stays, and is freed once. */
static void moved(void)
{
    struct bo bo = npu_share(npu.fd, PAGE, AMDXDNA_BO_SHARE);
    char *space = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    npu_close_bo(npu.fd, bo.handle);
    look(command.handle);
    for (int i = 0; i < 3; i++) {
        char *other = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        bo.host = mremap(bo.host, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, space);
        CHECK(bo.host == space);
        space = other;
        look(command.handle);
        printf("inside %d\n", copy((uintptr_t)bo.host, (uintptr_t)mine.host));
    }
    munmap(bo.host, PAGE);
    look(command.handle);
    printf("%s\n", refused((uintptr_t)bo.host) ? "refused" : "went through");
    printf("%s\n", works());
}

/* Files that only look like dma-bufs. */
static void forged(void)
{
    const size_t sizes[] = {0, 1, PAGE + 1, PAGE, (size_t)1 << 40, (size_t)1 << 50};
    const int seals[] = {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE};
    uint32_t handle;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof seals / sizeof *seals; j++)
            for (int huge = 0; huge < 2; huge++) {
                int fd = memfd_create("amdxdna-dmabuf", MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0));
                if (fd < 0 || ftruncate(fd, (off_t)sizes[i]) || fcntl(fd, F_ADD_SEALS, seals[j])) {
                    close(fd);
                    continue;
                }
                int failed = import(fd, &handle);
                if (failed != EINVAL)
                    printf("size %zu seals %d huge %d: %s\n", sizes[i], seals[j], huge, strerror(failed));
                close(fd);
            }
    int null = open("/dev/null", O_RDWR), path = open("/dev/null", O_PATH), pipes[2];
    CHECK(!pipe(pipes));
    const int others[] = {-1, 9999, 0x7fffffff, null, path, pipes[0], npu.fd};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        printf("%s\n", strerrorname_np(import(others[i], &handle)));
    printf("%s\n", works());
    printf("destroyed %d\n", npu_destroy(npu.fd, npu.context));
}

/* A real dma-buf through a descriptor with fewer rights. */
static void weaker(void)
{
    struct bo bo = npu_share(npu.fd, PAGE, AMDXDNA_BO_SHARE);
    int fd = export(bo.handle);
    const int modes[] = {O_RDONLY, O_PATH, O_RDWR};
    npu_close_bo(npu.fd, bo.handle);
    munmap(bo.host, PAGE);
    for (int i = 0; i < 3; i++) {
        char name[40];
        uint32_t handle;
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        int failed = import(open(name, modes[i]), &handle);
        printf("%s\n", failed ? strerrorname_np(failed) : "imported");
    }
}

/* Every ioctl with a bad pointer, in its place and in its struct. */
static void pointers(void)
{
    const unsigned long requests[] = {
        DRM_IOCTL_GEM_CLOSE, DRM_IOCTL_PRIME_HANDLE_TO_FD, DRM_IOCTL_PRIME_FD_TO_HANDLE,
        DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, DRM_IOCTL_AMDXDNA_CREATE_HWCTX, DRM_IOCTL_AMDXDNA_DESTROY_HWCTX,
        DRM_IOCTL_AMDXDNA_CONFIG_HWCTX, DRM_IOCTL_AMDXDNA_CREATE_BO, DRM_IOCTL_AMDXDNA_GET_BO_INFO,
        DRM_IOCTL_AMDXDNA_SYNC_BO, DRM_IOCTL_AMDXDNA_EXEC_CMD, DRM_IOCTL_AMDXDNA_GET_INFO,
        DRM_IOCTL_AMDXDNA_SET_STATE, DRM_IOCTL_AMDXDNA_GET_ARRAY, DRM_IOCTL_VERSION};
    const uint64_t bad[] = {0, 1, ~0UL, ~0UL - 7, 1UL << 47, 1UL << 63, (uintptr_t)&pointers};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            int failed = npu_call(npu.fd, requests[i], (void *)bad[j]);
            if (failed != EFAULT && !(bad[j] == (uintptr_t)&pointers && failed))
                printf("%#lx at %#lx: %s\n", requests[i], bad[j], strerror(failed));
        }
    for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
        uint32_t handle = 1;
        struct amdxdna_drm_get_info info = {.param = 2, .buffer_size = 4096, .buffer = bad[j]};
        struct amdxdna_drm_exec_cmd exec = {.hwctx = npu.context, .cmd_handles = command.handle, .cmd_count = 1,
                                            .args = bad[j], .arg_count = 1};
        struct amdxdna_drm_create_hwctx create = {.qos_p = bad[j], .num_tiles = 32};
        struct amdxdna_drm_create_bo bo = {.vaddr = bad[j], .size = PAGE, .type = AMDXDNA_BO_SHARE};
        struct drm_syncobj_timeline_wait wait = {.handles = (uintptr_t)&handle, .points = bad[j],
                                                 .count_handles = 1};
        wait.handles = (uintptr_t)&npu.syncobj;
        int answers[] = {npu_call(npu.fd, DRM_IOCTL_AMDXDNA_GET_INFO, &info),
                         npu_call(npu.fd, DRM_IOCTL_AMDXDNA_EXEC_CMD, &exec),
                         npu_call(npu.fd, DRM_IOCTL_AMDXDNA_CREATE_HWCTX, &create),
                         npu_call(npu.fd, DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, &wait)};
        int readable = bad[j] == (uintptr_t)&pointers;
        for (int i = 0; i < 4; i++)
            if (answers[i] != EFAULT && !(readable && answers[i] && i))
                printf("struct %d at %#lx: %s\n", i, bad[j], strerror(answers[i]));
        int failed = npu_call(npu.fd, DRM_IOCTL_AMDXDNA_CREATE_BO, &bo);
        if (bad[j] && failed != EINVAL && !readable)
            printf("va table at %#lx: %s\n", bad[j], strerror(failed));
    }
    printf("%s\n", works());
}

/* Va tables that name pages twice, what is not there, or more than there is. */
static void tables(void)
{
    char *memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const uint64_t at = (uintptr_t)memory;
    struct table repeated = {.entries = {{at, PAGE}, {at, PAGE}}},
                 overlapping = {.entries = {{at + PAGE, 2 * PAGE}, {at, 2 * PAGE}}},
                 far = {.entries = {{~0UL - PAGE + 1, PAGE}}}, endless = {.entries = {{at, 1UL << 47}}},
                 wrapping = {.entries = {{at, ~0UL - PAGE + 1}, {at, PAGE}}};
    uint32_t handle, count = 65536;
    printf("%s ", strerrorname_np(wrap(&repeated, 2, &handle)));
    printf("%s ", strerrorname_np(wrap(&overlapping, 2, &handle)));
    printf("%s ", strerrorname_np(wrap(&far, 1, &handle)));
    printf("%s ", strerrorname_np(wrap(&endless, 1, &handle)));
    printf("%s\n", strerrorname_np(wrap(&wrapping, 2, &handle)));
    struct table *many = malloc(sizeof *many + count * sizeof *many->entries);
    size_t big = (size_t)1 << 20;
    char *block = mmap(NULL, big, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(block, 1, big);
    for (uint32_t i = 0; i < count; i++)
        many->entries[i] = (struct amdxdna_drm_va_entry){(uintptr_t)block, big};
    printf("%s ", strerrorname_np(wrap(many, 4096, &handle)));
    printf("%s\n", strerrorname_np(wrap(many, count, &handle)));
    /* Much address space with nothing in it takes no memory. */
    size_t space = (size_t)2 << 30;
    char *empty = mmap(NULL, space, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct table sparse = {.entries = {{(uintptr_t)empty, space}}};
    errno = wrap(&sparse, 1, &handle);
    CHECK(!errno);
    printf("sparse %s\n", works());
}

static volatile int over;

struct churn {
    int fd;
    char *view;
};

static void *churn(void *argument)
{
    struct churn *c = argument;
    unsigned int seed = 1;
    while (!over) {
        size_t pages = 1 + rand_r(&seed) % 64;
        CHECK(mmap(c->view, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, c->fd,
                   (off_t)(PAGE * (rand_r(&seed) % 2))) != MAP_FAILED);
        munmap(c->view + PAGE * (rand_r(&seed) % pages), PAGE);
        mremap(c->view, PAGE, 16 * PAGE, 0);
    }
    return NULL;
}

static int64_t milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000;
}

/* Mappings of an exported BO change while the device uses them. */
static void maps(void)
{
    struct bo bo = npu_share(npu.fd, 2 * PAGE, AMDXDNA_BO_SHARE);
    struct churn c = {export(bo.handle), NULL};
    c.view = mmap(NULL, 128 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_t thread;
    unsigned int seed = 2;
    CHECK(!pthread_create(&thread, NULL, churn, &c));
    for (int64_t end = milliseconds() + 1500; milliseconds() < end;) {
        look(bo.handle);
        uint64_t at = (uintptr_t)c.view + PAGE * (rand_r(&seed) % 70) + rand_r(&seed) % 64;
        if (copy(at, (uintptr_t)mine.host) < 0 || copy((uintptr_t)mine.host, at) < 0)
            printf("a command was lost\n");
        uint32_t handle;
        struct table t = {.entries = {{(uintptr_t)c.view, 2 * PAGE}, {(uintptr_t)c.view + 8 * PAGE, PAGE}}};
        if (!wrap(&t, 2, &handle))
            printf("wrapped\n");
    }
    over = 1;
    pthread_join(thread, NULL);
    printf("%s\n", works());
}

/* Memory is unmapped and mapped again while it is being wrapped. */
static void *unmapper(void *view)
{
    while (!over) {
        mmap(view, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        sched_yield();
        munmap((char *)view + 4 * PAGE, 4 * PAGE);
    }
    return NULL;
}

static void wraps(void)
{
    char *view = mmap(NULL, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, unmapper, view));
    for (int64_t end = milliseconds() + 1500; milliseconds() < end;) {
        struct table t = {.entries = {{(uintptr_t)view, 16 * PAGE}}};
        uint32_t handle;
        if (!wrap(&t, 1, &handle)) {
            copy((uintptr_t)view + PAGE, (uintptr_t)mine.host);
            npu_close_bo(npu.fd, handle);
        }
    }
    over = 1;
    pthread_join(thread, NULL);
    printf("%s\n", works());
}

static void pass(int socket, int fd)
{
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    sendmsg(socket, &message, MSG_DONTWAIT);
}

static void *closer(void *argument)
{
    (void)argument;
    while (!over)
        for (int fd = 40; fd < 60; fd++)
            close(fd);
    return NULL;
}

/* Descriptors of the node and of dma-bufs are passed, duplicated and closed while calls about them go on. */
static void descriptors(void)
{
    struct bo bo = npu_share(npu.fd, PAGE, AMDXDNA_BO_SHARE);
    int shared = export(bo.handle), ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, closer, NULL));
    unsigned int seed = 3;
    for (int64_t end = milliseconds() + 1500; milliseconds() < end;) {
        int number = 40 + (int)(rand_r(&seed) % 20);
        uint32_t handle;
        dup2(rand_r(&seed) % 2 ? shared : npu.fd, number);
        pass(ends[0], number);
        import(number, &handle);
        struct amdxdna_drm_create_bo args = {.size = PAGE, .type = AMDXDNA_BO_SHARE};
        if (!npu_call(number, DRM_IOCTL_AMDXDNA_CREATE_BO, &args))
            npu_close_bo(npu.fd, args.handle);
        int other = npu_open("/dev/accel/accel0");
        dup2(other, number);
        close(other);
        char drop[16];
        recv(ends[1], drop, sizeof drop, MSG_DONTWAIT);
    }
    over = 1;
    pthread_join(thread, NULL);
    printf("%s\n", works());
}

static void *caller(void *argument)
{
    for (;;) {
        struct amdxdna_drm_create_bo args = {.size = PAGE, .type = AMDXDNA_BO_SHARE};
        char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct table t = {.head = {-1, 1}, .entries = {{(uintptr_t)memory, PAGE}}};
        args.vaddr = (uintptr_t)&t;
        ioctl(*(int *)argument, DRM_IOCTL_AMDXDNA_CREATE_BO, &args);
        munmap(memory, PAGE);
    }
    return NULL;
}

/* Processes that open the node, have calls under way in several threads, and end or become another program. */
static void forks(void)
{
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 8; i++)
            if (!fork()) {
                int fd = npu_open("/dev/accel/accel0");
                pthread_t threads[3];
                for (int j = 0; j < 3; j++)
                    pthread_create(&threads[j], NULL, caller, &fd);
                usleep(1000 + 2000 * (unsigned int)i);
                if (i % 3 == 0)
                    execl("/bin/true", "true", (char *)NULL);
                else if (i % 3 == 1)
                    kill(getpid(), 9);
                _exit(0);
            }
        while (wait(NULL) > 0)
            ;
    }
    printf("%s\n", works());
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {{"larger", larger}, {"grown", grown}, {"moved", moved}, {"forged", forged}, {"weaker", weaker},
                 {"pointers", pointers}, {"tables", tables}, {"maps", maps}, {"wraps", wraps},
                 {"descriptors", descriptors}, {"forks", forks}};
    CHECK(count == 5);
    setvbuf(stdout, NULL, _IOLBF, 0);
    npu_start(&npu, words[1], words[2], words[3]);
    mine = npu_share(npu.fd, WORDS * 4, AMDXDNA_BO_SHARE);
    command = npu_share(npu.fd, PAGE, AMDXDNA_BO_CMD);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        if (!strcmp(words[4], CASES[i].name)) {
            CASES[i].run();
            return 0;
        }
    printf("no such case\n");
    return 2;
}
