"""The function without a machine: a scripted driver probes it by registers and runs commands on it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.emu.npu import Status
from amdxdna.emu.pci import commands, firmware, messages, psp, smu
from amdxdna.emu.pci import registers as reg
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.function import Npu2Function
from amdxdna.emu.pci.vfio_user import CONFIG_REGION

HEAP_IOVA = 0xFFFFF8000000
HEAP_BYTES = 64 << 20
DEVICE_HEAP = 0x4000000
DATA_IOVA = 0xFFFFF7FF0000
CODE, PDI, LIST = 0x1000, 0x8000, 0x10000  # offsets in the heap


class Channel:
    """The driver's end of a mailbox channel, from ring addresses as the firmware gave them."""

    def __init__(self, function: Npu2Function, words: tuple[int, ...], head_first: bool) -> None:
        self.function = function
        head, tail = (0, 1) if head_first else (1, 0)
        self.x2i_tail, self.x2i = words[tail] - reg.REGISTERS_BASE, words[2] - reg.SRAM_BASE
        self.i2x_head = words[4 + head] - reg.REGISTERS_BASE
        self.i2x_tail = words[4 + tail] - reg.REGISTERS_BASE
        self.i2x = words[6] - reg.SRAM_BASE
        self.at = self.head = self.sent = 0
        self.replied = threading.Event()

    def send(self, opcode: int, body: bytes) -> int:
        """Sends a request; its id."""
        identifier = 0x1D000000 | self.sent
        self.sent += 1
        message = struct.pack("<IIII", len(body), len(body) | 1 << 16, identifier, opcode) + body
        if self.at + len(message) > reg.RING_SIZE - 4:
            self.function.write(reg.SRAM_BAR, self.x2i + self.at, struct.pack("<I", 0xDEADFACE))
            self.at = 0
        self.function.write(reg.SRAM_BAR, self.x2i + self.at, message)
        self.at += len(message)
        self.function.write(reg.REGISTERS_BAR, self.x2i_tail, struct.pack("<I", self.at))
        return identifier

    def receive(self) -> tuple[int, int, bytes] | None:
        """(opcode, id, body) of the next reply that is there."""
        while True:
            (tail,) = struct.unpack("<I", self.function.read(reg.REGISTERS_BAR, self.i2x_tail, 4))
            if self.head == tail:
                return None
            size, _, identifier, opcode = struct.unpack(
                "<IIII", self.function.read(reg.SRAM_BAR, self.i2x + self.head, 16)
            )
            if size == 0xDEADFACE:
                self.head = 0
                continue
            body = self.function.read(reg.SRAM_BAR, self.i2x + self.head + 16, size)
            self.head += 16 + size
            self.function.write(reg.REGISTERS_BAR, self.i2x_head, struct.pack("<I", self.head))
            return opcode, identifier, body

    def ask(self, opcode: int, body: bytes = bytes(4)) -> bytes:
        """A request and its reply, which must come at once or within seconds."""
        identifier = self.send(opcode, body)
        for _ in range(500):
            got = self.receive()
            if got is not None:
                assert got[:2] == (opcode, identifier)
                return got[2]
            threading.Event().wait(0.01)
        raise AssertionError(f"no reply to opcode {opcode:#x}")


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
            (reg.SMU_RESPONSE, 0),
            (reg.SMU_ARGUMENT, argument),
            (reg.SMU_COMMAND, command),
            (reg.SMU_INTERRUPT, 0),
            (reg.SMU_INTERRUPT, 1),
        ):
            write(reg.SMU_BAR, offset, struct.pack("<I", value))
        return struct.unpack("<I", self.function.read(reg.SMU_BAR, reg.SMU_RESPONSE, 4))[0]

    def psp(self, command: int, *arguments: int) -> int:
        """A PSP command; the response, after checking that it is ready before and after."""
        for offset, value in zip(reg.PSP_ARGUMENTS, (*arguments, 0, 0, 0), strict=False):
            self.function.write(reg.REGISTERS_BAR, offset, struct.pack("<I", value))
        for offset, value in ((reg.PSP_COMMAND, command), (reg.PSP_INTERRUPT, 0), (reg.PSP_INTERRUPT, 1)):
            self.function.write(reg.PSP_BAR, offset, struct.pack("<I", value))
        (ready,) = struct.unpack("<I", self.function.read(reg.PSP_BAR, reg.PSP_COMMAND, 4))
        assert ready & reg.PSP_READY
        return struct.unpack("<I", self.function.read(reg.REGISTERS_BAR, reg.PSP_RESPONSE, 4))[0]

    def start(self) -> Channel:
        """Power, firmware, and the management channel that it announces."""
        assert self.smu(smu.POWER_OFF) == self.smu(smu.POWER_ON) == 1
        assert self.psp(psp.VALIDATE, 0x1000, 0, 0x10000) == 0
        assert self.psp(psp.START) == 0
        (alive,) = struct.unpack("<I", self.function.read(reg.SRAM_BAR, reg.FIRMWARE_ALIVE, 4))
        words = struct.unpack("<16I", self.function.read(reg.SRAM_BAR, alive - reg.SRAM_BASE, 64))
        assert words[8:12] == (firmware.MAILBOX_MAGIC, 0, *self.function.firmware.options.protocol)
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


