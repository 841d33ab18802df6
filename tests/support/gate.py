"""Commands that are under way for as long as a test wants, on a machine however busy."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from amdxdna.emu.kernels import runner
from amdxdna.emu.kernels.stream import Copy
from tests.support.binding import adder


class Gate:
    """Copies that add `addend` compute, on this process's emulated NPUs, until :meth:`open` or the end of
    their context. A command that computes is never timed out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, addend: int = 1) -> None:
        self.addend = addend
        self.reached = threading.Event()
        """A copy has come to the gate."""
        self._opened = threading.Event()
        compute = runner.compute

        def held(op: Any, at: list[int], threads: int, stop: Any) -> str:
            while isinstance(op, Copy) and op.addend == self.addend:
                self.reached.set()
                if self._opened.wait(0.005):
                    break
                if stop and stop[0]:
                    return runner.STOPPED
            return compute(op, at, threads, stop)

        monkeypatch.setattr(runner, "compute", held)

    def open(self, after: float = 0.0) -> None:
        """Lets every copy through, at once or after some seconds."""
        if after:
            timer = threading.Timer(after, self._opened.set)
            timer.daemon = True
            timer.start()
        else:
            self._opened.set()

    def kernel(self, device: Any, nbytes: int, variant: int = 0) -> Any:
        """dst = src + addend, which waits at the gate, and which no waiter's thread executes."""
        return adder(device, nbytes, self.addend, delay_us=1, variant=variant)
