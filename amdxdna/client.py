"""One open of a node, shared by everything that was made through it.

The driver keeps buffers, contexts and the device heap per open file, and some builds allow a process only one
open, so every :class:`~amdxdna.device.Device` of a process on one kernel node uses the same client.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from functools import partial
from typing import Any, Protocol

from amdxdna import ioctl, query
from amdxdna._native import ffi
from amdxdna.arguments import Uncopied
from amdxdna.device_info import AieMetadata
from amdxdna.errors import BadArgument, NoDevice, XdnaError, closed, of_parent, unsupported
from amdxdna.forklock import reentrant
from amdxdna.heap import Heap
from amdxdna.node import Node
from amdxdna.profile import DriverProfile, profile_of
from amdxdna.reaper import PATIENCE, Finalizer, collect, reap, reap_some
from amdxdna.signals import section, uninterrupted
from amdxdna.version import SINCE, read_version
from amdxdna.weak import LiveSet

DRIVER_NAMES = ("amdxdna_accel_driver", "amdxdna")
WAIT = "AMDXDNA_WAIT"
DEFAULT_WAIT = 10.0
"""Seconds, as AMD's public runtimes wait for a command."""


class Pool(Protocol):
    """What an open asks of a pool of contexts over it (:class:`amdxdna.pool.ContextPool`)."""

    def shed_pdis(self, nbytes: int) -> int:
        """Gives `nbytes` of the heap back; returns how many bytes it gave."""

    def shed_context(self) -> bool:
        """Gives up one idle context; false when there is none."""

    def in_flight(self) -> set[tuple[int, int]]:
        """The commands in flight, each by an identity of its submit. Does not block."""

    def close(self) -> None:
        """Ends every context."""


