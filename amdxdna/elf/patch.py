"""Places in control code that hold addresses and numbers known only at run time, and how they are written.

Facts from Xilinx/XRT: core/common/api/elf_patcher.{h,cpp} at 51a05cdc86, and measured: what this writes and
what XRT 2.25 writes are compared byte for byte.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

APERTURE = 0x80000000
"""Where the array's DMA engines see the host's addresses begin."""

_PAIR, _WORD, _LONG = struct.Struct("<II"), struct.Struct("<I"), struct.Struct("<Q")


class Kind(enum.IntEnum):
    """How a place is written: the relocation's type."""

    SCALAR = 3
    """The bits of a word that the mask names."""
    CONTROL_PACKET = 4
    """48 bits of address in the words 2 and 3 of a control packet for a DMA descriptor."""
    SHIM_DMA = 5
    """48 bits of address in the words 1 and 2 of a shim DMA's descriptor."""
    ADDRESS = 8
    """A plain 64-bit address."""


_FIRST = {Kind.SCALAR: 0, Kind.CONTROL_PACKET: 8, Kind.SHIM_DMA: 4, Kind.ADDRESS: 0}
_BYTES = {Kind.SCALAR: 4, Kind.CONTROL_PACKET: 8, Kind.SHIM_DMA: 8, Kind.ADDRESS: 8}
# A control packet's word 3 is read with 12 of the 16 bits that are written.
_HIGH = {Kind.CONTROL_PACKET: 0xFFF, Kind.SHIM_DMA: 0xFFFF}


class Patch(NamedTuple):
    """One place: `at` is the first byte that changes, `original` what the file has there."""

    kind: Kind
    at: int
    original: bytes
    addend: int
    mask: int

    def value(self, value: int) -> bytes:
        """The bytes for an address or a number, which is taken modulo 2^64."""
        kind = self.kind
        if kind is Kind.ADDRESS:
            return _LONG.pack(value & (1 << 64) - 1)
        if kind is Kind.SCALAR:
            (before,) = _WORD.unpack(self.original)
            return _WORD.pack(before & ~self.mask | value & self.mask)
        low, high = _PAIR.unpack(self.original)
        # Modulo 2^48, of which XRT lets the carry out into the bits above.
        base = ((high & _HIGH[kind]) << 32 | low) + value + self.addend + APERTURE
        return _PAIR.pack(base & 0xFFFFFFFC, high & 0xFFFF0000 | base >> 32 & 0xFFFF)


def patch(kind: Kind, data: bytes, offset: int, addend: int, mask: int) -> Patch | None:
    """The place that a relocation at `offset` of `data` means; None where it does not fit."""
    at = offset + _FIRST[kind]
    size = _BYTES[kind]
    if offset % 4 or at + size > len(data):
        return None
    return Patch(kind, at, data[at : at + size], addend & 0xFFFFFFFF, mask)
