"""Timeline syncobjs: points that are signalled in order, and waiting for them (drm_syncobj.c).

A context's syncobj gets a point for every command: its sequence number.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable

from amdxdna._native import lib
from amdxdna.emu.driver.errors import error
from amdxdna.signals import interruptible

WAIT_ALL: int = lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL
WAIT_FOR_SUBMIT: int = lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT
WAIT_AVAILABLE = 4
WAIT_DEADLINE = 8
FOREVER = threading.TIMEOUT_MAX


class Timeline:
    """One syncobj. `submitted` and `done` are the last point added and the last one signalled (-1: none)."""

    def __init__(self, run_inline: Callable[[float], bool] = lambda seconds: False) -> None:
        """`run_inline(seconds)`: the waiting thread does the work, for one command; false: it cannot."""
        self._run_inline = run_inline
        self.submitted = -1
        self.done = -1
        self.lock = threading.Lock()
        self._waiters: list[tuple[int, bool, threading.Lock]] = []

    def add(self, point: int) -> None:
        """Notes that a command with this point was submitted, and wakes who waits for that."""
        with self.lock:
            self.submitted = point
            if self._waiters:
                self._wake()

    def signal(self, point: int) -> None:
        """Notes that every command up to this point is over, and wakes who waits for one of them."""
        with self.lock:
            self.done = point
            if self._waiters:
                self._wake()

    def _reached(self, point: int, available: bool) -> bool:
        if available:
            return self.submitted >= point and self.submitted >= 0
        # Point 0 stands for whatever was submitted last.
        return self.done >= (point or max(self.submitted, 0))

    def _wake(self) -> None:
        rest = []
        for waiter in self._waiters:
            if self._reached(waiter[0], waiter[1]):
                # A gate that waits on several timelines may be open already.
                with contextlib.suppress(RuntimeError):
                    waiter[2].release()
            else:
                rest.append(waiter)
        self._waiters = rest

    def reached(self, point: int, available: bool = False) -> bool:
        """Whether the point is signalled (or, for `available`, submitted)."""
        with self.lock:
            return self._reached(point, available)

    def subscribe(self, point: int, available: bool, gate: threading.Lock) -> bool:
        """Opens `gate` once the point is reached; True when it is already."""
        with self.lock:
            if self._reached(point, available):
                return True
            self._waiters.append((point, available, gate))
            return False

    def unsubscribe(self, gate: threading.Lock) -> None:
        """Takes a waiter back."""
        with self.lock:
            self._waiters = [w for w in self._waiters if w[2] is not gate]

    def wait(self, point: int, seconds: float, available: bool = False) -> bool:
        """Waits for `point`, `seconds` at most; whether it was reached.

        Interrupted by whatever a signal handler raises.
        """
        if self.reached(point, available):
            return True
        if seconds <= 0:
            return False
        if not available:
            end = time.monotonic() + seconds
            while seconds > 0 and self._run_inline(seconds):
                if self.reached(point):
                    return True
                seconds = max(end - time.monotonic(), 0.0)
        gate = threading.Lock()
        gate.acquire()
        if self.subscribe(point, available, gate):
            return True
        try:
            return interruptible(gate.acquire, True, min(seconds, FOREVER)) or self.reached(point, available)
        finally:
            self.unsubscribe(gate)


def wait_many(waits: list[tuple[Timeline, int]], deadline_ns: int, flags: int) -> int:
    """DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT: the index of a signalled point; `deadline_ns` is absolute.

    Raises OSError: EINVAL for a point not submitted without WAIT_FOR_SUBMIT, ETIME.
    """
    available = bool(flags & WAIT_AVAILABLE)
    if not flags & (WAIT_FOR_SUBMIT | WAIT_AVAILABLE):
        for timeline, point in waits:
            if timeline.submitted < point or timeline.submitted < 0:
                raise error(errno.EINVAL)
    if len(waits) == 1:
        timeline, point = waits[0]
        if timeline.wait(point, _left(deadline_ns), available):
            return 0
        raise error(errno.ETIME)
    if flags & WAIT_ALL:
        for timeline, point in waits:
            if not timeline.wait(point, _left(deadline_ns), available):
                raise error(errno.ETIME)
        return 0
    gate = threading.Lock()
    gate.acquire()
    try:
        for index, (timeline, point) in enumerate(waits):
            if timeline.subscribe(point, available, gate):
                return index
        while True:
            left = _left(deadline_ns)
            woken = left > 0 and interruptible(gate.acquire, True, min(left, FOREVER))
            for index, (timeline, point) in enumerate(waits):
                if timeline.reached(point, available):
                    return index
            if not woken:
                raise error(errno.ETIME)
    finally:
        for timeline, _ in waits:
            timeline.unsubscribe(gate)


def _left(deadline_ns: int) -> float:
    """Seconds until an absolute CLOCK_MONOTONIC time; 0 for a time in the past, and for 0 itself."""
    return max(deadline_ns - time.monotonic_ns(), 0) * 1e-9 if deadline_ns > 0 else 0.0
