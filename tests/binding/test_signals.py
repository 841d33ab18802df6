"""Critical sections against real signals: when handlers run, and what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from amdxdna.signals import interruptible, uninterrupted
from qwen35.threads import Threads
from tests.support.program import python


class Stop(BaseException):
    """What a handler raises."""


class End(BaseException):
    """What another one raises."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[str, Any]]:
    """SIGUSR1 raises Stop, SIGTERM raises End; the handlers are in place again after each test."""

    def stop(number: int, frame: object) -> None:
        raise Stop

    def end(number: int, frame: object) -> None:
        raise End

    ours = {signal.SIGUSR1: stop, signal.SIGTERM: end, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}
    yield {"stop": stop, "end": end}
    after = {number: signal.getsignal(number) for number in ours}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == ours


def test_a_handler_runs_at_the_end():
    done = []

    def work():
        signal.raise_signal(signal.SIGUSR1)
        done.append("after the signal")

    with pytest.raises(Stop):
        uninterrupted(work)
    assert done == ["after the signal"]
    assert uninterrupted(lambda: 7) == 7


def test_the_outermost_section_counts():
    done = []

    def inner():
        signal.raise_signal(signal.SIGINT)
        done.append("inner")

    def outer():
        uninterrupted(inner)
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(outer)
    assert done == ["inner", "outer"]


def test_several_signals_all_run_their_handlers():
    """The last exception is raised, with the one before as its context, as without sections."""

    def work():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        uninterrupted(work)
    assert isinstance(caught.value.__context__, End)
    assert isinstance(caught.value.__context__.__context__, Stop)


def test_the_functions_own_exception_is_the_context():
    def work():
        signal.raise_signal(signal.SIGUSR1)
        raise OSError("its own")

    with pytest.raises(Stop) as caught:
        uninterrupted(work)
    assert isinstance(caught.value.__context__, OSError)
    with pytest.raises(OSError, match="its own"):
        uninterrupted(lambda: (_ for _ in ()).throw(OSError("its own")))


def test_a_wait_is_interrupted_at_once_and_what_follows_it_is_not():
    done = []
    gate = threading.Lock()
    gate.acquire()

    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))

    def work():
        timer.start()
        try:
            interruptible(gate.acquire, True, 60)
            done.append("waited")
        finally:
            signal.raise_signal(signal.SIGTERM)
            done.append("cleaned up")

    with pytest.raises(End) as caught:
        uninterrupted(work)
    timer.join()
    assert done == ["cleaned up"] and isinstance(caught.value.__context__, Stop)


def test_a_signal_before_the_wait_is_handled_before_it_blocks():
    gate = threading.Lock()
    gate.acquire()

    def work():
        signal.raise_signal(signal.SIGUSR1)
        interruptible(gate.acquire, True, 60)
        done.append("waited")

    done = []
    with pytest.raises(Stop):
        uninterrupted(work)
    assert done == []


def test_a_handler_in_a_wait_may_have_sections_of_its_own(handlers):
    done = []

    def handler(number, frame):
        uninterrupted(done.append, "section")
        with pytest.raises(End):
            uninterrupted(signal.raise_signal, signal.SIGTERM)
        done.append("handled")

    signal.signal(signal.SIGUSR1, handler)
    uninterrupted(interruptible, signal.raise_signal, signal.SIGUSR1)
    assert done == ["section", "handled"]
    assert signal.signal(signal.SIGUSR1, handlers["stop"]) is handler


def test_a_handler_set_in_a_wait_stays(handlers):
    def handler(number, frame):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    signal.signal(signal.SIGUSR1, handler)
    uninterrupted(interruptible, signal.raise_signal, signal.SIGUSR1)
    assert signal.signal(signal.SIGUSR1, handlers["stop"]) == signal.SIG_IGN


def test_ignored_and_default_signals_are_left_alone():
    seen = []

    def work():
        seen.extend(signal.getsignal(s) for s in (signal.SIGPIPE, signal.SIGALRM, signal.SIGUSR1))

    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    uninterrupted(work)
    assert signal.signal(signal.SIGALRM, before) == signal.SIG_IGN
    assert seen[:2] == [signal.getsignal(signal.SIGPIPE), signal.SIG_IGN]
    assert callable(seen[2])


def test_other_threads_call_straight_through():
    handlers = []

    def work():
        handlers.append(signal.getsignal(signal.SIGUSR1))
        return interruptible(lambda: 3)

    results = []
    thread = threading.Thread(target=lambda: results.append(uninterrupted(work)))
    thread.start()
    thread.join(60)
    assert results == [3] and handlers[0] is signal.getsignal(signal.SIGUSR1)


def check_child() -> None:
    """Ends a child: with 0 when handlers run as they should."""
    try:
        with pytest.raises(Stop):
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(Stop):
            uninterrupted(signal.raise_signal, signal.SIGUSR1)
    except BaseException:
        os._exit(1)
    os._exit(0)


def test_a_child_forked_in_a_section_goes_on_in_it():
    pid = uninterrupted(os.fork)
    if not pid:
        check_child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_of_another_thread_is_in_no_section():
    status = []

    def fork():
        pid = os.fork()
        if not pid:
            check_child()
        status.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def work():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join(60)

    uninterrupted(work)
    assert status == [0]


FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


