"""What the command line writes: answers to stdout, everything else to stderr, both robust to closed pipes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, TextIO

from amdxdna.programs import own_commands
from amdxdna.text import one_line
from qwen35.errors import explain

__all__ = ["Answer", "Progress", "notice", "report"]

DIM, PLAIN = "\x1b[2m", "\x1b[22m"


def notice(text: str, stream: TextIO | None = None) -> None:
    """One line on stderr, begun with the program's name. A closed stderr is no reason to fail."""
    stream = stream or sys.stderr
    with contextlib.suppress(OSError, ValueError):
        stream.write(writable(f"qwen35: {own_commands(one_line(text))}\n", stream))
        stream.flush()


def report(error: BaseException) -> None:
    """An error in one line on stderr; the whole of it before that with QWEN35_DEBUG=1."""
    if os.environ.get("QWEN35_DEBUG", "0") not in ("", "0"):
        import traceback

        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(type(error), error, error.__traceback__)
    notice(f"error: {explain(error)}")


def coloured(stream: Any) -> bool:
    """Whether to dim text on `stream`: a terminal that wants it (NO_COLOR and TERM=dumb say no)."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"


#: Control characters as a terminal may show them; newline and tab are left as they are.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0)) if code not in (9, 10)}
#: So are the characters that turn the direction of the text behind them; single marks, which text has, stay.
_VISIBLE |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def writable(text: str, stream: Any) -> str:
    """`text` as `stream` can take it.

    What its encoding lacks is replaced. On a terminal control characters are spelled out: a model's text must
    not move the cursor or switch the screen. Files and pipes get the text as it is.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if stream.isatty():
        text = text.translate(_VISIBLE)
    return text.encode(encoding, "replace").decode(encoding)


class Answer:
    """Streams one answer: text to stdout, reasoning to stderr (dimmed on a terminal), to stdout, or nowhere.

    Every piece is flushed. Reasoning ends with a newline before the text begins, and so does the answer.
    """

    def __init__(
        self, reasoning: str = "stderr", out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        """`reasoning` is `stderr`, `stdout` or `hide`."""
        self._out = out or sys.stdout
        self._thoughts = {"stderr": err or sys.stderr, "stdout": self._out, "hide": None}[reasoning]
        self._dim = self._thoughts is not None and coloured(self._thoughts)
        self._kind = ""
        self._last = "\n"

    def write(self, kind: str, piece: str) -> None:
        """One event of a Reply. Raises BrokenPipeError when nobody reads stdout any more."""
        stream = self._out if kind == "text" else self._thoughts
        if stream is None or not piece:
            return
        if kind != self._kind:
            self._finish()
            self._kind = kind
            if kind == "reasoning" and self._dim:
                stream.write(DIM)
        stream.write(writable(piece, stream))
        stream.flush()
        self._last = piece[-1]

    def end(self) -> None:
        """Ends the answer with a newline, an empty one too."""
        self._finish()
        if self._kind != "text":
            self._out.write("\n")
            self._out.flush()

    def _finish(self) -> None:
        stream = self._out if self._kind == "text" else self._thoughts
        if stream is None or not self._kind:
            return
        if self._kind == "reasoning" and self._dim:
            stream.write(PLAIN)
        if self._last != "\n":
            stream.write("\n")
        stream.flush()
        self._last = "\n"


class Progress:
    """How far loading, a prompt or a picture is: on a terminal's stderr only, and after half a second."""

    def __init__(self, stream: TextIO | None = None, enabled: bool = True) -> None:
        self._stream = stream or sys.stderr
        self._enabled = enabled and self._stream.isatty()
        self._began = time.monotonic()
        self._last = 0.0
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """`what` is "weights" (bytes), "prompt" (tokens) or "picture" (blocks of the tower)."""
        if not self._enabled:
            return
        now = time.monotonic()
        if done >= total:
            self.close()
        elif done and now - self._began > 0.5 and now - self._last > 0.1:
            self._last = now
            far = f"{done / total:.0%}" if what != "prompt" else f"{done:,} of {total:,} tokens"
            with contextlib.suppress(OSError):
                self._stream.write(f"\r\x1b[Kqwen35: {what} {far}")
                self._stream.flush()
            self._shown = True

    def close(self) -> None:
        """Takes the progress line away."""
        if self._shown:
            self._shown = False
            with contextlib.suppress(OSError):
                self._stream.write("\r\x1b[K")
                self._stream.flush()
