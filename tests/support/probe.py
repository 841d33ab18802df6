"""A driver's side of the PCI function."""

from __future__ import annotations

import os
import struct
import threading
import time

from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.emu.pci import firmware
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.function import Npu2Function

# The driver's own numbers (drivers/accel/amdxdna: npu4_regs.c, aie2_psp.c, aie2_smu.c).
REGISTERS_BAR, SRAM_BAR, PSP_BAR, SMU_BAR = 0, 2, 4, 5
REGISTERS_BASE, SRAM_BASE = 0x3000000, 0x3600000
PSP_ARGUMENTS, PSP_RESPONSE, PSP_COMMAND, PSP_INTERRUPT = (0x10078, 0x1007C, 0x10090), 0x10078, 0xAEC, 0xA24
PSP_READY = 1 << 31
VALIDATE, START, RELEASE = 1, 2, 3
SMU_COMMAND, SMU_ARGUMENT, SMU_RESPONSE, SMU_INTERRUPT = 0x900, 0x9F0, 0x9F4, 0
POWER_ON, POWER_OFF, SET_SOFT_LEVEL, SET_HARD_LEVEL = 3, 4, 7, 8
FIRMWARE_ALIVE, PWAITMODE = 0x1E000, 0x1003C
MAGIC = 0x55504E5F
RING_SIZE = 0x800

HEAP_IOVA = 0xFFFFF8000000
HEAP_BYTES = 64 << 20
DATA_IOVA = 0xFFFFF7FF0000
DEVICE_HEAP = 0x4000000
CODE, PDI, LIST = 0x1000, 0x8000, 0x10000  # offsets in the heap


class Channel:
    """The driver's end of a mailbox channel, from ring addresses as the firmware gave them."""

    def __init__(self, function: Npu2Function, words: tuple[int, ...], head_first: bool) -> None:
        self.function = function
        head, tail = (0, 1) if head_first else (1, 0)
        self.x2i_tail, self.x2i = words[tail] - REGISTERS_BASE, words[2] - SRAM_BASE
        self.i2x_head = words[4 + head] - REGISTERS_BASE
        self.i2x_tail = words[4 + tail] - REGISTERS_BASE
        self.i2x = words[6] - SRAM_BASE
        self.at = self.head = self.sent = 0
        self.replied = threading.Event()

    def send(self, opcode: int, body: bytes) -> int:
        """Sends a request; its id."""
        identifier = 0x1D000000 | self.sent
        self.sent += 1
        message = struct.pack("<IIII", len(body), len(body) | 1 << 16, identifier, opcode) + body
        if self.at + len(message) > RING_SIZE - 4:
            self.function.write(SRAM_BAR, self.x2i + self.at, struct.pack("<I", 0xDEADFACE))
            self.at = 0
        self.function.write(SRAM_BAR, self.x2i + self.at, message)
        self.at += len(message)
        self.function.write(REGISTERS_BAR, self.x2i_tail, struct.pack("<I", self.at))
        return identifier

    def receive(self) -> tuple[int, int, bytes] | None:
        """(opcode, id, body) of the next reply that is there."""
        while True:
            (tail,) = struct.unpack("<I", self.function.read(REGISTERS_BAR, self.i2x_tail, 4))
            if self.head == tail:
                return None
            size, _, identifier, opcode = struct.unpack(
                "<IIII", self.function.read(SRAM_BAR, self.i2x + self.head, 16)
            )
            if size == 0xDEADFACE:
                self.head = 0
                continue
            body = self.function.read(SRAM_BAR, self.i2x + self.head + 16, size)
            self.head += 16 + size
            self.function.write(REGISTERS_BAR, self.i2x_head, struct.pack("<I", self.head))
            return opcode, identifier, body

    def ask(self, opcode: int, body: bytes = bytes(4)) -> bytes:
        """A request and its reply, which must come at once or within a minute."""
        identifier = self.send(opcode, body)
        end = time.monotonic() + 60
        while (got := self.receive()) is None:
            assert time.monotonic() < end, f"no reply to opcode {opcode:#x}"
            time.sleep(0.005)
        assert got[:2] == (opcode, identifier)
        return got[2]


