"""The kernel log: its records, and what the driver last said in it."""

from __future__ import annotations

import os
import time

KERNEL_LOG = "dev/kmsg"
"""The path by which :meth:`amdxdna.node.Node.text` gives the driver's lines."""
_MOST_BYTES = 1 << 20
_RECORD_BYTES = 8192
_LINE_CHARACTERS = 2048  # a message has up to 1,024 bytes (PRINTKRB_RECORD_MAX, kernel/printk/internal.h)


def records(path: str | os.PathLike[str]) -> list[tuple[float, str]]:
    """(seconds since boot, text) of each record of /dev/kmsg, or of a copy. Raises OSError; never waits.

    Format (Documentation/ABI/testing/dev-kmsg of Linux): "prefix,sequence,microseconds,flags;text", continued
    by lines that begin with a space.
    """
    # A read of /dev/kmsg gives one record; of a copy of it, in a file, many.
    lines: list[str] = []
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = 0
        while size < _MOST_BYTES:
            try:
                data = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten meanwhile
                continue
            if not data:
                break
            size += len(data)
            lines += [line[:_LINE_CHARACTERS] for line in data.decode(errors="replace").splitlines()]
    finally:
        os.close(fd)
    found = []
    for line in lines:
        if line and not line.startswith(" "):
            head, _, text = line.partition(";")
            fields = head.split(",")
            when = fields[2] if len(fields) > 2 else ""
            seconds = int(when[:18]) / 1e6 if when.isascii() and when.isdecimal() else 0.0
            found.append((seconds, text or line))
    return found


def as_text(found: list[tuple[float, str]], word: str) -> str:
    """The records that hold `word`, a line each: seconds, a space, the text."""
    return "\n".join(f"{when:.6f} {text}" for when, text in found if word in text)


def last_said(text: str | None, seconds: float) -> str:
    """The newest line of such a text, without its time, if it is at most `seconds` old; else empty."""
    when, _, said = (text or "").rpartition("\n")[2].partition(" ")
    try:
        age = time.clock_gettime(time.CLOCK_MONOTONIC) - float(when)
    except ValueError:
        return ""
    return said if age <= seconds else ""
