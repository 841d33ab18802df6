"""`pyxrt.bo`: buffers."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from amdxdna.buffer import Buffer
from amdxdna.errors import XdnaError
from amdxdna.pyxrt.calls import SIZE, UNSIGNED, incompatible, message, refuse, select, translated
from amdxdna.pyxrt.contexts import hw_context
from amdxdna.pyxrt.devices import device
from amdxdna.pyxrt.enums import Enumeration, enumeration, xclBOSyncDirection
from amdxdna.signals import imports

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from amdxdna.device import Device


@enumeration(normal=0, cacheable=1 << 24, svm=1 << 27, device_only=1 << 28, host_only=1 << 29, p2p=1 << 30)
class _Flags(Enumeration):
    __slots__ = ()


_Flags.__name__, _Flags.__qualname__ = "flags", "bo.flags"
_KINDS = {1 << 29: "share", 1 << 24: "dev"}
_DEVICE = ("device", lambda value: isinstance(value, device))
_CONTEXT = ("hwctx", lambda value: isinstance(value, hw_context))
_SIZE, _GROUP = ("size", SIZE), ("group", UNSIGNED)
_FLAGS = ("flags", lambda value: isinstance(value, _Flags))
_WAYS = (0, 1)


class bo:
    """A buffer, or a part of one. Its maps stay valid memory when it is gone."""

    __module__ = "pyxrt"
    flags = _Flags
    normal, cacheable, svm = _Flags(0), _Flags(1 << 24), _Flags(1 << 27)
    device_only, host_only, p2p = _Flags(1 << 28), _Flags(1 << 29), _Flags(1 << 30)

    def __init__(self, *args: Any, **keywords: Any) -> None:
        form, values = select(
            "__init__",
            args,
            keywords,
            (_DEVICE, _SIZE, _FLAGS, _GROUP),
            (_CONTEXT, _SIZE, _FLAGS, _GROUP),
            (_CONTEXT, _SIZE, _GROUP),
            (("", lambda value: isinstance(value, bo)), ("", SIZE), ("", SIZE)),
        )
        if form == 3:
            self._part(*values)
            return
        opened = values[0].opened if form == 0 else values[0].get_device().opened
        self._make(opened, int(values[1]), int(values[2]) if form < 2 else 0)

    def _make(self, opened: Device, size: int, flags: int) -> None:
        kind = _KINDS.get(flags & 0xFF000000)
        if kind is None:
            if flags:
                refuse(f"Bad BO type. (err={errno.EINVAL})", errno.EINVAL)
            refuse(f"unsupported buffer type: none flag (err={errno.EOPNOTSUPP})", errno.EOPNOTSUPP)
        if not size:
            refuse(f"mmap_range(len=0) failed (err=-{errno.EINVAL})", errno.EINVAL)
        with translated():
            self._own(opened.alloc(size, kind), size)

    def _own(self, buffer: Buffer, size: int) -> None:
        self._buffer: Buffer | None = buffer
        self._size = size
        self._address = buffer.address
        self._memory = buffer.memory()[:size]
        self._root, self._at = buffer, 0

    @classmethod
    def over(cls, buffer: Buffer) -> bo:
        """One over a buffer of the binding's."""
        made = cls.__new__(cls)
        made._own(buffer, buffer.nbytes)
        return made

    def _part(self, parent: bo, size: int, offset: int) -> None:
        size, offset = int(size), int(offset)
        if offset + size > parent._size:
            refuse("sub buffer size and offset", errno.EINVAL)
        self._size = size
        self._address = parent._address + offset
        self._root, self._at = parent._root, parent._at + offset
        self._memory = parent._memory[offset : offset + size]
        self._buffer = None
        if size:
            with translated():
                self._buffer = parent.buffer.sub(offset, size)

    @property
    def buffer(self) -> Buffer:
        """The binding's buffer. Raises RuntimeError for a part of no bytes."""
        if self._buffer is None:
            refuse("a buffer of no bytes cannot be given to the NPU")
        return self._buffer

    def write(self, data: Any, seek: Any) -> None:
        """Copies bytes in at `seek`; sync() then shows them to the NPU. Raises RuntimeError past the end."""
        if not SIZE(seek):
            incompatible("write", self, data, seek)
        try:
            source = memoryview(data)
        except TypeError:
            incompatible("write", self, data, seek)
        at = int(seek)
        if at + source.nbytes > self._size:
            refuse("attempting to write past buffer size", errno.EINVAL)
        if not source.nbytes:
            return
        if source.ndim != 1 or source.format != "B":
            # XRT copies memory as it lies. "A": so here, where the array has no gaps.
            source = source.cast("B") if source.c_contiguous else memoryview(source.tobytes("A"))
        self._memory[at : at + source.nbytes] = source

    def read(self, size: Any, skip: Any) -> NDArray[Any]:
        """A copy of `size` bytes from `skip`, as int8. Raises RuntimeError past the end."""
        imports("numpy")
        import numpy as np

        if not (SIZE(size) and SIZE(skip)):
            incompatible("read", self, size, skip)
        if int(skip) + int(size) > self._size:
            refuse("attempting to read past buffer size", errno.EINVAL)
        return (
            np.frombuffer(self._memory, np.int8, int(size), int(skip)).copy()
            if int(size)
            else np.empty(0, np.int8)
        )

    def sync(self, direction: xclBOSyncDirection, *part: Any) -> None:
        """Writes cache lines back and drops them: of all, or (size, offset). Raises RuntimeError outside."""
        if type(direction) is not xclBOSyncDirection or len(part) not in (0, 2) or not all(map(SIZE, part)):
            incompatible("sync", self, direction, *part)
        size, offset = map(int, part) if part else (self._size, 0)
        # A part may be synced past its end, as far as the whole goes: XRT checks no more.
        if self._at + offset + size > self._root.nbytes:
            refuse(
                f"Invalid BO offset and size for sync'ing: {offset}, {size} (err={errno.EINVAL})",
                errno.EINVAL,
            )
        if int(direction) in _WAYS and size:
            try:  # not translated(), which takes longer than the flush
                self._root.from_device(self._at + offset, size)
            except XdnaError as error:
                raise RuntimeError(message(error)) from error

    def map(self) -> memoryview:
        """Its bytes, writable, without a copy."""
        return self._memory[:]

    def size(self) -> int:
        """The size asked for, in bytes."""
        return self._size

    def address(self) -> int:
        """What a packet carries for it."""
        return self._address
