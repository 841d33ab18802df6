"""Records what this process does with the NPU: AMDXDNA_TRACE wraps every node that the binding opens."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from amdxdna._native import ffi
from amdxdna.errors import BadArgument
from amdxdna.node import Node
from amdxdna.output import open_appending
from amdxdna.reaper import Finalizer
from amdxdna.trace import ENVIRONMENT
from amdxdna.trace.recorder import Recorder
from amdxdna.trace.session import Session
from amdxdna.usermem import UserMemory

_lock = threading.Lock()
_recorders: dict[tuple[int, str], Recorder] = {}


class _DriverPages:
    """A mapping of a driver's pages is not to be read with process_vm_readv, but write() takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = os.memfd_create("amdxdna-trace", os.MFD_CLOEXEC)
        Finalizer(self, partial(os.close, self._fd))

    def fetch(self, address: int, data: Any, size: int) -> int:
        """See :data:`amdxdna.usermem.Fetch`."""
        with self._lock:
            try:
                if os.pwrite(self._fd, ffi.buffer(ffi.cast("char *", address), size), 0) != size:
                    return -errno.EFAULT
                ffi.buffer(data, size)[:] = os.pread(self._fd, size, 0)
            except OSError as failed:
                return -(failed.errno or errno.EFAULT)
        return 0


def own_memory() -> UserMemory:
    """This process's memory. A bad pointer is an error, not a crash."""
    return UserMemory(os.getpid(), _DriverPages().fetch)


class TraceNode:
    """A node that records its calls and passes them on. As thread-safe as the node it wraps.

    The trace is the opening process's: what a forked child does with the node it inherits is not recorded.
    """

    def __init__(self, node: Node, recorder: Recorder, began: float) -> None:
        self.path = node.path
        self.emulated = node.emulated
        self._node = node
        self._recorder = recorder
        self._pid = os.getpid()
        self._memory = own_memory()
        session = recorder.opened(
            self._pid, threading.get_native_id(), node.path, getattr(node, "_fd", None), 0, began
        )
        assert session is not None
        self._session: Session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def ioctl(self, request: int, address: int) -> int:
        """See :meth:`amdxdna.node.Node.ioctl`."""
        if os.getpid() != self._pid:
            return self._node.ioctl(request, address)
        pending = self._recorder.enter(
            self._session, os.getpid(), threading.get_native_id(), request, address, self._memory
        )
        try:
            value = self._node.ioctl(request, address)
        except OSError as failed:
            if failed.errno:
                self._recorder.leave(pending, failed.errno)
            raise
        self._recorder.leave(pending, 0)
        return value

    def mmap(self, length: int, offset: int, *, address: int = 0) -> int:
        """See :meth:`amdxdna.node.Node.mmap`."""
        if os.getpid() != self._pid:
            return self._node.mmap(length, offset, address=address)
        began = time.monotonic()
        identity = os.getpid(), threading.get_native_id()
        try:
            where = self._node.mmap(length, offset, address=address)
        except OSError as failed:
            if failed.errno:
                self._recorder.mapped(
                    self._session, *identity, length, offset, address, None, failed.errno, began
                )
            raise
        self._recorder.mapped(self._session, *identity, length, offset, address, where, 0, began)
        return where

    def munmap(self, address: int, length: int) -> None:
        """See :meth:`amdxdna.node.Node.munmap`."""
        if os.getpid() != self._pid:
            self._node.munmap(address, length)
            return
        # Now, for after the call another thread's mapping may be there.
        self._recorder.unmapping(self._session, address, length)
        self._node.munmap(address, length)
        self._recorder.unmapped(self._session, os.getpid(), threading.get_native_id(), address, length)

    def text(self, path: str) -> str | None:
        """See :meth:`amdxdna.node.Node.text`."""
        return self._node.text(path)

    def close(self) -> None:
        """See :meth:`amdxdna.node.Node.close`."""
        self._node.close()
        if os.getpid() != self._pid:
            return
        self._recorder.closed(self._session, os.getpid(), threading.get_native_id())


def recorder(path: str) -> Recorder:
    """This process's recorder for `path` of AMDXDNA_TRACE; the summary is written when the process ends.

    Raises BadArgument when the file cannot be written.
    """
    path = path.replace("%p", str(os.getpid()))
    with _lock:
        known = _recorders.get((os.getpid(), path))
        if known is None:
            try:
                fd = open_appending(path)
            except OSError as failed:
                raise BadArgument(
                    f"{ENVIRONMENT}={path} cannot be written: {failed.strerror}",
                    call="open",
                    errno=failed.errno,
                    remedy="Name a file that can be",
                ) from None
            known = _recorders[os.getpid(), path] = Recorder(fd, "binding")
            atexit.register(_finish, os.getpid(), path)
        return known


def stages() -> Callable[[str, float, float], None] | None:
    """What records the stages of a program's own work beside its calls; None where AMDXDNA_TRACE is not set.

    Called with a name, begin and end in seconds of CLOCK_MONOTONIC (time.perf_counter's clock on Linux).
    Raises BadArgument when the trace cannot be written.
    """
    path = os.environ.get(ENVIRONMENT)
    return recorder(path).stage if path else None


def _finish(pid: int, path: str) -> None:
    known = _recorders.get((pid, path))
    if pid == os.getpid() and known is not None:
        with contextlib.suppress(OSError):
            known.finish()


def open_traced(path: str, where: str, opener: Callable[[], Node]) -> Node:
    """Opens a node and records its life in `path`. Raises what `opener` raises, or BadArgument."""
    trace = recorder(path)
    began = time.monotonic()
    try:
        node = opener()
    except OSError as failed:
        if failed.errno:
            trace.opened(os.getpid(), threading.get_native_id(), where, None, failed.errno, began)
        raise
    return TraceNode(node, trace, began)
