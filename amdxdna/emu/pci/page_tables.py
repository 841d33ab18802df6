"""Address spaces of the guest's processes by PASID, read from the guest's RAM.

What an IOMMU with PASIDs does for a device that shares a process's virtual addresses: it walks the
process's own page tables (AMD64 Architecture Programmer's Manual volume 2, section 5.3: four levels of 512
eight-byte entries, 4 KiB pages, or 2 MiB and 1 GiB where an entry says so). Faults are not modelled: a page
that is not present is a bad address.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable, Iterator

from amdxdna.emu.npu import BadAddress

from .windows import FIXED, Windows, map_pages

_PRESENT, _USER, _LARGE = 1, 4, 0x80
_FRAME = 0x000FFFFFFFFFF000
_ENTRY = struct.Struct("<Q")
_PAGE = 4096
_USER_ADDRESSES = 1 << 47


class _Space:
    """One process's pages as far as contexts asked for them, at their places in windows of this process."""

    def __init__(self) -> None:
        self.windows = Windows()
        self.pages: dict[int, int] = {}
        """Page number to the frame that is mapped there."""
        self.contexts: set[int] = set()
        self.users: set[int] = set()
        """Contexts that hold pointers."""

    def close(self) -> None:
        self.windows.keep(lambda start, end: False)


class PageTables:
    """The processes' memory. Thread-safe.

    `ram`: the guest's RAM as a file in which a physical address is an offset, which holds for QEMU's q35 up
    to 2 GiB. `root`: the physical address of a PASID's top-level table, 0 for a PASID that is none; bits 0
    to 11 are ignored, as in CR3.
    """

    def __init__(self, ram: int, root: Callable[[int], int]) -> None:
        self._fd = ram
        self._ram = mmap.mmap(ram, 0)
        self._root = root
        self._spaces: dict[int, _Space] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Address spaces that are held."""
        with self._lock:
            return len(self._spaces)

    def pointer(self, context: int, pasid: int, address: int, size: int) -> int:
        """Address here of `size` bytes at `address` of the process; good until :meth:`release`.

        Raises BadAddress where the process has no page for it, or one of the kernel's.
        """
        with self._lock:
            root = self._root(pasid) & _FRAME
            if not root or not size or address + size > _USER_ADDRESSES:
                raise BadAddress(address, size)
            space = self._spaces.setdefault(pasid, _Space())
            space.contexts.add(context)
            for page, frame, count in self._runs(root, address, size):
                self._place(space, page, frame, count)
            pieces = list(space.windows.split(address, size))
            if len(pieces) != 1:
                raise BadAddress(address, size)
            space.users.add(context)
            return pieces[0][0]

    def release(self, context: int) -> None:
        """The pointers of `context` are not used any more."""
        with self._lock:
            for space in self._spaces.values():
                space.users.discard(context)
            self._tidy()

    def forget(self, context: int) -> None:
        """The context is gone; a process without contexts is given up once nothing uses its memory."""
        with self._lock:
            for space in self._spaces.values():
                space.contexts.discard(context)
            self._tidy()

    def close(self) -> None:
        """Gives everything back. No pointer handed out may be used any more. Idempotent."""
        with self._lock:
            for space in self._spaces.values():
                space.close()
            self._spaces = {}
            self._ram.close()

    def _tidy(self) -> None:
        for pasid in [p for p, space in self._spaces.items() if not space.contexts and not space.users]:
            self._spaces.pop(pasid).close()

    def _runs(self, root: int, address: int, size: int) -> Iterator[tuple[int, int, int]]:
        """(page, frame, pages) of each piece of the range that is contiguous in RAM."""
        page, last = address // _PAGE, (address + size - 1) // _PAGE
        first, start, count = page, 0, 0
        while page <= last:
            found = self._walk(root, page * _PAGE)
            if found is None:
                raise BadAddress(address, size)
            frame, more = found
            more = min(more, last + 1 - page)
            if count and frame == start + count:
                count += more
            else:
                if count:
                    yield first, start, count
                first, start, count = page, frame, more
            page += more
        yield first, start, count

    def _walk(self, root: int, address: int) -> tuple[int, int] | None:
        """The frame of an address and how many pages follow in the same entry, itself included."""
        table = root
        for shift in (39, 30, 21, 12):
            at = table + 8 * (address >> shift & 511)
            if at + 8 > len(self._ram):
                return None
            (entry,) = _ENTRY.unpack_from(self._ram, at)
            if entry & (_PRESENT | _USER) != _PRESENT | _USER:
                return None
            table = entry & _FRAME
            if shift == 12 or (shift < 39 and entry & _LARGE):
                inside = (address & (1 << shift) - 1) // _PAGE
                pages = (1 << shift) // _PAGE
                # Bit 12 of a large page's entry is an attribute.
                frame = (table & ~((1 << shift) - 1)) // _PAGE + inside
                left = min(pages - inside, len(self._ram) // _PAGE - frame)
                return (frame, left) if left > 0 else None
        return None

    def _place(self, space: _Space, page: int, frame: int, count: int) -> None:
        """Maps frames at their place, unless that is what lies there."""
        if all(space.pages.get(page + i) == frame + i for i in range(count)):
            return
        for at, length, done in space.windows.split(page * _PAGE, count * _PAGE):
            map_pages(at, length, mmap.MAP_SHARED | FIXED, self._fd, frame * _PAGE + done)
        space.pages.update((page + i, frame + i) for i in range(count))
