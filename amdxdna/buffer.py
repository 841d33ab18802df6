"""Buffers: memory that both the host and the NPU see.

Three kinds: ``share`` (ordinary data), ``dev`` (in the device heap: instructions and PDIs) and ``cmd``
(command packets). The NPU does not snoop the CPU's caches: what the host wrote must be written back before a
command reads it, and the lines of a result invalidated before the host reads it. Both are the same
instruction here (:meth:`Buffer.to_device`, :meth:`Buffer.from_device`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from amdxdna import ioctl
from amdxdna._native import ffi, lib
from amdxdna.arguments import FAR, Uncopied, content, wants, whole
from amdxdna.client import Client
from amdxdna.errors import BadArgument, closed
from amdxdna.reaper import Finalizer, enqueue, reap
from amdxdna.signals import imports, section, uninterrupted

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


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
        offset = whole(call, "offset", offset, -FAR, FAR)
        return offset, self.nbytes - offset if nbytes is None else whole(call, "nbytes", nbytes, -FAR, FAR)

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
        offset = whole("write", "offset", offset, -FAR, FAR)
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
    return tuple(whole("view", "shape", extent, -FAR, FAR) for extent in extents)


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
