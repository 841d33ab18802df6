"""Files whose names come from outside: regular ones only, opened without waiting, read with a bound.

A FIFO waits in open for a writer, a device or socket never ends, and opening some devices does things
(watchdogs, tapes). So what is no regular file is refused by its name, and again once it is open.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Protocol

from amdxdna.signals import section

_BLOCK, _MOST = 1 << 12, 1 << 20
_TEXT = 16 << 20
"""Bytes of a text: /proc/cpuinfo has some 1.5 KiB a processor, and Linux has at most 8,192 of them on x86."""


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


@section
def open_regular(path: str | os.PathLike[str]) -> io.FileIO:
    """A regular file, open for reading. Raises OSError with its reason for everything else, at once.

    Unbuffered: reads go to the kernel as they are asked for.
    """
    _require_regular(os.stat(path), path)
    file = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    try:
        _require_regular(os.fstat(file.fileno()), path)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """A regular file's contents. Raises OSError: EFBIG beyond `most` bytes; otherwise as open_regular."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            data = b"" if size > most else read_up_to(file, most, size)
        except OSError as error:  # of /proc, /sys or a bad disk: without the path
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    if max(size, len(data)) > most:
        raise OSError(errno.EFBIG, f"longer than {most:,} bytes", os.fspath(path))
    return data


def read_text(path: str | os.PathLike[str]) -> str:
    """A text file of /sys, /proc or /etc, or of a copy of them. Raises OSError as read_regular does.

    Bytes that are no UTF-8 become U+FFFD.
    """
    return read_regular(path, _TEXT).decode(errors="replace")


def read_up_to(file: _Reader, most: int, expected: int = 0) -> bytes:
    """What comes until the end, or `most` + 1 bytes of it. Memory grows with what comes.

    `expected` bytes are asked for first. For pipes too, and files that grow or tell no size (/proc).
    """
    blocks: list[bytes] = []
    left = most + 1
    ask = expected + 1
    while left > 0 and (block := file.read(min(left, ask))):
        blocks.append(block)
        left -= len(block)
        ask = min(_BLOCK << len(blocks), _MOST)
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _require_regular(facts: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
