"""Address space of this process that stands for a device's: what is mapped there lies at window + address."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

from amdxdna import _native

_CHUNK_BITS = 40
_CHUNK = 1 << _CHUNK_BITS
FIXED = 0x10
_NORESERVE = 0x4000


def map_pages(
    address: int,
    length: int,
    flags: int,
    fd: int,
    offset: int,
    protection: int = mmap.PROT_READ | mmap.PROT_WRITE,
) -> int:
    """mmap of guest memory; its address. Raises OSError."""
    result = int(_native.lib.xdna_mmap(address, length, protection, flags, fd, offset))
    if -4096 < result < 0:
        raise OSError(-result, f"cannot map {length:#x} bytes of guest memory")
    return result


class Windows:
    """Reserved address space of this process, 1 TiB for each TiB of bus addresses in use. Not thread-safe."""

    def __init__(self) -> None:
        self._windows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def split(self, address: int, size: int) -> Iterator[tuple[int, int, int]]:
        """(address here, length, bytes before it) of each TiB's part of [address, address + size)."""
        done = 0
        while done < size:
            chunk, offset = divmod(address + done, _CHUNK)
            length = min(size - done, _CHUNK - offset)
            yield self._window(chunk) + offset, length, done
            done += length

    def clear(self, address: int, size: int) -> None:
        """Puts private zero pages there, where a late access goes nowhere."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED | _NORESERVE
        for at, length, _ in self.split(address, size):
            map_pages(at, length, flags, -1, 0)

    def keep(self, used: Callable[[int, int], bool]) -> None:
        """Gives back every window of which `used(start, end)` (bus addresses) is false."""
        for chunk in [c for c in self._windows if not used(c << _CHUNK_BITS, (c + 1) << _CHUNK_BITS)]:
            _native.lib.xdna_munmap(self._windows.pop(chunk), _CHUNK)

    def _window(self, chunk: int) -> int:
        if chunk not in self._windows:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._windows[chunk] = map_pages(0, _CHUNK, flags, -1, 0, protection=0)
        return self._windows[chunk]