@pytest.fixture
def probe() -> Iterator[Probe]:
    probe = Probe()
    yield probe
    probe.close()


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


def test_configuration_space(probe: Probe) -> None:
    space = probe.function.read(CONFIG_REGION, 0, 256)
    assert struct.unpack_from("<HH", space) == (0x1022, 0x17F0)
    assert space[8:12] == bytes([0x10, 0x00, 0x80, 0x11]), "revision and class"
    assert space[space[0x34]] == 0x11, "the MSI-X capability"
    assert probe.function.read(CONFIG_REGION, 250, 16) == bytes(16)


def test_probe_and_queries(probe: Probe) -> None:
    """What the driver asks while it probes, and that a request of another size is refused."""
    management = probe.start()
    assert management.ask(firmware.SET_RUNTIME_CONFIG, struct.pack("<IQ", 5, 1)) == bytes(4)
    assert management.ask(firmware.GET_RUNTIME_CONFIG, struct.pack("<I", 5)) == struct.pack("<IQ", 0, 1)
    assert management.ask(firmware.GET_FIRMWARE_VERSION) == struct.pack("<5I", 0, 1, 1, 2, 58597)
    assert management.ask(firmware.QUERY_AIE_VERSION) == struct.pack("<IHH", 0, 2, 0)
    tiles = struct.unpack("<II20H", management.ask(firmware.QUERY_TILE_INFO))
    assert tiles[:9] == (0, 0x2000, 2, 0, 8, 6, 4, 1, 1)
    refused = management.ask(firmware.GET_FIRMWARE_VERSION, bytes(8))
    assert refused == struct.pack("<I16x", Status.INVALID_PARAM), "in the size that the driver expects"
    assert management.ask(0x999) == struct.pack("<I", Status.INVALID_COMMAND)


def test_messages_of_newer_drivers(probe: Probe) -> None:
    """Clock, log and trace: replies of the right size, with vectors of their own."""
    management = probe.start()
    assert management.ask(messages.CALIBRATE_CLOCK, bytes(8)) == bytes(4)
    log = management.ask(messages.CONFIGURE_LOG, bytes(32))
    trace = management.ask(messages.START_TRACE, bytes(24))
    assert (len(log), len(trace)) == (32, 20)
    vectors = {struct.unpack_from("<II", reply)[1] for reply in (log, trace)}
    assert all(31 < vector < probe.function.interrupts.count for vector in vectors) and len(vectors) == 2
    assert management.ask(messages.STOP_TRACE) == management.ask(messages.SET_TRACE_CATEGORIES) == bytes(4)
    refused = management.ask(messages.GET_TELEMETRY, bytes(4))
    assert refused == struct.pack("<12xI", Status.INVALID_PARAM)


