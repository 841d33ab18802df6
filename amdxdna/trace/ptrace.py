"""Records a program's calls on the kernel's node, by ptrace: unprivileged, with what the program starts.

A seccomp filter lets only calls stop that may concern a node (opens, ioctls of DRM's type byte, shared
mappings, closes), so the rest of the program runs at full speed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amdxdna._native import ffi, lib
from amdxdna.emu.identity import NODE_FILE
from amdxdna.emu.seccomp.rights import Teller
from amdxdna.trace.recorder import Pending, Recorder
from amdxdna.trace.session import Session
from amdxdna.usermem import UserMemory

OPEN, CLOSE, MMAP, IOCTL, OPENAT, OPENAT2, KCMP = 2, 3, 9, 16, 257, 437, 312
_OPENS = {OPEN, OPENAT, OPENAT2}
_KCMP_FILE = 0
_ERRNO = struct.Struct("<i")
_EMULATED = f"/memfd:{NODE_FILE}"
"""What a descriptor leads to that `emulate` gives out."""
_LOWEST = 1 << 16
"""Nothing is mapped below (vm.mmap_min_addr)."""
_libc: Any = ctypes.CDLL(None, use_errno=True)

_Key = tuple[int, int]
"""Process and descriptor."""


class CannotTrace(OSError):
    """The kernel refuses to trace or to filter."""


class Tracer:
    """Runs one program and records it. Use it in a process of its own: it waits for every child."""

    def __init__(self, recorder: Recorder, *, every_stop: bool = False, nodes: Sequence[str] = ()) -> None:
        """`every_stop`: no filter, which is slow, but sees calls that another filter answers; taken anyway
        where such a filter is on this process already. `nodes`: further files to be taken for nodes."""
        self._recorder = recorder
        self.answered_elsewhere = not every_stop and _answered_elsewhere()
        """A filter of somebody else's answers the calls: this process is under `emulate` or the like."""
        self._every_stop = every_stop or self.answered_elsewhere
        paths = [os.path.abspath(node) for node in nodes]
        self._nodes = ffi.new("char[]", b"".join(os.fsencode(path) + b"\0" for path in paths) + b"\0")
        self._emulated = ffi.new("char[]", os.fsencode(_EMULATED))
        self._sessions: dict[_Key, Session] = {}
        self._pending: dict[int, Pending] = {}
        self._tracer: Any = None
        self._rights = Teller("trace")

    def run(self, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        """The wait status of the program, after everything it started has ended.

        Raises CannotTrace, or the OSError with which it could not be started.
        """
        self._tracer = lib.xdna_tracer_new(int(self._every_stop), self._nodes, self._emulated)
        try:
            return self._run(self._tracer, argv, environ)
        finally:
            lib.xdna_tracer_free(self._tracer)

    def _run(self, tracer: Any, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        child, begin, failures = self._fork(argv, environ)
        refused = lib.xdna_tracer_seize(tracer, child)
        if refused:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise CannotTrace(-refused, os.strerror(-refused))
        os.write(begin, b"x")
        os.close(begin)
        undo = _leave_interrupts_to(child)
        status = 0
        event = ffi.new("struct xdna_trace_event *")
        try:
            while True:
                found = lib.xdna_tracer_next(tracer, event)
                if found == -errno.EINTR:
                    continue
                if found < 0:
                    raise CannotTrace(-found, os.strerror(-found))
                if not found:
                    break
                if event.kind == lib.XDNA_TRACE_END and event.pid == child:
                    status = int(event.value)
                self._handle(event)
        finally:
            undo()
        with open(failures, "rb") as file:
            data = file.read(_ERRNO.size + 1)
        if data:
            (number,) = _ERRNO.unpack(data[: _ERRNO.size])
            raise (CannotTrace if len(data) > _ERRNO.size else OSError)(number, os.strerror(number))
        return status

    def _fork(self, argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, int, int]:
        """A child that waits to be traced: its id, what lets it go, and a pipe that says what failed."""
        begin_reader, begin = os.pipe2(os.O_CLOEXEC)
        failures, failed = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child:
            os.close(begin_reader)
            os.close(failed)
            return child, begin, failures
        message = b""
        try:
            os.close(begin)
            os.read(begin_reader, 1)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            refused = 0 if self._every_stop else lib.xdna_watch()
            if refused:
                message = _ERRNO.pack(-refused) + b"f"
            else:
                os.execvpe(argv[0], list(argv), dict(environ))
        except OSError as error:
            message = _ERRNO.pack(error.errno or 1)
        finally:
            os.write(failed, message)
            os._exit(127)

    # -- events

    def _handle(self, e: Any) -> None:
        if e.kind == lib.XDNA_TRACE_ENTER:
            if e.nr == IOCTL:
                session = self._session(e.pid, e.tid, _descriptor(e.args[0]))
                request, address = int(e.args[1]) & 0xFFFFFFFF, int(e.args[2])
                self._pending[e.tid] = self._recorder.enter(
                    session, e.pid, e.tid, request, address, self._memory(e.tid)
                )
            else:
                self._close(e.pid, e.tid, _descriptor(e.args[0]))
        elif e.kind == lib.XDNA_TRACE_EXIT:
            self._exit(e)
        elif e.kind == lib.XDNA_TRACE_FORK:
            self._forked(e.pid, int(e.value))
        elif e.kind == lib.XDNA_TRACE_EXEC:
            self._executed(e.pid)
            for pid, fd in [key for key in self._sessions if key[0] == e.pid]:
                if not self._is_node(pid, fd):
                    self._drop((pid, fd), e.tid)
        else:
            for key in [key for key in self._sessions if key[0] == e.pid]:
                self._drop(key, e.tid)

    def _exit(self, e: Any) -> None:
        began, ended = e.began * 1e-9, e.ended * 1e-9
        value = int(e.value)
        failed = -value if -4096 < value < 0 else 0
        if e.nr == IOCTL:
            pending = self._pending.pop(e.tid, None)
            if pending is not None:
                pending.began = began
                self._recorder.leave(pending, failed, ended)
        elif e.nr == MMAP:
            session = self._session(e.pid, e.tid, _descriptor(e.args[4]))
            self._recorder.mapped(
                session,
                e.pid,
                e.tid,
                int(e.args[1]),
                int(e.args[5]),
                int(e.args[0]),
                None if failed else value,
                failed,
                began,
            )
        elif e.nr in _OPENS:
            path = os.fsdecode(ffi.string(e.path))
            opened = self._recorder.opened(e.pid, e.tid, path, None if failed else value, failed, began)
            if opened is not None:
                self._sessions[e.pid, value] = opened

    def _memory(self, tid: int) -> UserMemory:
        """The memory of a stopped thread's process: what cannot be read from outside it has to hand over."""

        def fetch(address: int, data: Any, size: int) -> int:
            if address < _LOWEST:
                return -errno.EFAULT
            return int(lib.xdna_tracer_fetch(self._tracer, tid, address, data, size))

        return UserMemory(tid, fetch)

    # -- which open a descriptor is

    def _session(self, pid: int, tid: int, fd: int) -> Session:
        """The open behind a descriptor: duplicates and inherited ones are found by asking the kernel."""
        session = self._sessions.get((pid, fd))
        if session is None:
            for (other, number), known in self._sessions.items():
                if _same_file(pid, fd, other, number):
                    session = known
                    break
            else:
                session = self._recorder.opened(pid, tid, self._target(pid, fd), fd, inherited=True)
                assert session is not None
            self._sessions[pid, fd] = session
        return session

    @staticmethod
    def _target(pid: int, fd: int) -> str:
        try:
            return os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            return "?"

    def _is_node(self, pid: int, fd: int) -> bool:
        return bool(lib.xdna_tracer_is_node(self._tracer, pid, fd))

    def _close(self, pid: int, tid: int, fd: int) -> None:
        """A close is about to happen: what else of the process leads to the same open takes its place."""
        session = self._sessions.get((pid, fd))
        if session is None:
            return
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                other = int(name)
                if other != fd and (pid, other) not in self._sessions and _same_file(pid, fd, pid, other):
                    self._sessions[pid, other] = session
        self._drop((pid, fd), tid)

    def _drop(self, key: _Key, tid: int) -> None:
        session = self._sessions.pop(key)
        if not any(other is session for other in self._sessions.values()):
            self._recorder.closed(session, key[0], tid)

    def _executed(self, pid: int) -> None:
        """A program has begun, perhaps without rights that its file would have given it."""
        if not self.answered_elsewhere:  # or it has been said
            with contextlib.suppress(OSError):
                file = f"/proc/{pid}/exe"
                self._rights.look(pid, file, os.readlink(file))

    def _forked(self, parent: int, child: int) -> None:
        """A new process holds what its parent does; a new thread of the same process changes nothing."""
        for (pid, fd), session in list(self._sessions.items()):
            if pid == parent and self._is_node(child, fd) and _process(child) == child:
                self._sessions[child, fd] = session


def _answered_elsewhere() -> bool:
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        # 2: SECCOMP_MODE_FILTER, a container's too.
        return "\nSeccomp:\t2\n" in file.read() and lib.xdna_watch_is_seen() == 0
    return False


def _descriptor(argument: int) -> int:
    return int(argument) & 0xFFFFFFFF


def _same_file(pid: int, fd: int, other: int, number: int) -> bool:
    return bool(_libc.syscall(KCMP, pid, other, _KCMP_FILE, ctypes.c_ulong(fd), ctypes.c_ulong(number)) == 0)


def _process(tid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{tid}/status") as file:
        for line in file:
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return tid


def _leave_interrupts_to(child: int) -> Callable[[], None]:
    """Ctrl-C reaches the program from the terminal; other signals are passed on. Returns what undoes it."""
    from amdxdna.emu.seccomp.spawn import Signals

    return Signals(child).undo
