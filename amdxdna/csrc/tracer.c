/* Watches the calls of a program and of everything it starts (ptrace). With the filter of xdna_watch() only
 * calls that may concern a node stop; in the other mode, for programs whose calls somebody else answers, every
 * call does. One tracer belongs to one thread. */
#include "native.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif
#define ACCEL_NODES "/dev/accel/accel"
enum { ACCEL_MAJOR = 261 }; /* include/drm/drm_accel.h */
enum { SYSCALL_INSTRUCTION = 2, RED_ZONE = 128 };
enum { SYSCALL_STOP = SIGTRAP | 0x80, EVENT_STOP = 128 };
/* What a call that a signal interrupts returns before it is restarted (linux/errno.h, not for user space). */
enum { ERESTARTSYS = 512, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK = 516 };

struct thread {
    int tid, process;
    int waits_for_exit; /* a call that concerns a node is under way */
    int at_entry;       /* it is stopped before that call */
    int again;          /* the call was put off, and its begin comes once more */
    int borrowed;       /* it has run calls of ours: `registers` are its own */
    struct user_regs_struct registers;
    int32_t nr;
    uint64_t args[6];
    int64_t began;
    char *path;
};

struct xdna_tracer {
    int every_stop;
    int stopped;        /* the thread whose event was returned last; it goes on with the next one */
    struct thread *threads;
    size_t count, room;
    const char *nodes; /* paths that are nodes too, NUL-separated */
    const char *emulated; /* how a link to a descriptor that stands for a node begins */
};

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int process_of(int tid)
{
    char name[40], line[256];
    int process = tid;
    snprintf(name, sizeof name, "/proc/%d/status", tid);
    FILE *file = fopen(name, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Tgid: %d", &process) == 1)
            break;
    if (file)
        fclose(file);
    return process;
}

static struct thread *known(const struct xdna_tracer *t, int tid)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->threads[i].tid == tid)
            return &t->threads[i];
    return NULL;
}

static struct thread *lookup(struct xdna_tracer *t, int tid)
{
    struct thread *found = known(t, tid);
    if (found)
        return found;
    if (t->count == t->room) {
        size_t room = t->room ? 2 * t->room : 16;
        struct thread *more = realloc(t->threads, room * sizeof *more);
        if (!more)
            return NULL;
        t->threads = more;
        t->room = room;
    }
    struct thread *thread = &t->threads[t->count++];
    memset(thread, 0, sizeof *thread);
    thread->tid = tid;
    thread->process = process_of(tid);
    return thread;
}

static void forget(struct xdna_tracer *t, int tid)
{
    struct thread *thread = known(t, tid);
    if (!thread)
        return;
    free(thread->path);
    *thread = t->threads[--t->count];
}

/* Whether a file is a node: an accel device under whatever name, or what one of the paths leads to. */
static int is_device(const struct xdna_tracer *t, const struct stat *s)
{
    struct stat other;
    if (S_ISCHR(s->st_mode) && major(s->st_rdev) == ACCEL_MAJOR)
        return 1;
    for (const char *node = t->nodes; *node; node += strlen(node) + 1)
        if (!stat(node, &other)
            && (S_ISCHR(s->st_mode) ? S_ISCHR(other.st_mode) && other.st_rdev == s->st_rdev
                                    : other.st_dev == s->st_dev && other.st_ino == s->st_ino))
            return 1;
    return 0;
}

/* Whether a path that leads nowhere, or nowhere for the tracer, is a node's. */
static int is_named(const struct xdna_tracer *t, const char *path)
{
    for (const char *node = t->nodes; *node; node += strlen(node) + 1)
        if (!strcmp(path, node))
            return 1;
    return !strncmp(path, ACCEL_NODES, strlen(ACCEL_NODES));
}

int xdna_tracer_is_node(const struct xdna_tracer *t, int tid, int fd)
{
    char name[64], target[4096];
    struct stat s;
    snprintf(name, sizeof name, "/proc/%d/fd/%d", tid, fd);
    if (!stat(name, &s) && is_device(t, &s))
        return 1;
    ssize_t length = readlink(name, target, sizeof target - 1);
    if (length <= 0)
        return 0;
    target[length] = 0;
    return !strncmp(target, t->emulated, strlen(t->emulated)) || is_named(t, target);
}

