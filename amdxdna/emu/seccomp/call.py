"""One system call of the program that waits for an answer."""

from __future__ import annotations

import errno
import mmap
from typing import Any

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.errors import error
from amdxdna.usermem import UserMemory

CLOSE, MMAP, MUNMAP, FCNTL, F_SETFD = 3, 9, 11, 72, 2
_FRESH = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Stale(Exception):
    """The calling thread was killed: nobody waits for the answer."""


class Call:
    """Answered once, from any thread. Raises Stale where the caller is gone.

    `thread` is the caller's thread id. A call that needs its own process to do something first
    (:meth:`inject`) is answered through ptrace from then on, by the same thread of this process.
    """

    def __init__(self, listener: int, notice: Any) -> None:
        """`notice`: a struct xdna_notice, of which a copy is kept."""
        self._listener = listener
        self.id = int(notice.id)
        self.thread = int(notice.pid)
        self.nr = int(notice.nr)
        self.arguments = [int(value) for value in notice.args]
        self.file = int(notice.dev), int(notice.ino)
        """Device and inode of the file behind its descriptor; (0, 0): not known."""
        self.outcome: int | OSError | None = None
        """Of a timeline wait that has been tried."""
        self.deadline = 0
        """Of a timeline wait, CLOCK_MONOTONIC nanoseconds."""
        self.queued = 0
        """The context for whose room a submit waits."""
        self._injection: Any = None

    def go_on(self) -> None:
        """Lets the kernel run the call."""
        lib.xdna_notice_answer(self._listener, self.id, 0, 0, 1)

    def succeed(self, value: int = 0) -> None:
        """Answers the call with `value`."""
        self._answer(value, 0)

    def fail(self, number: int) -> None:
        """Answers the call with errno `number`."""
        self._answer(0, -number)

    def _answer(self, value: int, failed: int) -> None:
        if self._injection is not None:
            ended, self._injection = self._injection, None
            if lib.xdna_inject_end(ended, failed or value) < 0:
                raise Stale
        elif lib.xdna_notice_answer(self._listener, self.id, value, failed, 0) < 0:
            raise Stale

    def give(self, fd: int, close_on_exec: bool, answer: bool = False) -> int:
        """Gives the process a descriptor, as the call's value if `answer`; its number there."""
        value = lib.xdna_notice_give(self._listener, self.id, fd, close_on_exec, answer)
        if value == -errno.ENOENT:
            raise Stale
        if value < 0:
            raise error(-value)
        return value

    def check(self) -> None:
        """Raises Stale where the caller is gone: its number may be another thread's by now."""
        if not self.valid():
            raise Stale

    def valid(self) -> bool:
        """Whether the caller still waits: what was read from its process was its own then."""
        return self._injection is not None or lib.xdna_notice_valid(self._listener, self.id) == 0

    def again(self, argument: int, data: bytes) -> int:
        """Makes the calling thread do its own call with `argument` leading to `data`, with its own rights;
        the value. Raises OSError as :meth:`inject`."""
        at = self.inject(MMAP, 0, len(data), *_FRESH, 2**64 - 1, 0)
        try:
            UserMemory(self.thread).write(at, data)
            arguments = list(self.arguments)
            arguments[argument] = at
            return self.inject(self.nr, *arguments)
        finally:
            self.inject(MUNMAP, at, len(data))

    @property
    def injected(self) -> bool:
        """Whether the calling thread has been made to run another call."""
        return self._injection is not None

    def inject(self, nr: int, *arguments: int) -> int:
        """Makes the calling thread run another system call now; its value. Raises OSError with its errno.

        EOPNOTSUPP: this process may not trace it, or something else does.
        """
        if self._injection is None:
            injection = ffi.new("struct xdna_injection *")
            if lib.xdna_inject_attach(injection, self.thread) < 0:
                raise error(errno.EOPNOTSUPP)
            sent = lib.xdna_notice_answer(self._listener, self.id, 0, -errno.EINTR, 0)
            if sent < 0 or lib.xdna_inject_wait(injection) < 0:
                lib.xdna_inject_drop(injection)
                raise Stale
            self._injection = injection
        value = lib.xdna_inject_call(self._injection, nr, *arguments, *[0] * (6 - len(arguments)))
        if -4096 < value < 0:
            if value == -errno.ESRCH:
                raise Stale
            raise error(-value)
        return value
