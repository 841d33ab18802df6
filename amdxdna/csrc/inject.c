/* Makes a stopped thread of another process issue system calls of our choosing (ptrace), for the few things
 * that only the process itself can do to its address space. */
#include "process.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { SYSCALL_INSTRUCTION = 2, SYSCALL_STOP = SIGTRAP | 0x80, EVENT_STOP = 128 };

_Static_assert(sizeof(((struct xdna_injection *)0)->registers) >= sizeof(struct user_regs_struct), "registers");

static long request(int what, int tid, uintptr_t address, uintptr_t data)
{
    return ptrace(what, tid, (void *)address, (void *)data) < 0 ? -errno : 0;
}

/* Waits for a stop; its signal, event << 8 with it. -ESRCH: the thread is gone. */
static int stopped(int tid)
{
    int status;
    for (;;) {
        if (waitpid(tid, &status, __WALL) < 0) {
            if (errno == EINTR)
                continue;
            return -ESRCH;
        }
        if (!WIFSTOPPED(status))
            return -ESRCH;
        return status >> 8;
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
