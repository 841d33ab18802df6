"""Short commands that the thread executes which waits for them, and signals that come meanwhile."""

from __future__ import annotations

import signal
import struct
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from amdxdna._native import ffi
from amdxdna.device import Device
from amdxdna.emu.driver import jobs, memory, objects
from amdxdna.emu.faults import Fault, Faults
from amdxdna.emu.kernels import Family, stream, work
from amdxdna.emu.npu import Reply, Slot, Status
from amdxdna.emu.npu import context as context_module
from amdxdna.emu.npu import inline as inline_module
from amdxdna.run import State
from tests.conformance import kit
from tests.support.binding import adder
from tests.support.npu_rig import BUFFERS, Rig, copy_slot


@pytest.mark.parametrize(
    ("program", "family", "expected"),
    [
        (stream.copy(4096), Family.COPY, 1024),
        (stream.gemv(16, 64), Family.GEMV, 16 * 64),
        (stream.gemm(4, 64, 16, chunks=3), Family.GEMM, 12 * 64 * 16),
        (stream.program([stream.Copy(8, 0), stream.Copy(16, 0)]), Family.COPY, 6),
        (stream.delay(1), Family.COPY, float("inf")),
        (stream.hang(), Family.COPY, float("inf")),
        (stream.fail(5), Family.COPY, float("inf")),
        (stream.gemv(16, 64), Family.COPY, float("inf")),
        (b"nonsense", Family.COPY, float("inf")),
    ],
)
def test_work_counts_multiply_adds(program: bytes, family: Family, expected: float) -> None:
    assert work(program, family) == expected


@pytest.fixture(autouse=True)
def patient_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """While waiters run the commands, the worker does not look in during a test."""
    monkeypatch.setattr(context_module, "LOOK_IN", 600)
    monkeypatch.setattr(context_module, "SimpleQueue", Bell)


class Bell(SimpleQueue[None]):
    """What wakes a context's worker; it tells whether the worker sleeps."""

    asleep = False

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        self.asleep = self.empty()
        try:
            super().get(block, timeout)
        finally:
            self.asleep = False


def until_asleep(context: Any) -> None:
    """Waits until the worker has left what it did: it takes nothing any more unless it is woken."""
    kit.until(lambda: context.bell.asleep, 60, "the worker's sleep")


class Inline:
    """What became of a chain that was submitted, and whose submitter then offered its thread."""

    def __init__(self, rig: Rig, slots: list[Slot], context: int | None = None, seconds: float = 0.0) -> None:
        self.replies: list[tuple[Reply, int]] = []
        self._arrived = threading.Event()
        chosen = rig.context if context is None else context
        self._context = rig.npu.context(chosen)
        self._context.inline = True
        assert rig.npu.submit(chosen, slots, self._done) == 0
        self.taken = rig.npu.run_inline(chosen, seconds)

    def _done(self, reply: Reply) -> None:
        self.replies.append((reply, threading.get_ident()))
        self._arrived.set()

    def by_caller(self) -> Reply:
        """The reply, which the calling thread has made."""
        assert self.taken
        ((reply, thread),) = self.replies
        assert thread == threading.get_ident()
        return reply

    def by_worker(self) -> Reply:
        """The reply, which comes from the worker."""
        assert not self.taken
        assert self._arrived.wait(60)
        ((reply, thread),) = self.replies
        assert thread != threading.get_ident()
        until_asleep(self._context)
        return reply


def test_a_short_chain_runs_on_the_thread_that_waits() -> None:
    rig = Rig()
    ffi.memmove(rig.memory.buffers, struct.pack("<2I", 5, 6), 8)
    chain = [copy_slot(rig, 8, 1), rig.slot(stream.copy(8, 2), (BUFFERS + 4096, BUFFERS + 8192), at=0x2000)]
    assert Inline(rig, chain).by_caller() == Reply(Status.OK)
    assert struct.unpack("<2I", ffi.buffer(rig.memory.buffers + 8192, 8)) == (8, 9)
    assert rig.npu.executed == 2
    assert not rig.npu.computing
    assert rig.memory.released == [rig.context]
    assert not rig.npu.run_inline(rig.context, 0)  # there is nothing left


