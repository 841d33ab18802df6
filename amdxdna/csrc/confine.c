/* System calls of a child that somebody else answers (seccomp user notifications) or watches (ptrace). */
#include "native.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5) /* Linux 5.19 */
#endif
#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND (1UL << 1) /* Linux 5.14 */
#endif
#define NOTIF_SET_FLAGS _IOW('!', 4, uint64_t) /* Linux 6.6 */
enum { SYNC_WAKE_UP = 1, X32_BIT = 0x40000000, PAGE = 4096 };

#define ARGUMENT(n) (offsetof(struct seccomp_data, args[n]))
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* Calls that name a file, and which argument does. */
static const struct { short nr, path; } PATH_CALLS[] = {
    {SYS_open, 0}, {SYS_openat, 1}, {SYS_openat2, 1}, {SYS_stat, 0}, {SYS_lstat, 0}, {SYS_newfstatat, 1},
    {SYS_statx, 1}, {SYS_access, 0}, {SYS_faccessat, 1}, {SYS_faccessat2, 1}, {SYS_readlink, 0},
    {SYS_readlinkat, 1}, {SYS_chmod, 0}, {SYS_fchmodat, 1}, {SYS_getxattr, 0},
    {SYS_lgetxattr, 0}, {SYS_listxattr, 0}, {SYS_llistxattr, 0}, {SYS_chdir, 0}, {SYS_truncate, 0},
};
/* Other calls that are the kernel's own business, unless they are about the device. */
static const short OTHER_CALLS[] = {
    SYS_fstat, SYS_getcwd, SYS_getdents, SYS_getdents64, SYS_pread64, SYS_pwrite64, SYS_poll, SYS_ppoll,
    SYS_select, SYS_pselect6, SYS_epoll_ctl, SYS_execve, SYS_preadv, SYS_preadv2, SYS_pwritev, SYS_pwritev2,
    SYS_ftruncate, SYS_fallocate, SYS_fsync, SYS_fdatasync, SYS_readahead, SYS_sendfile, SYS_splice,
    SYS_copy_file_range,
};
/* Calls about two descriptors, and which argument is the second. */
static const struct { short nr, second; } PAIR_CALLS[] = {
    {SYS_sendfile, 1}, {SYS_splice, 2}, {SYS_copy_file_range, 2},
};
enum { MOST_POLLED = 1024, MOST_LINKS = 8, MOST_CODE = 256 };
enum { OPENS = 3 }; /* the first so many of them */

struct program {
    struct sock_filter code[MOST_CODE];
    int length;
};

static void emit(struct program *p, struct sock_filter instruction)
{
    if (p->length < MOST_CODE)
        p->code[p->length] = instruction;
    p->length++; /* past the end: install() refuses it */
}

static void load(struct program *p, size_t offset)
{
    emit(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void give(struct program *p, uint32_t action)
{
    emit(p, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

/* Returns `action` when the accumulator equals `value`. */
static void give_if(struct program *p, uint32_t value, uint32_t action)
{
    emit(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
    give(p, action);
}

/* Skips the instructions up to skip_end() unless the accumulator equals `value`. */
static int skip_unless(struct program *p, uint32_t value)
{
    emit(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 0));
    return p->length - 1;
}

static void skip_end(struct program *p, int at)
{
    if (at < MOST_CODE)
        p->code[at].jf = (uint8_t)(p->length - at - 1);
}

/* Only x86-64's own calls are looked at: a program in another mode finds no device. */
static void build(struct program *p, int watch)
{
    const uint32_t action = watch ? SECCOMP_RET_TRACE : SECCOMP_RET_USER_NOTIF;
    int at;

    p->length = 0;
    load(p, offsetof(struct seccomp_data, arch));
    emit(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
    give(p, SECCOMP_RET_ALLOW);
    load(p, offsetof(struct seccomp_data, nr));

    at = skip_unless(p, SYS_ioctl);
    load(p, ARGUMENT(1));
    emit(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xFF00));
    give_if(p, 'd' << 8, action);
    give(p, SECCOMP_RET_ALLOW);
    skip_end(p, at);

    at = skip_unless(p, SYS_mmap);
    load(p, ARGUMENT(4));
    give_if(p, (uint32_t)-1, SECCOMP_RET_ALLOW);
    load(p, ARGUMENT(3));
    emit(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_EXECUTABLE, 0, 1));
    give(p, SECCOMP_RET_ALLOW); /* a flag without meaning: it marks the calls that inject.c makes */
    load(p, ARGUMENT(5) + 4); /* no ordinary file is mapped from 4 GiB on: DRM's offsets start there */
    emit(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0));
    give(p, action);
    load(p, ARGUMENT(3));
    emit(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, MAP_TYPE));
    give_if(p, MAP_SHARED, action);
    give_if(p, MAP_SHARED_VALIDATE, action);
    give(p, SECCOMP_RET_ALLOW);
    skip_end(p, at);

    for (int i = 0; i < (watch ? OPENS : COUNT(PATH_CALLS)); i++)
        give_if(p, (uint32_t)PATH_CALLS[i].nr, action);
    if (watch) {
        give_if(p, SYS_close, action);
    } else {
        for (int i = 0; i < COUNT(OTHER_CALLS); i++)
            give_if(p, (uint32_t)OTHER_CALLS[i], action);
        at = skip_unless(p, SYS_lseek);
        load(p, ARGUMENT(2)); /* SEEK_DATA and SEEK_HOLE ask for the memory behind a file */
        emit(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SEEK_END, 1, 0));
        give(p, action);
        skip_end(p, at);
    }
    give(p, SECCOMP_RET_ALLOW);
}

