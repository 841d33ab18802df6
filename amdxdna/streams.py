"""A command line's standard streams as its caller left them: closed, full, without a reader."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any


class StdoutError(OSError):
    """Stdout cannot be written, for another reason than that its reader went away; `strerror` says why."""


class _Stdout(io.FileIO):
    def __init__(self, fd: int, closed: bool = False) -> None:
        super().__init__(fd, "w", closefd=False)
        self.name = "<stdout>"  # as Python's own
        self._absent = closed

    def write(self, data: Any, /) -> int:
        """As FileIO's. Raises StdoutError, and BrokenPipeError."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            why = "it is closed" if self._absent else error.strerror
            raise StdoutError(error.errno, f"stdout cannot be written: {why}") from None


def require_streams() -> None:
    """Makes streams of those that the caller closed, and stdout one that says what is wrong with it.

    A stream that the caller closed is None: stdin then reads as empty, stderr swallows what it gets, and
    stdout, whose results must not be lost unsaid, cannot be written.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 (for the life of the process)
    out = sys.stdout
    if out is None:
        raw = _Stdout(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), closed=True)
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw))
    elif out is sys.__stdout__ and isinstance(out, io.TextIOWrapper):
        with contextlib.suppress(OSError):
            out.flush()
        raw = _Stdout(out.fileno())
        sys.stdout = io.TextIOWrapper(
            raw if isinstance(out.buffer, io.RawIOBase) else io.BufferedWriter(raw),  # python -u
            out.encoding,
            out.errors,
            line_buffering=out.line_buffering,
            write_through=out.write_through,
        )
        sys.stdout.mode = "w"  # type: ignore[misc]
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def flushed(status: int, tell: Callable[[str], None]) -> int:
    """Writes out what the streams hold, while a failure can still be told and counted.

    What is left for the interpreter's end would end it with status 120 and a report.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard(1)
        status = status or 1
    except (OSError, ValueError) as error:
        discard(1 if sys.stdout.closed else sys.stdout.fileno())
        if not status:
            text = error.strerror if isinstance(error, OSError) else str(error)
            tell(f"error: {'' if isinstance(error, StdoutError) else 'stdout cannot be written: '}{text}")
        status = status or 1
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        discard(2)
    return status


def discard(fd: int) -> None:
    """Lets a stream's descriptor lead nowhere: what is still buffered for it goes there."""
    null = os.open(os.devnull, os.O_WRONLY)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)
