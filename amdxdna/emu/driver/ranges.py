"""Ranges of addresses, handed out."""

from __future__ import annotations

from bisect import bisect_left


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
        self._holes[index : index + 1] = rest
        return start