@pytest.mark.parametrize("number", sorted(signal.valid_signals() - FAULTS - {signal.SIGKILL, signal.SIGSTOP}))
def test_handlers_of_all_signals_wait_for_the_end(number, handlers):
    """Also of those that few programs handle: SIGIO, SIGURG, the real-time ones."""
    done = []

    def work():
        signal.raise_signal(number)
        done.append("after the signal")

    before = signal.signal(number, handlers["stop"])
    try:
        with pytest.raises(Stop):
            uninterrupted(work)
        assert signal.getsignal(number) is handlers["stop"]
    finally:
        signal.signal(number, before)
    assert done == ["after the signal"]


def test_asyncio_hears_of_each_signal_once():
    calls = []

    async def main():
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, calls.append, 1)
        for sent in range(1, 6):
            uninterrupted(signal.raise_signal, signal.SIGALRM)
            uninterrupted(interruptible, signal.raise_signal, signal.SIGALRM)
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(calls) == 2 * sent

    asyncio.run(main())


def test_a_handler_gets_the_frame_that_the_signal_found():
    frames = []

    def work():
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, lambda number, frame: frames.append(frame))
    uninterrupted(work)
    signal.signal(signal.SIGALRM, before)
    assert [frame.f_code for frame in frames] == [work.__code__]


def test_a_storm_in_a_section_ends_as_one_signal():
    """As the kernel keeps a blocked one; thousands that raise must not nest."""

    def work():
        for _ in range(5000):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(End) as caught:
        uninterrupted(work)
    assert isinstance(caught.value.__context__, Stop) and caught.value.__context__.__context__ is None


def test_a_handler_that_another_takes_away_is_not_called():
    """CPython ignores a signal whose handler is gone when its turn comes."""

    def take_away(number, frame):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def work():
        signal.raise_signal(signal.SIGVTALRM)
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGVTALRM, take_away), signal.signal(signal.SIGALRM, take_away)
    uninterrupted(work)
    signal.signal(signal.SIGVTALRM, before[0])
    assert signal.signal(signal.SIGALRM, before[1]) == signal.SIG_DFL


CUT_IMPORT = """
import os, signal, sys
import amdxdna

EMU = os.environ["AMDXDNA_PYXRT_DEVICE"] = "emu:quiet,threads=1"

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

def load():
    from qwen35 import Qwen35
    Qwen35.load(device=EMU).close()

def view():
    with amdxdna.Device.open(EMU) as device:
        assert device.alloc(64).view("u4").nbytes == 64

def read():
    from amdxdna import pyxrt
    assert pyxrt.bo(pyxrt.device(0), 64, pyxrt.bo.host_only, 0).read(64, 0).nbytes == 64

def trace():
    os.environ["AMDXDNA_TRACE"] = "/dev/null"
    amdxdna.Device.open(EMU).close()

use = globals()[sys.argv[2]]
sys.meta_path.insert(0, Finder())
try:
    use()
except KeyboardInterrupt:
    assert sys.argv[1] in sys.modules
    use()
    print("again")
"""


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("numpy.exceptions", "load"),
        ("numpy.dtypes", "view"),
        ("numpy.dtypes", "read"),
        ("amdxdna.trace.node", "trace"),
    ],
)
def test_a_module_is_there_whole_after_a_ctrl_c_in_its_import(module, use):
    done = python("-c", CUT_IMPORT, module, use)
    assert (done.returncode, done.stdout) == (0, "again\n"), done.stderr


def test_a_handler_that_raises_while_a_thread_starts(monkeypatch):
    """Its exception comes, not what threading makes of an Exception there; the task is done."""
    start = threading._start_new_thread

    def interrupted(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        ident = start(*arguments, **options)
        end = time.monotonic() + 60
        while threading._limbo and time.monotonic() < end:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGUSR1)
        return ident

    def refuse(number: int, frame: object) -> None:
        raise ZeroDivisionError

    done: list[int] = []
    before = signal.signal(signal.SIGUSR1, refuse)
    with Threads(1) as pool:
        monkeypatch.setattr(threading, "_start_new_thread", interrupted)
        with pytest.raises(ZeroDivisionError):
            pool.submit(done.append, 1)
    signal.signal(signal.SIGUSR1, before)
    assert done == [1]


def test_random_signals_find_everything_done(handlers):
    """Each step is done as often as its other half, wherever the signals come."""
    halves = [0, 0]

    def work():
        halves[0] += 1
        sum(range(50))
        halves[1] += 1

    chance = random.Random(1)
    before = signal.signal(signal.SIGALRM, handlers["stop"])
    gc.collect()
    gc.disable()  # an exception in a finalizer of somebody's garbage would be lost
    try:
        for _ in range(300):
            with pytest.raises(Stop):
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 5e-4))
                while True:
                    uninterrupted(work)
            assert halves[0] == halves[1]
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert halves[0] > 300


FORK = """
import importlib.abc, importlib.util, os, sys, threading
from amdxdna import signals
import logging  # later than the package, as programs do
inside, go = threading.Event(), threading.Event()
class Loader(importlib.abc.Loader):
    def exec_module(self, module):
        logging.getLogger("asked for in an import")
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "slow_module":
            return None
        inside.set()
        go.wait(60)
        return importlib.util.spec_from_loader(name, Loader())
sys.meta_path.insert(0, Finder())
importing = threading.Thread(target=signals.imports, args=("slow_module",), daemon=True)
importing.start()
inside.wait()
threading.Timer(0.3, go.set).start()
if not os.fork():
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))
importing.join(60)
print(importing.is_alive())
"""


def test_a_fork_and_an_import_that_logs_do_not_wait_for_each_other():
    done = python("-c", FORK)
    assert (done.stdout, done.stderr) == ("7\nFalse\n", "")
