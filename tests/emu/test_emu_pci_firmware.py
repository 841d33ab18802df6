"""The function without a machine: a scripted driver probes it by registers and runs commands on it."""

from __future__ import annotations

import os
import struct
import textwrap
import time
from collections.abc import Iterator

import pytest

from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import Status
from amdxdna.emu.pci import commands, firmware, messages
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.vfio_user import CONFIG_REGION
from tests.conformance.kit import until
from tests.support import probe as probes
from tests.support.probe import (
    CODE,
    DATA_IOVA,
    DEVICE_HEAP,
    HEAP_BYTES,
    HEAP_IOVA,
    LIST,
    PDI,
    Probe,
    configure,
    load,
)
from tests.support.program import python


@pytest.fixture
def probe() -> Iterator[Probe]:
    probe = Probe()
    yield probe
    probe.close()


def test_configuration_space(probe: Probe) -> None:
    """Ids, capabilities, revision and class, a 64-bit BAR 2, MSI-X; what is written behind goes nowhere."""
    function, expected = probe.function, bytearray(256)
    struct.pack_into("<HHHHI", expected, 0, 0x1022, 0x17F0, 0, 0x10, 0x11800010)
    struct.pack_into("<I16xHH4xB", expected, 0x18, 0xC, 0x1022, 0x17F0, 0x40)
    expected[0x40:0x4C] = bytes([0x11, 0, 33, 0, 1, 0, 0, 0, 1, 0x80, 0, 0])
    assert function.read(CONFIG_REGION, 0, 256) == expected
    function.write(CONFIG_REGION, 254, b"abcd")
    function.write(CONFIG_REGION, 300, b"abcd")
    assert function.read(CONFIG_REGION, 250, 16) == bytes(4) + b"ab" + bytes(10)
    assert function.region_size(CONFIG_REGION) == len(function.read(CONFIG_REGION, 0, 256)) == 256


def test_probe_and_queries(probe: Probe) -> None:
    """What the driver asks while it probes, and that a request of another size is refused."""
    management = probe.start()
    assert management.ask(firmware.SET_RUNTIME_CONFIG, struct.pack("<IQ", 5, 1)) == bytes(4)
    for kind, value in ((5, 1), (6, 0)):
        asked = management.ask(firmware.GET_RUNTIME_CONFIG, struct.pack("<I", kind))
        assert asked == struct.pack("<IQ", 0, value)
    assert management.ask(firmware.GET_FIRMWARE_VERSION) == struct.pack("<5I", 0, 1, 1, 2, 58597)
    assert management.ask(firmware.QUERY_AIE_VERSION) == struct.pack("<IHH", 0, 2, 0)
    tiles = struct.unpack("<II20H", management.ask(firmware.QUERY_TILE_INFO))
    assert tiles[:9] == (0, 0x2000, 2, 0, 8, 6, 4, 1, 1)
    # First rows, channels, locks, events.
    assert tiles[9:] == (2, 1, 0, 2, 6, 2, 16, 64, 16, 128, 128, 128, 0)
    assert management.ask(firmware.GET_DEVICE_REVISION) == struct.pack("<III", 0, 1, 0)
    assert management.ask(firmware.GET_TELEMETRY, bytes(16)) == struct.pack("<IIII", 1, 0, 0, 0)
    refused = management.ask(firmware.GET_FIRMWARE_VERSION, bytes(8))
    assert refused == struct.pack("<I16x", Status.INVALID_PARAM), "in the size that the driver expects"
    assert management.ask(0x999) == struct.pack("<I", Status.INVALID_COMMAND)


def test_messages_of_newer_drivers(probe: Probe) -> None:
    """Clock, log and trace: replies of the right size, with vectors of their own."""
    management = probe.start()
    assert management.ask(messages.CALIBRATE_CLOCK, bytes(8)) == bytes(4)
    log = management.ask(messages.CONFIGURE_LOG, bytes(32))
    trace = management.ask(messages.START_TRACE, bytes(24))
    base = probes.REGISTERS_BASE + 0x20014  # of channel 0's interrupt register; 32 bytes a vector
    assert log == struct.pack("<III20x", 0, 32, base + 32 * 32)
    assert trace == struct.pack("<IIQI", 0, 33, 0, base + 33 * 32)
    assert probe.function.interrupts.count == 34
    assert management.ask(messages.STOP_TRACE) == management.ask(messages.SET_TRACE_CATEGORIES) == bytes(4)
    refused = management.ask(messages.GET_TELEMETRY, bytes(4))
    assert refused == struct.pack("<12xI", Status.INVALID_PARAM)


