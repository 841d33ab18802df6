"""What the system shows of a pool of threads: how many they are, what they block, who does the work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.conformance.kit import until


def counted(count: int) -> None:
    """Waits until this process has `count` threads."""
    until(lambda: len(os.listdir("/proc/self/task")) == count, 60, f"{count} threads")


def masks() -> list[int]:
    """The signals from 1 to 31 that each thread blocks, the main thread's first, without KILL and STOP."""
    found = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda path: int(path.name)):
        (line,) = (x for x in (task / "status").read_text().splitlines() if x.startswith("SigBlk:"))
        found.append(int(line.split()[1], 16) & 0x7FFFFFFF & ~(1 << 8) & ~(1 << 18))
    return found


ALL = 0x7FFFFFFF & ~(1 << 8) & ~(1 << 18)
"""The mask of a thread that takes no signal."""


def shared(work: Callable[[], object]) -> None:
    """Waits until others than the calling thread did a fifth of what one call of `work` computes."""

    def others() -> bool:
        own, whole = time.thread_time(), time.process_time()
        work()
        own, whole = time.thread_time() - own, time.process_time() - whole
        return own < 0.8 * whole

    until(others, 60, "a share of the other threads'")