static int install(int watch, unsigned int flags)
{
    struct program p;
    build(&p, watch);
    if (p.length > MOST_CODE)
        return -E2BIG;
    struct sock_fprog filter = {(unsigned short)p.length, p.code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return -errno;
    long value = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    return value < 0 ? -errno : (int)value;
}

static int send_fd(int socket, int fd)
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
    return sendmsg(socket, &message, 0) < 0 ? -errno : 0;
}

/* In the child, before its exec: from here on its calls are answered by whoever holds the listener, which is
 * sent through `socket`. */
int xdna_confine(int socket)
{
    int listener = install(0, SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
    if (listener == -EINVAL)
        listener = install(0, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    if (listener < 0)
        return listener;
    int sent = send_fd(socket, listener);
    close(listener);
    return sent;
}

/* The child's own exec, which nobody would answer: a call that the filter leaves alone. Returns -errno. */
int xdna_start(const char *path, char *const argv[], char *const environment[])
{
    return syscall(SYS_execveat, AT_FDCWD, path, argv, environment, 0) ? -errno : 0;
}

/* In the child, before its exec and with a tracer attached: its calls stop for the tracer. */
int xdna_watch(void)
{
    return install(1, 0);
}

/* A NUL-terminated string of another process, cut to `size`; its length or -errno. */
int xdna_read_string(int pid, uint64_t address, char *text, size_t size)
{
    size_t done = 0;
    while (done < size) {
        size_t part = PAGE - (address + done) % PAGE;
        if (part > size - done)
            part = size - done;
        struct iovec here = {text + done, part}, there = {(void *)(uintptr_t)(address + done), part};
        ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (got <= 0)
            return got ? -errno : -EFAULT;
        char *end = memchr(text + done, 0, (size_t)got);
        if (end)
            return (int)(end - text);
        done += (size_t)got;
    }
    return -ENAMETOOLONG;
}

/* A copy of a descriptor of another process, of what its thread has under that number: -EBADF when that is
 * nothing. The copy has the access mode that it has there, which a second open through /proc would not. */
int xdna_take_fd(int process, int thread, int fd)
{
    char name[64];
    struct stat here, there;
    int pidfd = (int)syscall(SYS_pidfd_open, process, 0);
    if (pidfd < 0)
        return -errno;
    int own = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
    int failed = own < 0 ? -errno : 0;
    close(pidfd);
    if (failed)
        return failed;
    snprintf(name, sizeof name, "/proc/%d/fd/%d", thread, fd);
    /* A thread may have descriptors apart from its process's. */
    if (fstat(own, &here) || stat(name, &there) || here.st_dev != there.st_dev || here.st_ino != there.st_ino) {
        close(own);
        return -EBADF;
    }
    return own;
}

/* Opens `path` below a folder, through links that stay below it: -EXDEV for one that leads out. */
int xdna_open_beneath(int folder, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
    return fd < 0 ? -errno : fd;
}

/* Device and inode of another process's descriptor; -errno when it has none. */
int xdna_identify(int pid, int fd, uint64_t *device, uint64_t *inode)
{
    char name[64];
    struct stat status;
    snprintf(name, sizeof name, "/proc/%d/fd/%d", pid, fd);
    if (stat(name, &status))
        return -errno;
    *device = status.st_dev;
    *inode = status.st_ino;
    return 0;
}

/* Whether `path` holds one of the NUL-separated `tokens`, which end with an empty one. */
int xdna_mentions(const char *path, const char *tokens)
{
    for (; *tokens; tokens += strlen(tokens) + 1)
        if (strstr(path, tokens))
            return 1;
    return 0;
}

int xdna_notice_start(int listener)
{
    /* Wakes the other side on the same core; kernels without it do without. */
    return ioctl(listener, NOTIF_SET_FLAGS, (uint64_t)SYNC_WAKE_UP) ? -errno : 0;
}

int xdna_notice_answer(int listener, uint64_t id, int64_t value, int error, int go_on)
{
    struct seccomp_notif_resp answer = {
        .id = id, .val = value, .error = error, .flags = go_on ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0};
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) ? -errno : 0;
}

/* Gives the caller a copy of `fd`; with `answer` its number is the call's result. The number or -errno. */
int xdna_notice_give(int listener, uint64_t id, int fd, int close_on_exec, int answer)
{
    struct seccomp_notif_addfd add = {
        .id = id, .srcfd = (uint32_t)fd, .newfd_flags = close_on_exec ? O_CLOEXEC : 0,
        .flags = answer ? SECCOMP_ADDFD_FLAG_SEND : 0};
    int value = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
    return value < 0 ? -errno : value;
}

/* 0 while the caller still waits for the answer, so that what was read of it was its own. */
int xdna_notice_valid(int listener, uint64_t id)
{
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) ? -errno : 0;
}

