"""What a process has open."""

from __future__ import annotations

import contextlib
import gc
import os

from amdxdna import reaper


def descriptors() -> set[tuple[int, str]]:
    """Numbers and targets of the open descriptors, without what other tests left to the garbage collector."""
    gc.collect()
    reaper.reap()
    return opened()


def opened() -> set[tuple[int, str]]:
    """Numbers and targets of the open descriptors."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found
