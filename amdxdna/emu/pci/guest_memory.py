"""The guest's memory as this process sees it: every DMA mapping at its place in one large window.

QEMU sends each piece of guest memory that the function may reach as (I/O address, size, descriptor of the
RAM's memfd, offset). Mapped at `window + address`, pieces that are apart in RAM but adjacent in I/O
address space (a buffer of scattered pages behind the IOMMU) become one contiguous range, so that the NPU
model's kernels read and write the guest's buffers in place.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import threading
from collections.abc import Iterator

from amdxdna import _native
from amdxdna.emu.npu import BadAddress

_CHUNK_BITS = 40
_CHUNK = 1 << _CHUNK_BITS
_FIXED = 0x10
_NORESERVE = 0x4000


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


def _map(address: int, length: int, flags: int, fd: int, offset: int,
         protection: int = mmap.PROT_READ | mmap.PROT_WRITE) -> int:
    result = int(_native.lib.xdna_mmap(address, length, protection, flags, fd, offset))
    if -4096 < result < 0:
        raise OSError(-result, f"cannot map {length:#x} bytes of guest memory")
    return result


class GuestMemory:
    """All DMA mappings of one function. Thread-safe; addresses are I/O addresses (the guest's IOVAs).

    Memory that the guest unmaps while a kernel still uses it is replaced by private zero pages: a late
    access then goes nowhere, as behind a real IOMMU, instead of ending this process.
    """

    def __init__(self) -> None:
        self._windows: dict[int, int] = {}
        self._mapped = AddressSet()
        self._lock = threading.Lock()
        self.maps = 0
        self.unmaps = 0

    def map(self, address: int, size: int, fd: int, offset: int) -> None:
        """Makes `size` bytes of the file `fd` at `offset` the memory at I/O address `address`."""
        with self._lock:
            for at, length, done in self._split(address, size):
                _map(at, length, mmap.MAP_SHARED | _FIXED, fd, offset + done)
            self._mapped.add(address, address + size)
            self.maps += 1

    def unmap(self, address: int, size: int) -> None:
        """Takes away all mappings within [address, address + size)."""
        with self._lock:
            for start, end in list(self._mapped):
                low, high = max(start, address), min(end, address + size)
                if low < high:
                    self._scratch(low, high - low)
            self._mapped.remove(address, address + size)
            self.unmaps += 1

    def clear(self) -> None:
        """Takes away every mapping."""
        with self._lock:
            for start, end in list(self._mapped):
                self._scratch(start, end - start)
            self._mapped = AddressSet()

    def close(self) -> None:
        """Gives the address space back. No pointer handed out may be used any more."""
        with self._lock:
            for window in self._windows.values():
                _native.lib.xdna_munmap(window, _CHUNK)
            self._windows = {}
            self._mapped = AddressSet()

    def ranges(self) -> list[tuple[int, int]]:
        """What is mapped: merged, half-open ranges of I/O addresses."""
        with self._lock:
            return list(self._mapped)

    def covers(self, address: int, size: int) -> bool:
        """Whether the guest has mapped all of [address, address + size)."""
        with self._lock:
            return self._mapped.covers(address, address + size)

    def at(self, address: int, size: int) -> int:
        """Host address of `size` bytes at I/O address `address`.

        Raises BadAddress where any of it is not mapped.
        """
        with self._lock:
            if not self._mapped.covers(address, address + size):
                raise BadAddress(address, size)
            pieces = list(self._split(address, size))
            if len(pieces) != 1:
                raise BadAddress(address, size)
            return pieces[0][0]

    def read(self, address: int, size: int) -> bytes:
        """Copies `size` bytes out. Raises BadAddress."""
        return ctypes.string_at(self.at(address, size), size)

    def write(self, address: int, data: bytes) -> None:
        """Copies `data` in. Raises BadAddress."""
        ctypes.memmove(self.at(address, len(data)), data, len(data))

    def pointer(self, context: int, address: int, size: int) -> int:
        """For the NPU model (amdxdna.emu.npu.Memory): all contexts share the function's addresses."""
        return self.at(address, size)

    def stamp(self, context: int) -> object:
        return None

    def release(self, context: int) -> None:
        """For the NPU model: nothing is pinned."""

    def _scratch(self, address: int, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED | _NORESERVE
        for at, length, _ in self._split(address, size):
            _map(at, length, flags, -1, 0)

    def _split(self, address: int, size: int) -> Iterator[tuple[int, int, int]]:
        done = 0
        while done < size:
            chunk, offset = divmod(address + done, _CHUNK)
            length = min(size - done, _CHUNK - offset)
            yield self._window(chunk) + offset, length, done
            done += length

    def _window(self, chunk: int) -> int:
        if chunk not in self._windows:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._windows[chunk] = _map(0, _CHUNK, flags, -1, 0, protection=0)
        return self._windows[chunk]
