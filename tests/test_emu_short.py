"""Short commands that the thread executes which waits for them, and what an exception leaves behind."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from amdxdna._native import ffi
from amdxdna.device import Device
from amdxdna.emu.driver import jobs
from amdxdna.emu.faults import Fault, Faults
from amdxdna.emu.kernels import Family, stream, work
from amdxdna.emu.npu import Reply, Slot, Status
from amdxdna.emu.npu import context as context_module
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


@pytest.fixture(autouse=True)
def patient_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """While waiters run the commands, the worker does not look in during a test."""
    monkeypatch.setattr(context_module, "LOOK_IN", 60)


class Lent:
    """What became of a chain that was submitted, and whose submitter then lent a hand."""

    def __init__(self, rig: Rig, slots: list[Slot], context: int | None = None, seconds: float = 0.0) -> None:
        self.replies: list[tuple[Reply, int]] = []
        self._arrived = threading.Event()
        chosen = rig.context if context is None else context
        if chosen in rig.npu._contexts:
            rig.npu._contexts[chosen]._lent = True
        assert rig.npu.submit(chosen, slots, self._done) == 0
        self.taken = rig.npu.lend(chosen, seconds)

    def _done(self, reply: Reply) -> None:
        self.replies.append((reply, threading.get_ident()))
        self._arrived.set()

    def by_caller(self) -> Reply:
        """The reply, which the calling thread has made."""
        assert self.taken
        (reply, thread), = self.replies
        assert thread == threading.get_ident()
        return reply

    def by_worker(self) -> Reply:
        """The reply, which comes from the worker."""
        assert not self.taken
        assert self._arrived.wait(10)
        (reply, thread), = self.replies
        assert thread != threading.get_ident()
        return reply


def test_a_short_chain_runs_on_the_thread_that_waits() -> None:
    rig = Rig()
    ffi.memmove(rig.memory.buffers, struct.pack("<2I", 5, 6), 8)
    chain = [copy_slot(rig, 8, 1), rig.slot(stream.copy(8, 2), (BUFFERS + 4096, BUFFERS + 8192), at=0x2000)]
    assert Lent(rig, chain).by_caller() == Reply(Status.OK)
    assert struct.unpack("<2I", ffi.buffer(rig.memory.buffers + 8192, 8)) == (8, 9)
    assert rig.npu.executed == 2
    assert not rig.npu.computing
    assert rig.memory.released == [rig.context]
    assert not rig.npu.lend(rig.context, 0)  # there is nothing left


def test_the_worker_takes_what_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "LOOK_IN", 0.002)
    rig = Rig()
    assert Lent(rig, [copy_slot(rig)]).by_caller() == Reply(Status.OK)
    arrived = threading.Event()
    assert rig.npu._contexts[rig.context]._lent
    rig.npu.submit(rig.context, [copy_slot(rig)], lambda reply: arrived.set())
    assert arrived.wait(10)


def test_the_worker_sleeps_again_and_wakes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "LOOK_IN", 0.0005)
    rig = Rig()
    assert Lent(rig, [copy_slot(rig)]).by_caller() == Reply(Status.OK)
    context = rig.npu._contexts[rig.context]
    end = time.monotonic() + 10
    while context._lent and time.monotonic() < end:
        time.sleep(0.001)
    assert not context._lent
    assert rig.run(copy_slot(rig)) == Reply(Status.OK)


@pytest.mark.parametrize(("status", "make"), [
    (Status.OK, lambda rig: [copy_slot(rig), rig.slot(stream.delay(1), at=0x2000)]),
    (7, lambda rig: [rig.slot(stream.fail(7), at=0x3000)]),
    (0x4000003, lambda rig: [rig.slot(b"\0" * 12, at=0x3000)]),
    (Status.INVALID_BUFFER, lambda rig: [Slot(1, 0, (3, 0, 1 << 30, 0, 64))]),
    (Status.INVALID_PARAM, lambda rig: [Slot(1, 7, copy_slot(rig).args)]),
])
def test_what_may_wait_or_fail_is_the_workers(status: int, make: Callable[[Rig], list[Slot]]) -> None:
    rig = Rig()
    slots = make(rig)
    assert Lent(rig, slots).by_worker() == Reply(status, *((0, status) if status else ()))
    assert not rig.npu.lend(99, 0)
    assert Lent(rig, [copy_slot(rig)]).by_caller() == Reply(Status.OK)  # and waiters go on as before


def test_nobody_who_waits_meets_a_hang() -> None:
    rig = Rig()
    assert not Lent(rig, [rig.slot(stream.hang(), at=0x4000)]).taken
    behind = Lent(rig, [copy_slot(rig)])
    assert not behind.taken
    assert rig.npu.close()
    assert not behind.replies


def test_a_short_command_fails_as_on_the_worker() -> None:
    for bad in (copy_slot, {"source": 1 << 50}, Status.INVALID_BUFFER), (None, {}, 0x4000003):
        make, changes, status = bad
        rig = Rig()
        wrong = make(rig, **changes) if make else rig.slot(stream.copy(64), (BUFFERS,), at=0x3000)
        chain = [rig.slot(stream.copy(8, 1), (BUFFERS, BUFFERS + 8), at=0x2000), wrong]
        assert Lent(rig, chain).by_caller() == Reply(status, 1, status)
        assert struct.unpack("<I", ffi.buffer(rig.memory.buffers + 8, 4)) == (1,)  # the first ran
        assert rig.lines


@pytest.mark.parametrize(("words", "seconds", "short"), [
    ([64], 0.0, True), ([68], 0.0, False), ([32] * 3, 0.0, False), ([68], 1.9, False), ([640], 2.0, True),
    ([644], 2.0, False),
])
def test_a_long_command_is_the_workers(
    words: list[int], seconds: float, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than SHORT, or ten times that for one who waits for two seconds or more."""
    rig = Rig()
    monkeypatch.setattr(npu_module, "SHORT", 16)
    lent = Lent(rig, [copy_slot(rig, size) for size in words], seconds=seconds)
    assert (lent.by_caller if short else lent.by_worker)() == Reply(Status.OK)
    rig.npu.instant = True
    assert Lent(rig, [copy_slot(rig, 4096)]).by_caller() == Reply(Status.OK)


