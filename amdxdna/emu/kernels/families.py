"""Kernel families of the emulated NPU and the PDI blob that names one.

A PDI of the emulator is 64 bytes: ``b"AMDXDNA-EMU-PDI\\0"``, u32 version 1, u32 family, then the
family's name, zero-padded. Shapes travel in instruction streams, so one PDI serves every shape of
its family. A real PDI (compiled AIE code) is refused: it is not interpreted.
"""

from __future__ import annotations

import enum
import struct

from .stream import Copy, Gemm, Gemv

PDI_MAGIC = b"AMDXDNA-EMU-PDI\0"
PDI_VERSION = 1
PDI_BYTES = 64
_LAYOUT = struct.Struct("<16sII32s8x")


class UnknownPdi(ValueError):
    """A PDI the emulator cannot run; the message says why."""


class Family(enum.IntEnum):
    """What the kernel of a PDI computes."""

    GEMM = 1
    GEMV = 2
    COPY = 3

    @property
    def label(self) -> str:
        """The family's name as the PDI and the bundle's manifest spell it."""
        return self.name.lower()


WORK = {Family.GEMM: Gemm, Family.GEMV: Gemv, Family.COPY: Copy}
"""The op class each family runs; DELAY, HANG and FAIL run in every family."""


def pdi(family: Family) -> bytes:
    """The PDI blob of `family`."""
    return _LAYOUT.pack(PDI_MAGIC, PDI_VERSION, family, family.label.encode())


def family_of(blob: bytes | bytearray | memoryview) -> Family:
    """The family a PDI names. Raises UnknownPdi for anything but an emulator PDI."""
    raw = bytes(blob[:PDI_BYTES])
    if raw[:16] != PDI_MAGIC:
        raise UnknownPdi(
            "this PDI was not made for the emulated NPU: compiled AIE code is not interpreted; "
            "export a bundle for the emulated NPU, or run on a real one"
        )
    if len(raw) < PDI_BYTES:
        raise UnknownPdi(f"PDI cut short: {len(raw)} of {PDI_BYTES} bytes")
    _, version, number, _ = _LAYOUT.unpack(raw)
    if version != PDI_VERSION:
        raise UnknownPdi(f"PDI version {version}: this emulator runs version {PDI_VERSION}")
    try:
        return Family(number)
    except ValueError:
        raise UnknownPdi(f"PDI family {number} is unknown to this emulator") from None