MESSAGES = {
    0x02: (28, 76),
    0x03: (4, 4),
    0x04: (16, 16),
    0x0D: (20, 8),
    0x0E: (4, 48),
    0x0F: (4, 8),
    0x101: (4, 4),
    0x102: (4, 4),
    0x103: (4, 4),
    0x106: (20, 4),
    0x108: (4, 20),
    0x10A: (12, 4),
    0x10B: (4, 12),
    0x10F: (24, 20, 6, 19),
    0x110: (4, 4, 6, 19),
    0x111: (4, 4, 6, 19),
    0x113: (20, 4, 6, 15),
    0x114: (16, 36, 6, 18),
    0x115: (20, 4, 6, 18),
    0x116: (32, 32, 6, 19),
    0x117: (4, 12, 6, 24),
    0x11C: (8, 4, 6, 24),
}
"""Bytes of each request and reply, and the protocol that brought it (aie2_msg_priv.h, npu4_regs.c). 0x10C is
answered later."""


@pytest.mark.parametrize("protocol", [(6, 12), (6, 14), (6, 15), (6, 18), (6, 19), (6, 23), (6, 24), (7, 0)])
def test_older_protocols(protocol: tuple[int, int]) -> None:
    """What a protocol does not have is refused, in a reply that does not cost the driver its channel."""
    probe = Probe(FirmwareOptions(protocol=protocol))
    management = probe.start()
    for opcode, (size, answer, *since) in MESSAGES.items():
        place = 12 if opcode == 0x04 else 0  # of the status
        for body in (bytes(size), bytes(size + 4)):
            reply = management.ask(opcode, body)
            assert len(reply) == answer, hex(opcode)
            unknown = struct.unpack_from("<I", reply, place)[0] == Status.INVALID_COMMAND
            assert unknown == (protocol < tuple(since)), hex(opcode)
        if not unknown:
            assert struct.unpack_from("<I", reply, place)[0] == Status.INVALID_PARAM, hex(opcode)
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


@pytest.mark.parametrize(
    ("first", "columns", "queues", "result"),
    [(0, 8, 1, 0), (4, 4, 1, 0), (0, 8, 0, Status.NO_CONTEXT_FREE), (1, 8, 1, Status.INVALID_PARAM)],
)
def test_what_a_context_asks_for(first: int, columns: int, queues: int, result: int, probe: Probe) -> None:
    """Columns that there are, and one queue; what is refused leaves nothing."""
    request = struct.pack("<IBBBBBBHIIII", 1, first, columns, 0, 0, queues, 0, 5, 0, 0, 0, 3)
    reply = struct.unpack_from("<III", probe.start().ask(firmware.CREATE_CONTEXT, request))
    assert reply == ((result, 0xFFFFFFFF, 0) if result else (0, 0, 1 | 1 << 16))
    npu = probe.function.firmware.npu
    assert npu is not None and npu.contexts == (not result)
    if not result:
        made = npu.context(0)
        assert (made.start_column, made.columns, made.pasid) == (first, columns, 5)


def test_column_status(probe: Probe) -> None:
    """A block of zeros for each column that is asked for, as far as the buffer goes."""
    management = probe.start()
    for size, bitmap, written in ((0x10000, 0xFF, 0x10000), (0x10000, 0x105, 0x4000), (0x3000, 0x3, 0x3000)):
        os.pwrite(probe.ram, b"#" * 0x10000, HEAP_BYTES)
        body = struct.pack("<QIII", DATA_IOVA, size, 0, bitmap)
        assert management.ask(firmware.QUERY_COLUMN_STATUS, body) == struct.pack("<II", 0, written)
        assert os.pread(probe.ram, 0x10000, HEAP_BYTES) == bytes(written) + b"#" * (0x10000 - written)
    refused = management.ask(firmware.QUERY_COLUMN_STATUS, struct.pack("<QIII", 0x1000, 8, 0, 1))
    assert refused == struct.pack("<II", Status.INVALID_PARAM, 0)


def test_cus(probe: Probe) -> None:
    """Up to 32 in a message of 33 words, each a PDI's place in units of 32 KiB and a function."""
    management = probe.start()
    for context, taken in enumerate((32, 2)):
        _, channel = probe.context(management)
        assert channel is not None
        for count, size in ((33, 132), (1, 128)):
            refused = channel.ask(0x11, struct.pack("<33I", count, *[0] * 32)[:size])
            assert refused == struct.pack("<I", Status.INVALID_PARAM)
        assert channel.ask(0x11, struct.pack("<33I", taken, *[0x1FF << 17 | 1] * 32)) == bytes(4)
        npu = probe.function.firmware.npu
        assert npu is not None
        assert [(cu.pdi, cu.function) for cu in npu.context(context).cus] == [(1 << 15, 0xFF)] * taken
        assert channel.ask(0x07) == channel.ask(0x14) == bytes(4)  # SYNC_BO, CONFIG_DEBUG_BO
        assert channel.ask(0x99) == struct.pack("<I", Status.INVALID_COMMAND)