/* Where a link of another process's leads, cut to `size`; -errno. */
static int read_link(const char *name, char *target, size_t size)
{
    ssize_t length = readlink(name, target, size - 1);
    if (length < 0)
        return -errno;
    target[length] = 0;
    return (int)length;
}

/* Whether a path leads through a link of the program's to what the tokens name. `base` is a path of /proc that
 * leads to where a relative one begins. */
static int leads_to(int pid, const char *base, const char *path, const char *tokens, int links)
{
    char name[4096], target[2048], from[4096];
    int at = path[0] == '/' ? snprintf(name, sizeof name, "/proc/%d/root", pid)
                            : snprintf(name, sizeof name, "%s/", base);
    for (const char *end = path; *end;) {
        const char *begin = end;
        while (*end == '/')
            end++;
        while (*end && *end != '/')
            end++;
        if (at + (end - begin) >= (int)sizeof name)
            return 0;
        memcpy(name + at, begin, (size_t)(end - begin));
        name[at + (end - begin)] = 0;
        if (read_link(name, target, sizeof target) > 0) {
            if (xdna_mentions(target, tokens))
                return 1;
            memcpy(from, name, (size_t)at);
            from[at] = 0;
            if (links < MOST_LINKS && strncmp(target, "/proc/", 6)
                && leads_to(pid, from, target, tokens, links + 1))
                return 1;
        }
        at += (int)(end - begin);
    }
    return 0;
}

/* Whether a path that names nothing of the device may lead there all the same: by a link, or from one of the
 * device's own folders. */
static int may_lead(const struct xdna_notice *n, int calls, const struct xdna_interest *in)
{
    char base[64], folder[1024];
    int from = PATH_CALLS[calls].path ? (int)n->args[0] : AT_FDCWD;
    if (from == AT_FDCWD)
        snprintf(base, sizeof base, "/proc/%d/cwd", (int)n->pid);
    else
        snprintf(base, sizeof base, "/proc/%d/fd/%d", (int)n->pid, from);
    if (n->path[0] != '/' && read_link(base, folder, sizeof folder) > 0
        && !strncmp(folder, in->root, strlen(in->root)))
        return 1;
    return leads_to((int)n->pid, base, n->path, in->tokens, 0);
}

/* Whether a descriptor of the caller's is the node; fills in dev and ino. */
static int is_device(struct xdna_notice *n, int fd, const struct xdna_interest *in)
{
    return fd >= 0 && xdna_identify((int)n->pid, fd, &n->dev, &n->ino) == 0
           && (n->dev == in->device || (n->dev == in->node_dev && n->ino == in->node_ino));
}

static int poll_concerns(struct xdna_notice *n, const struct xdna_interest *in)
{
    struct pollfd polled[MOST_POLLED];
    uint64_t count = n->args[1];
    if (!in->opens || !count || count > MOST_POLLED
        || xdna_vm_read((int)n->pid, n->args[0], polled, count * sizeof *polled))
        return 0;
    for (uint64_t i = 0; i < count; i++)
        if (is_device(n, polled[i].fd, in))
            return 1;
    return 0;
}

static int select_concerns(struct xdna_notice *n, const struct xdna_interest *in)
{
    int count = (int)n->args[0];
    size_t bytes = ((size_t)count + 63) / 64 * 8;
    if (!in->opens || count <= 0 || count > MOST_POLLED)
        return 0;
    for (int set = 1; set <= 3; set++) {
        unsigned char bits[MOST_POLLED / 8];
        if (!n->args[set] || xdna_vm_read((int)n->pid, n->args[set], bits, bytes))
            continue;
        for (int fd = 0; fd < count; fd++)
            if (bits[fd / 8] >> fd % 8 & 1 && is_device(n, fd, in))
                return 1;
    }
    return 0;
}

