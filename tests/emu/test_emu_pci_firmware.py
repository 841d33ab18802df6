"""The function without a machine: a scripted driver probes it by registers and runs commands on it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import Status
from amdxdna.emu.pci import commands, firmware, messages, psp, smu
from amdxdna.emu.pci import registers as reg
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.vfio_user import CONFIG_REGION
from tests.conformance.kit import until
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


@pytest.fixture
def probe() -> Iterator[Probe]:
    probe = Probe()
    yield probe
    probe.close()


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
        ],
        capture_output=True,
        text=True,
        timeout=120,
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

    def report() -> tuple[int, ...]:
        reply = management.ask(firmware.GET_APP_HEALTH, struct.pack("<IIQ", 0, 0x2000, DATA_IOVA + 0x8000))
        result, size = struct.unpack_from("<II", reply)
        assert (result, size, len(reply)) == (Status.OK, 560, 36)
        return struct.unpack("<HH5I", os.pread(probe.ram, 24, HEAP_BYTES + 0x8000))

    until(lambda: report()[4] == DEVICE_HEAP + CODE + 12, 60, "the hang")
    assert report()[:4] == (1, 0, 560, 0)
    assert channel.receive() is None
    assert management.ask(firmware.GET_APP_HEALTH, struct.pack("<IIQ", 0, 0x2000, 0))[:4] == struct.pack(
        "<I", Status.INVALID_BUFFER
    )
    management.ask(firmware.DESTROY_CONTEXT, struct.pack("<I", 0))
    time.sleep(0.05)
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