/* Whether an open by this thread is one of a node. */
static int opens_node(const struct xdna_tracer *t, const struct thread *thread, const char *path)
{
    char name[4200], base[64];
    struct stat s;
    int from = thread->nr == SYS_open ? AT_FDCWD : (int)thread->args[0];
    if (path[0] == '/')
        snprintf(base, sizeof base, "/proc/%d/root", thread->tid);
    else if (from == AT_FDCWD)
        snprintf(base, sizeof base, "/proc/%d/cwd/", thread->tid);
    else
        snprintf(base, sizeof base, "/proc/%d/fd/%d/", thread->tid, from);
    snprintf(name, sizeof name, "%s%s", base, path);
    if (!stat(name, &s))
        return is_device(t, &s);
    return is_named(t, path);
}

static int descriptor(const struct thread *thread)
{
    return (int)(thread->nr == SYS_mmap ? thread->args[4] : thread->args[0]);
}

/* Whether a call that begins concerns a node. Opens are judged by the name, and again by what they return. */
static int concerns(struct xdna_tracer *t, struct thread *thread)
{
    char path[4096];
    uint64_t *a = thread->args;
    free(thread->path);
    thread->path = NULL;
    switch (thread->nr) {
    case SYS_open:
    case SYS_openat:
    case SYS_openat2:
        if (xdna_read_string(thread->tid, a[thread->nr == SYS_open ? 0 : 1], path, sizeof path) <= 0)
            return 0;
        if (!opens_node(t, thread, path))
            return 0;
        thread->path = strdup(path);
        return 1;
    case SYS_ioctl:
        return (a[1] >> 8 & 0xFF) == 'd' && xdna_tracer_is_node(t, thread->tid, descriptor(thread));
    case SYS_mmap:
        return (int)a[4] >= 0 && !(a[3] & MAP_ANONYMOUS)
               && xdna_tracer_is_node(t, thread->tid, descriptor(thread));
    case SYS_close:
        return xdna_tracer_is_node(t, thread->tid, descriptor(thread));
    default:
        return 0;
    }
}

/* Gives the thread its own registers back. One that was stopped before its call starts it once more. */
static void give_back(struct thread *thread)
{
    struct user_regs_struct regs = thread->registers;
    if (thread->at_entry) {
        regs.rax = regs.orig_rax;
        regs.rip -= SYSCALL_INSTRUCTION;
        /* A signal's handler, with calls of its own, may come first. */
        thread->again = 1;
        thread->waits_for_exit = thread->at_entry = 0;
    }
    regs.orig_rax = (unsigned long long)-1;
    ptrace(PTRACE_SETREGS, thread->tid, 0, &regs);
    thread->borrowed = 0;
}

static int resume(struct xdna_tracer *t, int tid, int signal)
{
    struct thread *thread = lookup(t, tid);
    if (thread && thread->borrowed)
        give_back(thread);
    int every = t->every_stop || (thread && thread->waits_for_exit);
    return ptrace(every ? PTRACE_SYSCALL : PTRACE_CONT, tid, 0, (void *)(intptr_t)signal) ? -errno : 0;
}

static void fill(struct xdna_trace_event *e, int kind, const struct thread *thread, int64_t value)
{
    e->kind = kind;
    e->pid = thread->process;
    e->tid = thread->tid;
    e->nr = thread->nr;
    memcpy(e->args, thread->args, sizeof e->args);
    e->value = value;
    e->began = thread->began;
    e->ended = now();
    snprintf(e->path, sizeof e->path, "%s", thread->path ? thread->path : "");
}

/* A stop at a call's begin or end; whether Python sees it. */
static int at_call(struct xdna_tracer *t, struct thread *thread, struct xdna_trace_event *e)
{
    struct __ptrace_syscall_info info;
    memset(&info, 0, sizeof info);
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread->tid, (void *)sizeof info, &info) <= 0)
        return 0;
    if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
        if (!thread->waits_for_exit)
            return 0;
        thread->waits_for_exit = thread->at_entry = 0;
        int64_t value = info.exit.rval;
        if (value == -ERESTARTSYS || value == -ERESTARTNOINTR || value == -ERESTARTNOHAND
            || value == -ERESTART_RESTARTBLOCK)
            value = -EINTR;
        if (thread->path && value >= 0 && !xdna_tracer_is_node(t, thread->tid, (int)value))
            return 0;
        fill(e, XDNA_TRACE_EXIT, thread, value);
        return 1;
    }
    if (info.arch != 0xC000003E) /* AUDIT_ARCH_X86_64 */
        return 0;
    int seccomp = info.op == PTRACE_SYSCALL_INFO_SECCOMP;
    int32_t nr = (int32_t)(seccomp ? info.seccomp.nr : info.entry.nr);
    uint64_t args[6];
    for (int i = 0; i < 6; i++)
        args[i] = seccomp ? info.seccomp.args[i] : info.entry.args[i];
    if (thread->again) {
        if (nr == thread->nr && !memcmp(args, thread->args, sizeof args)) {
            thread->again = 0;
            thread->waits_for_exit = 1;
            thread->began = now();
            return 0;
        }
        if (nr != SYS_ioctl) /* of a handler */
            return 0;
        thread->again = 0;
    }
    thread->nr = nr;
    memcpy(thread->args, args, sizeof args);
    thread->began = now();
    if (!concerns(t, thread))
        return 0;
    thread->waits_for_exit = 1;
    if (thread->nr != SYS_ioctl && thread->nr != SYS_close)
        return 0;
    thread->at_entry = 1;
    fill(e, XDNA_TRACE_ENTER, thread, 0);
    return 1;
}

