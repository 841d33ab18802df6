"""Short commands that run before EXEC_CMD returns (option `eager`), and what an exception leaves behind."""

from __future__ import annotations

import struct
import threading

import pytest

from amdxdna._native import ffi
from amdxdna.device import Device
from amdxdna.emu.driver import jobs
from amdxdna.emu.faults import Fault, Faults
from amdxdna.emu.kernels import Family, stream, work
from amdxdna.emu.npu import Reply, Slot, Status
from amdxdna.emu.npu import npu as npu_module
from amdxdna.run import State
from tests.binding import adder
from tests.test_emu_npu import BUFFERS, Rig, copy_slot


@pytest.mark.parametrize(("program", "family", "expected"), [
    (stream.copy(4096), Family.COPY, 1024),
    (stream.gemv(16, 64), Family.GEMV, 16 * 64),
    (stream.gemm(4, 64, 16, chunks=3), Family.GEMM, 12 * 64 * 16),
    (stream.program([stream.Copy(8, 0), stream.Copy(16, 0)]), Family.COPY, 6),
    (stream.delay(1), Family.COPY, float("inf")),
    (stream.hang(), Family.COPY, float("inf")),
    (stream.fail(5), Family.COPY, float("inf")),
    (stream.gemv(16, 64), Family.COPY, float("inf")),
    (b"nonsense", Family.COPY, float("inf")),
])
def test_work_counts_multiply_adds(program: bytes, family: Family, expected: float) -> None:
    assert work(program, family) == expected


def test_a_short_chain_runs_on_the_callers_thread() -> None:
    rig = Rig()
    ffi.memmove(rig.memory.buffers, struct.pack("<2I", 5, 6), 8)
    chain = [copy_slot(rig, 8, 1), rig.slot(stream.copy(8, 2), (BUFFERS + 4096, BUFFERS + 8192), at=0x2000)]
    before = threading.active_count()
    assert rig.npu.run_now(rig.context, chain) == Reply(Status.OK)
    assert threading.active_count() == before
    assert struct.unpack("<2I", ffi.buffer(rig.memory.buffers + 8192, 8)) == (8, 9)
    assert rig.npu.executed == 2
    assert not rig.npu.computing
    assert rig.memory.released == [rig.context]


def test_what_may_wait_or_fail_is_left_to_the_worker() -> None:
    rig = Rig()
    for slots in ([copy_slot(rig), rig.slot(stream.delay(1), at=0x2000)],
                  [rig.slot(stream.hang(), at=0x3000)], [rig.slot(stream.fail(7), at=0x3000)],
                  [rig.slot(b"\0" * 12, at=0x3000)], [Slot(1, 0, (3, 0, 1 << 30, 0, 64))],
                  [Slot(1, 7, copy_slot(rig).args)]):
        assert rig.npu.run_now(rig.context, slots) is None
        assert rig.npu.executed == 0
    assert rig.npu.run_now(99, [copy_slot(rig)]) is None
    assert rig.run(copy_slot(rig)) == Reply(Status.OK)  # and it works as before


def test_a_short_command_fails_as_on_the_worker() -> None:
    for bad in (copy_slot, {"source": 1 << 50}, Status.INVALID_BUFFER), (None, {}, 0x4000003):
        make, changes, status = bad
        rig = Rig()
        wrong = make(rig, **changes) if make else rig.slot(stream.copy(64), (BUFFERS,), at=0x3000)
        chain = [rig.slot(stream.copy(8, 1), (BUFFERS, BUFFERS + 8), at=0x2000), wrong]
        assert rig.npu.run_now(rig.context, chain) == Reply(status, 1, status)
        assert struct.unpack("<I", ffi.buffer(rig.memory.buffers + 8, 4)) == (1,)  # the first ran
        assert rig.lines


def test_a_long_command_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr(npu_module, "SHORT", 16)
    assert rig.npu.run_now(rig.context, [copy_slot(rig, 64)]) == Reply(Status.OK)
    assert rig.npu.run_now(rig.context, [copy_slot(rig, 68)]) is None
    assert rig.npu.run_now(rig.context, [copy_slot(rig, 32)] * 3) is None
    rig.npu.instant = True
    assert rig.npu.run_now(rig.context, [copy_slot(rig, 4096)]) == Reply(Status.OK)


def test_a_busy_context_and_injected_faults_are_left_to_the_worker() -> None:
    rig = Rig(Faults((Fault("fail", first=2),)))
    assert rig.npu.run_now(rig.context, [copy_slot(rig)]) is None
    rig = Rig()
    assert rig.npu.submit(rig.context, [rig.slot(stream.hang(), at=0x4000)], rig.done) == 0
    assert rig.npu.run_now(rig.context, [copy_slot(rig)]) is None
    rig.npu.close()