def test_the_worker_takes_what_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    assert Inline(rig, [copy_slot(rig)]).by_caller() == Reply(Status.OK)
    arrived = threading.Event()
    context = rig.npu.context(rig.context)
    assert context.inline
    until_asleep(context)
    monkeypatch.setattr(context_module, "LOOK_IN", 0.002)
    rig.npu.submit(rig.context, [copy_slot(rig)], lambda reply: arrived.set())
    context.bell.put(None)  # the first of its looks; the next come by themselves
    assert arrived.wait(60)


def test_the_worker_sleeps_again_and_wakes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    assert Inline(rig, [copy_slot(rig)]).by_caller() == Reply(Status.OK)
    context = rig.npu.context(rig.context)
    assert context.inline
    until_asleep(context)
    monkeypatch.setattr(context_module, "LOOK_IN", 0.0005)
    context.bell.put(None)
    kit.until(lambda: not context.inline, 60, "the worker's sleep")
    assert rig.run(copy_slot(rig)) == Reply(Status.OK)


@pytest.mark.parametrize(
    ("status", "make"),
    [
        (Status.OK, lambda rig: [copy_slot(rig), rig.slot(stream.delay(1), at=0x2000)]),
        (7, lambda rig: [rig.slot(stream.fail(7), at=0x3000)]),
        (0x4000003, lambda rig: [rig.slot(b"\0" * 12, at=0x3000)]),
        (Status.INVALID_BUFFER, lambda rig: [Slot(1, 0, (3, 0, 1 << 30, 0, 64))]),
        (Status.INVALID_PARAM, lambda rig: [Slot(1, 7, copy_slot(rig).args)]),
    ],
)
def test_what_may_wait_or_fail_is_the_workers(status: int, make: Callable[[Rig], list[Slot]]) -> None:
    rig = Rig()
    slots = make(rig)
    assert Inline(rig, slots).by_worker() == Reply(status, *((0, status) if status else ()))
    assert not rig.npu.run_inline(99, 0)
    assert Inline(rig, [copy_slot(rig)]).by_caller() == Reply(Status.OK)  # and waiters go on as before


def test_nobody_who_waits_meets_a_hang() -> None:
    rig = Rig()
    assert not Inline(rig, [rig.slot(stream.hang(), at=0x4000)]).taken
    behind = Inline(rig, [copy_slot(rig)])
    assert not behind.taken
    assert rig.npu.close()
    assert not behind.replies


def test_a_short_command_fails_as_on_the_worker() -> None:
    for bad in (copy_slot, {"source": 1 << 50}, Status.INVALID_BUFFER), (None, {}, 0x4000003):
        make, changes, status = bad
        rig = Rig()
        wrong = make(rig, **changes) if make else rig.slot(stream.copy(64), (BUFFERS,), at=0x3000)
        chain = [rig.slot(stream.copy(8, 1), (BUFFERS, BUFFERS + 8), at=0x2000), wrong]
        assert Inline(rig, chain).by_caller() == Reply(status, 1, status)
        assert struct.unpack("<I", ffi.buffer(rig.memory.buffers + 8, 4)) == (1,)  # the first ran
        assert rig.lines


