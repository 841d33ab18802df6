"""Starting a program under a filter: what is said when that goes wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from amdxdna.cli.emulate import cannot_start
from amdxdna.emu.seccomp import spawn
from tests.support.descriptors import descriptors
from tests.support.program import python


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL before it began"),
        (lambda: os._exit(3), "ended with status 3 before it began"),
    ],
    ids=["killed", "exited"],
)
def test_a_child_that_ends_early(end: Callable[[], None], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "lib", SimpleNamespace(xdna_confine=lambda channel: end()))
    before = descriptors()
    with pytest.raises(spawn.EndedEarly) as caught:
        spawn.spawn(["true"], os.environ)
    assert descriptors() <= before
    assert str(cannot_start(["true"], caught.value)) == f"true cannot be started: it {told}"


LEFT = """
import os, resource, signal
from amdxdna.cli import main

def state():
    handlers = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    return handlers, signal.pthread_sigmask(signal.SIG_BLOCK, []), resource.getrlimit(resource.RLIMIT_NOFILE)

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
before = state()
print(main(["emulate", "-O", "threads=1,quiet", "--", "sh", "-c", "ulimit -n"]), state() == before)
"""


def test_a_process_that_emulated_is_as_before() -> None:
    """Handlers, mask and limit; the program has had its limit, too."""
    done = python("-c", LEFT)
    assert (done.stdout.split(), done.stderr) == (["500", "0", "True"], "")


STOPPED_AS_TRACED = """
import ctypes, os, signal
from amdxdna.emu.seccomp.spawn import Signals

TRACEME, DETACH = 0, 17  # include/uapi/linux/ptrace.h
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
ptrace.restype = ctypes.c_long

def started(traced):
    child = os.fork()
    if not child:
        signal.alarm(300)
        try:
            if traced:
                if ptrace(TRACEME, 0, 0, 0):
                    os._exit(77)
                os.kill(os.getpid(), signal.SIGSTOP)
            while True:
                signal.pause()
        finally:
            os._exit(1)
    return child

other, first = started(False), started(True)
found = os.waitid(os.P_PID, first, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
assert found.si_code == os.CLD_TRAPPED, found
signals = Signals(first)
os.kill(os.getpid(), signal.SIGUSR1)
signals.undo()
os.kill(other, signal.SIGTERM)
ptrace(DETACH, first, 0, 0)
for pid in (first, other):
    print(signal.Signals(os.WTERMSIG(os.waitpid(pid, 0)[1])).name)
"""


def test_a_stop_of_a_traced_process_is_not_its_end() -> None:
    """It gets what is sent meanwhile, as one that runs, and nobody else does."""
    done = python("-c", STOPPED_AS_TRACED)
    assert (done.stdout.split(), done.stderr) == (["SIGUSR1", "SIGTERM"], "")
