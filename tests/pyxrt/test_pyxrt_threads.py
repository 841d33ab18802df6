"""`pyxrt` in several threads, across forks and under Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

import numpy as np
import pytest

import amdxdna.pyxrt as pyxrt
from amdxdna.pyxrt import devices
from tests.conformance import kit
from tests.support.interrupting import SOAK, everywhere, handlers, watchdog
from tests.support.pyxrt_setup import HELD, TO, Setup
from tests.support.threads import in_threads


def test_other_threads_run_while_one_waits(emu, folder, gate):
    s = Setup(folder, "slow.bin")
    run = s.kernel(3, s.insts, s.code.nbytes, s.a, s.b)
    states = []
    waiter = threading.Thread(target=lambda: states.append(run.wait()))
    waiter.start()
    assert gate.reached.wait(60)
    for _ in range(20):
        waiter.join(0.005)
        assert waiter.is_alive()
    gate.open()
    waiter.join(60)
    assert [int(state) for state in states] == [4]


def test_four_threads(emu, folder):
    setups = [Setup(folder) for _ in range(4)]

    def work(number):
        s = setups[number]
        for _ in range(10):
            s.kernel(3, s.insts, s.code.nbytes, s.a, s.b).wait2()
        assert s.result()[7] == 8

    in_threads(len(setups), work)


def test_threads_that_share_a_run(emu, folder):
    """Each waits for a start, its own or the other's: to its end, however soon the next one follows."""
    s = Setup(folder)
    run = s.run()
    run.start()
    seen = []

    def work(number):
        for _ in range(60):
            try:
                run.start()
            except Exception as error:
                seen.append((type(error), str(error)))
            try:
                seen.append(int(run.wait(60_000)))
                run.wait2()
            except Exception as error:
                seen.append((type(error), str(error)))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(4, work)
    finally:
        sys.setswitchinterval(before)
    assert set(seen) <= {4, (RuntimeError, "bad command state, can't launch")} and seen.count(4) == 240


def test_a_forked_child_is_refused_in_xrts_way(emu, folder):
    """The binding's own errors never come through, whatever is called: XRT's programs catch RuntimeError."""
    s = Setup(folder)
    begun = s.kernel(3, s.insts, s.code.nbytes, s.a, s.b)
    begun.wait()
    uses = {
        "run": lambda: pyxrt.run(s.kernel),
        "kernel": lambda: s.kernel(3, s.insts, s.code.nbytes, s.a, s.b),
        "start": begun.start,
        "bo": lambda: pyxrt.bo(s.device, 4096, pyxrt.bo.host_only, 0),
        "hw_context": lambda: pyxrt.hw_context(s.device, s.xclbin.get_uuid()),
    }
    child = os.fork()
    if not child:
        wrong = 0
        for number, use in enumerate(uses.values()):
            try:
                use()
            except BaseException as error:
                wrong |= (type(error) is not RuntimeError) << number
            else:
                wrong |= 1 << number
        os._exit(wrong)
    wrong = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert [name for number, name in enumerate(uses) if wrong >> number & 1] == []
    begun.start()
    begun.wait()


# -- forks, starts and waits of several threads, Ctrl-C


def test_the_state_of_a_run_in_the_child_of_a_fork(emu, folder, gate):
    s = Setup(folder)
    run = s.kernel(3, s.insts, s.code.nbytes, s.a, s.b)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run.state()
        except RuntimeError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.open()
    assert int(run.wait(60_000)) == 4


def held_runs(s, count):
    """Runs that wait at the gate."""
    slow = pyxrt.bo(s.device, len(HELD), pyxrt.bo.cacheable, s.kernel.group_id(1))
    slow.write(HELD, 0)
    slow.sync(TO)
    runs = []
    for _ in range(count):
        made = pyxrt.run(s.kernel)
        for index, value in enumerate((3, slow, len(HELD), s.a, s.b)):
            made.set_arg(index, value)
        runs.append(made)
    return runs


def meets_start(run):
    """Whether another thread is at the run's first start: a wait refuses until then."""
    with contextlib.suppress(RuntimeError):
        return run.wait(1) == pyxrt.ert_cmd_state.ERT_CMD_STATE_TIMEOUT
    return False


def test_a_wait_meets_the_first_start(emu, folder, gate):
    """A start may block: four runs of the context are in flight. It is waited for like any other."""
    s = Setup(folder)
    runs = held_runs(s, 5)
    last = runs.pop()
    with pytest.raises(RuntimeError, match="not started"):
        last.wait(10)
    for made in runs:
        made.start()
    starter = threading.Thread(target=last.start)
    starter.start()
    kit.until(lambda: meets_start(last), 60, "the start")
    assert last.wait(50) == pyxrt.ert_cmd_state.ERT_CMD_STATE_TIMEOUT
    gate.open(after=0.1)
    assert last.wait(60_000) == pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    starter.join()


def test_a_wait_for_the_first_start_refuses_no_other_start(emu, folder, gate):
    """Wherever the wait is when another thread starts the run again."""
    s = Setup(folder)
    *runs, last = held_runs(s, 5)
    for made in runs:
        made.start()
    starter = threading.Thread(target=last.start)
    starter.start()
    kit.until(lambda: meets_start(last), 60, "the start")
    places = []

    def start_again(frame, event, argument):
        if not frame.f_code.co_filename.endswith("kernels.py"):
            return None
        if frame.f_code.co_name == "_over" and event in ("line", "return"):
            if places:
                starter.join(60)
                assert int(last.wait(60_000)) == 4
                last.start()
            gate.open()
            places.append(frame.f_lineno)
        return start_again

    before = sys.gettrace()
    sys.settrace(start_again)
    try:
        state = last.wait(60_000)
    finally:
        sys.settrace(before)
    assert state == pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED and len(places) > 1
    for made in (*runs, last):
        made.wait2()


@pytest.mark.parametrize("made_anew", [False, True], ids=["started again", "made anew"])
def test_ctrl_c_at_every_place_leaves_runs_usable(folder, monkeypatch, made_anew):
    monkeypatch.setenv(devices.DEVICE, "emu:quiet,threads=1")
    s = Setup(folder)

    def made():
        run = pyxrt.run(s.kernel)
        for place, value in enumerate((3, s.insts, s.code.nbytes, s.a, s.b)):
            run.set_arg(place, value)
        return run

    last = made()
    last.start()
    last.wait2()

    def use():
        run = made() if made_anew else last
        run.start()
        run.wait2()

    def check(where):
        last.wait()  # what was started is over
        s.b.write(np.zeros(1024, np.int32), 0)
        for run in (last, made()):
            run.start()
            assert run.wait(60_000) == pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED, where
        assert s.result().tolist() == list(range(1, 1025)), where

    with watchdog(900), handlers():
        assert everywhere(use, check, SOAK // 2) > 0
