"""Makes buffers: new ones, in the device heap or outside it, over the caller's pages, and over dma-bufs."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

from amdxdna import ioctl
from amdxdna._native import ffi, lib
from amdxdna.arguments import FAR, whole
from amdxdna.buffer import Buffer
from amdxdna.causes import from_errno
from amdxdna.client import Client
from amdxdna.errors import BadArgument, OutOfHeap, OutOfMemory, Unsupported, XdnaError
from amdxdna.reaper import collect, reap, unmapping
from amdxdna.signals import section

PAGE = 4096
_MOST = (1 << 47) - 1
"""Bytes: no process on x86-64 has more addresses."""
KINDS = {"share": lib.AMDXDNA_BO_SHARE, "dev": lib.AMDXDNA_BO_DEV, "cmd": lib.AMDXDNA_BO_CMD}
_INVALID = lib.AMDXDNA_INVALID_ADDR


class _Unmap:
    def __init__(self, client: Client, address: int, length: int) -> None:
        self.node = client.node
        self.address = address
        self.length = length
        self.pid = os.getpid()

    def unmap(self) -> None:
        if self.pid != os.getpid():
            return
        self.node.munmap(self.address, self.length)


def _info(client: Client, handle: int) -> Any:
    info = ffi.new("struct amdxdna_drm_get_bo_info *", {"handle": handle})
    ioctl.call(client.node, "GET_BO_INFO", info)
    return info


def _map(client: Client, nbytes: int, offset: int) -> tuple[int, Any]:
    """Maps a BO; returns the host address, and a pointer whose end (with every view of it) unmaps it."""
    length = -(-nbytes // PAGE) * PAGE
    try:
        host = client.node.mmap(length, offset)
    except XdnaError:
        raise
    except OSError as error:
        raise from_errno("mmap", error.errno or 0, f"{length} bytes") from None
    return host, ffi.gc(ffi.cast("char *", host), unmapping(_Unmap(client, host, length).unmap))


def _finish(client: Client, handle: int, kind: str, nbytes: int) -> Buffer:
    """The buffer of a SHARE or CMD BO, whose handle it takes over."""
    try:
        info = _info(client, handle)
        host, pointer = _map(client, nbytes, info.map_offset)
        address = _address(client, handle, info, host)
    except BaseException:
        client.release(handle)
        raise
    return Buffer(client, handle, kind, nbytes, address, memoryview(ffi.buffer(pointer, nbytes)), host)


def _address(client: Client, handle: int, info: Any, host: int) -> int:
    """What a packet must carry for a BO that is mapped at `host`; `info` is older than the mapping.

    Some driver builds answer 0 for a BO that is not mapped yet, so 0 is asked again. When it stays 0, the
    host address is right where other BOs showed that packets carry those. Raises Unsupported where none did.
    """
    reported = int(info.xdna_addr) or int(_info(client, handle).xdna_addr)
    if reported in (_INVALID, host):
        client.host_addresses = True
        return host
    if not reported and client.host_addresses:
        return host
    if not reported:
        raise Unsupported(
            "the driver tells no device address of a mapped buffer",
            call="GET_BO_INFO",
            remedy="Use another version of the amdxdna driver",
        )
    return reported


@section
def allocate(client: Client, nbytes: int, kind: str = "share", flush: bool = True) -> Buffer:
    """A new buffer; :meth:`amdxdna.device.Device.alloc` documents it."""
    client.check_open()
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadArgument(
            f"there is no kind {kind!r:.80} of buffer", call="alloc", remedy=f"Use one of {', '.join(KINDS)}"
        )
    nbytes = whole("alloc", "nbytes", nbytes, 1, _MOST)
    reap()
    if kind == "dev":
        buffer = _allocate_dev(client, nbytes)
    else:
        try:
            buffer = _finish(client, _create(client, nbytes, kind), kind, nbytes)
        except OutOfMemory:
            if not collect():
                raise
            buffer = _finish(client, _create(client, nbytes, kind), kind, nbytes)
    if flush:
        # A fresh page may have dirty lines in the cache, which would overwrite what the device puts there.
        buffer.to_device()
    return buffer


def _create(client: Client, nbytes: int, kind: str) -> int:
    request = ffi.new("struct amdxdna_drm_create_bo *", {"size": nbytes, "type": KINDS[kind]})
    return _handle(client, "CREATE_BO", request, kind.upper(), f"{nbytes} bytes")


def _handle(client: Client, name: str, request: Any, kind: str = "", detail: str = "") -> int:
    """Issues a request that makes a handle, which the caller then owns (one count of it).

    The driver cannot be interrupted in it: a signal's handler runs, and may raise, when the BO exists.
    """
    try:
        ioctl.call(client.node, name, request, kind, detail)
    except XdnaError:
        raise
    except BaseException:
        if request.handle:
            client.release(client.retain(request.handle))
        raise
    return client.retain(int(request.handle))


def _allocate_dev(client: Client, nbytes: int) -> Buffer:
    heap = client.heap
    if nbytes > heap.limit:
        raise heap.full(nbytes)
    while True:
        try:
            return _place_dev(client, nbytes)
        except OutOfHeap:
            # Without the client's lock: other threads' contexts may be among what can go.
            if not client.relieve(heap.taken(nbytes)):
                raise


def _place_dev(client: Client, nbytes: int) -> Buffer:
    with client.lock:
        heap = client.heap
        try:
            handle = _create(client, nbytes, "dev")
        except XdnaError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOSPC):
                raise
            heap.grow(nbytes)
            try:
                handle = _create(client, nbytes, "dev")
            except XdnaError as again:
                if again.errno not in (errno.EAGAIN, errno.ENOSPC):
                    raise
                raise heap.full(nbytes, again.errno) from None
        try:
            address = int(_info(client, handle).xdna_addr)
            if not heap.device <= address <= heap.device + heap.size - nbytes:
                raise Unsupported(
                    f"the driver puts a device buffer at {address:#x}, outside the heap",
                    call="GET_BO_INFO",
                    remedy="Use another version of the amdxdna driver",
                )
        except BaseException:
            client.release(handle)
            raise
        taken = heap.taken(nbytes)
        client.device_bytes += taken
    start = address - heap.device
    return Buffer(
        client,
        handle,
        "dev",
        nbytes,
        address,
        heap.memory[start : start + nbytes],
        heap.host_address(address),
        heap_bytes=taken,
    )


@section
def wrap(client: Client, address: int, nbytes: int, keep: Any = None, read_only: bool = False) -> Buffer:
    """A buffer over the caller's own pages; :meth:`amdxdna.device.Device.wrap` documents it.

    `keep` is a cffi object over them, or None. Host views are of the caller's mapping, never of the BO's:
    drivers from Linux 7.3.4 on refuse to map a user-pointer BO. Older ones want it mapped before the device
    may use it in PASID mode, and packets then carry that mapping's address.
    """
    client.check_open()
    reap()
    address, nbytes = whole("wrap", "address", address), whole("wrap", "nbytes", nbytes)
    if not 0 < address < 1 << 56 or not 0 < nbytes < 1 << 47 or address % PAGE or nbytes % PAGE:
        raise BadArgument(
            f"{nbytes} bytes at {address:#x}: address and size must be multiples of {PAGE}",
            call="wrap",
            remedy="Align the memory, or copy it into an ordinary buffer",
        )
    table = ffi.new("struct amdxdna_drm_va_tbl *", {"dmabuf_fd": -1, "num_entries": 1, "va_entries": 1})
    table.va_entries[0].vaddr = address
    table.va_entries[0].len = nbytes
    request = ffi.new(
        "struct amdxdna_drm_create_bo *",
        {"vaddr": ioctl.address_of(table), "size": nbytes, "type": lib.AMDXDNA_BO_SHARE},
    )
    kind = "userptr"
    if read_only and client.profile.user_pointers in ("none", "rw"):
        kind += " read-only"
    handle = _handle(client, "CREATE_BO", request, kind, f"{nbytes} bytes at {address:#x}")
    device, pointer = address, None
    try:
        info = _info(client, handle)
        if info.xdna_addr in (0, _INVALID):
            with contextlib.suppress(BadArgument):
                device, pointer = _map(client, nbytes, info.map_offset)
        device = _address(client, handle, info, device)
    except BaseException:
        client.release(handle)
        raise
    own = ffi.cast("char *", address) if keep is None else keep
    memory = memoryview(ffi.buffer(own, nbytes))
    buffer = Buffer(
        client,
        handle,
        "share",
        nbytes,
        device,
        memory.toreadonly() if read_only else memory,
        address,
        (keep, pointer),
    )
    buffer.to_device()
    return buffer


@section
def import_fd(client: Client, fd: int, nbytes: int | None) -> Buffer:
    """A buffer over a dma-buf; :meth:`amdxdna.device.Device.import_fd` documents it."""
    client.check_open()
    reap()
    fd = whole("import", "fd", fd, -FAR, FAR)
    nbytes = None if nbytes is None else whole("import", "nbytes", nbytes, -FAR, FAR)
    if not 0 <= fd < 1 << 31 or (nbytes is not None and not 0 < nbytes < 1 << 47):
        raise BadArgument(
            f"{'all' if nbytes is None else nbytes} bytes of descriptor {fd}",
            call="import",
            remedy="Pass the descriptor an exporter gave, and at least 1 byte",
        )
    request = ffi.new("struct drm_prime_handle *", {"fd": fd})
    handle = _handle(client, "PRIME_FD_TO_HANDLE", request, detail=f"descriptor {fd}")
    try:
        # A dma-buf's size is where its end is; the driver does not tell it.
        size = os.lseek(fd, 0, os.SEEK_END) if nbytes is None else nbytes
    except BaseException:
        client.release(handle)
        raise
    return _finish(client, handle, "share", size)
