/* Makes a stopped thread of another process issue system calls of our choosing (ptrace), for the few things
 * that only the process itself can do to its address space. */
#include "process.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SYSCALL_INSTRUCTION = 2, SYSCALL_STOP = SIGTRAP | 0x80, EVENT_STOP = 128, QUICK = 256, NAP_US = 50 };

_Static_assert(sizeof(((struct xdna_injection *)0)->registers) >= sizeof(struct user_regs_struct), "registers");

static long request(int what, int tid, uintptr_t address, uintptr_t data)
{
    return ptrace(what, tid, (void *)address, (void *)data) < 0 ? -errno : 0;
}

/* A number of /proc/TID/status; 0 when it cannot be read. */
static int status_of(int tid, const char *format)
{
    char name[40], line[256];
    int value = 0;
    snprintf(name, sizeof name, "/proc/%d/status", tid);
    FILE *file = fopen(name, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, format, &value) == 1)
            break;
    if (file)
        fclose(file);
    return value;
}

/* Waits for a stop; its signal, event << 8 with it. -ESRCH: the thread is gone. Another thread's exec may end a
 * process's first thread and take its id, which then is a child's that is not traced: no wait ends for that. The
 * end of a process is left to whoever waits for processes. */
static int stopped(int tid)
{
    for (int turn = 1;; turn++) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)tid, &info, WSTOPPED | __WALL | WNOHANG) && errno != EINTR)
            return -ESRCH;
        if (info.si_pid)
            return info.si_status;
        if (!waitid(P_PID, (id_t)tid, &info, WEXITED | __WALL | WNOHANG | WNOWAIT) && info.si_pid) {
            if (info.si_code == CLD_TRAPPED || info.si_code == CLD_STOPPED)
                continue; /* told of whatever is asked */
            if (status_of(tid, "Tgid: %d") != tid)
                waitpid(tid, NULL, __WALL | WNOHANG);
            return -ESRCH;
        }
        if (turn < QUICK)
            sched_yield();
        else
            usleep(NAP_US);
        if (turn % QUICK == 0 && status_of(tid, "TracerPid: %d") != gettid())
            return -ESRCH;
    }
}

/* Attaches; the thread stops as soon as the system call it is in has been answered. */
int xdna_inject_attach(struct xdna_injection *in, int tid)
{
    memset(in, 0, sizeof *in);
    in->tid = tid;
    long failed = request(PTRACE_SEIZE, tid, 0, PTRACE_O_TRACESYSGOOD);
    if (!failed)
        failed = request(PTRACE_INTERRUPT, tid, 0, 0);
    return (int)failed;
}

/* Waits for that stop. No signal is delivered until the end. */
int xdna_inject_wait(struct xdna_injection *in)
{
    uint64_t all = ~(uint64_t)0;
    int stop = stopped(in->tid);
    if (stop < 0)
        return stop;
    if (stop >> 8 != EVENT_STOP)
        return -EINTR;
    long failed = request(PTRACE_GETREGS, in->tid, 0, (uintptr_t)in->registers);
    if (!failed)
        failed = request(PTRACE_GETSIGMASK, in->tid, sizeof in->mask, (uintptr_t)&in->mask);
    if (!failed)
        failed = request(PTRACE_SETSIGMASK, in->tid, sizeof all, (uintptr_t)&all);
    return (int)failed;
}

/* Runs one system call there; its value (an error is -errno). */
int64_t xdna_inject_call(struct xdna_injection *in, int nr, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                         uint64_t e, uint64_t f)
{
    struct user_regs_struct regs;
    memcpy(&regs, in->registers, sizeof regs);
    regs.rip -= SYSCALL_INSTRUCTION;
    regs.rax = (uint64_t)nr;
    regs.orig_rax = (uint64_t)-1;
    regs.rdi = a;
    regs.rsi = b;
    regs.rdx = c;
    regs.r10 = d;
    regs.r8 = e;
    regs.r9 = f;
    long failed = request(PTRACE_SETREGS, in->tid, 0, (uintptr_t)&regs);
    for (int stops = 0; !failed && stops < 2;) {
        failed = request(PTRACE_SYSCALL, in->tid, 0, 0);
        int stop = failed ? (int)failed : stopped(in->tid);
        if (stop < 0)
            return stop;
        stops += stop == SYSCALL_STOP;
    }
    if (!failed)
        failed = request(PTRACE_GETREGS, in->tid, 0, (uintptr_t)&regs);
    return failed ? failed : (int64_t)regs.rax;
}

/* Lets a thread go that could not be made to stop as it should. */
void xdna_inject_drop(struct xdna_injection *in)
{
    request(PTRACE_DETACH, in->tid, 0, 0);
}

/* Lets the thread go on as if its own call had returned `value`. */
int xdna_inject_end(struct xdna_injection *in, int64_t value)
{
    struct user_regs_struct regs;
    memcpy(&regs, in->registers, sizeof regs);
    regs.rax = (uint64_t)value;
    regs.orig_rax = (uint64_t)-1;
    long failed = request(PTRACE_SETREGS, in->tid, 0, (uintptr_t)&regs);
    request(PTRACE_SETSIGMASK, in->tid, sizeof in->mask, (uintptr_t)&in->mask);
    long left = request(PTRACE_DETACH, in->tid, 0, 0);
    return (int)(failed ? failed : left);
}