@pytest.mark.parametrize(
    ("words", "seconds", "short"),
    [
        ([64], 0.0, True),
        ([68], 0.0, False),
        ([32] * 3, 0.0, False),
        ([68], 0.4, False),
        ([640], 0.9, True),
        ([644], 2.0, False),
    ],
)
def test_a_long_command_is_the_workers(
    words: list[int], seconds: float, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than SHORT, or ten times that for one who waits for half a second or more."""
    rig = Rig()
    monkeypatch.setattr(inline_module, "SHORT", 16)
    inline = Inline(rig, [copy_slot(rig, size) for size in words], seconds=seconds)
    assert (inline.by_caller if short else inline.by_worker)() == Reply(Status.OK)
    rig.npu.instant = True
    assert Inline(rig, [copy_slot(rig, 4096)]).by_caller() == Reply(Status.OK)


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
        assert Inline(rig, [slot]).by_caller() == Reply(Status.OK)
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


def test_no_more_commands_are_kept_than_a_context_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_module, "MOST_KNOWN", 3)
    rig = Rig()
    kept = []
    for addend in range(5):
        assert Inline(rig, [copy_slot(rig, 8, addend, BUFFERS + 8 * addend)]).by_caller() == Reply(Status.OK)
        kept.append(len(rig.npu.context(rig.context).known))
    assert kept == [1, 2, 3, 1, 2]


def test_injected_faults_are_the_workers() -> None:
    rig = Rig(Faults((Fault("fail", first=2),)))
    assert Inline(rig, [copy_slot(rig)]).by_worker() == Reply(Status.OK)


def test_waiting_for_room_helps_too() -> None:
    with Device.open("emu:quiet,threads=1") as device:
        a, b = device.alloc(64), device.alloc(64)
        kernel = adder(device, 64, 4)
        kernel.run(a, b)
        only_context(device).inline = True
        for run in [kernel.start(a, b) for _ in range(6)]:  # two more than a context takes
            assert run.wait().state is State.COMPLETED


def only_context(device: Device) -> Any:
    """The NPU's context."""
    return device.node.driver.npu.context(0)  # type: ignore[attr-defined]


class Stop(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def handler() -> Iterator[None]:
    """SIGUSR1 raises Stop in the main thread."""

    def stop(number: int, frame: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    assert signal.signal(signal.SIGUSR1, before) is stop


@pytest.mark.parametrize(
    "place",
    [
        (inline_module, "run_inline"),
        (inline_module, "_run"),
        (inline_module, "_execute"),
        (jobs, "answered"),
        (jobs, "finish"),
        (objects.Job, "settle"),
        (jobs, "_start"),
        (memory.DeviceMemory, "begin"),
        (memory.DeviceMemory, "end"),
        (context_module.Context, "enqueue"),
        (context_module.Context, "end"),
    ],
    ids=lambda place: place[1],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_in_the_middle_is_handled_at_the_end(
    place: tuple[Any, str], when: str, handler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exception comes out of the call that it interrupts, whose work is whole."""
    with Device.open("emu:quiet,threads=1") as device:
        a, b = device.alloc(64), device.alloc(64)
        a.view("u4")[:] = 1
        kernel = adder(device, 64, 4)
        kernel.run(a, b)
        only_context(device).inline = True
        owner, name = place
        original = getattr(owner, name)
        sent: list[bool] = []

        def signalled(*arguments: Any) -> Any:
            if when == "after":
                result = original(*arguments)
            if not sent:
                sent.append(True)
                signal.raise_signal(signal.SIGUSR1)
            return result if when == "after" else original(*arguments)

        at_the_end = name in ("run_inline", "_run", "_execute", "reply", "settle", "end")
        for _ in range(3):
            until_asleep(only_context(device))
            sent.clear()
            b.view("u4")[:] = 0
            only_context(device).inline = True
            stopped = False
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, signalled)
                try:
                    kernel.run(a, b)
                except Stop:
                    stopped = True
            assert stopped and sent
            if at_the_end:  # the wait was over when Stop came out of it
                assert b.view("u4").tolist() == [5] * 16
            assert kernel.run(a, b).state is State.COMPLETED
            assert b.view("u4").tolist() == [5] * 16
        for _ in range(6):  # every place in the queue is free again, and nothing holds the buffers
            assert kernel.run(a, b).state is State.COMPLETED
        assert {bo.busy for bo in device.node.client.handles.values()} == {0}


def test_a_user_must_really_wait() -> None:
    """Nothing has happened when EXEC_CMD returns, while waiters run the commands."""
    with Device.open("emu:quiet,threads=1") as device:
        a, b = device.alloc(64), device.alloc(64)
        a.view("u4")[:] = 1
        kernel = adder(device, 64, 4)
        kernel.run(a, b)
        b.view("u4")[:] = 0
        until_asleep(only_context(device))
        only_context(device).inline = True
        run = kernel.start(a, b)
        assert not b.view("u4").any()
        run.wait()
        assert b.view("u4").tolist() == [5] * 16
