"""The kernel log: its records, and what the driver said in it about a time."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import deque

KERNEL_LOG = "dev/kmsg"
"""The path by which :meth:`amdxdna.node.Node.text` gives the driver's lines."""
_KEPT_BYTES = 4 << 20
_MOST_BYTES = 1 << 28  # of a device or pipe that does not end
_RECORD_BYTES = 8192
_LINE_CHARACTERS = 2048  # a message has up to 1,024 bytes (PRINTKRB_RECORD_MAX, kernel/printk/internal.h)

_TICK = 0.01
"""Seconds by which a record's time may be too early: where its clock is read from ticks (HZ=100), one."""


def records(path: str | os.PathLike[str]) -> list[tuple[float, str]]:
    """The records of :func:`newest`."""
    return newest(path)[0]


def newest(path: str | os.PathLike[str]) -> tuple[list[tuple[float, str]], bool]:
    """(seconds since boot, text) of each record of /dev/kmsg, or of a copy, and whether older ones are left
    out: the newest 4 MiB are kept. Raises OSError; never waits.

    Format (Documentation/ABI/testing/dev-kmsg of Linux): "prefix,sequence,microseconds,flags;text", continued
    by lines that begin with a space.
    """
    # A read of /dev/kmsg gives one record; of a copy of it, in a file, many.
    blocks: deque[bytes] = deque()
    kept, left_out = 0, False
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if stat.S_ISREG(facts.st_mode) and facts.st_size > _KEPT_BYTES:
            os.lseek(fd, facts.st_size - _KEPT_BYTES, os.SEEK_SET)
            left_out = True
        total = 0
        while total < _MOST_BYTES:
            try:
                data = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten meanwhile
                continue
            if not data:
                break
            total += len(data)
            kept += len(data)
            blocks.append(data)
            while kept > _KEPT_BYTES:
                kept -= len(blocks.popleft())
                left_out = True
    finally:
        os.close(fd)
    lines = [line[:_LINE_CHARACTERS] for line in b"".join(blocks).decode(errors="replace").splitlines()]
    if left_out:
        del lines[:1]  # it may have lost its head
    found = []
    for line in lines:
        if line and not line.startswith(" "):
            head, _, text = line.partition(";")
            fields = head.split(",")
            when = fields[2] if len(fields) > 2 else ""
            seconds = int(when[:18]) / 1e6 if when.isascii() and when.isdecimal() else 0.0
            found.append((seconds, text or line))
    return found, left_out


def as_text(found: list[tuple[float, str]], word: str) -> str:
    """The records that hold `word`, a line each: seconds, a space, the text."""
    return "\n".join(f"{when:.6f} {text}" for when, text in found if word in text)


_DRIFT = 500e-6
"""By which share of the time since the boot the log's clock may be behind: NTP corrects CLOCK_MONOTONIC by at
most so much (MAXFREQ of include/linux/timex.h), and not local_clock()."""


def around(text: str | None, since: float, before: float) -> tuple[list[str], list[tuple[float, str]]]:
    """The lines of such a text, without their times, from `since` (CLOCK_MONOTONIC) on; and those of the
    `before` seconds until then, each with how many seconds it is earlier.

    By the log's clock. That is local_clock() (vprintk_store of kernel/printk/printk.c), which drifts from
    CLOCK_MONOTONIC and on some machines runs on in a suspend (T. Gleixner on LKML, 14 November 2017: "Re:
    [GIT pull] printk updates for 4.15"). A log that is ahead counts as if its newest line were of now. One
    that is behind does not show that it is: the lines before `since` go back further by what it may be.
    """
    timed = []
    for line in (text or "").split("\n"):
        when, _, said = line.partition(" ")
        with contextlib.suppress(ValueError):
            timed.append((float(when), said))
    if not timed:
        return [], []
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    since += max(0.0, max(timed)[0] - now) - _TICK
    before += _DRIFT * now
    return (
        [said for when, said in timed if when >= since],
        [(since - when, said) for when, said in timed if since - before <= when < since],
    )