@pytest.mark.parametrize("protocol", [(6, 12), (6, 15), (6, 18), (6, 24), (7, 0)])
def test_older_protocols(protocol: tuple[int, int]) -> None:
    """What a protocol does not have is refused, in a reply that does not cost the driver its channel."""
    probe = Probe(FirmwareOptions(protocol=protocol))
    management = probe.start()
    for opcode, layout in messages.MANAGEMENT.items():
        if layout.since != (0, 0) and opcode != messages.ADD_HOST_BUFFER:
            reply = management.ask(opcode, bytes(layout.request))
            assert len(reply) == layout.reply
            unknown = struct.unpack_from("<I", reply)[0] == Status.INVALID_COMMAND
            assert unknown == (protocol < layout.since), hex(opcode)
    _, channel = probe.context(management)
    assert channel is not None
    configure(channel, DEVICE_HEAP + PDI)
    os.pwrite(probe.ram, struct.pack("<4I", 1, 2, 3, 4), HEAP_BYTES)
    message = load(probe, stream.copy(16, 7))
    (result,) = struct.unpack_from("<I", channel.ask(commands.CHAIN_NPU, message))
    assert result == (Status.INVALID_COMMAND if protocol < (6, 15) else Status.OK)
    probe.close()


@pytest.mark.parametrize("padding", [0, 8])
def test_older_chains(padding: int) -> None:
    """Lists of plain and of DPU commands, named by 16 bytes, or by 24 of which the last do not count."""
    probe = Probe(FirmwareOptions(protocol=(6, 12)))
    _, channel = probe.context(probe.start())
    assert channel is not None
    program = stream.copy(16, 7)
    load(probe, program)
    configure(channel, DEVICE_HEAP + PDI)
    buffers = [
        word for address in (DATA_IOVA, DATA_IOVA + 0x1000) for word in (address & 0xFFFFFFFF, address >> 32)
    ]
    plain = [3, 0, DEVICE_HEAP + CODE, 0, len(program), *buffers]
    lists = {
        commands.CHAIN_BUFFER: struct.pack(f"<II{len(plain)}I", 0, len(plain), *plain),
        commands.CHAIN_DPU: struct.pack(
            "<QIIII9I", DEVICE_HEAP + CODE, len(program), 0, 0, 9, 3, 0, 0, 0, 0, *buffers
        ),
    }
    for opcode, data in lists.items():
        os.pwrite(probe.ram, struct.pack("<4I", 1, 2, 3, 4) + bytes(0xFF0) + bytes(16), HEAP_BYTES)
        os.pwrite(probe.ram, data, LIST)
        body = struct.pack("<QII", DEVICE_HEAP + LIST, len(data), 1) + bytes(padding)
        assert channel.ask(opcode, body) == bytes(12)
        assert struct.unpack("<4I", os.pread(probe.ram, 16, HEAP_BYTES + 0x1000)) == (8, 9, 10, 11)
    probe.close()


@pytest.mark.parametrize("rings", [True, False])
def test_smu_starts_on_its_command(rings: bool, probe: Probe) -> None:
    """Once for each write of the command register, whether the driver also rings or not."""
    write = probe.function.write
    for command, level in ((smu.POWER_ON, 0), (smu.SET_HARD_LEVEL, 5)):
        for offset, value in (
            (reg.SMU_RESPONSE, 0),
            (reg.SMU_ARGUMENT, level),
            (reg.SMU_COMMAND, command),
            *(((reg.SMU_INTERRUPT, 0), (reg.SMU_INTERRUPT, 1)) if rings else ()),
        ):
            write(reg.SMU_BAR, offset, struct.pack("<I", value))
        assert probe.function.read(reg.SMU_BAR, reg.SMU_RESPONSE, 4) == struct.pack("<I", 1)
    assert probe.function.smu.log == [(smu.POWER_ON, 0), (smu.SET_HARD_LEVEL, 5)]
    assert (probe.function.smu.powered, probe.function.smu.level) == (True, 5)


