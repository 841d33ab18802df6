"""The guest's memory as this process sees it: every DMA mapping at its place in one large window.

QEMU sends each piece of guest memory that the function may reach as (I/O address, size, descriptor of the
RAM's memfd, offset). Mapped at `window + address`, pieces that are apart in RAM but adjacent in I/O
address space (a buffer of scattered pages behind the IOMMU) become one contiguous range, so that the NPU
model's kernels read and write the guest's buffers in place.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator

from amdxdna.emu.npu import BadAddress

from .page_tables import PageTables
from .windows import FIXED, Windows, map_pages

_PAGE = 4096
# Of AMD's and Intel's IOMMUs as the driver's machines have them; also bounds what one message can ask for.
_ADDRESSES = 1 << 48


class AddressSet:
    """A set of integers kept as sorted, merged, half-open ranges."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def add(self, start: int, end: int) -> None:
        """Adds [start, end)."""
        low = bisect.bisect_left(self._ends, start)
        high = bisect.bisect_right(self._starts, end)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def remove(self, start: int, end: int) -> None:
        """Removes [start, end)."""
        low = bisect.bisect_right(self._ends, start)
        high = bisect.bisect_left(self._starts, end)
        if low >= high:
            return
        left, right = self._starts[low], self._ends[high - 1]
        starts = ([left] if left < start else []) + ([end] if right > end else [])
        ends = ([start] if left < start else []) + ([right] if right > end else [])
        self._starts[low:high] = starts
        self._ends[low:high] = ends

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) is in the set."""
        i = bisect.bisect_right(self._starts, start) - 1
        return i >= 0 and end <= self._ends[i]

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any of [start, end) is in the set."""
        i = bisect.bisect_right(self._ends, start)
        return i < len(self._starts) and self._starts[i] < end


class GuestMemory:
    """All DMA mappings of one function. Thread-safe; addresses are I/O addresses (the guest's IOVAs).

    Memory that the guest unmaps while a kernel still uses it is replaced by private zero pages: a late
    access then goes nowhere, as behind a real IOMMU, instead of ending this process. `spaces` are the
    guest's address spaces by PASID, for a machine that has them: a context with a PASID reaches that
    process's addresses, and nothing else.
    """

    def __init__(self) -> None:
        self._windows = Windows()
        self._mapped = AddressSet()
        self._lock = threading.Lock()
        self._pasids: dict[int, int] = {}
        self._users: set[int] = set()
        """Contexts that hold pointers into the windows."""
        self.spaces: PageTables | None = None

    def map(self, address: int, size: int, fd: int, offset: int) -> None:
        """Makes `size` bytes of the file `fd` at `offset` the memory at I/O address `address`.

        Raises OSError for what is no range of an I/O address space or of the file: an access past a file's
        end would end this process.
        """
        if not (
            size and size % _PAGE == address % _PAGE == offset % _PAGE == 0 and address + size <= _ADDRESSES
        ):
            raise OSError(errno.EINVAL, f"cannot map {size:#x} bytes at {address:#x}")
        file = os.fstat(fd).st_size
        if offset + size > file:
            raise OSError(errno.EINVAL, f"cannot map {size:#x} bytes at {offset:#x} of a file of {file:#x}")
        with self._lock:
            try:
                for at, length, done in self._windows.split(address, size):
                    map_pages(at, length, mmap.MAP_SHARED | FIXED, fd, offset + done)
            except OSError:
                # What was there before is gone in part: nothing of the range may count as mapped.
                self._mapped.remove(address, address + size)
                self._tidy()
                raise
            self._mapped.add(address, address + size)

    def unmap(self, address: int, size: int) -> None:
        """Takes away all mappings within [address, address + size). Raises OSError for no whole pages."""
        if size % _PAGE or address % _PAGE:
            raise OSError(errno.EINVAL, f"cannot unmap {size:#x} bytes at {address:#x}")
        with self._lock:
            for start, end in list(self._mapped):
                low, high = max(start, address), min(end, address + size)
                if low < high:
                    self._windows.clear(low, high - low)
            self._mapped.remove(address, address + size)
            self._tidy()

    def clear(self) -> None:
        """Takes away every mapping."""
        with self._lock:
            for start, end in list(self._mapped) if self._users else ():
                # Where there is no room for it a late access still finds the file, which cannot shrink.
                with contextlib.suppress(OSError):
                    self._windows.clear(start, end - start)
            self._mapped = AddressSet()
            self._tidy()

    def close(self) -> None:
        """Gives the address space back. No pointer handed out may be used any more."""
        with self._lock:
            self._mapped = AddressSet()
            self._users.clear()
            self._tidy()
        if self.spaces is not None:
            self.spaces.close()

    def ranges(self) -> list[tuple[int, int]]:
        """What is mapped: merged, half-open ranges of I/O addresses."""
        with self._lock:
            return list(self._mapped)

    @property
    def windows(self) -> int:
        """How many TiB of this process's address space are reserved."""
        with self._lock:
            return len(self._windows)

    def covers(self, address: int, size: int) -> bool:
        """Whether the guest has mapped all of [address, address + size)."""
        with self._lock:
            return self._mapped.covers(address, address + size)

    def read(self, address: int, size: int) -> bytes:
        """Copies `size` bytes out. Raises BadAddress."""
        with self._lock:
            return ctypes.string_at(self._at(address, size), size)

    def write(self, address: int, data: bytes) -> None:
        """Copies `data` in. Raises BadAddress."""
        with self._lock:
            ctypes.memmove(self._at(address, len(data)), data, len(data))

    # -- contexts

    def bind(self, context: int, pasid: int) -> None:
        """A context was created: its addresses are those of `pasid`, 0 for the function's own."""
        with self._lock:
            self._pasids[context] = pasid

    def unbind(self, context: int) -> None:
        """A context was destroyed; what it still computes keeps its pointers until :meth:`release`."""
        with self._lock:
            self._pasids.pop(context, None)
        if self.spaces is not None:
            self.spaces.forget(context)

    def reaches(self, context: int, address: int, size: int) -> bool:
        """Whether a context may be given these bytes as its heap. A process's pages are looked at in use."""
        return self._space(context) is not None or self.covers(address, size)

    def pointer(self, context: int, address: int, size: int) -> int:
        """A host address of `size` bytes at `address`, as :meth:`amdxdna.emu.npu.Memory.pointer` says."""
        space = self._space(context)
        if space is not None:
            spaces, pasid = space
            return spaces.pointer(context, pasid, address, size)
        with self._lock:
            pointer = self._at(address, size)
            self._users.add(context)
            return pointer

    def stamp(self, context: int) -> object:
        """None: the guest may map anew at any time, so no answer of :meth:`pointer` may be kept."""
        return None

    def release(self, context: int) -> None:
        """Lets go of the context's pointers: windows that nothing is mapped in any more can go."""
        with self._lock:
            self._users.discard(context)
            self._tidy()
        if self.spaces is not None:
            self.spaces.release(context)

    def _space(self, context: int) -> tuple[PageTables, int] | None:
        pasid = self._pasids.get(context, 0)
        return (self.spaces, pasid) if pasid and self.spaces is not None else None

    def _at(self, address: int, size: int) -> int:
        if not self._mapped.covers(address, address + size):
            raise BadAddress(address, size)
        pieces = list(self._windows.split(address, size))
        if len(pieces) != 1:
            raise BadAddress(address, size)
        return pieces[0][0]

    def _tidy(self) -> None:
        if not self._users:
            self._windows.keep(self._mapped.overlaps)
