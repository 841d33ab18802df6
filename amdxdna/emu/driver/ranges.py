"""Ranges of addresses: an allocator, and a map from addresses to the BOs behind them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from amdxdna.emu.driver.bo import Bo


class RangeAllocator:
    """Hands out ranges of [start, end). Not thread-safe."""

    def __init__(self, start: int, end: int) -> None:
        self._holes: list[tuple[int, int]] = [(start, end)]

    def lowest(self, size: int, align: int = 4096) -> int | None:
        """The start of a range in the smallest hole that holds it, at the hole's low end; None: no room.

        This is drm_mm's best fit, which both the device heap and the map offsets use.
        """
        best: tuple[int, int, int] | None = None
        for index, (low, high) in enumerate(self._holes):
            start = -(-low // align) * align
            if start + size <= high and (best is None or high - low < best[0]):
                best = (high - low, index, start)
        return None if best is None else self._take(best[1], best[2], size)

    def highest(self, size: int, align: int = 4096) -> int | None:
        """The start of the highest free range, as the kernel's IOVA allocator gives; None: no room."""
        for index in range(len(self._holes) - 1, -1, -1):
            low, high = self._holes[index]
            start = (high - size) // align * align
            if start >= low:
                return self._take(index, start, size)
        return None

    def free(self, start: int, size: int) -> None:
        """Returns a range that was handed out."""
        holes = self._holes
        at = bisect_left(holes, (start, 0))
        end = start + size
        if at < len(holes) and holes[at][0] == end:
            end = holes.pop(at)[1]
        if at and holes[at - 1][1] == start:
            start = holes.pop(at - 1)[0]
            at -= 1
        holes.insert(at, (start, end))

    def _take(self, index: int, start: int, size: int) -> int:
        low, high = self._holes[index]
        rest = [hole for hole in ((low, start), (start + size, high)) if hole[0] < hole[1]]
        self._holes[index:index + 1] = rest
        return start


class Mapped(NamedTuple):
    """[start, end) shows `bo` from byte `offset` on. `own`: it is the model's own mapping of the BO."""

    start: int
    end: int
    bo: Bo
    offset: int
    own: bool


class AddressMap:
    """Which BO is at which address of one address space. Not thread-safe; ranges never overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[Mapped] = []
        self.changes = 0
        """Grows with every change: who keeps what `find` told compares it."""

    def __iter__(self) -> Iterator[Mapped]:
        return iter(list(self._ranges))

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, start: int, size: int, bo: Bo, offset: int = 0, own: bool = False) -> None:
        """Adds a range that overlaps no other."""
        self.changes += 1
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._ranges.insert(at, Mapped(start, start + size, bo, offset, own))

    def discard(self, bo: Bo) -> None:
        """Takes out every range of `bo`."""
        self.changes += 1
        keep = [r for r in self._ranges if r.bo is not bo]
        self._ranges = keep
        self._starts = [r.start for r in keep]

    def find(self, address: int, size: int) -> tuple[Bo, int] | None:
        """(BO, offset in it) of the range that holds all `size` bytes at `address`."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self._ranges[at]
        if address + size > found.end:
            return None
        return found.bo, address - found.start + found.offset

    def overlapping(self, start: int, size: int) -> list[Mapped]:
        """The ranges with bytes in [start, start + size)."""
        low = max(bisect_right(self._starts, start) - 1, 0)
        high = bisect_left(self._starts, start + size)
        return [r for r in self._ranges[low:high] if r.end > start]

    def remove(self, start: int, size: int) -> list[Mapped]:
        """Takes [start, start + size) out; returns the pieces that were in it, cut to it."""
        self.changes += 1
        end = start + size
        pieces = []
        for r in self.overlapping(start, size):
            at = bisect_left(self._starts, r.start)
            del self._starts[at], self._ranges[at]
            if r.start < start:
                self.add(r.start, start - r.start, r.bo, r.offset, r.own)
            if r.end > end:
                self.add(end, r.end - end, r.bo, r.offset + end - r.start, r.own)
            low, high = max(r.start, start), min(r.end, end)
            pieces.append(Mapped(low, high, r.bo, r.offset + low - r.start, r.own))
        return pieces
