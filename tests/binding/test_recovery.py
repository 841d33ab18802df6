"""Getting over timeouts, full devices, forgetful programs, forks and killed processes.

The scenarios of recovery_side.py that take several processes run under `python -m amdxdna emulate`;
tests/vm/test_doctor.py runs the same ones on Linux's own driver.
"""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from amdxdna import Device, errors, packet, signals
from amdxdna.emu.driver import timeline
from amdxdna.emu.kernels import stream
from tests.support import recovery_side
from tests.support.binding import adder, copy_xclbin, hanging
from tests.support.descriptors import descriptors
from tests.support.emulation import emulate


def emulated(name, *options):
    """Runs a scenario in processes of its own that share an emulated device."""
    every = ",".join([f"slots={recovery_side.SLOTS}", *options])
    return emulate(sys.executable, "-m", "tests.support.recovery_side", name, options=every)


@pytest.mark.parametrize("name", recovery_side.SCENARIOS)
def test_between_processes(name):
    done = emulated(name, "address=iova" if name in ("pressure", "timeout") else "address=pasid")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-3000:]


def test_a_timeout_in_words(open_emu):
    device = open_emu("tdr=0.1")
    with pytest.raises(errors.CommandTimeout) as caught:
        hanging(device).run()
    text = str(caught.value)
    for part in (
        "made no progress for 0.1 s",
        "the driver reset the context",
        "the instruction stream stopped at operation 0",
        "context PC 0x",
        "no fatal error",
        "in a fresh context",
        "insts FILE --at 0` shows operation 0",
    ):
        assert part in text


def test_the_next_run_works_again_and_again(open_emu, monkeypatch):
    """Every hang is got over; the caller does nothing for it, and no context stays behind."""
    monkeypatch.setattr("amdxdna.pool.RECOVERY_SECONDS", 0.05)
    device = open_emu("tdr=0.1,slots=2")
    for i in range(4):
        hang = hanging(device, variant=i % 2)
        with pytest.raises(errors.CommandTimeout):
            hang.run()
        recovery_side.works(device, add=i, variant=i % 2)
        hang.close()
    assert device.contexts() == ()
    assert device.pool.stats.recoveries == 4


def test_a_hang_in_one_thread_does_not_stop_another(open_emu, monkeypatch):
    monkeypatch.setattr("amdxdna.pool.RECOVERY_SECONDS", 0.05)
    device = open_emu("tdr=0.1")
    hang = hanging(device, variant=1)
    outcome = []

    def hangs():
        try:
            hang.run()
        except errors.CommandTimeout as error:
            outcome.append(error.health.txn_op_idx)

    thread = threading.Thread(target=hangs)
    thread.start()
    for i in range(20):
        recovery_side.works(device, add=i)
    thread.join()
    assert outcome == [0]
    recovery_side.works(device, variant=1)


def test_slots_come_and_go(open_emu):
    """Another open of the device takes slots and gives them back: the pool makes do with what there is."""
    mine, others = open_emu("slots=3"), open_emu("slots=3")
    kernels = [adder(mine, 64, i, variant=i) for i in range(3)]
    source, target = mine.alloc(64), mine.alloc(64)

    def round_trip():
        for kernel in kernels:
            kernel.run(source, target)
        return mine.pool.resident

    assert round_trip() == 3 and mine.pool.swaps == 0
    with pytest.raises(errors.NoFreeContext):
        others.context(copy_xclbin(9))
    mine.pool.unload()
    held = [others.context(copy_xclbin(9)) for _ in range(2)]
    assert round_trip() == 1 and mine.pool.swaps == 2
    held.pop().close()
    assert round_trip() == 2
    mine.pool.unload()
    held += [others.context(copy_xclbin(9)) for _ in range(2)]
    with pytest.raises(errors.NoFreeContext, match="all 3"):
        round_trip()
    held.pop().close()
    assert round_trip() == 1


def test_sixty_contexts_of_a_forgetful_program(open_emu):
    device = open_emu("slots=2")
    for i in range(60):
        device.context(copy_xclbin(i % 5))
    assert device.resources().npu_task_curr <= 1
    recovery_side.works(device)


@pytest.mark.parametrize("command", [["doctor"], ["selftest"], ["contexts"], ["info"]])
def test_commands_on_a_kernel_node(command):
    """doctor and the others on a node of the kernel's kind, found through its sysfs."""
    done = emulate(sys.executable, "-m", "amdxdna", *command, "--device", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {"selftest": "8 ok, 0 failed, 1 skipped", "contexts": "0 of 16 contexts in use"}
    assert expected.get(command[0], "/dev/accel/accel0") in done.stdout


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_failures_leave_nothing_behind(open_emu, monkeypatch, how):
    """However often: no memory of the device, no descriptor, no context."""
    monkeypatch.setattr("amdxdna.pool.RECOVERY_SECONDS", 0.01)
    device = open_emu("tdr=0.05")
    good = adder(device, 64, 1)
    bad = (
        hanging(device)
        if how == "hangs"
        else device.pool.kernel(copy_xclbin(), stream.program([stream.Fail(0x3000002)]))
    )
    pair = device.alloc(64), device.alloc(64)

    def left():
        for _ in range(4):
            with pytest.raises(errors.CommandFailed):
                bad.run(*pair)
            with pytest.raises(errors.CommandFailed):
                device.pool.chain([(good, pair), (bad, pair)]).wait()
            good.run(*pair)
        return device.bo_usage(), len(device.contexts()), descriptors()

    usage, contexts, opened = left()
    for _ in range(2):
        now = left()
        assert (now[0], now[1]) == (usage, contexts)
        assert now[2] <= opened


def test_a_close_that_a_signal_cuts_short_closes_all_the_same(monkeypatch):
    """A handler's exception ends the wait for a hung command, not the close."""

    class Interrupted(Exception):
        pass

    def handler(*_):
        raise Interrupted

    def interrupted(wait, *arguments):
        def signalled():
            if closing:
                closing.pop()
                signal.raise_signal(signal.SIGALRM)
            return wait(*arguments)

        return signals.interruptible(signalled)

    closing = []
    monkeypatch.setattr(timeline, "interruptible", interrupted)
    keep = Device.open("emu:quiet,threads=1")
    keep.alloc(64)
    before = descriptors()
    old = signal.signal(signal.SIGALRM, handler)
    try:
        for number in range(4):
            device = Device.open("emu:quiet,threads=1")
            code = device.alloc(64, "dev")
            code.write(stream.hang())
            hangs = packet.start_cu(0, code.address, len(stream.hang()), [])
            contexts = [device.context(copy_xclbin(n)) for n in range(2)]
            for context in contexts:
                context.run(hangs, [code])
            if number % 2:
                closing.extend([None, None])  # one for the wait for each
                with pytest.raises(Interrupted):
                    device.node.close()
                assert not closing
                continue
            for left, context in ((1, contexts[0]), (0, contexts[1])):
                closing.append(None)
                with pytest.raises(Interrupted):
                    context.close()  # waits for the command
                assert len(device.contexts()) == left + 1
                context.hung = True
                closing.append(None)
                with pytest.raises(Interrupted):
                    context.close()  # the driver waits for it
                context.close()
                assert len(device.contexts()) == left
            device.close()
        assert not closing
    finally:
        signal.signal(signal.SIGALRM, old)
    del device, contexts, context, code
    assert descriptors() <= before
    assert keep.contexts() == ()
    keep.close()