def test_a_command_that_comes_again_is_known_until_something_changes() -> None:
    """Program, buffers and memory map: each is looked at again where it is not what it was."""
    rig = Rig()
    asked: list[int] = []
    pointer = rig.memory.pointer

    def counted(context: int, address: int, size: int) -> int:
        asked.append(address)
        return pointer(context, address, size)

    rig.memory.pointer = counted  # type: ignore[method-assign]
    ffi.memmove(rig.memory.buffers, struct.pack("<I", 5), 4)

    def result(slot: Slot) -> int:
        assert Lent(rig, [slot]).by_caller() == Reply(Status.OK)
        return int(struct.unpack("<I", ffi.buffer(rig.memory.buffers + 4096, 4))[0])

    def slot(addend: int, target: int = BUFFERS + 4096) -> Slot:
        return rig.slot(stream.copy(4, addend), (BUFFERS, target), at=0x2000)

    assert result(slot(1)) == 6
    first = len(asked)
    assert result(slot(1)) == 6
    assert len(asked) == first  # nothing was asked again
    assert result(slot(2)) == 7  # another program at the same place
    known = len(asked)
    assert known > first
    rig.memory.stamp = lambda context: "moved"  # type: ignore[method-assign]
    assert result(slot(2)) == 7
    assert len(asked) > known
    rig.memory.stamp = lambda context: None  # type: ignore[method-assign]
    known = len(asked)
    assert result(slot(2)) == result(slot(2)) == 7
    assert len(asked) == known + 2 * (first - 1)  # all but the PDI, which is loaded once


def test_injected_faults_are_the_workers() -> None:
    rig = Rig(Faults((Fault("fail", first=2),)))
    assert Lent(rig, [copy_slot(rig)]).by_worker() == Reply(Status.OK)


def test_waiting_for_room_helps_too() -> None:
    with Device.open("emu:quiet,threads=1") as device:
        a, b = device.alloc(64), device.alloc(64)
        kernel = adder(device, 64, 4)
        kernel.run(a, b)
        context = only_context(device)
        context._lent = True
        runs = [kernel.start(a, b) for _ in range(6)]
        assert len(context._queue) <= 4
        for run in runs:
            assert run.wait().state is State.COMPLETED


def only_context(device: Device) -> Any:
    """The NPU's context."""
    (context,) = device.node.driver.npu._contexts.values()
    return context


class Stop(BaseException):
    """What a signal handler raises."""