/* Whether a file about to be run would give rights; fills in path, as it is found from here. */
static int gives_rights(struct xdna_notice *n)
{
    char name[sizeof n->path], base[64];
    struct stat s;
    if (xdna_read_string((int)n->pid, n->args[0], name, sizeof name) <= 0)
        return 0;
    snprintf(base, sizeof base, "/proc/%d/%s", (int)n->pid, name[0] == '/' ? "root" : "cwd/");
    if (strlen(base) + strlen(name) >= sizeof n->path)
        return 0;
    strcat(strcpy(n->path, base), name);
    return !stat(n->path, &s) && S_ISREG(s.st_mode)
           && (s.st_mode & (S_ISUID | S_ISGID) || getxattr(n->path, "security.capability", NULL, 0) > 0);
}

/* Whether Python must see it; fills in path, dev and ino. */
static int concerns(struct xdna_notice *n, const struct xdna_interest *in)
{
    char name[64];
    n->path[0] = 0;
    n->dev = n->ino = 0;
    for (int i = 0; i < COUNT(PATH_CALLS); i++)
        if (n->nr == PATH_CALLS[i].nr) {
            uint64_t path = n->args[PATH_CALLS[i].path];
            int length = xdna_read_string((int)n->pid, path, n->path, sizeof n->path);
            if (length < 0) {
                n->path[0] = 0;
                return length == -EPERM; /* no way into its memory: someone should be told */
            }
            if (n->path[0])
                return xdna_mentions(n->path, in->tokens) || may_lead(n, i, in);
            break; /* an empty path means the descriptor itself */
        }
    for (int i = 0; i < COUNT(PAIR_CALLS); i++)
        if (n->nr == PAIR_CALLS[i].nr)
            return is_device(n, (int)n->args[0], in) || is_device(n, (int)n->args[PAIR_CALLS[i].second], in);
    switch (n->nr) {
    case SYS_getcwd:
        snprintf(name, sizeof name, "/proc/%d/cwd", (int)n->pid);
        return read_link(name, n->path, sizeof n->path) > 0 && !strncmp(n->path, in->root, strlen(in->root));
    case SYS_getdents:
    case SYS_getdents64:
        snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)n->pid, (int)n->args[0]);
        if (read_link(name, n->path, sizeof n->path) <= 0)
            return 0;
        for (const char *folder = in->listed; *folder; folder += strlen(folder) + 1)
            if (!strcmp(n->path, folder))
                return 1;
        return 0;
    case SYS_execve:
        return gives_rights(n);
    case SYS_poll:
    case SYS_ppoll:
        return poll_concerns(n, in);
    case SYS_select:
    case SYS_pselect6:
        return select_concerns(n, in);
    case SYS_mmap:
        return is_device(n, (int)n->args[4], in);
    case SYS_epoll_ctl:
        return is_device(n, (int)n->args[2], in);
    default:
        return is_device(n, (int)n->args[0], in);
    }
}

/* The next call that concerns the device: 1, or 0 when every process has ended or `stop` is readable, or
 * -errno. A call concerns it that names a path with one of the tokens in it or a link to such a path, or a
 * descriptor of the device's; others go on here. 0 also for one that is retired; `busy` is 0 while it waits. */
int xdna_notice_next(int listener, int stop, struct xdna_interest *interest, struct xdna_notice *n)
{
    for (;;) {
        struct pollfd wait[2] = {{listener, POLLIN, 0}, {stop, POLLIN, 0}};
        if (__atomic_load_n(&interest->retired, __ATOMIC_ACQUIRE))
            return 0;
        __atomic_store_n(&interest->busy, 0, __ATOMIC_RELEASE);
        if (poll(wait, 2, -1) < 0)
            return -errno;
        if (wait[1].revents)
            return 0;
        if (!(wait[0].revents & POLLIN)) {
            if (wait[0].revents & (POLLHUP | POLLERR | POLLNVAL))
                return 0;
            continue;
        }
        struct seccomp_notif notif;
        memset(&notif, 0, sizeof notif);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notif)) {
            if (errno == ENOENT) /* its thread was killed meanwhile */
                continue;
            return -errno;
        }
        interest->seen++;
        __atomic_store_n(&interest->busy, 1, __ATOMIC_RELEASE);
        n->id = notif.id;
        n->pid = notif.pid;
        n->nr = notif.data.nr;
        memcpy(n->args, notif.data.args, sizeof n->args);
        if (concerns(n, interest))
            return 1;
        xdna_notice_answer(listener, n->id, 0, 0, 1);
    }
}