class Probe:
    """A function that was probed, with guest memory behind it: a heap and a page of data."""

    def __init__(self, options: FirmwareOptions | None = None) -> None:
        self.function = Npu2Function(options)
        self.ram = os.memfd_create("ram")
        os.ftruncate(self.ram, HEAP_BYTES + 0x10000)
        self.function.map_dma(HEAP_IOVA, HEAP_BYTES, self.ram, 0)
        self.function.map_dma(DATA_IOVA, 0x10000, self.ram, HEAP_BYTES)

    def smu(self, command: int, argument: int = 0) -> int:
        """A power command; the response."""
        write = self.function.write
        for offset, value in (
            (SMU_RESPONSE, 0),
            (SMU_ARGUMENT, argument),
            (SMU_COMMAND, command),
            (SMU_INTERRUPT, 0),
            (SMU_INTERRUPT, 1),
        ):
            write(SMU_BAR, offset, struct.pack("<I", value))
        return struct.unpack("<I", self.function.read(SMU_BAR, SMU_RESPONSE, 4))[0]

    def psp(self, command: int, *arguments: int) -> int:
        """A PSP command; the response, after checking that it is ready before and after."""
        for offset, value in zip(PSP_ARGUMENTS, (*arguments, 0, 0, 0), strict=False):
            self.function.write(REGISTERS_BAR, offset, struct.pack("<I", value))
        for offset, value in ((PSP_COMMAND, command), (PSP_INTERRUPT, 0), (PSP_INTERRUPT, 1)):
            self.function.write(PSP_BAR, offset, struct.pack("<I", value))
        (ready,) = struct.unpack("<I", self.function.read(PSP_BAR, PSP_COMMAND, 4))
        assert ready & PSP_READY
        return struct.unpack("<I", self.function.read(REGISTERS_BAR, PSP_RESPONSE, 4))[0]

    def start(self) -> Channel:
        """Power, firmware, and the management channel that it announces."""
        assert self.smu(POWER_OFF) == self.smu(POWER_ON) == 1
        assert self.psp(VALIDATE, 0x1000, 0, 0x10000) == 0
        assert self.psp(START) == 0
        (alive,) = struct.unpack("<I", self.function.read(SRAM_BAR, FIRMWARE_ALIVE, 4))
        words = struct.unpack("<16I", self.function.read(SRAM_BAR, alive - SRAM_BASE, 64))
        assert words[8:12] == (MAGIC, 0, *self.function.firmware.options.protocol)
        return Channel(self.function, words[:8], head_first=False)

    def context(self, management: Channel) -> tuple[int, Channel | None]:
        """Creates a context and maps its heap; (status, its channel)."""
        request = struct.pack("<IBBBBBBHIIII", 1, 0, 8, 0, 0, 1, 0, 0, 0, 0, 0, 2)
        reply = management.ask(firmware.CREATE_CONTEXT, request)
        result, context, vector, queues, _ = struct.unpack_from("<IIHBB", reply)
        assert len(reply) == 12 + 64
        if result:
            return result, None
        assert (vector, queues) == (context + 1, 1)
        heap = struct.pack("<IQQ", context, HEAP_IOVA, HEAP_BYTES)
        assert management.ask(firmware.MAP_HOST_BUFFER, heap) == bytes(4)
        return result, Channel(self.function, struct.unpack_from("<8I", reply, 12), head_first=True)

    def close(self) -> None:
        self.function.close()
        os.close(self.ram)


def configure(channel: Channel, *pdis: int) -> int:
    """Configures CUs at these device addresses; the status."""
    words = [len(pdis), *(address >> 15 for address in pdis)]
    body = struct.pack("<33I", *words, *[0] * (33 - len(words)))
    return int.from_bytes(channel.ask(firmware.CONFIGURE_CUS, body), "little")


def load(probe: Probe, program: bytes) -> bytes:
    """Puts PDI and program into the heap, and a one-command list; the chain message."""
    os.pwrite(probe.ram, pdi(Family.COPY), PDI)
    os.pwrite(probe.ram, program, CODE)
    args = [3, 0, DEVICE_HEAP + CODE, 0, len(program)]
    for address in (DATA_IOVA, DATA_IOVA + 0x1000):
        args += [address & 0xFFFFFFFF, address >> 32]
    slot = struct.pack(f"<IQQQ6I{len(args)}I", 1, *[0] * 8, len(args), *args)
    os.pwrite(probe.ram, slot, LIST)
    return struct.pack("<IIQII", 0, 0, DEVICE_HEAP + LIST, len(slot), 1)
