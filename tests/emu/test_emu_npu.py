"""The firmware-level NPU model, through a flat memory of its own: no driver, no node."""

from __future__ import annotations

import struct
import threading
from types import SimpleNamespace

import pytest

from amdxdna._native import ffi
from amdxdna.emu.faults import Fault, Faults
from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import DEVICE_HEAP, HEAP_CHUNK, BadAddress, Npu, Reply, Slot, Status
from amdxdna.emu.npu import npu as npu_module
from amdxdna.emu.npu.context import Context
from tests.conformance import kit
from tests.support import control_code
from tests.support.npu_rig import BUFFERS, HOST, FlatMemory, Rig, copy_slot


def test_copy_moves_words_and_adds() -> None:
    rig = Rig()
    words = [1, 2, 0xFFFFFFFF, 7]
    ffi.memmove(rig.memory.buffers, struct.pack("<4I", *words), 16)
    assert rig.run(copy_slot(rig, 16, 3)) == Reply(0, 0, 0)
    got = struct.unpack("<4I", ffi.buffer(rig.memory.buffers + 4096, 16))
    assert got == (4, 5, 2, 10)
    assert rig.memory.released == [rig.context]


@pytest.mark.parametrize("size", ["bytes", "words"])
def test_a_size_in_words_means_no_byte_behind_the_stream(size: str) -> None:
    """mlir-air's tests count the stream's words; here it ends with the memory that the context has."""
    rig = Rig()
    program = stream.program([stream.Copy(64, addend=5)] * 3)
    slot = rig.slot(program, (BUFFERS, BUFFERS + 4096), at=(256 << 10) - len(program))
    args = [*slot.args]
    args[4] = len(program) // (4 if size == "words" else 1)
    ffi.memmove(rig.memory.buffers, struct.pack("<I", 37), 4)
    assert rig.run(Slot(1, 0, tuple(args))) == Reply(0, 0, 0)
    assert struct.unpack("<I", ffi.buffer(rig.memory.buffers + 4096, 4)) == (42,)


def test_buffers_may_lie_in_the_device_heap() -> None:
    rig = Rig()
    ffi.memmove(rig.memory.heap + 0x8000, b"abcd" * 4, 16)
    assert rig.run(copy_slot(rig, 16, 0, DEVICE_HEAP + 0x8000, BUFFERS)).status == 0
    assert bytes(ffi.buffer(rig.memory.buffers, 16)) == b"abcd" * 4


def test_completion_is_later_and_off_the_callers_thread() -> None:
    rig = Rig()
    seen: list[threading.Thread] = []
    gate = threading.Event()

    def done(reply: Reply) -> None:
        gate.wait(60)
        seen.append(threading.current_thread())
        rig.arrived.release()

    assert rig.npu.submit(rig.context, [copy_slot(rig)], done) == 0
    assert not seen
    gate.set()
    assert rig.arrived.acquire(timeout=60)
    assert seen[0] is not threading.main_thread()


def test_a_chain_stops_at_its_first_failure() -> None:
    rig = Rig()
    ffi.memmove(rig.memory.buffers, b"x" * 64, 64)
    good = rig.slot(stream.copy(64), (BUFFERS, BUFFERS + 4096), at=0x1000)
    bad = rig.slot(stream.fail(0x3000002), at=0x2000)
    never = rig.slot(stream.copy(64), (BUFFERS, BUFFERS + 8192), at=0x3000)
    assert rig.run(good, bad, never) == Reply(0x3000002, 1, 0x3000002)
    assert bytes(ffi.buffer(rig.memory.buffers + 4096, 64)) == b"x" * 64
    assert bytes(ffi.buffer(rig.memory.buffers + 8192, 64)) == bytes(64)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"cu": 1}, Status.INVALID_PARAM),
        ({"type": 9}, Status.INVALID_COMMAND),
        ({"args": (3,) * 1011}, Status.INVALID_COMMAND),
        ({"args": (1, 0, DEVICE_HEAP + 0x1000, 0, 24)}, Status.INVALID_INSTRUCTION),
        ({"args": (3, 0, DEVICE_HEAP + 0x1000, 0, 0)}, Status.INVALID_INSTRUCTION),
        ({"args": (3, 0, DEVICE_HEAP + 0x1000, 0, 25)}, Status.INVALID_INSTRUCTION),
        ({"args": (3, 0, DEVICE_HEAP + HEAP_CHUNK, 0, 24)}, Status.INVALID_BUFFER),
        ({"args": (3, 0, DEVICE_HEAP - 4096, 0, 24)}, Status.INVALID_BUFFER),
    ],
)
def test_bad_slots(change: dict[str, object], status: int) -> None:
    rig = Rig()
    slot = copy_slot(rig)
    for name, value in change.items():
        setattr(slot, name, value)
    assert rig.run(slot) == Reply(status, 0, status)
    assert rig.run(copy_slot(rig)).status == 0


