"""The device: where everything starts."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from amdxdna import query
from amdxdna.allocation import allocate, import_fd, wrap
from amdxdna.arguments import Uncopied, path, wants, whole
from amdxdna.arguments import seconds as _seconds
from amdxdna.buffer import Buffer
from amdxdna.client import Client
from amdxdna.create_hwctx import QoS
from amdxdna.device_info import (
    AieMetadata,
    AsyncError,
    BoUsage,
    ContextInfo,
    DeviceInfo,
    PowerMode,
    ResourceInfo,
    Telemetry,
)
from amdxdna.errors import BadArgument, BadType, DeviceBusy, XdnaError, closed
from amdxdna.heap import Heap
from amdxdna.hwctx import HwContext
from amdxdna.node import Node
from amdxdna.opening import is_emulated, open_node, resolve
from amdxdna.pool import ContextPool
from amdxdna.profile import DriverProfile
from amdxdna.reaper import Finalizer, collect, reap
from amdxdna.signals import section, uninterrupted
from amdxdna.version import DrmVersion
from amdxdna.weak import LiveValues
from amdxdna.xclbin import Xclbin
from amdxdna.xclbin.reader import Cu

_clients: LiveValues[str, Client] = LiveValues()
_closing: set[str] = set()
"""Nodes whose last Device is closing: some drivers let a process open a node only once."""
_lock = threading.Condition()


def _after_fork() -> None:
    global _lock
    _lock = threading.Condition()
    _closing.clear()


os.register_at_fork(after_in_child=_after_fork)


class Device(Uncopied):
    """An open NPU, kernel or emulated. A context manager; :meth:`close` ends everything made through it.

    Kernel nodes are opened once a process: further Devices on the same node share that open (and its contexts
    and heap), which ends with the last of them. Thread-safe. A forked child cannot use its parent's Device,
    but may open one of its own.

    A Device that is dropped without close() counts as closed; what was made through it goes on working, and
    with the last such object the node is closed (at the next allocation or open).
    """

    def __init__(self, client: Client) -> None:
        self._client: Client | None = client
        self._pool = _shared_pool(client)
        self._finalizer = Finalizer(self, partial(_dropped, client))

    @classmethod
    def open(
        cls,
        spec: str | int | os.PathLike[str] | Node | None = "auto",
        *,
        sys: str | Path = "/sys",
        dev: str | Path = "/dev",
    ) -> Device:
        """Opens a device.

        `spec`: "auto" or None (the first NPU found through sysfs, else the emulated one), "npu" (the first)
        or an index from 0, a node's path, "emu" or "emu:key=value,..." (see
        ``amdxdna.emu.options.EmuOptions``), or a :class:`~amdxdna.node.Node`, which the Device then owns.
        `sys` and `dev` are the roots of sysfs and of the device folder.

        While another thread closes the last Device on the node, it waits for that to be over. Raises
        NoDevice, PermissionDenied or DeviceBusy, each saying why and what to do.
        """
        if isinstance(spec, os.PathLike):
            spec = path("open", "spec", spec)
        if spec is not None and not isinstance(spec, (str, int)):
            if not callable(getattr(spec, "ioctl", None)):
                raise wants(
                    "open",
                    "spec",
                    spec,
                    'Give "auto", "npu", "emu", an index, the path of an accel node or a Node',
                )
            return uninterrupted(lambda: cls(Client(spec)))
        reap()
        where = resolve(spec, sys, dev)
        if is_emulated(where):
            return uninterrupted(lambda: cls(Client(open_node(where))))
        key = os.path.realpath(where)
        with _lock:
            _lock.wait_for(lambda: key not in _closing)
            return uninterrupted(cls._open, key, where)

    @classmethod
    def _open(cls, key: str, where: str) -> Device:
        """A Device on a kernel's node. The lock is held."""
        client = _clients.get(key)
        if client is not None and not client.closed and client.pid == os.getpid():
            client.references += 1
        else:
            client = _clients[key] = Client(_open_again(where))
        return cls(client)

    def __enter__(self) -> Device:
        self.client.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<Device closed>" if self._client is None else f"<Device {self._client.node.path}>"

    @property
    def client(self) -> Client:
        """The open behind this Device. Raises Closed after close()."""
        if self._client is None:
            raise closed("device")
        return self._client

    @property
    def node(self) -> Node:
        """The seam to the driver. Raises Closed after close()."""
        return self.client.node

    @property
    def path(self) -> str:
        """The node's path, or "emu"."""
        return self.client.node.path

    @property
    def emulated(self) -> bool:
        """Whether the NPU is the emulated one, in process or behind a driver; only to tell the user.

        By its firmware: false where the driver does not tell that.
        """
        client = self.client
        try:
            return query.firmware_version(client).emulated
        except XdnaError:
            return False

    @property
    def version(self) -> DrmVersion:
        """The driver's interface version; features are gated on its ``minor``."""
        return self.client.version

    @property
    def profile(self) -> DriverProfile:
        """What is known of this driver: its time-out, what of chains, user pointers and heap to rely on."""
        return self.client.profile

    @property
    def wait_seconds(self) -> float:
        """How long a wait without a limit of its own (``Run.wait()``) goes on without any progress, plus a
        second for each giga operation that the kernel declares; then it raises CommandInFlight. 0: no limit.

        From the environment's AMDXDNA_WAIT, or 10; it can be set, for every Device of this open.
        """
        return self.client.wait_seconds

    @wait_seconds.setter
    def wait_seconds(self, seconds: float) -> None:
        self.client.wait_seconds = _seconds("wait", "wait_seconds", seconds)

    @property
    def heap(self) -> Heap:
        """The device heap, made at first use."""
        return self.client.heap

    @property
    def pool(self) -> ContextPool:
        """The context pool of this open; made at first use."""
        client = self.client
        client.check_open()
        with client.lock:
            client.check_open()
            pool = self._pool or _shared_pool(client)
            if pool is None:
                pool = ContextPool(client)
                client.pool = weakref.ref(pool)
            self._pool = pool
            return pool

    def alloc(self, nbytes: int, kind: str = "share", *, flush: bool = True) -> Buffer:
        """A new buffer of `nbytes`: "share" (data), "dev" (device heap: instructions, PDIs) or "cmd".

        Its contents are undefined. Without `flush` its pages are not touched yet; the caller fills the buffer
        and calls :meth:`Buffer.to_device` before a command sees it, as for weights that threads read in.
        Raises OutOfMemory, OutOfHeap (with the numbers) or BadArgument.
        """
        return allocate(self.client, nbytes, kind, flush)

    def wrap(self, source: Any, nbytes: int | None = None) -> Buffer:
        """A buffer over memory the caller has: an address with `nbytes`, or a contiguous array, mmap or other
        buffer object, all page-aligned. No copy; the object is kept alive.

        The driver pins the pages. It takes anonymous memory, private writable file mappings and shared tmpfs
        mappings; it refuses shared mappings of disk files, and everything read-only unless it is AMD's
        out-of-tree driver of March 2026 or newer (``profile.user_pointers``): BadArgument. Pinned memory
        counts against the locked-memory limit: OutOfMemory. So try it, and copy into an ordinary buffer where
        it fails.
        """
        if isinstance(source, int):
            if nbytes is None:
                raise BadArgument("an address without a size", call="wrap", remedy="Pass nbytes too")
            return wrap(self.client, source, nbytes)
        from amdxdna._native import ffi

        try:
            inside = ffi.from_buffer("char[]", source)
            if "O" in memoryview(source).format:
                raise TypeError("it holds references of Python's")
        except (TypeError, ValueError, BufferError) as error:
            raise BadType(
                f"source is {source!r:.60}, and this memory cannot be used: {error}",
                call="wrap",
                remedy="Pass a contiguous array or mmap",
            ) from None
        size = len(inside) if nbytes is None else whole("wrap", "nbytes", nbytes, -(1 << 63))
        if not 0 < size <= len(inside):
            raise BadArgument(
                f"{size} bytes of an object of {len(inside)}", call="wrap", remedy="Correct nbytes"
            )
        return wrap(
            self.client, int(ffi.cast("uintptr_t", inside)), size, inside, memoryview(source).readonly
        )

    def import_fd(self, fd: int, nbytes: int | None = None) -> Buffer:
        """A buffer over a dma-buf from :meth:`Buffer.export_fd` or another driver; `nbytes` None: all of it.

        The descriptor stays the caller's. Raises BadArgument when it is no dma-buf.
        """
        return import_fd(self.client, fd, nbytes)

    def context(
        self,
        xclbin: Xclbin | None,
        qos: QoS | None = None,
        *,
        columns: int = 0,
        cus: Sequence[Cu] | None = None,
    ) -> HwContext:
        """A hardware context of its own, outside the pool. The caller closes it.

        Without an xclbin it has no compute units and is `columns` wide. `cus` gives the xclbin's units in
        another order, which their index in a packet then follows.
        """
        return HwContext(self.client, xclbin, qos, columns=columns, cus=cus)

    def info(self) -> DeviceInfo:
        """What the driver tells about device, firmware and contexts; see :mod:`amdxdna.query` for parts."""
        return query.everything(self.client)

    def metadata(self) -> AieMetadata:
        """The array: columns, rows, tiles."""
        return self.client.metadata

    def contexts(self) -> tuple[ContextInfo, ...]:
        """Every hardware context of the device, of all processes."""
        return query.contexts(self.client)

    def resources(self) -> ResourceInfo:
        """How many contexts there can be and are. Raises Unsupported before DRM minor 4."""
        return query.resource_info(self.client)

    def last_async_error(self) -> AsyncError | None:
        """The last error the array raised by itself. Raises Unsupported before DRM minor 2."""
        return query.last_async_error(self.client)

    def telemetry(self, kind: int = 0) -> Telemetry:
        """The firmware's telemetry block. Raises Unsupported before DRM minor 5."""
        return query.telemetry(self.client, kind)

    def bo_usage(self, pid: int | None = None) -> BoUsage:
        """Buffer bytes of a process (None: this one). Raises Unsupported before DRM minor 8."""
        return query.bo_usage(self.client, pid)

    @property
    def power_mode(self) -> PowerMode:
        """The power mode; setting it needs root (PermissionDenied)."""
        return query.power_mode(self.client)

    @power_mode.setter
    def power_mode(self, mode: PowerMode | int) -> None:
        query.set_power_mode(self.client, mode)

    @section
    def close(self) -> None:
        """Ends this Device; the last one on a node waits for the runs in flight and closes it. Idempotent.

        Views of buffers stay valid memory. In a forked child it leaves the parent's device alone.
        """
        with _lock:
            client, self._client = self._client, None
            if client is None:
                return
            self._pool = None
            self._finalizer.detach()
            client.references -= 1
            if client.references > 0:
                return
            keys = _clients.discard(client)
            _closing.update(keys)
        try:
            client.close()
        finally:
            with _lock:
                _closing.difference_update(keys)
                _lock.notify_all()


def _dropped(client: Client) -> None:
    """A Device was dropped. Its open ends with the last object made through it."""
    with _lock:
        client.references -= 1


def _open_again(where: str) -> Node:
    """Opens a node; where the driver allows a process one open, not before a forgotten one is closed."""
    try:
        return open_node(where)
    except DeviceBusy:
        if not collect():
            raise
    return open_node(where)


def _shared_pool(client: Client) -> ContextPool | None:
    """The pool that the Devices of an open share, if one of them has made it."""
    pool = None if client.pool is None else client.pool()
    return pool if isinstance(pool, ContextPool) else None