def test_replies_wait_for_room(probe: Probe) -> None:
    """They come when the driver has moved its head."""
    management = probe.start()
    sent = [management.send(firmware.GET_FIRMWARE_VERSION, bytes(4)) for _ in range(90)]
    assert [got[1] for got in iter(management.receive, None)] == sent


@pytest.mark.parametrize("rings", [True, False])
def test_smu_starts_on_its_command(rings: bool, probe: Probe) -> None:
    """Once for each write of the command register, whether the driver also rings or not."""
    write = probe.function.write
    for command, level in ((probes.POWER_ON, 0), (probes.SET_HARD_LEVEL, 5)):
        for offset, value in (
            (probes.SMU_RESPONSE, 0),
            (probes.SMU_ARGUMENT, level),
            (probes.SMU_COMMAND, command),
            *(((probes.SMU_INTERRUPT, 0), (probes.SMU_INTERRUPT, 1)) if rings else ()),
        ):
            write(probes.SMU_BAR, offset, struct.pack("<I", value))
        assert probe.function.read(probes.SMU_BAR, probes.SMU_RESPONSE, 4) == struct.pack("<I", 1)
    assert probe.function.smu.log == [(probes.POWER_ON, 0), (probes.SET_HARD_LEVEL, 5)]
    assert (probe.function.smu.powered, probe.function.smu.level) == (True, 5)
    assert probe.smu(probes.SET_SOFT_LEVEL, 2) == probe.smu(probes.POWER_OFF) == 1
    assert (probe.function.smu.powered, probe.function.smu.level) == (False, 2)
    assert probe.smu(9) == 0xFE
    probe.function.reset()
    assert (probe.function.smu.level, probe.function.smu.log) == (0, [])


def test_another_firmware(probe: Probe) -> None:
    """What was to go wrong with the first is over with it."""
    function = probe.function
    function.psp.faults = {probes.START: 0xFFFF0002, probes.VALIDATE: None}
    function.smu.fault = 0
    assert probe.smu(probes.POWER_ON) == 0
    assert probe.psp(probes.START) == 0xFFFF0002
    with pytest.raises(AssertionError):  # it is never ready
        probe.psp(probes.VALIDATE)
    function.configure(FirmwareOptions(slots=1))
    function.firmware.overrides = {firmware.GET_FIRMWARE_VERSION: lambda request, answer: None}
    management = probe.start()
    assert [probe.context(management)[0] for _ in range(2)] == [Status.OK, Status.NO_CONTEXT_FREE]
    management.send(firmware.GET_FIRMWARE_VERSION, bytes(4))
    assert management.receive() is None
    function.configure(FirmwareOptions())
    assert probe.start().ask(firmware.GET_FIRMWARE_VERSION)


def test_suspend_and_stop(probe: Probe) -> None:
    """SUSPEND shows in PWAITMODE, RESUME takes it back; a released firmware answers nothing any more."""
    management = probe.start()
    for opcode, expected in ((firmware.SUSPEND, 1), (firmware.RESUME, 0)):
        management.ask(opcode)
        assert probe.function.read(probes.REGISTERS_BAR, probes.PWAITMODE, 4) == struct.pack("<I", expected)
    probe.context(management)
    assert probe.function.firmware.contexts == 1
    assert probe.psp(probes.RELEASE) == 0
    assert not probe.function.firmware.running
    management.send(firmware.GET_FIRMWARE_VERSION, bytes(4))
    assert management.receive() is None
    assert probe.start().ask(firmware.GET_FIRMWARE_VERSION), "it does not start again"
    assert probe.function.firmware.contexts == 0


def test_start_needs_a_validated_image(probe: Probe) -> None:
    assert probe.psp(probes.START) == probe.psp(9) == 0xFFFF0006
    assert not probe.function.firmware.running
    assert probe.psp(probes.VALIDATE) == probe.psp(probes.START) == 0
    assert probe.function.firmware.running
    probe.function.reset()
    assert probe.psp(probes.START) != 0


def test_a_command_runs(probe: Probe) -> None:
    """From the list in guest memory to the result in guest memory and the reply in the ring."""
    management = probe.start()
    _, channel = probe.context(management)
    assert channel is not None
    os.pwrite(probe.ram, struct.pack("<4I", 1, 2, 3, 4), HEAP_BYTES)
    message = load(probe, stream.copy(16, 7))
    seen: list[tuple[int, int]] = []
    probe.function.firmware.observer = lambda context, slots: seen.append((context, len(slots)))
    assert configure(channel, DEVICE_HEAP + PDI) == Status.OK
    assert channel.ask(0x18, message) == bytes(12)
    assert struct.unpack("<4I", os.pread(probe.ram, 16, HEAP_BYTES + 0x1000)) == (8, 9, 10, 11)
    # Alone in a message the slot has four bytes before it, and no list around it.
    slot = os.pread(probe.ram, 88, LIST)
    os.pwrite(probe.ram, bytes(16), HEAP_BYTES + 0x1000)
    assert channel.ask(0x17, bytes(4) + slot[:48] + slot[52:]) == bytes(4)
    assert struct.unpack("<4I", os.pread(probe.ram, 16, HEAP_BYTES + 0x1000)) == (8, 9, 10, 11)
    assert seen == [(0, 1)] * 2


