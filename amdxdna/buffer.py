"""Buffers: memory that both the host and the NPU see.

Three kinds: ``share`` (ordinary data), ``dev`` (in the device heap: instructions and PDIs) and ``cmd``
(command packets). The NPU does not snoop the CPU's caches: what the host wrote must be written back before a
command reads it, and the lines of a result invalidated before the host reads it. Both are the same
instruction here (:meth:`Buffer.to_device`, :meth:`Buffer.from_device`).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from amdxdna import ioctl
from amdxdna._native import ffi, lib
from amdxdna.arguments import Uncopied, content, wants, whole
from amdxdna.client import Client
from amdxdna.errors import BadArgument, OutOfHeap, OutOfMemory, Unsupported, XdnaError, closed, from_errno
from amdxdna.reaper import Finalizer, collect, enqueue, reap, unmapping
from amdxdna.signals import imports, section, uninterrupted

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

PAGE = 4096
_MOST = (1 << 47) - 1
"""Bytes: no process on x86-64 has more addresses."""
KINDS = {"share": lib.AMDXDNA_BO_SHARE, "dev": lib.AMDXDNA_BO_DEV, "cmd": lib.AMDXDNA_BO_CMD}
_FAR = (1 << 63) - 1
_INVALID = lib.AMDXDNA_INVALID_ADDR


class Buffer(Uncopied):
    """Memory of a device, or (from :meth:`sub`) a part of it. Made by :class:`~amdxdna.device.Device`.

    ``nbytes``, ``kind``, ``handle`` (the BO's, 0 once closed) and ``address``: what a packet must carry. That
    is the IOVA the driver reports where it reports one (IOVA and carveout modes; DEV buffers always) and the
    mapping's host address otherwise (PASID mode).

    ``clean`` says that no dirty cache line of it is left, so a command need not flush it:

    * :meth:`to_device` over the whole buffer sets it, and so does a new buffer's first flush;
    * handing out a writable view clears it, for good as far as this object knows: it cannot see a write
      through a view. So after writing through a view you keep, either leave ``clean`` alone (every start then
      flushes the buffer, the safe default) or call :meth:`to_device` and do not write again without clearing
      the flag (``buffer.clean = False``, or a new view);
    * the flag belongs to the object: a sub-buffer has its own.

    Thread-safety: views and flushes may be used from any thread; two threads writing the same bytes race as
    in any array. Closing is idempotent; a closed buffer's views stay valid memory (the mapping lives as long
    as the last view), but a DEV buffer's bytes may by then belong to another DEV buffer. A call that another
    thread is in meanwhile finishes or raises Closed. A buffer that is dropped without close() is given back
    at the next allocation or close of any buffer.
    """

    __slots__ = (
        "__weakref__",
        "_finalizer",
        "_host",
        "_keep",
        "_memory",
        "_release",
        "_viewed",
        "address",
        "clean",
        "client",
        "handle",
        "kind",
        "nbytes",
    )

    def __init__(
        self,
        client: Client,
        handle: int,
        kind: str,
        nbytes: int,
        address: int,
        memory: memoryview,
        host: int,
        keep: tuple[object, object] | None = None,
        heap_bytes: int = 0,
    ) -> None:
        """`keep`: of wrapped memory, the caller's object and the BO's own mapping, if there are any."""
        self.client = client
        self.handle = handle
        self.kind = kind
        self.nbytes = nbytes
        self.address = address
        self.clean = False
        self._memory: memoryview | None = memory
        self._host = host
        self._keep = keep
        self._viewed = False
        release = partial(_release, client, handle, heap_bytes, None if keep is None else keep[0])
        self._release: Callable[[], None] | None = release
        self._finalizer = Finalizer(self, release)

    def __repr__(self) -> str:
        state = "closed" if not self.handle else f"at {self.address:#x}"
        return f"<Buffer {self.kind} {self.nbytes} bytes {state}>"

    def __enter__(self) -> Buffer:
        self._alive()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> memoryview:
        if self._memory is None:
            raise closed("buffer")
        self.client.check_open()
        return self._memory

    def memory(self) -> memoryview:
        """The buffer's bytes, writable, without a copy. Like a writable :meth:`view` it clears ``clean``."""
        memory = self._alive()
        self._viewed = True
        self.clean = False
        return memory

    @property
    def host_address(self) -> int:
        """The address of its first byte in this process."""
        self._alive()
        return self._host

    def view(
        self, dtype: DTypeLike = "u1", shape: int | Sequence[int] | None = None, *, writable: bool = True
    ) -> NDArray[Any]:
        """A numpy array over the buffer's own memory, without a copy.

        `shape` None: one dimension, as many whole elements as fit. A writable view clears ``clean``. The
        array keeps the mapping alive, also past :meth:`close`. Raises BadArgument when `shape` needs more
        bytes than there are, Closed after close.
        """
        imports("numpy")
        import numpy as np

        memory = self._alive()
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError):
            raise wants("view", "dtype", dtype, "Give a numpy type, such as 'f4'") from None
        if not kind.itemsize or kind.hasobject:
            raise BadArgument(
                f"dtype is {kind!r}, which has no fixed bytes", call="view", remedy="Give a type of numbers"
            )
        if shape is None:
            array = np.frombuffer(memory, kind, self.nbytes // kind.itemsize)
        else:
            dims = _dims(shape)
            count = 1
            for extent in dims:
                count *= extent
            if any(extent < 0 for extent in dims) or count * kind.itemsize > self.nbytes:
                raise BadArgument(
                    f"an array of shape {dims} and {kind.itemsize}-byte elements does not fit "
                    f"{self.nbytes} bytes",
                    call="view",
                    remedy="Correct shape or dtype",
                )
            array = np.frombuffer(memory, kind, count).reshape(dims)
        if writable:
            self._viewed = True
            self.clean = False
        else:
            array.flags.writeable = False
        return array

    @section
    def sub(self, offset: int, nbytes: int | None = None) -> Buffer:
        """A part of this buffer as a buffer: same BO, own address and ``clean`` flag.

        The BO stays open until the whole and every part are closed. `nbytes` None: to the end. Parts that the
        host and the device write at the same time must not share a cache line (64 bytes): writing the line
        back puts the host's copy of all of it over what the device wrote. Raises BadArgument when the part
        does not lie inside.
        """
        memory = self._alive()
        offset, size = self._range("sub", offset, nbytes)
        if offset < 0 or size <= 0 or offset + size > self.nbytes:
            raise BadArgument(
                f"bytes {offset} to {offset + size} are not inside {self.nbytes}",
                call="sub",
                remedy="Correct offset and size",
            )
        part = Buffer(
            self.client,
            self.client.retain(self.handle),
            self.kind,
            size,
            self.address + offset,
            memory[offset : offset + size],
            self._host + offset,
            self._keep,
            heap_bytes=0,
        )
        part.clean = self.clean
        part._viewed = self._viewed
        return part

    def to_device(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Writes the CPU's cache lines of a range back (and drops them), so that the device sees it.

        Over the whole buffer it sets ``clean``. Raises BadArgument when the range is not inside.
        """
        size = self._flush(offset, nbytes)
        if size == self.nbytes:
            self.clean = True

    def from_device(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Drops the CPU's cache lines of a range, so that the host reads what the device wrote.

        Lines the host wrote since are written back first: never call it on what a running command writes.
        """
        self._flush(offset, nbytes)

    def _flush(self, offset: int, nbytes: int | None) -> int:
        memory = self._alive()  # keeps the mapping while another thread closes the buffer
        if type(offset) is not int or offset or nbytes is not None:
            offset, size = self._range("flush", offset, nbytes)
        else:
            size = self.nbytes
        if offset < 0 or size < 0 or offset + size > self.nbytes:
            raise BadArgument(
                f"bytes {offset} to {offset + size} are not inside {self.nbytes}",
                call="flush",
                remedy="Correct offset and size",
            )
        lib.xdna_flush(self._host + offset, size)
        del memory
        return size

    def _range(self, call: str, offset: int, nbytes: int | None) -> tuple[int, int]:
        """`offset` and size as whole numbers, which need not lie inside."""
        offset = whole(call, "offset", offset, -_FAR, _FAR)
        return offset, self.nbytes - offset if nbytes is None else whole(call, "nbytes", nbytes, -_FAR, _FAR)

    def flush_for_start(self) -> None:
        """What a command's start does to an argument that is not clean. Raises Closed after close."""
        memory = self._memory  # keeps the mapping while another thread closes the buffer
        if memory is None:
            raise closed("buffer")
        lib.xdna_flush(self._host, self.nbytes)
        if not self._viewed:
            self.clean = True

    def write(self, data: Any, offset: int = 0) -> None:
        """Copies `data` (bytes, or any contiguous array) in at `offset` and flushes those bytes.

        Raises BadArgument when they do not fit, or the buffer is wrapped read-only memory.
        """
        memory = self._alive()
        if memory.readonly:
            raise BadArgument("this memory is read-only", call="write", remedy="Wrap writable memory")
        source = content("write", "data", data, "Give bytes or a contiguous array of numbers")
        offset = whole("write", "offset", offset, -_FAR, _FAR)
        if offset < 0 or offset + source.nbytes > self.nbytes:
            raise BadArgument(
                f"{source.nbytes} bytes at {offset} do not fit {self.nbytes}",
                call="write",
                remedy="Correct offset and size",
            )
        clean, self.clean = self.clean, False
        memory[offset : offset + source.nbytes] = source
        self._flush(offset, source.nbytes)
        self.clean = clean or source.nbytes == self.nbytes

    def read(self, offset: int = 0, nbytes: int | None = None) -> bytes:
        """A copy of a range, as the device left it. Raises BadArgument when the range is not inside."""
        size = self._flush(offset, nbytes)
        return bytes(self._alive()[offset : offset + size])

    def export_fd(self) -> int:
        """A dma-buf file descriptor for the whole BO, which the caller closes.

        Raises Unsupported for DEV and user-pointer buffers.
        """
        self._alive()
        request = ffi.new(
            "struct drm_prime_handle *", {"handle": self.handle, "flags": os.O_RDWR | os.O_CLOEXEC, "fd": -1}
        )
        try:
            uninterrupted(
                ioctl.call, self.client.node, "PRIME_HANDLE_TO_FD", request, detail=f"a {self.kind} buffer"
            )
            return int(request.fd)
        except BaseException:
            # A signal handler's, when there is a descriptor that the caller does not get to know.
            if request.fd >= 0:
                os.close(request.fd)
            raise

    @section
    def close(self) -> None:
        """Gives the buffer back. Views that still exist stay valid; the buffer itself is unusable.

        A command in flight may go on using it: the driver holds its pages until then, wrapped ones too.
        """
        release, self._release = self._release, None
        self._memory = None
        self.handle = 0
        self._keep = None
        if self._finalizer.detach() and release is not None:
            enqueue(release)
        del release
        reap()

    @section
    def abandon(self) -> None:
        """Keeps the BO until the device closes: the driver may still write to it."""
        if self._finalizer.detach():
            self.client.abandoned.append((self._memory, self._keep))


def _dims(shape: object) -> tuple[int, ...]:
    """A shape: one whole number, or several."""
    extents: tuple[object, ...] = (shape,)
    if not isinstance(shape, (str, bytes)):
        with contextlib.suppress(TypeError):
            extents = tuple(shape)  # type: ignore[arg-type]
    return tuple(whole("view", "shape", extent, -_FAR, _FAR) for extent in extents)


def _release(client: Client, handle: int, heap_bytes: int, wrapped: object) -> None:
    """Gives a handle back. The caller's memory, `wrapped`, must stay until the driver has let go of it."""
    if heap_bytes and client.pid == os.getpid():
        with client.lock:
            client.device_bytes -= heap_bytes
    try:
        client.release(handle)
    except BaseException:
        client.abandoned.append(wrapped)
        raise


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
    address, nbytes = whole("wrap", "address", address, 0, _FAR), whole("wrap", "nbytes", nbytes, 0, _FAR)
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
    fd = whole("import", "fd", fd, -_FAR, _FAR)
    nbytes = None if nbytes is None else whole("import", "nbytes", nbytes, -_FAR, _FAR)
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