def test_suspend_and_stop(probe: Probe) -> None:
    """SUSPEND shows in PWAITMODE, RESUME takes it back; a released firmware answers nothing any more."""
    management = probe.start()
    for opcode, expected in ((firmware.SUSPEND, 1), (firmware.RESUME, 0)):
        management.ask(opcode)
        assert probe.function.read(reg.REGISTERS_BAR, reg.PWAITMODE, 4) == struct.pack("<I", expected)
    probe.context(management)
    assert probe.function.firmware.contexts == 1
    assert probe.psp(psp.RELEASE) == 0
    assert not probe.function.firmware.running
    management.send(firmware.GET_FIRMWARE_VERSION, bytes(4))
    assert management.receive() is None
    assert probe.start().ask(firmware.GET_FIRMWARE_VERSION), "it does not start again"
    assert probe.function.firmware.contexts == 0


def test_start_needs_a_validated_image(probe: Probe) -> None:
    assert probe.psp(psp.START) != 0
    assert not probe.function.firmware.running
    assert probe.psp(9) != 0


def test_a_command_runs(probe: Probe) -> None:
    """From the list in guest memory to the result in guest memory and the reply in the ring."""
    management = probe.start()
    _, channel = probe.context(management)
    assert channel is not None
    os.pwrite(probe.ram, struct.pack("<4I", 1, 2, 3, 4), HEAP_BYTES)
    message = load(probe, stream.copy(16, 7))
    assert configure(channel, DEVICE_HEAP + PDI) == Status.OK
    assert channel.ask(commands.CHAIN_NPU, message) == bytes(12)
    assert struct.unpack("<4I", os.pread(probe.ram, 16, HEAP_BYTES + 0x1000)) == (8, 9, 10, 11)


def test_closing_under_a_running_command_waits_for_it() -> None:
    """Its memory must not go away under it: that would end the process."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
        import struct
        from amdxdna.emu.kernels import stream
        from tests.test_emu_pci_firmware import *
        probe = Probe(FirmwareOptions(threads=1))
        _, channel = probe.context(probe.start())
        load(probe, stream.copy(16, 7))
        configure(channel, DEVICE_HEAP + PDI)
        long = stream.program([stream.Copy(32 << 20, 1)] * 12)
        message = load(probe, long)
        size = struct.calcsize("<IQQQ6I")
        words = [3, 0, DEVICE_HEAP + CODE, 0, len(long)]
        for address in (HEAP_IOVA + (16 << 20),) * 2:
            words += [address & 0xFFFFFFFF, address >> 32]
        os.pwrite(probe.ram, struct.pack(f"<{len(words)}I", *words), LIST + size)
        channel.send(commands.CHAIN_NPU, message)
        npu = probe.function.firmware.npu
        while not npu.executed:
            pass
        probe.close()
        print("closed")
    """),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_strictness(probe: Probe) -> None:
    """A misaligned or unmapped heap, a command before its CUs, CUs twice, bad lists: each its status."""
    management = probe.start()
    _, channel = probe.context(management)
    assert channel is not None
    for address, size in ((HEAP_IOVA + 0x1000, HEAP_BYTES), (HEAP_IOVA, HEAP_BYTES - 1), (0, HEAP_BYTES)):
        reply = management.ask(firmware.ADD_HOST_BUFFER, struct.pack("<IQQ", 0, address, size))
        assert reply == struct.pack("<I", Status.INVALID_PARAM)
    message = load(probe, stream.copy(16, 7))
    assert struct.unpack("<III", channel.ask(commands.CHAIN_NPU, message)) == (
        Status.INVALID_PARAM,
        0,
        Status.INVALID_PARAM,
    )
    assert configure(channel, DEVICE_HEAP + PDI) == Status.OK
    assert configure(channel, DEVICE_HEAP + PDI) == Status.INVALID_PARAM
    beyond = struct.pack("<IIQII", 0, 0, DEVICE_HEAP + HEAP_BYTES, 88, 1)
    assert struct.unpack("<III", channel.ask(commands.CHAIN_NPU, beyond))[0] == Status.INVALID_BUFFER
    short = message[:16] + struct.pack("<II", 60, 1)
    assert struct.unpack("<III", channel.ask(commands.CHAIN_NPU, short))[0] == Status.INVALID_COMMAND
    assert channel.ask(commands.CHAIN_NPU, message) == bytes(12), "the context is still good"


