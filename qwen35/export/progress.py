"""Progress of a long write on stderr: percent, MB/s and the time left."""

from __future__ import annotations

import sys
import time
from typing import TextIO

__all__ = ["Progress"]

_TTY_SECONDS = 0.2
_LOG_SECONDS = 10.0


class Progress:
    """Counts bytes of `total` and says so: one line overwritten on a terminal, else a line every ten seconds.

    A `total` of 0 is not known: how much is done is told then, and how fast. A context manager; not
    thread-safe. `quiet` says nothing.
    """

    def __init__(self, label: str, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.label, self.total, self.done = label, max(total, 0), 0
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._tty = self._stream.isatty()
        self._start = self._last = time.monotonic()
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tty and self._width and not self._quiet:
            print(file=self._stream)

    def add(self, nbytes: int) -> None:
        """`nbytes` more are written."""
        self.done += nbytes
        now = time.monotonic()
        wait = _TTY_SECONDS if self._tty else _LOG_SECONDS
        finished = 0 < self.total <= self.done
        if self._quiet or (now - self._last < wait and not (finished and (self._tty or self._width))):
            return
        self._last = now
        self._show(now - self._start)

    def _show(self, seconds: float) -> None:
        rate = self.done / max(seconds, 1e-6)
        done, total = self.done / 1e6, self.total / 1e6
        if self.total:
            left = max(self.total - self.done, 0) / max(rate, 1.0)
            text = f"{self.label}: {100 * self.done // self.total:3d}%  {done:,.0f} of {total:,.0f} MB"
            text += f"  {rate / 1e6:,.0f} MB/s  {clock(left)} left"
        else:
            text = f"{self.label}: {done:,.0f} MB  {rate / 1e6:,.0f} MB/s"
        if self._tty:
            print("\r" + text.ljust(self._width), end="", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)
        self._width = len(text)


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    whole = round(seconds)
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
