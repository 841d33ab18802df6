/* What a program may hold up of whoever emulates the device for it, and of its own: held NODE. A child's calls name
 * memory that nobody fills (userfaultfd); prints what another process of the program gets meanwhile. */
#define _GNU_SOURCE
#include "npu.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Memory whose first touch waits for ever, also the kernel's; NULL where the system gives this process none. */
static void *held_page(void)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(!ioctl(fd, UFFDIO_API, &api));
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    struct uffdio_register all = {.range = {(uintptr_t)page, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(!ioctl(fd, UFFDIO_REGISTER, &all));
    return page;
}

/* A child that makes one call on held memory, and is in it or about to be. */
static pid_t holding(const char *node, int which)
{
    int ready[2];
    char byte;
    CHECK(!pipe(ready));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        char *page = held_page();
        int fd = open(node, O_RDWR);
        CHECK(page && fd >= 0 && write(ready[1], "", 1) == 1);
        if (which)
            ioctl(fd, DRM_IOCTL_AMDXDNA_GET_INFO, page);
        else
            open(page, O_RDONLY);
        _exit(1);
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    usleep(50000);
    return child;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    void *page = held_page();
    if (!page) {
        puts("none");
        return 0;
    }
    static const char *const names[] = {"path", "struct"};
    for (int which = 0; which < 2; which++) {
        pid_t child = holding(argv[1], which);
        alarm(60);
        int fd = open(argv[1], O_RDWR);
        struct amdxdna_drm_query_aie_version version;
        struct amdxdna_drm_get_info info = {.param = DRM_AMDXDNA_QUERY_AIE_VERSION,
                                            .buffer_size = sizeof version, .buffer = (uintptr_t)&version};
        CHECK(fd >= 0 && !ioctl(fd, DRM_IOCTL_AMDXDNA_GET_INFO, &info));
        int status;
        CHECK(waitpid(child, &status, WNOHANG) == 0); /* it waits still */
        CHECK(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        CHECK(!close(fd) && (fd = open(argv[1], O_RDWR)) >= 0);
        close(fd);
        alarm(0);
        printf("%s goes on\n", names[which]);
        fflush(stdout);
    }
    return 0;
}
