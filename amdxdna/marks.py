"""Marks: words of a result that a command must write, watched, so that one that did not run shows.

A driver's word that a command completed is all that :meth:`Run.wait` knows, and it can be wrong: drivers
before 750817a7c41d (amdxdna.profile) call some failed chains completed. A mark costs a store and a cache
line's way to memory and back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amdxdna._native import ffi, lib
from amdxdna.buffer import Buffer
from amdxdna.errors import BadArgument

__all__ = ["Marks"]

VALUES = (0x7FD3, 0xFFB5)
"""NaN in bf16, in the high half of a float32 too, with payloads that arithmetic does not make."""


class Marks:
    """16-bit words of buffers: ``put`` before a start, ``left`` after the wait.

    A right result may be equal to a mark. So what ``left`` counts is run again with ``put(1)``, the other
    value: what ``left(1)`` counts then was not written. Not thread-safe; nothing may be in flight at ``put``.
    """

    __slots__ = ("_count", "_keep", "_pairs", "_places", "_ranges")

    def __init__(
        self, places: Iterable[tuple[Buffer, int]], results: Iterable[tuple[Buffer, int]] = ()
    ) -> None:
        """`places`: (buffer, byte offset), each a word that the commands write. `results`: (buffer, bytes),
        beginnings of buffers, which ``left`` makes readable for the host. The buffers' memory stays mapped.

        Raises BadArgument for an odd offset or one that is not inside, or more bytes than the buffer has,
        Closed for a closed buffer."""
        found: list[int] = []
        self._keep: list[Any] = []
        for buffer, offset in places:
            if offset % 2 or not 0 <= offset <= buffer.nbytes - 2:
                raise BadArgument(
                    f"no word at byte {offset} of {buffer.nbytes}",
                    call="mark",
                    remedy="Give an even offset inside the buffer",
                )
            self._keep.append(buffer.view(writable=False))
            found.append(buffer.host_address + offset)
        ranges: list[int] = []
        for buffer, nbytes in results:
            if not 0 < nbytes <= buffer.nbytes:
                raise BadArgument(
                    f"{nbytes} bytes of {buffer.nbytes}",
                    call="mark",
                    remedy="Give bytes that the buffer has",
                )
            self._keep.append(buffer.view(writable=False))
            ranges += buffer.host_address, nbytes
        self._places, self._ranges = ffi.new("uintptr_t[]", found), ffi.new("uintptr_t[]", ranges)
        self._count, self._pairs = len(found), len(ranges) // 2

    def put(self, value: int = 0) -> None:
        """Writes mark 0 or 1 into every word, through to memory."""
        lib.xdna_mark(self._places, self._count, VALUES[value])

    def left(self, value: int = 0) -> int:
        """How many words hold that mark in memory. Makes the results readable."""
        return lib.xdna_marked(self._places, self._count, VALUES[value], self._ranges, self._pairs)
