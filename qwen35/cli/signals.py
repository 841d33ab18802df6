"""Ctrl-C: the first asks the answer to stop, a second within the same answer ends the program at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupt"]


class Interrupt:
    """While entered, turns SIGINT into a flag that `pressed()` reads; the second SIGINT ends the process.

    The flag lets a device command finish before the answer stops, so that the state stays usable. Usable in
    the main thread only; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._pressed = False
        self._before: Any = None

    def pressed(self) -> bool:
        """Whether Ctrl-C came since it was entered."""
        return self._pressed

    def __enter__(self) -> Interrupt:
        self._pressed = False
        try:
            self._before = signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # not the main thread
            self._before = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            os.write(2, b"\n")
            # The default action, so that a calling shell sees that the program was interrupted.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        self._pressed = True
