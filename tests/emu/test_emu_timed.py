"""The timed NPU: commands take the time of a model, and no core. Nothing here says how long at most."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from amdxdna.device import Device
from amdxdna.emu import kernels
from amdxdna.emu.faults import Fault, Faults
from amdxdna.emu.kernels import Family, demands, stream
from amdxdna.emu.npu import Reply, Status
from amdxdna.emu.npu import context as context_module
from amdxdna.emu.npu import schedule as schedule_module
from amdxdna.emu.npu.context import Context
from amdxdna.emu.npu.npu import COMPUTES_NOTHING
from amdxdna.emu.npu.schedule import Schedule
from amdxdna.emu.timing import MODELS, TimingModel
from amdxdna.errors import CommandTimeout
from amdxdna.marks import Marks
from amdxdna.run import State
from tests.conformance import kit
from tests.support.binding import adder, copy_xclbin, hanging, numbers
from tests.support.control_code import CORE
from tests.support.emulation import NODE, emulate_python, run
from tests.support.npu_rig import BUFFERS, FIXED, MINUTE, Rig, SlowContext, copy_slot, submit, totals
from tests.support.streams import transaction

# -- what a command takes by the model


def test_kernels_take_the_longer_of_bytes_and_operations() -> None:
    model = TimingModel(bandwidth=1e9, rate=1e12, dispatch=0.0, member=0.0, load=0.0)

    def seconds(program: bytes, family: Family) -> float:
        return model.kernels(demands(program, family))

    weights = stream.weight_bytes(64, 256)
    assert seconds(stream.gemv(64, 256), Family.GEMV) == pytest.approx((weights + 2 * (64 + 256)) / 1e9)
    assert seconds(stream.gemv(64, 256, format=stream.BFP6S), Family.GEMV) == pytest.approx(
        (64 * 256 * 6.5 / 8 + 2 * (64 + 256)) / 1e9
    )
    # Whole chunks, and both products of a pair; the bias is in the stream.
    gemm = stream.gemm(4096, 256, 64, chunks=2, pair=True)
    assert seconds(gemm, Family.GEMM) == pytest.approx(
        max(2 * 2 * 8192 * 256 * 64 / 1e12, (2 * weights + 2 * 8192 * (256 + 64)) / 1e9)
    )
    assert replace(model, bandwidth=1e15).kernels(demands(gemm, Family.GEMM)) == pytest.approx(
        4 * 8192 * 256 * 64 / 1e12
    )
    assert seconds(stream.copy(4000), Family.COPY) == pytest.approx(8e-6)
    assert seconds(stream.program([stream.Copy(4000, 0), stream.Delay(5)]), Family.COPY) == pytest.approx(
        13e-6
    )
    for nothing in (stream.hang(), stream.fail(3), b"nonsense"):
        assert seconds(nothing, Family.COPY) == 0
    for last in (stream.Hang(), stream.Fail(3)):  # what comes behind does not run
        ops = [stream.Copy(4000, 0), last, stream.Copy(4000, 0), stream.Delay(5)]
        assert seconds(stream.program(ops), Family.COPY) == pytest.approx(8e-6)


def test_swiglu_writes_half_the_columns() -> None:
    (plain,) = demands(stream.gemm(8, 64, 64), Family.GEMM)
    (fused,) = demands(stream.gemm(8, 64, 64, swiglu=True), Family.GEMM)
    assert plain.operations == fused.operations
    assert plain.nbytes - fused.nbytes == 2 * 8 * 32


# -- wall time


def test_a_command_takes_at_least_its_time() -> None:
    rig = Rig(timing=FIXED)
    began = time.monotonic()
    assert rig.run(copy_slot(rig)) == Reply(Status.OK)
    assert time.monotonic() - began >= 0.02
    assert totals(rig).seconds == pytest.approx(0.02, abs=1e-6)


def test_members_of_a_chain_take_less_than_commands() -> None:
    rig = Rig(timing=FIXED)
    began = time.monotonic()
    rig.run(*[copy_slot(rig)] * 3)
    assert time.monotonic() - began >= 0.03
    found = totals(rig)
    assert (found.chains, found.commands) == (1, 3)
    assert found.seconds == pytest.approx(0.03, abs=1e-6)


def test_a_context_runs_one_command_after_the_other() -> None:
    rig = Rig(timing=FIXED)
    began = time.monotonic()
    answered = [submit(rig, rig.context, copy_slot(rig)) for _ in range(3)]
    assert answered[2].wait(60)
    assert time.monotonic() - began >= 0.06
    assert all(event.is_set() for event in answered)


def test_contexts_on_the_same_columns_take_turns() -> None:
    rig = Rig(timing=FIXED)
    other = rig.another(4, 4)
    first = submit(rig, rig.context, rig.slot(stream.delay(MINUTE), at=0x4000))
    kit.until(lambda: rig.npu.waiting_since > 0, 60, "the first command runs")
    second = submit(rig, other, copy_slot(rig))
    assert not second.wait(0.2)
    assert rig.npu.destroy_context(rig.context) == Status.OK
    assert second.wait(60)
    assert not first.is_set()


def test_contexts_on_other_columns_run_at_once() -> None:
    rig = Rig(timing=FIXED, columns=4)
    other = rig.another(4, 4)
    first = submit(rig, rig.context, rig.slot(stream.delay(MINUTE), at=0x4000))
    kit.until(lambda: rig.npu.waiting_since > 0, 60, "the first command runs")
    assert submit(rig, other, copy_slot(rig)).wait(60)
    assert not first.is_set()
    rig.npu.close()


def test_who_waits_for_its_turn_goes_with_its_context() -> None:
    rig = Rig(timing=FIXED)
    other = rig.another()
    submit(rig, rig.context, rig.slot(stream.delay(MINUTE), at=0x4000))
    kit.until(lambda: rig.npu.waiting_since > 0, 60, "the first command runs")
    waits = submit(rig, other, copy_slot(rig))
    context = rig.npu.context(other)
    kit.until(lambda: context.waiting, 60, "the second one waits for its turn")
    assert rig.npu.destroy_context(other) == Status.OK
    kit.until(lambda: not context.alive, 60, "its thread ends")
    assert rig.npu.close(60)
    assert not waits.is_set()


def test_who_has_its_turn_waits_no_longer_whenever_its_thread_goes_on() -> None:
    """Else the watchdog would take a busy machine for a hang."""
    waits, goes_on = threading.Event(), threading.Event()

    class Starved(Context):
        """Its thread does not get the processor when its wait for the turn is over."""

        @contextlib.contextmanager
        def wait_of(self, seconds: float | None) -> Iterator[None]:
            with super().wait_of(seconds):
                waits.set()
                yield
                goes_on.wait(30)

    first, second = (kind(number, 0, 8, 0) for number, kind in enumerate((Context, Starved)))
    schedule = Schedule(replace(FIXED, dispatch=0.0), 8, time.monotonic, print)
    assert schedule.begin(first)
    begun: list[bool] = []
    thread = threading.Thread(target=lambda: begun.append(schedule.begin(second)))
    thread.start()
    assert waits.wait(30)
    assert second.waiting
    schedule.command(first)
    schedule.end(first, False)
    assert not second.waiting and not begun
    goes_on.set()
    thread.join(30)
    assert begun == [True]


def test_a_change_of_context_loads_what_the_columns_need() -> None:
    rig = Rig(timing=replace(FIXED, dispatch=0.0, load=0.01))
    other = rig.another()
    for context, loads in ((rig.context, 1), (rig.context, 1), (other, 2), (rig.context, 3)):
        assert submit(rig, context, copy_slot(rig)).wait(60)
        kit.until(lambda n=loads: totals(rig).loads == n, 60, f"{loads} loads")  # type: ignore[misc]
    assert totals(rig).seconds == pytest.approx(0.03, abs=1e-6)
    # A new context of an old one's number has loaded nothing.
    old = rig.npu.context(rig.context)
    assert rig.npu.destroy_context(rig.context) == Status.OK
    kit.until(lambda: not old.alive, 60, "its worker has ended")
    assert rig.another() == rig.context, "its number is free"
    assert rig.run(copy_slot(rig)) == Reply(Status.OK)
    assert totals(rig).loads == 4


def test_waking_up_too_late_does_not_add_up() -> None:
    context = SlowContext()
    schedule = Schedule(FIXED, 8, lambda: context.now, print)

    def dispatches(count: int, between: float = 0.0) -> float:
        """Seconds of commands, each sent 2 ms of host work after the one before, with so many seconds of it
        beside each."""
        began = context.now
        for _ in range(count):
            context.now += 0.002
            schedule.enter()
            context.now += 0.0001  # what sending takes
            context.queued_at = schedule.asks(context.id)
            context.now += 0.0002
            schedule.leave()
            context.now += between
            schedule.enter()
            context.now += 0.0001  # what asking takes
            schedule.asks(context.id)
            assert schedule.begin(context)
            schedule.command(context)
            schedule.end(context, False)
            context.now += 0.0003  # what answering takes
            schedule.leave()
        return context.now - began

    assert dispatches(50) == pytest.approx(50 * 0.022 + 0.0013)
    assert schedule.totals().overslept == pytest.approx(0.05)
    lag = {"abs": 0.0015}  # of the last one, which differs
    assert dispatches(50, 0.019) == pytest.approx(50 * 0.022, **lag)
    # Nobody waits beside longer work: what calls take is made up for by the commands that follow.
    assert dispatches(10, 0.021) + dispatches(50) == pytest.approx(10 * 0.023 + 50 * 0.022, **lag)
    assert dispatches(50) == pytest.approx(50 * 0.022, **lag)
    context.late = 1.0  # a stopped program: most of that is lost
    dispatches(1)
    context.late = 0.0
    assert dispatches(1) == pytest.approx(0.022 - schedule_module.MOST_LAG + 0.0003)
    assert dispatches(1) == pytest.approx(0.022)


def test_a_host_that_comes_late_is_not_waited_for() -> None:
    """What is over when somebody asks takes no further time, and lends none."""
    context = SlowContext()
    schedule = Schedule(FIXED, 8, lambda: context.now, print)
    for _ in range(2):
        context.queued_at = schedule.asks(context.id)
        context.now = asked = context.now + 0.5
        assert schedule.begin(context)
        schedule.command(context)
        schedule.end(context, False)
        context.now += 0.001
        assert context.now == asked + 0.001
        assert schedule.asks(context.id) == context.now
    assert schedule.totals().overslept == 0


# -- results, faults, time-outs


def test_results_are_those_of_an_untimed_device() -> None:
    found = []
    for spec in ("emu:quiet,threads=1", "emu:quiet,threads=1,timed"):
        with Device.open(spec) as device:
            source, target = numbers(device, 1024), device.alloc(4096)
            kernel = adder(device, 4096, 3)
            kernel.run(source, target, outputs=[target])
            assert device.pool.chain([(kernel, (target, source))] * 3).wait().state is State.COMPLETED
            source.from_device()
            found.append((target.view("u4").copy(), source.view("u4").copy()))
    for plain, timed in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, timed)
    np.testing.assert_array_equal(found[1][1], np.arange(1024) + 6)


def test_with_instant_a_result_stays_as_it_was_but_for_what_shows_that_the_command_ran() -> None:
    with Device.open("emu:quiet,timed,instant") as device:
        source, target = numbers(device, 1024), device.alloc(4096)
        target.view("u2")[:] = 7
        marks = Marks([(target, 0), (target, 4094)])
        marks.put()
        adder(device, 4096, 3).run(source, target, outputs=[target])
        assert not marks.left() and set(target.view("u2")[1:-1]) == {7}


def test_the_main_job_runs_on_an_instant_device_which_says_that_the_answer_means_nothing() -> None:
    words = ["-m", "qwen35", "--prompt", "What is a whale?", "--greedy", "--max-new", "2", "--quiet"]
    done = run("emulate", "--timed", "--instant", "--", sys.executable, *words)
    first, *others = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert first == f"amdxdna.emu: {COMPUTES_NOTHING}"
    assert len(others) == 1 and "ms of the NPU for " in others[0]


@pytest.mark.parametrize("kind", ["stream", "hang", "chain_hang"])
def test_a_hung_command_leaves_the_columns_to_others(kind: str) -> None:
    faults = Faults() if kind == "stream" else Faults((Fault(kind, 1, 1),))
    rig = Rig(faults, timing=FIXED)
    other = rig.another()
    hung = rig.slot(
        stream.hang() if kind == "stream" else stream.copy(64), (BUFFERS, BUFFERS + 64), at=0x4000
    )
    first = submit(rig, rig.context, *[hung] * 2)
    kit.until(lambda: rig.npu.waiting_since > 0, 60, "the first command hangs")
    assert submit(rig, other, copy_slot(rig)).wait(60)
    assert not first.is_set()
    assert rig.npu.close(60)


@pytest.mark.parametrize("instant", [False, True])
def test_a_hang_behind_modelled_time_goes_with_its_context(instant: bool) -> None:
    """Its columns are free then, not when that time would have been over."""
    rig = Rig(timing=FIXED)
    rig.npu.instant = instant
    other = rig.another()
    hang = rig.slot(stream.program([stream.Delay(MINUTE), stream.Hang()]), at=0x4000)
    first = submit(rig, rig.context, hang)
    kit.until(lambda: rig.npu.waiting_since > 0, 30, "the wait of the first command")
    second = submit(rig, other, copy_slot(rig))
    assert not second.wait(0.05)
    assert rig.npu.destroy_context(rig.context) == Status.OK
    assert second.wait(30)
    assert not first.is_set()
    assert rig.npu.close(30)


def test_a_hang_has_its_columns_until_its_own_time_comes() -> None:
    rig = Rig(timing=FIXED)
    other = rig.another()
    began = time.monotonic()
    submit(rig, rig.context, rig.slot(stream.program([stream.Delay(300_000), stream.Hang()]), at=0x4000))
    kit.until(lambda: rig.npu.waiting_since > 0, 30, "the wait of the first command")
    assert submit(rig, other, copy_slot(rig)).wait(60)
    assert time.monotonic() - began >= 0.33  # and its own 0.02
    assert rig.npu.close(30)


def test_a_hang_behind_modelled_time_times_out_and_the_device_goes_on() -> None:
    with Device.open("emu:quiet,timed,instant,tdr=0.2") as device:
        late = device.pool.kernel(copy_xclbin(), stream.program([stream.Delay(MINUTE), stream.Hang()]))
        kernel = adder(device, 64, 1, variant=1)
        a, b = device.alloc(64), device.alloc(64)
        with pytest.raises(CommandTimeout):
            late.run()
        assert kernel.run(a, b).state is State.COMPLETED


@pytest.mark.parametrize("inline", [False, True])
def test_a_command_that_cannot_run_takes_no_kernel_time(
    inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "LOOK_IN", 60)
    rig = Rig(timing=replace(FIXED, dispatch=0.002, bandwidth=2 * 64 / 0.01))
    rig.npu.instant = inline
    program = stream.copy(64)
    words = struct.unpack(f"<{len(program) // 4}I", program)
    carrier = transaction((1, 0, CORE, 16 + len(program), *words), (0x80, 16, 0x10100, 0x10000))
    few = rig.slot(program, (BUFFERS,), at=0x2000)
    nowhere = rig.slot(program, (BUFFERS, 1 << 50), at=0x3000)
    carried = rig.slot(carrier, at=0x4000)
    expected = [(few, kernels.INVALID), (nowhere, Status.INVALID_BUFFER)]
    if not inline:
        expected.append((carried, kernels.INVALID))
    for count, (slot, status) in enumerate(expected, 1):
        rig.npu.context(rig.context).inline = inline
        assert rig.npu.submit(rig.context, [slot], rig.done) == Status.OK
        if inline:
            assert rig.npu.run_inline(rig.context, 1.0)
        assert rig.arrived.acquire(timeout=60)
        assert rig.replies[-1].status == status
        assert totals(rig).seconds == pytest.approx(0.002 * count, abs=1e-6)
    assert inline or any("COPY takes 2 arguments, not 0" in line for line in rig.lines)
    assert rig.npu.close(60)


def test_a_failing_command_takes_its_time_too() -> None:
    rig = Rig(Faults((Fault("slow", 1, 1, 30_000), Fault("fail", 1, 1, 5))), timing=FIXED)
    began = time.monotonic()
    assert rig.run(copy_slot(rig)) == Reply(5, 0, 5)
    assert time.monotonic() - began >= 0.05
    assert totals(rig).seconds == pytest.approx(0.05, abs=1e-6)


def test_the_watchdog_ends_a_hang_and_the_device_goes_on() -> None:
    with Device.open("emu:quiet,timed,tdr=0.2,hang=2") as device:
        kernel = adder(device, 64, 1)
        a, b = device.alloc(64), device.alloc(64)
        assert kernel.run(a, b).state is State.COMPLETED
        with pytest.raises(CommandTimeout):
            kernel.run(a, b)
        assert kernel.run(a, b).state is State.COMPLETED
        with pytest.raises(CommandTimeout):
            hanging(device).run()


def test_the_watchdog_ends_what_takes_longer_by_the_model() -> None:
    with Device.open("emu:quiet,timed,instant,tdr=0.2") as device:
        kernel = device.pool.kernel(copy_xclbin(), stream.delay(MINUTE))
        with pytest.raises(CommandTimeout):
            kernel.run()


# -- any program


PROGRAM = f"""
import time
from amdxdna.node import KernelNode
from tests.conformance import kit
ready = kit.Ready(KernelNode("{NODE}"))
began = time.monotonic()
print(ready.copy(seconds=60))
print(time.monotonic() - began)
"""


def test_a_program_under_emulate_meets_the_same_npu() -> None:
    ended = emulate_python(PROGRAM, more=("--timed", "--slow", "50000", "--json"))
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stderr.splitlines()[-1])
    assert report["options"]["timed"] == "hx370"
    found = report["timed"]
    model = MODELS["hx370"]
    assert found["commands"] >= 1
    assert found["seconds"] >= 0.05 + model.dispatch + model.load
    assert float(ended.stdout.splitlines()[-1]) >= 0.05


def test_emulate_tells_the_npus_time_in_a_line() -> None:
    ended = emulate_python(PROGRAM, more=("--timed=hx370",))
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"amdxdna: emulate: timed=hx370: 0\.5 ms of the NPU for 1 command\b", ended.stderr)


def test_emulate_refuses_another_model() -> None:
    ended = run("emulate", "--timed", "hx9", "--", sys.executable, "-c", "")
    assert ended.returncode != 0
    assert "timed=hx9" in ended.stderr
    assert "Traceback" not in ended.stderr
