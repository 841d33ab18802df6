"""Prompts and pictures from files, pipes and stdin, read no further than one can be long."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import shlex
import stat
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from amdxdna.files import read_up_to
from qwen35.errors import UsageError
from qwen35.imageformats import BEGINNING

__all__ = [
    "STDIN",
    "TOKEN_BYTES",
    "Endless",
    "most_bytes",
    "read_line",
    "read_picture",
    "read_piped",
    "read_prompt",
]

STDIN = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
"""Names of stdin."""

TOKEN_BYTES = 512
"""Tokenizer.most_bytes of Qwen3.5's vocabulary; prompts are read before a bundle's is."""


_LONGEST_LINE = 256 << 20
"""Of a line that is too long, what is skipped to find its end."""


class Endless(UsageError):
    """Input that never comes to the end of a line."""


def most_bytes(max_ctx: int) -> int:
    """Bytes beyond which no text fits a context of `max_ctx` tokens."""
    return max_ctx * TOKEN_BYTES


def read_prompt(path: str, max_ctx: int, waiting: Callable[[], None] | None = None) -> str:
    """The text of a file, a pipe (`<(command)`) or, for -, stdin. Raises UsageError.

    What is longer than any prompt is refused after that many bytes, however much would follow. `waiting()` is
    called once, when nothing has come for a second: a FIFO that nobody writes to. A file in which more is
    waited for (/proc/kmsg) has no end, and is refused then.
    """
    where, most = "stdin" if path == "-" else path, most_bytes(max_ctx)
    try:
        if path == "-":
            data = read_up_to(_Watched(sys.stdin.buffer, waiting), most)
        else:
            # O_NONBLOCK: the open of a FIFO would wait for a writer, without a word.
            with io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)) as file:
                data = read_up_to(_Watched(file, waiting), most)
    except OSError as error:
        raise UsageError(f"cannot read the prompt: {error.strerror}", where) from None
    if len(data) > most:
        raise _too_long(max_ctx, where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if BEGINNING.match(data):
            name = "-" if path == "-" else shlex.quote(path)
            raise UsageError(
                "this is a picture, not a prompt", where, f"give it with --image {name}"
            ) from None
        raise UsageError(f"not UTF-8 at byte {error.start}", where, "convert the prompt first") from None


def read_picture(most: int, waiting: Callable[[], None] | None = None) -> bytes:
    """The picture on stdin, or the first `most` + 1 bytes of what is longer. `waiting` as for read_prompt.

    Raises UsageError for a terminal, for nothing, and for what cannot be read.
    """
    try:
        if sys.stdin.isatty():
            raise UsageError("a terminal gives no picture", "--image -", "pipe one in, or name its file")
        data = read_up_to(_Watched(sys.stdin.buffer, waiting), most)
    except OSError as error:
        raise UsageError(f"cannot read the picture: {error.strerror}", "stdin") from None
    if not data:
        raise UsageError("no picture came", "stdin", "pipe one in, or name its file")
    return data


class _Watched:
    """Reads what is there, and tells once when nothing comes for a second."""

    def __init__(self, file: Any, waiting: Callable[[], None] | None) -> None:
        self._file, self._waiting = file, waiting
        self._poll: select.poll | None = None
        self._regular = False
        with contextlib.suppress(OSError, ValueError):  # a stream in memory has no descriptor
            fd = file.fileno()
            self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)

    def read(self, size: int) -> bytes | None:
        """At most `size` bytes, none at the end."""
        while True:
            if self._poll is not None and not self._poll.poll(1000):
                if self._regular:
                    raise OSError(errno.EINVAL, "it has no end: more is waited for")
                # A FIFO without a writer is at its end for read, and for poll not before one has left it.
                if self._waiting is not None:
                    self._waiting()
                    self._waiting = None
                self._poll.poll()
            read = getattr(self._file, "read1", self._file.read)
            found: bytes | None = read(size)
            if found is not None:  # another reader was faster
                return found


def read_piped(max_ctx: int, waiting: Callable[[], None], *, sockets: bool = False) -> str:
    """What a pipe or file on stdin holds, to its end; empty for a terminal or a device such as /dev/null.

    A socket is read when `sockets`: what starts programs may leave one there that says nothing. `waiting()`
    is called when nothing has come for a second. Raises UsageError as :func:`read_prompt`.
    """
    try:
        fd = sys.stdin.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError):
        return ""
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or (sockets and stat.S_ISSOCK(mode))):
        return ""
    return read_prompt("-", max_ctx, waiting)


def read_line(file: BinaryIO, max_ctx: int) -> str | None:
    """The next line without its end, None at the end of the input; bytes that are not UTF-8 are replaced.

    Raises UsageError for a line longer than any prompt; what is left of it is skipped. Where that does not
    end either (/dev/zero), Endless, after which nothing can be read.
    """
    most = most_bytes(max_ctx)
    line = file.readline(most + 2)  # with a line end of two bytes
    text = line.rstrip(b"\r\n")
    if len(text) > most:
        left = _LONGEST_LINE
        while line and not line.endswith(b"\n"):
            line = file.readline(1 << 20)
            left -= len(line)
            if left < 0:
                raise Endless("a line does not end", "stdin", f"{_LONGEST_LINE >> 20:,} MiB of it were read")
        raise _too_long(max_ctx, "a line of stdin")
    return text.decode("utf-8", "replace") if line else None


def _too_long(max_ctx: int, where: str) -> UsageError:
    return UsageError(
        f"the prompt is over {most_bytes(max_ctx):,} bytes, and {max_ctx:,} tokens of context cannot hold "
        f"more (a token is {TOKEN_BYTES} bytes at most)",
        where,
        "shorten the prompt or raise --max-ctx",
    )