/* Lets a stopped thread go on to its next stop at a call; -ESRCH when it ends instead. */
static int next_call_stop(int tid)
{
    int status;
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, tid, 0, 0))
            return -errno;
        if (waitpid(tid, &status, __WALL) < 0 || !WIFSTOPPED(status))
            return -ESRCH;
        if (WSTOPSIG(status) == SYSCALL_STOP)
            return 0;
    }
}

static int fetch(struct thread *thread, int tid, uint64_t address, void *data, size_t size)
{
    struct user_regs_struct regs;
    int before = thread->at_entry && !thread->borrowed;
    if (!thread->borrowed) {
        if (ptrace(PTRACE_GETREGS, tid, 0, &thread->registers))
            return -errno;
        thread->borrowed = 1;
    }
    regs = thread->registers;
    uint64_t stack = (regs.rsp - RED_ZONE - 64) & ~(uint64_t)15;
    struct iovec vectors[2] = {{(void *)(uintptr_t)address, size}, {data, size}};
    int written = xdna_vm_write(tid, (uintptr_t)stack, vectors, sizeof vectors);
    if (written)
        return written;
    regs.rdi = (unsigned long long)getpid();
    regs.rsi = stack;
    regs.rdx = 1;
    regs.r10 = stack + sizeof vectors[0];
    regs.r8 = 1;
    regs.r9 = 0;
    if (before) {
        regs.orig_rax = SYS_process_vm_writev; /* takes the place of the call that begins */
    } else {
        regs.rip -= SYSCALL_INSTRUCTION;
        regs.rax = SYS_process_vm_writev;
        regs.orig_rax = (unsigned long long)-1;
    }
    if (ptrace(PTRACE_SETREGS, tid, 0, &regs))
        return -errno;
    int failed = before ? 0 : next_call_stop(tid);
    if (!failed)
        failed = next_call_stop(tid);
    if (failed)
        return failed;
    if (ptrace(PTRACE_GETREGS, tid, 0, &regs))
        return -errno;
    int64_t value = (int64_t)regs.rax;
    return value == (int64_t)size ? 0 : value < 0 ? (int)value : -EFAULT;
}

/* Reads memory of the thread whose event was returned last, by making it write that memory to ours. Mappings of
 * a driver's pages cannot be read from outside (VM_PFNMAP); the program itself can. */
int xdna_tracer_fetch(struct xdna_tracer *t, int tid, uint64_t address, void *data, size_t size)
{
    struct thread *thread = lookup(t, tid);
    if (!thread || t->stopped != tid)
        return -ESRCH;
    /* Where Yama would not let a program reach its tracer: that process alone, and no longer than this. */
    prctl(PR_SET_PTRACER, (unsigned long)thread->process, 0, 0, 0);
    int failed = fetch(thread, tid, address, data, size);
    prctl(PR_SET_PTRACER, 0, 0, 0, 0);
    return failed;
}

struct xdna_tracer *xdna_tracer_new(int every_stop, const char *nodes, const char *emulated)
{
    struct xdna_tracer *t = calloc(1, sizeof *t);
    if (t) {
        t->every_stop = every_stop;
        t->nodes = nodes;
        t->emulated = emulated;
    }
    return t;
}

void xdna_tracer_free(struct xdna_tracer *t)
{
    while (t->count)
        forget(t, t->threads[0].tid);
    free(t->threads);
    free(t);
}

/* Whether calls that the filter of xdna_watch() picks stop for a tracer: 1, or 0 where the filter of somebody
 * else, which this process has already, answers them first (seccomp(2): SECCOMP_RET_USER_NOTIF goes before
 * SECCOMP_RET_TRACE). Tried out on a child. */