def test_a_buffer_outside_memory_fails_and_nothing_is_written() -> None:
    rig = Rig()
    ffi.memmove(rig.memory.buffers, b"y" * 64, 64)
    assert rig.run(copy_slot(rig, 64, 0, BUFFERS, 0x10)).status == Status.INVALID_BUFFER
    assert "argument 1: no 64 bytes of this context's memory at 0x10" in rig.lines[-1]
    assert rig.run(copy_slot(rig, 64, 0, BUFFERS, 0)).status == Status.INVALID_BUFFER
    assert "argument 1 is missing: address 0x0 where 64 bytes are needed" in rig.lines[-1]


def test_compiled_aie_code_is_refused_with_a_line_that_says_so() -> None:
    rig = Rig()
    ffi.memmove(rig.memory.heap, b"\x7fELF" + bytes(60), 64)
    assert rig.run(copy_slot(rig)).status == Status.PDI_LOAD_FAILED
    assert "compiled AIE code is not interpreted" in rig.lines[-1]


def test_slots_and_ids() -> None:
    npu = Npu(FlatMemory(), slots=2)
    assert [npu.create_context() for _ in range(3)] == [(0, 0), (0, 1), (Status.NO_CONTEXT_FREE, 0xFFFFFFFF)]
    assert npu.destroy_context(0) == 0
    assert npu.contexts == 1
    assert npu.create_context() == (0, 0)
    assert npu.destroy_context(5) == Status.INVALID_PARAM
    assert npu.create_context(columns=9) == (Status.INVALID_PARAM, 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("address", "size", "add"),
    [
        (HOST + 4096, HEAP_CHUNK, False),
        (HOST, 1 << 20, False),
        (HOST, 0, False),
        (HOST, HEAP_CHUNK, True),
        (HOST, 9 * HEAP_CHUNK, False),
    ],
)
def test_heap_rules(address: int, size: int, add: bool) -> None:
    npu = Npu(FlatMemory())
    _, context = npu.create_context()
    assert npu.map_heap(context, address, size, add=add) == Status.INVALID_PARAM


def test_heap_grows_and_a_range_crosses_only_adjacent_chunks() -> None:
    class Log(FlatMemory):
        def pointer(self, context: int, address: int, size: int) -> int:
            asked.append((address, size))
            raise BadAddress(address, size)

    asked: list[tuple[int, int]] = []
    npu = Npu(Log())
    _, context = npu.create_context()
    npu.map_heap(context, HOST, HEAP_CHUNK)
    npu.map_heap(context, HOST + HEAP_CHUNK, HEAP_CHUNK, add=True)
    npu.map_heap(context, 0x100 * HEAP_CHUNK, HEAP_CHUNK, add=True)
    npu.config_cus(context, [(DEVICE_HEAP + HEAP_CHUNK - 32, 0)])
    arrived = threading.Semaphore(0)
    npu.submit(context, [Slot(2, 0, (3, 0), DEVICE_HEAP, 24)], lambda reply: arrived.release())
    assert arrived.acquire(timeout=60)
    assert asked == [(HOST + HEAP_CHUNK - 32, 64)]
    with pytest.raises(BadAddress):
        npu.resolve(npu.context(context), DEVICE_HEAP + 2 * HEAP_CHUNK - 32, 64)
    assert len(asked) == 1


def test_destroy_ends_a_hung_command_unanswered_and_others_go_on() -> None:
    rig = Rig()
    assert rig.npu.submit(rig.context, [rig.slot(stream.hang(), at=0x4000)], rig.done) == 0
    assert rig.npu.submit(rig.context, [copy_slot(rig)], rig.done) == 0
    _, other = rig.npu.create_context()
    rig.npu.map_heap(other, HOST, HEAP_CHUNK)
    rig.npu.config_cus(other, [(DEVICE_HEAP, 0)])
    assert rig.npu.submit(other, [copy_slot(rig)], rig.done) == 0
    assert rig.arrived.acquire(timeout=60)
    assert rig.npu.destroy_context(rig.context) == 0
    rig.npu.close()
    assert len(rig.replies) == 1
    assert rig.npu.submit(rig.context, [copy_slot(rig)], rig.done) == Status.INVALID_PARAM


