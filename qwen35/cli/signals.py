"""Ctrl-C: the first asks an answer to stop, a second ends the program at once. SIGTERM in long runs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Interrupt", "stopping"]

GRACE = 2.0
"""Seconds that the step under way has; an ordinary one takes less."""
_WAITING = (
    b"\nqwen35: stopping: waiting for the step under way, whose command may hang; Ctrl-C again ends at once\n"
)
_ENDING = (
    b"\nqwen35: stopping: the step under way does not end, a command may hang: its hardware context is given "
    b"up, within ten seconds; Ctrl-C again ends at once\n"
)


class Interrupt:
    """While entered, turns SIGINT into a flag that `pressed()` reads; the second SIGINT ends the process.

    The flag lets a device command finish before the answer stops, so that the state stays usable. If nobody
    has read it :data:`GRACE` seconds later, a line says what is waited for; with `ends` a KeyboardInterrupt
    ends the step then, and the program with it. Uses SIGALRM. In the main thread only; elsewhere it does
    nothing.
    """

    def __init__(self, ends: bool = False) -> None:
        self._ends = ends
        self._pressed = False
        self._before: dict[int, Any] = {}

    def pressed(self) -> bool:
        """Whether Ctrl-C came since it was entered. No step is under way where this is asked."""
        if self._pressed and self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._pressed

    def __enter__(self) -> Interrupt:
        self._pressed = False
        with contextlib.suppress(ValueError):  # not the main thread
            for number, handler in ((signal.SIGALRM, self._late), (signal.SIGINT, self._handle)):
                self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        # SIGINT first: its handler sets the timer, whose signal has no handler afterwards.
        before, self._before = self._before, {}
        if not before:
            return
        try:
            signal.signal(signal.SIGINT, before[signal.SIGINT])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before[signal.SIGALRM])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            os.write(2, b"\n")
            # The default action, so that a calling shell sees that the program was interrupted.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        self._pressed = True
        signal.setitimer(signal.ITIMER_REAL, GRACE)

    def _late(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, _ENDING if self._ends else _WAITING)
        if self._ends:
            raise KeyboardInterrupt


@contextlib.contextmanager
def stopping() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does; the list gets those that came.

    In the main thread only; elsewhere it does nothing.
    """
    came: list[int] = []

    def stop(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {
            number: signal.signal(number, stop)
            for number in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
