"""Starts the program confined, and learns how every process of it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.errors import error

PR_SET_CHILD_SUBREAPER = 36
_ERRNO = struct.Struct("<i")
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_HELD = {*_FORWARDED, signal.SIGCHLD}
_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)


class CannotConfine(OSError):
    """The kernel refuses the filter: no seccomp, or a filter with a listener is there already."""


class EndedEarly(OSError):
    """The child ended, by a signal or so, before it could start the program."""


def spawn(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, int]:
    """Starts a program with a filter; (process id, listener descriptor).

    Call it before this process has other threads. Raises CannotConfine, EndedEarly, or the exec's OSError.
    """
    # Looked up here: between the filter and the exec nobody would answer the child's lookups.
    paths = (
        [argv[0]]
        if "/" in argv[0]
        else [os.path.join(folder, argv[0]) for folder in os.get_exec_path(dict(environ))]
    )
    words = _Words(argv), _Words([f"{name}={value}" for name, value in environ.items()])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if not child:
        _exec(paths, *words, theirs.fileno(), writer)
    os.close(writer)
    theirs.close()
    with ours, open(reader, "rb") as failures:
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        if not fds:
            _, status = os.waitpid(child, 0)
            told = failures.read()
            if len(told) != _ERRNO.size:
                raise EndedEarly(errno.ECHILD, _how(status))
            (number,) = _ERRNO.unpack(told)
            raise CannotConfine(number, os.strerror(number))
        failed = failures.read()  # ends with the exec
        if failed:
            os.close(fds[0])
            os.waitpid(child, 0)
            raise error(_ERRNO.unpack(failed)[0])
        return child, fds[0]


def _how(status: int) -> str:
    """In words, a wait status of a child that said nothing."""
    if os.WIFSIGNALED(status):
        return f"it was killed by {signal.Signals(os.WTERMSIG(status)).name} before it began"
    return f"it ended with status {os.waitstatus_to_exitcode(status)} before it began"


class _Words:
    """An array of C strings that ends with NULL."""

    def __init__(self, words: Sequence[str]) -> None:
        self._kept = [ffi.new("char[]", os.fsencode(word)) for word in words]
        self.array = ffi.new("char *[]", [*self._kept, ffi.NULL])


def _exec(paths: list[str], argv: _Words, environ: _Words, channel: int, failures: int) -> None:
    """In the child: the first of `paths` that can be run."""
    number = errno.ENOENT
    try:
        # Python ignores these; an exec would pass that on.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        refused = lib.xdna_confine(channel)
        if refused:
            number, paths = -refused, []
        for path in paths:
            failed = -lib.xdna_start(os.fsencode(path), argv.array, environ.array)
            if failed in (errno.ENOENT, errno.ENOTDIR):
                continue
            number = failed
            if number != errno.EACCES:
                break
    finally:
        os.write(failures, _ERRNO.pack(number))
        os._exit(127)


def become_subreaper() -> None:
    """Processes whose parent ends become children of this one: the kernel lets it read them then, and their
    end is seen."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Signals:
    """Sends the program what this process is sent, but leaves Ctrl-C to the terminal, which tells both.

    Once the program's first process is gone, what it started is sent it. A second SIGTERM kills them all.
    :meth:`hold` before other threads start: a signal that came to one of those would wake nobody.
    """

    def __init__(self, child: int) -> None:
        self.child = child
        self.status: int | None = None
        """The wait status of the first process once it has ended."""
        self._asked = False
        self._mask: set[signal.Signals] | None = None
        self._before = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        for number in (signal.SIGINT, signal.SIGQUIT):
            self._before[number] = signal.signal(number, signal.SIG_IGN)

    def hold(self) -> None:
        """Keeps signals back in this thread, and those that it starts, until :meth:`next` takes them."""
        self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, _HELD))  # type: ignore[arg-type]

    def next(self, seconds: float) -> None:
        """Waits `seconds` at most for a signal, SIGCHLD too, and passes it on."""
        found = signal.sigtimedwait(_HELD, seconds)
        if found is not None and found.si_signo != signal.SIGCHLD:
            self._forward(found.si_signo, None)

    def _forward(self, number: int, frame: object) -> None:
        again = number == signal.SIGTERM and self._asked
        self._asked |= number == signal.SIGTERM
        if again or self._over():
            kill_descendants(signal.SIGKILL if again else number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, number)

    def _over(self) -> bool:
        """Whether the first process has ended, also where nobody has waited for it yet."""
        if self.status is not None:
            return True
        try:
            found = _look(os.P_PID, self.child)
        except ChildProcessError:
            return True
        return found is not None and found.si_code in _ENDS

    def undo(self) -> None:
        """Puts back what was there before."""
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)


def kill_descendants(number: int) -> None:
    """Sends a signal to every process below this one. They cannot leave: this process is their subreaper."""
    known: set[int] = set()
    while True:
        found = _descendants() - known
        if not found:
            return
        known |= found
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if number != signal.SIGKILL:
            return


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                # The name, in parentheses, may hold anything.
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, below = set(), {os.getpid()}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below and pid not in found}
        found |= below
    return found


def _look(kind: int, number: int) -> os.waitid_result | None:
    """What has become of a child, which stays to be waited for; None: nothing. Raises ChildProcessError.

    Only a code of `_ENDS` is an end: the stops of what this process traces are told whatever the options are
    (wait_task_stopped of kernel/exit.c), and the program is traced while it is made to do a call.
    """
    return os.waitid(kind, number, os.WEXITED | os.WNOWAIT | os.WNOHANG)


def reap_all(signals: Signals) -> int:
    """Waits until this process has no child any more; the wait status of the program's first one."""
    while True:
        try:
            found = _look(os.P_ALL, 0)
        except ChildProcessError:
            return signals.status or 0
        if found is None:
            signals.next(1.0)
            continue
        if found.si_code not in _ENDS:  # a stop, which is for the thread that traces
            time.sleep(0.002)
            continue
        with contextlib.suppress(ChildProcessError):
            if found.si_pid == signals.child:
                # From here on its number may be another's.
                signals.status = 0
            pid, ended = os.waitpid(found.si_pid, os.WNOHANG)
            if pid == signals.child:
                signals.status = ended