@pytest.mark.parametrize("program", [stream.copy(64, 1), stream.hang()], ids=["copy", "hang"])
@pytest.mark.parametrize("carried", [False, True])
def test_a_destroyed_context_computes_no_more_and_says_nothing(
    carried: bool, program: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the device is removed under a command: at the moment in which its operands are known."""
    rig = Rig()
    pointer = rig.memory.pointer

    def removed(context: int, address: int, size: int) -> int:
        if address == where[-1]:
            rig.npu.destroy_context(context)
        return pointer(context, address, size)

    monkeypatch.setattr(rig.memory, "pointer", removed)
    made = control_code.carrier(program).code if carried else program
    slot = rig.slot(made, (BUFFERS, BUFFERS + 4096), at=0x4000)
    where = [BUFFERS + 4096] if program == stream.copy(64, 1) else [HOST + 0x4000]
    assert rig.npu.submit(rig.context, [slot], rig.done) == Status.OK
    kit.until(lambda: rig.npu.contexts == 0, 60, "the removal")
    assert rig.npu.close(60)
    assert bytes(ffi.buffer(rig.memory.buffers + 4096, 64)) == bytes(64)
    assert (rig.replies, rig.lines) == ([], [])


def test_close_waits_for_all_workers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.npu.create_context()
    left, now = [], [7.0]

    def join(context: Context, seconds: float) -> None:
        left.append(seconds)
        now[0] += 1.5

    monkeypatch.setattr(npu_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Context, "join", join)
    rig.npu.close(1.0)
    assert left == [1.0, 0.0]


def test_health_says_where_a_hung_context_is() -> None:
    rig = Rig()
    program = stream.program([stream.Copy(16, 0), stream.Hang()])
    hung = rig.slot(program, (BUFFERS, BUFFERS + 4096), at=0x4000)
    rig.npu.submit(rig.context, [copy_slot(rig), hung], rig.done)

    def hangs() -> bool:
        _, report = rig.npu.health(rig.context)
        return (report.slot, report.transaction) == (1, 1)

    kit.until(hangs, 60, "the hang")
    status, report = rig.npu.health(rig.context)
    assert (status, report.slot, report.transaction) == (0, 1, 1)
    assert report.context_pc == DEVICE_HEAP + 0x4000 + 12 + 12
    packed = report.pack()
    assert struct.unpack_from("<HHI", packed) == (1, 0, len(packed))
    assert struct.unpack_from("<I", packed, len(packed) - 4) == (1,)
    rig.npu.destroy_context(rig.context)


def test_faults_by_count() -> None:
    faults = Faults((Fault("fail", 2, 2, 0x3000005), Fault("refuse", 2, 2), Fault("refuse_config", 2, 2)))
    rig = Rig(faults)
    assert rig.npu.create_context()[0] == Status.NO_CONTEXT_FREE
    assert rig.npu.create_context() == (0, 1)
    assert rig.npu.config_cus(1, [(DEVICE_HEAP, 0)]) == Status.INVALID_PARAM
    assert [rig.run(copy_slot(rig)).status for _ in range(3)] == [0, 0x3000005, 0]
    faults.next("fail", 0x3000002)
    assert [rig.run(copy_slot(rig)).status for _ in range(2)] == [0x3000002, 0]


def test_a_fault_without_a_value_has_the_status_it_is_said_to_have() -> None:
    rig = Rig(Faults((Fault("fail", 1, 1),)))
    assert rig.run(copy_slot(rig)).status == 0x3000002
    assert rig.lines == [f"injected fault: context {rig.context}: status 0x3000002"]


@pytest.mark.parametrize(("at", "wrong"), [(0, 0), (37, 37), (1 << 30, 0)])
@pytest.mark.parametrize(("kind", "number"), [("corrupt", 2), ("chain_corrupt", 1)])
def test_the_byte_of_a_result_that_is_wrong(kind: str, number: int, at: int, wrong: int) -> None:
    """The one that the fault names, or the first if the result ends before it."""
    rig = Rig(Faults((Fault(kind, number, number, at),)))
    assert rig.run(copy_slot(rig), copy_slot(rig)).status == 0
    got = bytes(ffi.buffer(rig.memory.buffers + 4096, 64))
    assert [i for i in range(64) if got[i]] == [wrong]


def test_a_skipped_command_ends_well_and_writes_nothing() -> None:
    rig = Rig(Faults((Fault("skip", 1, 1),)))
    ffi.memmove(rig.memory.buffers, b"z" * 64, 64)
    assert rig.run(copy_slot(rig)).status == 0
    assert bytes(ffi.buffer(rig.memory.buffers + 4096, 64)) == bytes(64)
    assert rig.run(copy_slot(rig)).status == 0
    assert bytes(ffi.buffer(rig.memory.buffers + 4096, 64)) != bytes(64)


def test_instant_checks_but_computes_nothing() -> None:
    rig = Rig()
    rig.npu.instant = True
    ffi.memmove(rig.memory.buffers, b"z" * 64, 64)
    ffi.memmove(rig.memory.buffers + 4096, b"y" * 64, 64)
    assert rig.run(copy_slot(rig)).status == 0
    assert bytes(ffi.buffer(rig.memory.buffers + 4096, 64)) == bytes(2) + b"y" * 60 + bytes(2)
    assert rig.run(copy_slot(rig, 64, 0, 0, BUFFERS)).status == Status.INVALID_BUFFER