class Stop(BaseException):
    """What a signal handler raises."""


@pytest.mark.parametrize("where", ["before", "after", "finish"])
def test_an_exception_in_a_short_command_leaves_it_to_complete(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Device.open("emu:quiet,threads=1,eager") as device:
        a, b = device.alloc(64), device.alloc(64)
        a.view("u4")[:] = 1
        kernel = adder(device, 64, 4)
        kernel.run(a, b)
        npu = device.node.driver.npu
        run_now, finish = npu.run_now, jobs.finish

        def interrupted(*arguments):
            monkeypatch.undo()
            if where == "after":
                run_now(*arguments)
            raise Stop

        def half(hwctx, job):
            monkeypatch.undo()
            job.done = True
            raise Stop

        if where == "finish":
            monkeypatch.setattr(jobs, "finish", half)
        else:
            monkeypatch.setattr(npu, "run_now", interrupted)
        b.view("u4")[:] = 0
        context = next(iter(device.pool._entries.values())).context
        with pytest.raises(Stop):
            kernel.start(a, b)
        assert jobs.finish is finish
        assert context.drain(5)
        assert b.view("u4").tolist() == [5] * 16
        for _ in range(6):  # every place in the queue is free again, and nothing holds the buffers
            assert kernel.run(a, b).state is State.COMPLETED
        assert {bo.busy for bo in device.node.client.handles.values()} == {0}


def interrupt_after(monkeypatch: pytest.MonkeyPatch, commands: int) -> None:
    """The caller's thread is interrupted once, when it has run that many commands."""
    execute, caller = npu_module.kernels.execute, threading.get_ident()
    left = [commands]

    def interrupted(*arguments: object, **options: object) -> object:
        result = execute(*arguments, **options)  # type: ignore[arg-type]
        if threading.get_ident() == caller:
            left[0] -= 1
            if not left[0]:
                raise Stop
        return result

    monkeypatch.setattr(npu_module.kernels, "execute", interrupted)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_chain_does_not_run_again_from_its_beginning(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a -> b -> a -> b, each time 1 more: what ran before must not be repeated."""
    with Device.open("emu:quiet,threads=1,eager") as device:
        a, b = device.alloc(64), device.alloc(64)
        kernel = adder(device, 64, 1)
        kernel.run(a, b)
        interrupt_after(monkeypatch, after)
        context = next(iter(device.pool._entries.values())).context
        with pytest.raises(Stop):
            device.pool.chain([(kernel, (a, b)), (kernel, (b, a)), (kernel, (a, b))])
        assert context.drain(5)
        assert (a.view("u4").tolist(), b.view("u4").tolist()) == ([2] * 16, [3] * 16)


@pytest.mark.parametrize("shift", [0, 32, -32])
def test_a_command_in_place_is_the_workers(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Device.open("emu:quiet,threads=1,eager") as device:
        whole = device.alloc(256)
        a, b = whole.sub(64, 64), whole.sub(64 + shift, 64)
        kernel = adder(device, 64, 1)
        kernel.run(whole.sub(128, 64), whole.sub(192, 64))
        interrupt_after(monkeypatch, 1)
        before = whole.view("u4").tolist()
        kernel.run(a, b)
        after = whole.view("u4").tolist()
        assert after[16 + shift // 4] == before[16] + 1


def test_a_stream_that_ends_where_it_began_is_in_place() -> None:
    there = stream.program([stream.Copy(64, 1)])
    assert not npu_module._in_place(there, (0, 64))
    assert not npu_module._in_place(there, ())
    assert npu_module._in_place(there, (0, 60))
    assert npu_module._in_place(there, (60, 0))
    gemv = stream.gemv(16, 64)
    assert not npu_module._in_place(gemv, (0, 4096, 128))
    assert npu_module._in_place(gemv, (0, 4096, 127))
    assert npu_module._in_place(gemv, (0, 4096, 4100))


@pytest.mark.parametrize(("option", "early"), [("", False), (",eager", True)])
def test_without_the_option_a_user_must_really_wait(
    option: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default every command is the worker's: nothing has happened when EXEC_CMD returns."""
    with Device.open("emu:quiet,threads=1" + option) as device:
        a, b = device.alloc(64), device.alloc(64)
        a.view("u4")[:] = 1
        kernel = adder(device, 64, 4)
        kernel.run(a, b)
        b.view("u4")[:] = 0
        gate = threading.Event()
        npu = device.node.driver.npu
        execute = npu._execute
        caller = threading.get_ident()

        def held(*arguments):
            if threading.get_ident() != caller:
                gate.wait(10)
            return execute(*arguments)

        monkeypatch.setattr(npu, "_execute", held)
        run = kernel.start(a, b)
        assert b.view("u4").any() == early
        gate.set()
        run.wait()
        assert b.view("u4").tolist() == [5] * 16
