"""The device heap: the memory DEV buffers (instructions, PDIs) live in.

The firmware maps the heap at its host address and refuses one that is not aligned to 64 MiB (Linux 7.3,
PASID mode), so address space is reserved first and the heap's BO mapped into it. Newer drivers let the heap
grow by further BOs, whose mappings must follow each other in the host's address space
(drivers/accel/amdxdna/amdxdna_gem.c); older ones have one BO a process.
"""

from __future__ import annotations

import errno
import os
import weakref
from typing import Protocol

from amdxdna import ioctl
from amdxdna._native import ffi, lib
from amdxdna.arguments import Uncopied
from amdxdna.causes import from_errno
from amdxdna.errors import OutOfHeap, XdnaError
from amdxdna.node import Node
from amdxdna.profile import DriverProfile
from amdxdna.reaper import unmapping

CHUNK = 64 << 20
GRANULE = 32 << 10
"""What a DEV BO takes is a multiple of this: the driver aligns each to it (amdxdna_gem.c)."""

_PROT_NONE = 0
_RESERVE = 0x02 | 0x20 | 0x4000  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE


class Owner(Protocol):
    """What a heap needs of the open it belongs to."""

    device_bytes: int
    heap_chunk: tuple[int, int] | None

    @property
    def node(self) -> Node: ...

    @property
    def profile(self) -> DriverProfile: ...

    def retain(self, handle: int) -> int:
        """Counts one more owner of a buffer handle."""


class Heap(Uncopied):
    """The heap of one client. ``host`` and ``device`` are its first addresses, ``size`` its bytes so far."""

    def __init__(self, client: Owner) -> None:
        self._client: Owner = weakref.proxy(client)  # which owns the heap
        self.size = 0
        self.host, self.limit = self._reserve(client)
        self._chunks: list[int] = []
        unmap = _Unmap(client, self.host, self.limit, self._chunks).unmap
        pointer = ffi.gc(ffi.cast("char *", self.host), unmapping(unmap))
        self.memory = memoryview(ffi.buffer(pointer, self.limit))
        """The whole reservation; only the first ``size`` bytes may be touched."""
        self.device = self._add(CHUNK)

    @staticmethod
    def _reserve(client: Owner) -> tuple[int, int]:
        for limit in (client.profile.heap_max, CHUNK):
            length = limit + CHUNK
            start = lib.xdna_mmap(0, length, _PROT_NONE, _RESERVE, -1, 0)
            if start >= 0:
                host = -(-start // CHUNK) * CHUNK
                for lost, size in ((start, host - start), (host + limit, start + length - host - limit)):
                    if size:
                        lib.xdna_munmap(lost, size)
                return host, limit
        raise from_errno("mmap", -start, f"{length >> 20} MiB of address space for the device heap")

    def _add(self, nbytes: int) -> int:
        """One more BO, of `nbytes` or one that an earlier call left, behind the last; its device address."""
        client = self._client
        if client.heap_chunk is None:
            self._create(nbytes)
        assert client.heap_chunk is not None
        handle, nbytes = client.heap_chunk
        info = ffi.new("struct amdxdna_drm_get_bo_info *", {"handle": handle})
        ioctl.call(client.node, "GET_BO_INFO", info)
        try:
            client.node.mmap(nbytes, info.map_offset, address=self.host + self.size)
        except XdnaError:
            raise
        except OSError as error:
            raise from_errno("mmap", error.errno or 0, f"heap of {nbytes >> 20} MiB") from None
        client.heap_chunk = None
        self._chunks.append(nbytes)
        self.size += nbytes
        return int(info.xdna_addr)

    def _create(self, nbytes: int) -> None:
        """A heap BO of `nbytes`, as the client's `heap_chunk`: also when a signal handler raises after it."""
        client = self._client
        request = ffi.new("struct amdxdna_drm_create_bo *", {"size": nbytes, "type": lib.AMDXDNA_BO_DEV_HEAP})
        try:
            ioctl.call(client.node, "CREATE_BO", request, "DEV_HEAP", f"{nbytes >> 20} MiB")
        finally:
            if request.handle:
                client.heap_chunk = client.retain(int(request.handle)), nbytes

    def grow(self, nbytes: int) -> None:
        """Enlarges the heap by whole 64 MiB so that `nbytes` more fit.

        Raises OutOfHeap, with the numbers, when the driver cannot or will not.
        """
        extra = -(-nbytes // CHUNK) * CHUNK
        goal = self.size + extra
        if goal > self.limit:
            raise self.full(nbytes)
        try:
            while self.size < goal:
                self._add(goal - self.size)
        except XdnaError as error:
            if isinstance(error, OutOfHeap) or error.errno in (errno.EINVAL, errno.EBUSY, errno.EOPNOTSUPP):
                if error.errno in (errno.EBUSY, errno.EOPNOTSUPP):
                    self.limit = self.size  # this driver has one heap BO a process
                raise self.full(nbytes, error.errno) from None
            raise

    def full(self, nbytes: int, code: int | None = errno.ENOSPC) -> OutOfHeap:
        """The error for a heap that cannot take `nbytes` more."""
        used = self._client.device_bytes
        return OutOfHeap(
            f"the device heap cannot take {nbytes} bytes more: {used} of {self.size} bytes are in use "
            f"(each buffer takes whole {GRANULE >> 10} KiB, and a context some of its own), {self.limit} is "
            "the most it can have",
            call="CREATE_BO DEV",
            errno=code,
            remedy="Close kernels and device buffers that are no longer needed",
            requested=nbytes,
            used=used,
            size=self.size,
            limit=self.limit,
        )

    @staticmethod
    def taken(nbytes: int) -> int:
        """The bytes of the heap that a DEV BO of `nbytes` takes."""
        return -(-nbytes // GRANULE) * GRANULE

    def host_address(self, device: int) -> int:
        """The host address behind a device address inside the heap."""
        return self.host + (device - self.device)


class _Unmap:
    """Unmaps chunks and what is left of the reservation, once the last view of either is gone."""

    def __init__(self, client: Owner, host: int, limit: int, chunks: list[int]) -> None:
        self.node = client.node
        self.pid = os.getpid()
        self.host = host
        self.limit = limit
        self.chunks = chunks

    def unmap(self) -> None:
        if self.pid != os.getpid():
            return
        at = self.host
        for nbytes in self.chunks:
            self.node.munmap(at, nbytes)
            at += nbytes
        if at < self.host + self.limit:
            lib.xdna_munmap(at, self.host + self.limit - at)