class Client(Uncopied):
    """The node, its version, the reference counts of its buffer handles, and its heap. Thread-safe.

    Everything made through it keeps it open. What it refers to must not refer back to it (the heap and the
    pools do so weakly), so that an open that was forgotten ends with its last object, without the help of the
    cycle collector; the node is then closed at the next :func:`amdxdna.reaper.reap`.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pid = os.getpid()
        self.lock = reentrant()
        self.closed = False
        self.references = 1
        self.device_bytes = 0
        self.pdi_places: dict[int, bytes] = {}
        """Address -> digest of the PDI that was last there, the oldest first (:mod:`amdxdna.pdis`)."""
        self.host_addresses = False
        """Whether some BO has shown that packets carry host addresses (PASID mode)."""
        self.wait_half_ns = 0
        """Half of :attr:`wait_seconds`, in nanoseconds."""
        self.wait_seconds = _wait_seconds()
        self.longer = f"{WAIT}=SECONDS in the environment (in a program: Device.wait_seconds)"
        """How a user raises that limit, for errors: a program that has an option for it says so."""
        self._handles: dict[int, int] = {}
        self.heap_chunk: tuple[int, int] | None = None
        """Handle and bytes of a heap BO that is not mapped yet: until then the driver uses none after it."""
        self._heap: Heap | None = None
        self._metadata: AieMetadata | None = None
        self._profile: DriverProfile | None = None
        self.pools: LiveSet[Pool] = LiveSet()
        """Every pool over this open."""
        self.pool: weakref.ref[Pool] | None = None
        """The one that its Devices share: each of them keeps it."""
        self.losses = 0
        """How often the driver was found to have dropped this open's contexts."""
        self.abandoned: list[Any] = []
        """Buffers the driver may still write to after a timeout; kept until the node closes."""
        try:
            self.version = read_version(node)
            if self.version.name not in DRIVER_NAMES:
                raise NoDevice(
                    f"{node.path} belongs to the driver {self.version.name!r}, not to amdxdna",
                    call="open",
                    remedy="Give the path of an amdxdna node, or an index",
                )
        except BaseException:
            node.close()
            raise
        self._end = Finalizer(self, partial(_end, node, self.abandoned))

    @property
    def wait_seconds(self) -> float:
        """How long a wait without a limit goes on without progress; 0: for ever. See Device.wait_seconds."""
        return self.wait_half_ns * 2e-9

    @wait_seconds.setter
    def wait_seconds(self, seconds: float) -> None:
        self.wait_half_ns = 0 if seconds > 1e9 else int(seconds * 5e8)

    def need(self, feature: str) -> None:
        """Raises Unsupported when the driver is too old for a feature of :data:`amdxdna.version.SINCE`."""
        if not self.version.has(feature):
            raise unsupported(feature, SINCE[feature], self.version.minor)

    def check_open(self) -> None:
        """Raises Closed when the device was closed, or opened by the parent of this process."""
        if self.closed:
            raise closed("device")
        if self.pid != os.getpid():
            raise of_parent("device")

    @property
    def heap(self) -> Heap:
        """The device heap; made and mapped at first use. Raises OutOfMemory when there is no room for it."""
        if self._heap is None:
            with self.lock:
                self.check_open()
                if self._heap is None:
                    self._heap = uninterrupted(Heap, self)
        return self._heap

    @property
    def profile(self) -> DriverProfile:
        """What is known of the driver, looked up once. Works after :meth:`close` too."""
        if self._profile is None:
            self._profile = profile_of(self.node, self.version)
        return self._profile

    @property
    def metadata(self) -> AieMetadata:
        """The array's metadata, asked once."""
        if self._metadata is None:
            self._metadata = query.metadata(self)
        return self._metadata

    def retain(self, handle: int) -> int:
        """Counts one more owner of a buffer handle: importing a dma-buf twice gives the same handle."""
        with self.lock:
            self._handles[handle] = self._handles.get(handle, 0) + 1
        return handle

    @section
    def release(self, handle: int) -> None:
        """Gives a buffer handle back, at the last owner. Errors are dropped."""
        if self.pid != os.getpid():
            return
        with self.lock:
            left = self._handles.get(handle, 0) - 1
            if left > 0:
                self._handles[handle] = left
                return
            self._handles.pop(handle, None)
            if self.closed:
                return
            with contextlib.suppress(XdnaError):
                ioctl.call(self.node, "GEM_CLOSE", ffi.new("struct drm_gem_close *", {"handle": handle}))

    def relieve(self, nbytes: int) -> bool:
        """For a device heap that is short of `nbytes`: gives some of it back; false when nothing can go.

        In turn: what was dropped, PDIs of xclbins without a context (the least recently used first), what
        only the garbage collector finds, and an idle context with its PDIs.
        """
        pools = list(self.pools)
        return (
            reap_some()
            or any(pool.shed_pdis(nbytes) for pool in pools)
            or collect(PATIENCE)
            or any(pool.shed_context() for pool in pools)
        )

    @section
    def close(self) -> None:
        """Closes the pools and the node; the driver then frees whatever is left. Does nothing twice."""
        if self.pid != os.getpid():
            self.closed = True
            return
        try:
            with self.lock:
                if self.closed:
                    return
                pools = list(self.pools)
            failed: XdnaError | None = None
            for pool in pools:
                try:
                    pool.close()
                except XdnaError as error:
                    failed = failed or error
            if failed is not None:
                raise failed
        finally:
            with self.lock:
                self.closed = True
                self._handles.clear()
                self._heap = None
                if self._end.detach():
                    _end(self.node, self.abandoned)
            reap()


def _wait_seconds() -> float:
    """How long a wait without a limit of its own goes on without progress: AMDXDNA_WAIT, in seconds."""
    text = os.environ.get(WAIT, "")
    try:
        seconds = float(text or DEFAULT_WAIT)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise BadArgument(
            f"{WAIT}={text} is no number of seconds",
            call="open",
            remedy="Give seconds, or 0 to wait without a limit",
        )
    return seconds


def _end(node: Node, abandoned: list[Any]) -> None:
    """Closes a node; with it ends what the driver may still write to."""
    try:
        node.close()
    finally:  # where a signal handler raises, it is closed all the same
        abandoned.clear()
