"""The timed NPU and the host: its cores, its threads, and who executes what."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import replace

import pytest

from amdxdna.device import Device
from amdxdna.emu.driver.timeline import Timeline
from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import Reply, Status
from amdxdna.emu.npu import context as context_module
from amdxdna.emu.npu import inline as inline_module
from amdxdna.emu.npu import schedule as schedule_module
from amdxdna.emu.npu.context import Context
from amdxdna.emu.npu.schedule import Schedule
from amdxdna.errors import WaitTimeout
from amdxdna.run import State
from tests.conformance import kit
from tests.support.binding import adder, copy_xclbin
from tests.support.npu_rig import FIXED, MINUTE, Rig, SlowContext, copy_slot, submit, totals


def test_no_core_is_used_while_the_npu_works() -> None:
    with Device.open("emu:quiet,timed,instant") as device:
        kernel = device.pool.kernel(copy_xclbin(), stream.delay(400_000))
        began = time.monotonic()
        kernel.run()
        gc.disable()  # what a long test run has piled up takes its time, too
        try:
            used = time.process_time()
            kernel.run()
            used = time.process_time() - used
        finally:
            gc.enable()
        assert time.monotonic() - began >= 0.8
        assert used < 0.2


def test_the_host_works_while_the_npu_does() -> None:
    """A command that is over by its time when it is waited for has nobody wait."""
    with Device.open("emu:quiet,timed,instant") as device:
        kernel = device.pool.kernel(copy_xclbin(), stream.delay(1_000))
        began = time.monotonic()
        runs = [kernel.start() for _ in range(4)]
        schedule = device.node.driver.npu.schedule  # type: ignore[attr-defined]
        assert [each.wait().state for each in runs] == [State.COMPLETED] * 4
        assert time.monotonic() - began >= 0.004
        assert schedule.totals().seconds >= 0.004


@pytest.mark.parametrize(
    ("instant", "microseconds", "inline"), [(True, 0, True), (False, 0, False), (True, MINUTE, False)]
)
def test_who_waits_executes_what_computes_nothing_and_is_short(
    instant: bool, microseconds: int, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "LOOK_IN", 60)
    monkeypatch.setattr(inline_module, "TIMED", 10.0)
    rig = Rig(timing=replace(FIXED, bandwidth=64 / 30 if microseconds else 1e15))
    rig.npu.instant = instant
    context = rig.npu.context(rig.context)
    context.inline = True
    began = time.monotonic()
    answered = submit(rig, rig.context, copy_slot(rig))
    assert rig.npu.run_inline(rig.context, 1.0) is inline
    if inline:
        assert answered.is_set()
    if not microseconds:
        assert answered.wait(60)
        assert time.monotonic() - began >= 0.02
    rig.npu.close()


LONG = 20.0
"""Seconds: a chain that takes them is over long after the short waits of these tests."""


@pytest.mark.parametrize(
    "changes",
    [{"dispatch": LONG}, {"dispatch": 0.0, "member": LONG}, {"load": LONG}, {"bandwidth": 2 * 64 / LONG}],
    ids=lambda changes: str(list(changes)[-1]),
)
def test_a_chain_that_ends_after_the_wait_is_the_workers(
    changes: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "LOOK_IN", 60)
    monkeypatch.setattr(inline_module, "TIMED", 2 * LONG)
    rig = Rig(timing=replace(FIXED, **changes))
    rig.npu.instant = True
    rig.npu.context(rig.context).inline = True
    answered = submit(rig, rig.context, *[copy_slot(rig)] * 2)
    assert not rig.npu.run_inline(rig.context, 0.001)
    assert not answered.is_set()
    kit.until(lambda: rig.npu.waiting_since > 0, 10, "the worker's wait for its end")
    assert rig.npu.close(60)


def test_what_the_columns_hold_already_is_not_loaded_again() -> None:
    """Nor does a chain count it that has to be over soon."""
    context = SlowContext()
    context.late = 0.0
    schedule = Schedule(replace(FIXED, load=0.1), 8, lambda: context.now, print)
    for loads in (True, False):
        for seconds, begins in ((0.024, False), (0.026, not loads), (0.126, True)):
            context.queued_at = schedule.asks(context.id)
            # Two commands: 0.02 + 0.005, and 0.1 for the one load.
            assert schedule.begin_soon(context, seconds, [0.0, 0.0], [7, 7]) is begins
            if begins:
                for _ in range(2):
                    schedule.command(context)
                    schedule.load(context, 7)
                schedule.end(context, False)
                break
    assert schedule.totals().loads == 1
    assert context.now == pytest.approx(100.15)


def test_a_chain_that_is_over_by_its_time_is_executed_within_any_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_module, "LOOK_IN", 60)
    rig = Rig(timing=FIXED)
    rig.npu.instant = True
    rig.npu.context(rig.context).inline = True
    answered = submit(rig, rig.context, copy_slot(rig))
    time.sleep(0.025)
    assert rig.npu.run_inline(rig.context, 0.001)
    assert answered.is_set()


def test_a_short_wait_for_a_long_command_ends_without_it() -> None:
    with Device.open("emu:quiet,timed,instant") as device:
        driver = device.node.driver  # type: ignore[attr-defined]
        kernel, a, b = adder(device, 64, 1), device.alloc(64), device.alloc(64)
        kernel.run(a, b)
        context = driver.npu.context(0)
        driver.npu.time(replace(FIXED, dispatch=LONG))
        driver.idle_wait = 0.1  # not the two seconds that a context's end waits for its commands
        context.inline = True
        started = kernel.start(a, b)
        with pytest.raises(WaitTimeout):
            started.wait(0.001)


@pytest.mark.parametrize("completes", [False, True])
def test_a_wait_whose_time_is_over_executes_nothing_more(completes: bool) -> None:
    """But it sees what is complete by then."""
    asked: list[float] = []

    def execute(seconds: float) -> bool:
        asked.append(seconds)
        time.sleep(0.002)
        if completes:
            timeline.signal(5)
        return len(asked) < 5

    timeline = Timeline(execute)
    timeline.add(5)
    assert timeline.wait(5, 0.001) is completes
    assert timeline.wait(5, 0.0) is completes
    assert asked == [0.001]


def test_who_waits_does_not_wait_for_other_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """That may take any time, and signals are handled only afterwards: the worker does."""
    monkeypatch.setattr(context_module, "LOOK_IN", 60)
    rig = Rig(timing=FIXED)
    rig.npu.instant = True
    other = rig.another()
    submit(rig, rig.context, rig.slot(stream.delay(MINUTE), at=0x4000))
    kit.until(lambda: rig.npu.waiting_since > 0, 60, "the first command runs")
    rig.npu.context(other).inline = True
    answered = submit(rig, other, copy_slot(rig))
    assert not rig.npu.run_inline(other, 1.0)
    assert rig.npu.destroy_context(rig.context) == Status.OK
    assert answered.wait(60)


def test_computing_that_takes_longer_is_told_once() -> None:
    rig = Rig(timing=replace(FIXED, dispatch=0.0))
    for _ in range(3):
        assert rig.run(copy_slot(rig)) == Reply(Status.OK)
    kit.until(lambda: totals(rig).late == 3, 60, "three late chains")
    assert totals(rig).late_seconds > 0
    (line,) = rig.lines
    assert "the times do not hold" in line


def test_of_two_that_are_late_at_once_one_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the second is counted before the first has told."""
    now = [100.0]
    lines: list[str] = []
    ended: list[Context] = []

    class Between(threading.Condition):
        """The schedule's lock; the second chain ends as soon as the first one's end has let go of it."""

        def __exit__(self, *reason: object) -> None:
            super().__exit__(None, None, None)
            if second not in ended and now[0] > 100.0:
                ended.append(second)
                schedule.end(second, True)

    monkeypatch.setattr(schedule_module.threading, "Condition", Between)
    schedule = Schedule(FIXED, 8, lambda: now[0], lines.append)
    first, second = (Context(number, 4 * number, 4, 0, lambda: now[0]) for number in range(2))
    for context in first, second:
        context.queued_at = now[0]
        assert schedule.begin(context)
        schedule.command(context)
    now[0] += 1.0
    schedule.end(first, True)
    assert schedule.totals().late == 2
    (line,) = lines
    assert "the times do not hold" in line


def test_a_device_says_nothing_of_lateness_where_nothing_computes() -> None:
    rig = Rig(timing=replace(FIXED, dispatch=0.0))
    rig.npu.instant = True
    assert rig.run(copy_slot(rig)) == Reply(Status.OK)
    kit.until(lambda: totals(rig).chains == 1, 60, "the chain is counted")
    assert (totals(rig).late, rig.lines) == (0, [])
