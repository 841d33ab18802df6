"""A context's window into its device heap: chunks of host memory, one behind the other on the device."""

from __future__ import annotations

from typing import NamedTuple

from amdxdna.emu.npu.memory import BadAddress

DEVICE_HEAP = 0x4000000
"""Device address of the first byte of every context's heap."""
HEAP_CHUNK = 64 << 20
"""Heap comes in chunks of this size, at host addresses that are multiples of it."""
HEAP_MAX = 512 << 20


class _Chunk(NamedTuple):
    """Device addresses from `device` on are at `host`."""

    device: int
    host: int
    size: int


class HeapWindow:
    """What of the heap is mapped. Who adds to it is alone at that; anybody may look meanwhile."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []

    def map(self, address: int, size: int, *, add: bool) -> bool:
        """Makes `size` bytes at host `address` the first part, or (`add`) the next one.

        False unless both are multiples of HEAP_CHUNK, past HEAP_MAX, and where `add` does not fit.
        """
        end = sum(chunk.size for chunk in self._chunks)
        if (
            size <= 0
            or address % HEAP_CHUNK
            or size % HEAP_CHUNK
            or add != bool(end)
            or end + size > HEAP_MAX
        ):
            return False
        self._chunks.append(_Chunk(DEVICE_HEAP + end, address, size))
        return True

    def __contains__(self, address: int) -> bool:
        """Whether a device address lies in what is mapped."""
        chunks = self._chunks
        return bool(chunks) and DEVICE_HEAP <= address < chunks[-1].device + chunks[-1].size

    def host(self, address: int, size: int) -> int:
        """The host address of a device address in the window. Raises BadAddress where `size` bytes are not.

        A range may continue in the next chunk where that one is adjacent on the bus too.
        """
        chunks = self._chunks
        number, chunk = 0, chunks[0]
        while address >= chunk.device + chunk.size:
            number += 1
            chunk = chunks[number]
        offset = address - chunk.device
        end = chunk.size
        for following in chunks[number + 1 :]:
            if offset + size <= end or following.host != chunk.host + end:
                break
            end += following.size
        if offset + size > end:
            raise BadAddress(address, size)
        return chunk.host + offset