@pytest.mark.parametrize("where", ["before", "after", "finish", "settle"])
def test_an_exception_while_lending_leaves_the_command_to_complete(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Device.open("emu:quiet,threads=1") as device:
        a, b = device.alloc(64), device.alloc(64)
        a.view("u4")[:] = 1
        kernel = adder(device, 64, 4)
        kernel.run(a, b)
        npu = device.node.driver.npu
        lend, finish = npu.lend, jobs.finish
        only_context(device)._lent = True

        def interrupted(*arguments):
            monkeypatch.undo()
            if where == "after":
                lend(*arguments)
            raise Stop

        def half(hwctx, job):
            monkeypatch.undo()
            job.done = True
            raise Stop

        def settled(job):
            monkeypatch.undo()
            job.settle()
            raise Stop

        b.view("u4")[:] = 0
        context = next(iter(device.pool._entries.values())).context
        run = kernel.start(a, b)
        if where == "finish":
            monkeypatch.setattr(jobs, "finish", half)
        elif where == "settle":
            monkeypatch.setattr(jobs.Job, "settle", settled)
        else:
            monkeypatch.setattr(npu, "lend", interrupted)
        with pytest.raises(Stop):
            run.wait()
        assert jobs.finish is finish
        assert context.drain(5)
        assert run.wait().state is State.COMPLETED
        assert b.view("u4").tolist() == [5] * 16
        for _ in range(6):  # every place in the queue is free again, and nothing holds the buffers
            assert kernel.run(a, b).state is State.COMPLETED
        assert {bo.busy for bo in device.node.client.handles.values()} == {0}


def test_a_signal_handler_may_wait_for_the_command_it_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the chain itself; what it interrupted finds it over and runs nothing again."""
    rig = Rig()
    copies = [copy_slot(rig, 8, 1), rig.slot(stream.copy(8, 2), (BUFFERS + 4096, BUFFERS + 8192), at=0x2000)]
    entered: list[bool] = []
    inner: list[bool] = []
    again = rig.npu._again

    def handler(*arguments: Any) -> int:
        status = again(*arguments)
        if not entered:
            entered.append(True)
            inner.append(rig.npu.lend(rig.context, 0))
        return status

    monkeypatch.setattr(rig.npu, "_again", handler)
    assert Lent(rig, copies).by_caller() == Reply(Status.OK)
    assert inner == [True]
    assert rig.npu.executed == 3  # the one it came in was run again
    assert not rig.npu._contexts[rig.context]._turn._is_owned()


def interrupt_after(monkeypatch: pytest.MonkeyPatch, commands: int) -> None:
    """The caller's thread is interrupted once, when it has run that many commands."""
    again, caller = npu_module.Npu._again, threading.get_ident()
    left = [commands]

    def interrupted(*arguments: Any) -> object:
        result = again(*arguments)
        if threading.get_ident() == caller:
            left[0] -= 1
            if not left[0]:
                raise Stop
        return result

    monkeypatch.setattr(npu_module.Npu, "_again", interrupted)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_chain_does_not_run_again_from_its_beginning(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a -> b -> a -> b, each time 1 more: what ran before must not be repeated."""
    with Device.open("emu:quiet,threads=1") as device:
        a, b = device.alloc(64), device.alloc(64)
        kernel = adder(device, 64, 1)
        kernel.run(a, b)
        only_context(device)._lent = True
        interrupt_after(monkeypatch, after)
        context = next(iter(device.pool._entries.values())).context
        run = device.pool.chain([(kernel, (a, b)), (kernel, (b, a)), (kernel, (a, b))])
        with pytest.raises(Stop):
            run.wait()
        assert context.drain(5)
        assert (a.view("u4").tolist(), b.view("u4").tolist()) == ([2] * 16, [3] * 16)


@pytest.mark.parametrize("shift", [0, 32, -32])
def test_a_command_in_place_is_the_workers(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Device.open("emu:quiet,threads=1") as device:
        whole = device.alloc(256)
        a, b = whole.sub(64, 64), whole.sub(64 + shift, 64)
        kernel = adder(device, 64, 1)
        kernel.run(whole.sub(128, 64), whole.sub(192, 64))
        only_context(device)._lent = True
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


def test_a_user_must_really_wait() -> None:
    """Nothing has happened when EXEC_CMD returns, while waiters run the commands."""
    with Device.open("emu:quiet,threads=1") as device:
        a, b = device.alloc(64), device.alloc(64)
        a.view("u4")[:] = 1
        kernel = adder(device, 64, 4)
        kernel.run(a, b)
        b.view("u4")[:] = 0
        only_context(device)._lent = True
        run = kernel.start(a, b)
        assert not b.view("u4").any()
        run.wait()
        assert b.view("u4").tolist() == [5] * 16
