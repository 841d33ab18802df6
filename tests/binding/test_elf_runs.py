"""Control code in ELF files, loaded and run on the emulated NPU."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest

from amdxdna import packet
from amdxdna.controlcode import ControlCode, ControlKernel
from amdxdna.device import Device
from amdxdna.elf import ControlElf
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.emu.xclbins import xclbin_bytes
from amdxdna.errors import (
    BadArgument,
    BadElf,
    Closed,
    CommandFailed,
    CommandRejected,
    CommandTimeout,
    Unsupported,
)
from amdxdna.packet import State
from amdxdna.restart import Restartable, RestartableChain
from amdxdna.xclbin import Xclbin
from tests.support import control_code
from tests.support.binding import flushes

BYTES = 4096
PDIS = {1: pdi(Family.COPY)}
GARBAGE = 0xA5


def full(program: bytes, **more: Any) -> bytes:
    made = control_code.carrier(program, full=True, pdi=1, **more)
    return control_code.full({"main": (2, {"seq": made})}, PDIS)


class Bench:
    """A device, an input and an output."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.source, self.result = device.alloc(2 * BYTES), device.alloc(2 * BYTES)
        self.source.write(struct.pack(f"<{BYTES // 2}I", *range(BYTES // 2)))
        self.result.write(bytes([GARBAGE]) * 2 * BYTES)

    def start(self, code: ControlCode, job: Restartable, first: int = 0) -> Any:
        """Starts it with input and output as the arguments from `first` on."""
        for index, buffer in enumerate((self.source, self.result)):
            code.set(first + index, "", buffer.address)
        code.flush()
        return job.start((self.source, self.result, *code.buffers))

    def words(self, count: int = 4, at: int = 0) -> list[int]:
        return list(struct.unpack(f"<{count}I", self.result.read(at, 4 * count)))


@pytest.fixture
def bench(device: Device) -> Bench:
    return Bench(device)


def test_a_full_file_runs_without_an_xclbin(bench: Bench) -> None:
    elf = ControlElf(full(stream.copy(BYTES, 7), offsets=(8, 4)))
    with bench.device.context(None, columns=elf.columns or 0) as context:
        code = ControlKernel(context, elf, "main:seq").load()
        job = Restartable(context, code.packet())
        bench.start(code, job).wait()
        # From the third word on to the second; nothing in front of it.
        assert bench.words() == [GARBAGE * 0x1010101, 9, 10, 11]
        # Other arguments: patched from what the file has, not from what the last run had.
        bench.source, bench.result = bench.result, bench.source
        bench.start(code, job).wait()
        assert bench.words() == [0, 17, 18, 19]


def test_a_file_for_an_xclbins_kernel(bench: Bench) -> None:
    elf = ControlElf(control_code.partial(control_code.carrier(stream.copy(BYTES, 5))))
    with bench.device.context(Xclbin.read(xclbin_bytes("copy"))) as context:
        kernel = ControlKernel(context, elf, cu=0)
        assert kernel.opcode == packet.Opcode.START_NPU
        code = kernel.load()
        bench.start(code, Restartable(context, code.packet(3)), first=3).wait()
        assert bench.words() == [5, 6, 7, 8]


def test_what_is_flushed_before_a_start(bench: Bench, monkeypatch: Any) -> None:
    """All of it once, then what an argument changes."""
    elf = ControlElf(full(stream.copy(BYTES, 7)))
    with bench.device.context(None, columns=8) as context:
        code = ControlKernel(context, elf, "main:seq").load()
        assert struct.unpack("<Q", code.packet()[-8:]) == (0,)
        (text,) = (each for each in code.buffers if each.read() == code.part(".ctrltext"))
        seen = flushes(monkeypatch)
        code.flush()
        assert (text.host_address, text.nbytes) in seen
        seen.clear()
        code.flush()
        assert seen == []
        (place,) = elf.code("main:seq").places(".ctrltext", "1")
        code.set(1, "", bench.result.address)
        code.flush()
        assert seen == [(text.host_address + place.at, 8)]


def test_save_and_restore_get_the_contexts_scratchpad(bench: Bench) -> None:
    made = control_code.carrier(stream.copy(BYTES, 5), preempt=True, save=bytes(32), restore=bytes(48))
    made.places += [
        ("scratch-pad-mem", ".preempt_save", 8, control_code.SHIM, 0x40000, 0),
        ("scratch-pad-mem", ".preempt_restore", 16, control_code.SHIM, 0, 0),
    ]
    elf = ControlElf(control_code.partial(made))
    with bench.device.context(Xclbin.read(xclbin_bytes("copy"))) as context:
        kernel = ControlKernel(context, elf, cu=0)
        assert kernel.opcode == packet.Opcode.START_NPU_PREEMPT
        one, two = kernel.load(), kernel.load()
        scratch = context.preemption_scratch()
        assert scratch.nbytes == 8 * 512 << 10 and scratch in one.buffers
        assert one.part(".preempt_save") == two.part(".preempt_save")
        low, high = struct.unpack_from("<II", one.part(".preempt_save"), 12)
        assert ((high << 32 | low) - 0x80000000) % (1 << 48) == scratch.address + 0x40000
        bench.start(one, Restartable(context, one.packet(3)), first=3).wait()
        assert bench.words() == [5, 6, 7, 8]
    with pytest.raises(Closed):  # with its context
        scratch.read()


def test_control_packets_and_the_scratchpad(bench: Bench) -> None:
    made = control_code.carrier(stream.copy(BYTES, 1), full=True, pdi=1, scratchpad=256, packets=bytes(64))
    made.places.append(("1", ".ctrldata", 16, control_code.PACKET, 4, 0))
    elf = ControlElf(control_code.full({"main": (2, {"seq": made})}, PDIS))
    with bench.device.context(None, columns=8) as context:
        code = ControlKernel(context, elf, "main:seq").load()
        bench.start(code, Restartable(context, code.packet())).wait()
        assert bench.words() == [1, 2, 3, 4]
        low, high = struct.unpack_from("<II", code.part(".ctrldata"), 24)
        assert ((high << 32 | low) - 0x80000000) % (1 << 48) == bench.result.address + 4
        pad = code.scratchpad
        assert pad is not None and pad.kind == "dev" and pad.read() == bytes(256)
        (place,) = elf.code("main:seq").places(".ctrltext", "scratch-pad-ctrl")
        assert struct.unpack_from("<Q", code.part(".ctrltext"), place.at) == (pad.address,)


def test_control_packets_of_preemption_are_placed_by_their_symbol(bench: Bench) -> None:
    """Each ``ctrlpkt-pm-N`` of the code is a buffer with what section ``.ctrlpkt.pm.N`` has."""
    made = control_code.carrier(stream.copy(BYTES, 5), scratchpad=64)
    at = next(offset for symbol, _, offset, *_ in made.places if symbol == "scratch-pad-ctrl")
    made.places = [place for place in made.places if place[0] != "scratch-pad-ctrl"]
    made.places.append(("ctrlpkt-pm-1", ".ctrltext", at, control_code.ADDRESS, 0, 64))
    made.more = {".ctrlpkt.pm.0": bytes(64), ".ctrlpkt.pm.1": bytes(range(64))}
    elf = ControlElf(control_code.partial(made))
    assert elf.code().packets == {"ctrlpkt-pm-1": bytes(range(64))}
    with bench.device.context(Xclbin.read(xclbin_bytes("copy"))) as context:
        code = ControlKernel(context, elf, cu=0).load()
        (address,) = struct.unpack_from("<Q", code.part(".ctrltext"), at)
        (packets,) = [buffer for buffer in code.buffers if buffer.address == address]
        assert packets.read() == bytes(range(64))
        bench.start(code, Restartable(context, code.packet(3)), first=3).wait()
        assert bench.words() == [5, 6, 7, 8]
    made.more.pop(".ctrlpkt.pm.1")
    with pytest.raises(BadElf, match="no control packets 'ctrlpkt-pm-1'"):
        ControlElf(control_code.partial(made)).code()


def test_several_kernels_in_one_stream_and_chains(bench: Bench) -> None:
    elf = ControlElf(full(stream.copy(BYTES, 1)))
    with bench.device.context(None, columns=8) as context:
        kernel = ControlKernel(context, elf, "main:seq")
        codes = [kernel.load() for _ in range(3)]
        buffers = [bench.source, bench.result, bench.device.alloc(BYTES), bench.device.alloc(BYTES)]
        jobs = []
        for code, pair in zip(codes, pairwise(buffers), strict=True):
            for index, buffer in enumerate(pair):
                code.set(index, "", buffer.address)
            code.flush()
            jobs.append(Restartable(context, code.packet()))
        RestartableChain(jobs).start([*buffers, *(each for code in codes for each in code.buffers)]).wait()
        assert struct.unpack("<4I", buffers[3].read(0, 16)) == (3, 4, 5, 6)


@pytest.mark.parametrize(
    ("program", "pdis", "why"),
    [
        (stream.fail(0x3000002), PDIS, "FAIL with status"),
        (stream.copy(BYTES, 1), {1: pdi(Family.GEMM)}, "does not run in a gemm PDI"),
        (stream.copy(BYTES, 1), {1: b"x" * 64}, "not made for the emulated NPU"),
        (b"no stream!!!", PDIS, "not modelled"),
    ],
)
def test_what_fails_fails_the_command(program: bytes, pdis: dict[int, bytes], why: str, capfd: Any) -> None:
    made = control_code.carrier(program, full=True, pdi=1)
    elf = ControlElf(control_code.full({"main": (2, {"seq": made})}, pdis))
    with Device.open("emu:threads=1") as device, device.context(None, columns=8) as context:
        bench = Bench(device)
        code = ControlKernel(context, elf, "main:seq").load()
        with pytest.raises(CommandFailed) as caught:
            bench.start(code, Restartable(context, code.packet())).wait()
    assert caught.value.state == State.ERROR and why in capfd.readouterr().err


def test_a_hang_tells_the_op_that_waits(open_emu: Any) -> None:
    bench = Bench(open_emu("tdr=0.3"))
    elf = ControlElf(full(stream.hang()))
    with bench.device.context(None, columns=8) as context:
        code = ControlKernel(context, elf, "main:seq").load()
        with pytest.raises(CommandTimeout) as caught:
            bench.start(code, Restartable(context, code.packet())).wait()
    # LOADPDI, two descriptors with their patches, the kernel, and the wait for its token.
    assert caught.value.health.txn_op_idx == 6


def test_files_and_contexts_that_do_not_fit(bench: Bench) -> None:
    part = ControlElf(control_code.partial(control_code.carrier(stream.copy(BYTES))))
    whole = ControlElf(full(stream.copy(BYTES)))
    bare = ControlElf(
        control_code.full({"main": (2, {"seq": control_code.carrier(stream.copy(BYTES), full=True)})}, {})
    )
    with bench.device.context(None, columns=8) as context:
        for elf, name, cu, why in (
            (part, "", None, "goes with a kernel"),
            (whole, "main:seq", 0, "no xclbin"),
            (bare, "main:seq", None, "has no PDI"),
        ):
            with pytest.raises(BadArgument, match=why):
                ControlKernel(context, elf, name, cu)


def test_drivers_before_preemption_are_told(open_emu: Any) -> None:
    device = open_emu("minor=5")
    with device.context(None, columns=8) as context, pytest.raises(Unsupported, match=r"0\.6 or newer"):
        ControlKernel(context, ControlElf(full(stream.copy(BYTES))), "main:seq")


def test_a_packet_that_the_driver_drops_may_be_the_firmwares_age(bench: Bench) -> None:
    """As old firmware's: here the driver drops it since it names no compute unit."""
    place = packet.Placed(0x4000000, 64)
    words = bytearray(packet.start_npu_preempt(0, place, place, place))
    words[4:8] = bytes(4)
    with bench.device.context(None, columns=8) as context:
        with pytest.raises(CommandRejected, match=r"firmware is too old.*update the firmware"):
            context.run(bytes(words)).wait()
        job = Restartable(context, bytes(words))
        with pytest.raises(CommandRejected, match="firmware is too old"):
            RestartableChain([job]).start(()).wait()