def test_closing_under_a_running_command_waits_for_it() -> None:
    """Its memory must not go away under it: that would end the process."""
    done = python(
        "-c",
        textwrap.dedent("""
        import struct
        from amdxdna.emu.kernels import stream
        from amdxdna.emu.pci import commands
        from amdxdna.emu.pci.firmware import FirmwareOptions
        from tests.support.probe import *
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
    refused = struct.unpack("<III", channel.ask(commands.CHAIN_NPU, beyond))
    assert refused == (Status.INVALID_BUFFER, 0, Status.INVALID_BUFFER)
    for count, short in ((1, 60), (2, 88 + 4)):  # the first or the second command is cut off
        refused = struct.unpack(
            "<III", channel.ask(commands.CHAIN_NPU, message[:16] + struct.pack("<II", short, count))
        )
        assert refused == (Status.INVALID_COMMAND, count - 1, Status.INVALID_COMMAND)
    assert channel.ask(commands.CHAIN_NPU, message) == bytes(12), "the context is still good"


@pytest.mark.parametrize("slots", [1, 3, 31, 40])
def test_slots(slots: int) -> None:
    """One context more than there are slots gets the status for that; a destroyed one makes room."""
    probe = Probe(FirmwareOptions(slots=slots))
    management = probe.start()
    for _ in range(min(slots, 31)):  # as many as there are mailboxes
        assert probe.context(management)[0] == Status.OK
    assert probe.context(management)[0] == Status.NO_CONTEXT_FREE
    assert probe.function.firmware.contexts == min(slots, 31)
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

    def report() -> tuple[int, ...]:
        reply = management.ask(firmware.GET_APP_HEALTH, struct.pack("<IIQ", 0, 0x2000, DATA_IOVA + 0x8000))
        result, size = struct.unpack_from("<II", reply)
        assert (result, size, len(reply)) == (Status.OK, 560, 36)
        return struct.unpack("<HH5I", os.pread(probe.ram, 24, HEAP_BYTES + 0x8000))

    until(lambda: report()[4] == DEVICE_HEAP + CODE + 12, 60, "the hang")
    assert report()[:4] == (1, 0, 560, 0)
    assert channel.receive() is None
    for context, size, address, result in (
        (0, 560, DATA_IOVA, Status.OK),
        (0, 559, DATA_IOVA, Status.INVALID_PARAM),
        (0, 560, 0, Status.INVALID_BUFFER),
        (1, 560, DATA_IOVA, Status.INVALID_PARAM),
    ):
        reply = management.ask(firmware.GET_APP_HEALTH, struct.pack("<IIQ", context, size, address))
        assert reply == struct.pack("<II28x", result, 560)
    management.ask(firmware.DESTROY_CONTEXT, struct.pack("<I", 0))
    time.sleep(0.05)
    assert channel.receive() is None


def test_array_error(probe: Probe) -> None:
    """The first registered buffer receives the event, and its registration is answered then."""
    assert not probe.function.firmware.raise_array_error(2, 3)
    management = probe.start()
    assert not probe.function.firmware.raise_array_error(2, 3)
    identifiers = [management.send(0x10C, struct.pack("<QI", DATA_IOVA + at, 0x2000)) for at in (0, 0x2000)]
    assert management.receive() is None
    assert probe.function.firmware.raise_array_error(row=4, column=3)
    assert management.receive() == (0x10C, identifiers[0], bytes(8))
    assert management.receive() is None
    assert os.pread(probe.ram, 24, HEAP_BYTES) == struct.pack("<IIIBBHIB3x", 1, 0, 0, 4, 3, 0, 1, 59)


def test_reset_is_as_new(probe: Probe) -> None:
    management = probe.start()
    probe.context(management)
    probe.function.write(CONFIG_REGION, 4, b"\x06\x01")
    probe.function.reset()
    assert probe.function.firmware.contexts == 0
    assert probe.function.read(probes.SRAM_BAR, probes.FIRMWARE_ALIVE, 4) == bytes(4)
    assert probe.function.read(CONFIG_REGION, 4, 2) == bytes(2)
    assert not probe.function.smu.powered
    probe.start()
