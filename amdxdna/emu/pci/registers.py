"""Register map of the NPU2 function and the memory behind its BARs.

Offsets are those the driver uses for the Strix family (drivers/accel/amdxdna/npu4_regs.c and the PSP, SMU
and mailbox code); BAR sizes and what the driver is told in messages (ring addresses) are free choices.
"""

from __future__ import annotations

import struct

VENDOR_AMD = 0x1022
DEVICE_NPU2 = 0x17F0
REVISION_STRIX = 0x10
CLASS_SIGNAL_PROCESSING = 0x118000

REGISTERS_BAR = 0
MSIX_BAR = 1
SRAM_BAR = 2
PSP_BAR = 4
SMU_BAR = 5
BAR_SIZES = {
    REGISTERS_BAR: 1 << 20,
    MSIX_BAR: 64 << 10,
    SRAM_BAR: 512 << 10,
    PSP_BAR: 8 << 10,
    SMU_BAR: 8 << 10,
}

# Device addresses at which the firmware sees the register and SRAM BARs.
REGISTERS_BASE = 0x03000000
SRAM_BASE = 0x03600000

# Register BAR.
PSP_RESPONSE = 0x10078
PWAITMODE = 0x1003C
MAILBOX_REGISTERS = 0x20000
MAILBOX_STRIDE = 0x20

# Vectors 0 to 31 are the channels', by number; the firmware's log and trace buffers have one each.
CHANNELS = 32
LOG_VECTOR, TRACE_VECTOR = CHANNELS, CHANNELS + 1
VECTORS = CHANNELS + 2
MAILBOX_INTERRUPT = 0x14

# SRAM BAR.
FIRMWARE_ALIVE = 0x1E000
CHANNEL_INFO = 0x1F000
RINGS = 0x20000
RING_SIZE = 0x800

# PSP BAR.
PSP_COMMAND = 0xAEC
PSP_INTERRUPT = 0xA24
PSP_READY = 1 << 31

# SMU BAR.
SMU_COMMAND = 0x900
SMU_ARGUMENT = 0x9F0
SMU_RESPONSE = 0x9F4


def interrupt_address(vector: int) -> int:
    """Device address of the register that acknowledges `vector`."""
    return REGISTERS_BASE + MAILBOX_REGISTERS + vector * MAILBOX_STRIDE + MAILBOX_INTERRUPT


class Bars:
    """Plain memory behind every BAR. Reads outside are zero and writes outside are dropped, as on a bus."""

    def __init__(self) -> None:
        self._memory = {bar: bytearray(size) for bar, size in BAR_SIZES.items()}

    def clear(self) -> None:
        """Zeroes everything."""
        for memory in self._memory.values():
            memory[:] = bytes(len(memory))

    def size(self, bar: int) -> int:
        """Size in bytes, 0 for a BAR the function does not have."""
        return BAR_SIZES.get(bar, 0)

    def read(self, bar: int, offset: int, count: int) -> bytes:
        """`count` bytes at `offset`."""
        data = bytes(self._memory.get(bar, b"")[offset : offset + count])
        return data + bytes(count - len(data))

    def write(self, bar: int, offset: int, data: bytes) -> None:
        """Stores `data` at `offset`, dropping what lies outside the BAR."""
        memory = self._memory.get(bar)
        if memory is not None and offset < len(memory):
            fits = data[: len(memory) - offset]
            memory[offset : offset + len(fits)] = fits

    def load(self, bar: int, offset: int) -> int:
        """The 32-bit register at `offset`."""
        return int.from_bytes(self.read(bar, offset, 4), "little")

    def store(self, bar: int, offset: int, value: int) -> None:
        """Sets the 32-bit register at `offset`."""
        self.write(bar, offset, struct.pack("<I", value & 0xFFFFFFFF))