int xdna_watch_is_seen(void)
{
    int status, seen = 0;
    int child = fork();
    if (child < 0)
        return -errno;
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0))
            _exit(1);
        raise(SIGSTOP);
        if (xdna_watch())
            _exit(1);
        syscall(SYS_ioctl, -1, 'd' << 8, 0);
        _exit(0);
    }
    for (;;) {
        if (waitpid(child, &status, 0) < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        if (!WIFSTOPPED(status))
            /* What forbids to trace or to filter is told by the real attempt. */
            return WIFEXITED(status) && !WEXITSTATUS(status) ? seen : 1;
        int signal = WSTOPSIG(status), event = status >> 16;
        if (signal == SIGSTOP)
            ptrace(PTRACE_SETOPTIONS, child, 0, (void *)(long)(PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL));
        seen |= event == PTRACE_EVENT_SECCOMP;
        ptrace(PTRACE_CONT, child, 0, (void *)(long)(event || signal == SIGSTOP ? 0 : signal));
    }
}

/* Attaches to a child that has not begun yet. It and what it starts die with the tracer. */
int xdna_tracer_seize(struct xdna_tracer *t, int pid)
{
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE
                   | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (!t->every_stop)
        options |= PTRACE_O_TRACESECCOMP;
    if (!lookup(t, pid))
        return -ENOMEM;
    if (ptrace(PTRACE_SEIZE, pid, 0, (void *)options))
        return -errno;
    /* A stop, so that the first resume can choose how it goes on. */
    return ptrace(PTRACE_INTERRUPT, pid, 0, 0) ? -errno : 0;
}

/* The end of a thread; whether Python sees it, as a process's. Not that of a child of this process's own, which
 * is not traced. */
static int at_end(struct xdna_tracer *t, int tid, int status, struct xdna_trace_event *e)
{
    const struct thread *thread = known(t, tid);
    int whole = thread && thread->process == tid;
    forget(t, tid);
    memset(e, 0, sizeof *e);
    e->kind = XDNA_TRACE_END;
    e->pid = e->tid = tid;
    e->value = status;
    return whole;
}

/* A stop of a thread: 1 when Python sees it, 0 when the thread has been let go on, -ENOMEM. */
static int at_stop(struct xdna_tracer *t, int tid, int status, struct xdna_trace_event *e)
{
    int signal = WSTOPSIG(status), event = status >> 16, seen = 0;
    struct thread *thread = lookup(t, tid);
    if (!thread)
        return -ENOMEM;
    if (event == EVENT_STOP && signal != SIGTRAP) {
        ptrace(PTRACE_LISTEN, tid, 0, 0); /* a group stop: it lasts until SIGCONT */
        return 0;
    }
    if (event == PTRACE_EVENT_SECCOMP || signal == SYSCALL_STOP) {
        seen = at_call(t, thread, e);
        signal = 0;
    } else if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE
               || event == PTRACE_EVENT_EXEC) {
        unsigned long other = 0;
        ptrace(PTRACE_GETEVENTMSG, tid, 0, &other);
        if (event == PTRACE_EVENT_EXEC && (int)other != tid)
            forget(t, (int)other);
        fill(e, event == PTRACE_EVENT_EXEC ? XDNA_TRACE_EXEC : XDNA_TRACE_FORK, thread, (int64_t)other);
        e->path[0] = 0;
        seen = 1;
        /* Known from its birth on: when no thread is known, none is traced. */
        if (event != PTRACE_EVENT_EXEC && !lookup(t, (int)other))
            return -ENOMEM;
    }
    if (seen)
        t->stopped = tid;
    else
        resume(t, tid, event ? 0 : signal);
    return seen;
}

/* The next event, with its thread stopped until the following call: 1; 0 when every process has ended; -EINTR
 * when a signal of the tracer's own is to be handled. */
int xdna_tracer_next(struct xdna_tracer *t, struct xdna_trace_event *e)
{
    int status, seen;
    if (t->stopped)
        resume(t, t->stopped, 0);
    t->stopped = 0;
    do {
        if (!t->count)
            return 0; /* this process may have children that are not traced, and live on */
        int tid = waitpid(-1, &status, __WALL);
        if (tid < 0)
            return errno == ECHILD ? 0 : -errno;
        seen = WIFSTOPPED(status) ? at_stop(t, tid, status, e) : at_end(t, tid, status, e);
    } while (!seen);
    return seen;
}