@pytest.mark.parametrize("slots", [1, 3])
def test_slots(slots: int) -> None:
    """One context more than there are slots gets the status for that; a destroyed one makes room."""
    probe = Probe(FirmwareOptions(slots=slots))
    management = probe.start()
    for _ in range(slots):
        assert probe.context(management)[0] == Status.OK
    assert probe.context(management)[0] == Status.NO_CONTEXT_FREE
    assert management.ask(firmware.DESTROY_CONTEXT, struct.pack("<I", 0)) == bytes(4)
    assert probe.context(management)[0] == Status.OK
    assert management.ask(firmware.DESTROY_CONTEXT, struct.pack("<I", 77)) == struct.pack(
        "<I", Status.INVALID_PARAM
    )
    probe.close()


def test_a_hang_and_its_report(probe: Probe) -> None:
    """A hung command is not answered; the health report says where it is; destroying the context ends it."""
    management = probe.start()
    _, channel = probe.context(management)
    assert channel is not None
    message = load(probe, stream.program([stream.Delay(1), stream.Hang()]))
    configure(channel, DEVICE_HEAP + PDI)
    channel.send(commands.CHAIN_NPU, message)
    threading.Event().wait(0.1)
    assert channel.receive() is None
    reply = management.ask(firmware.GET_APP_HEALTH, struct.pack("<IIQ", 0, 0x2000, DATA_IOVA + 0x8000))
    result, size = struct.unpack_from("<II", reply)
    assert (result, size, len(reply)) == (Status.OK, 560, 36)
    report = struct.unpack("<HH5I", os.pread(probe.ram, 24, HEAP_BYTES + 0x8000))
    assert report[:4] == (1, 0, 560, 0)
    assert report[4] == DEVICE_HEAP + CODE + 12
    assert management.ask(firmware.GET_APP_HEALTH, struct.pack("<IIQ", 0, 0x2000, 0))[:4] == struct.pack(
        "<I", Status.INVALID_BUFFER
    )
    management.ask(firmware.DESTROY_CONTEXT, struct.pack("<I", 0))
    threading.Event().wait(0.05)
    assert channel.receive() is None


def test_array_error(probe: Probe) -> None:
    """The first registered buffer receives the event, and its registration is answered then."""
    management = probe.start()
    assert not probe.function.firmware.raise_array_error(2, 3)
    identifier = management.send(firmware.REGISTER_ASYNC_EVENT, struct.pack("<QI", DATA_IOVA, 0x2000))
    assert management.receive() is None
    assert probe.function.firmware.raise_array_error(row=4, column=3, event=59)
    assert management.receive() == (firmware.REGISTER_ASYNC_EVENT, identifier, bytes(8))
    assert os.pread(probe.ram, 24, HEAP_BYTES) == struct.pack("<IIIBBHIB3x", 1, 0, 0, 4, 3, 0, 1, 59)


def test_reset_is_as_new(probe: Probe) -> None:
    management = probe.start()
    probe.context(management)
    probe.function.write(CONFIG_REGION, 4, b"\x06\x01")
    probe.function.reset()
    assert probe.function.firmware.contexts == 0
    assert probe.function.read(reg.SRAM_BAR, reg.FIRMWARE_ALIVE, 4) == bytes(4)
    assert probe.function.read(CONFIG_REGION, 4, 2) == bytes(2)
    assert not probe.function.smu.powered
    probe.start()
