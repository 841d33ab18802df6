"""Locks that a forked child finds open, whoever held them at the fork: that thread is not in the child.

What they guard is the parent's, and refused in the child by process id; the refusal must not wait.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

from amdxdna.weak import LiveSet

T = TypeVar("T")

_locks: LiveSet[Any] = LiveSet()


def opened_by_fork(lock: T) -> T:
    """The lock, a threading.Lock or RLock; in a child that is forked later nobody holds it."""
    _locks.add(lock)
    return lock


def mutex() -> threading.Lock:
    """A Lock that a forked child finds open."""
    return opened_by_fork(threading.Lock())


def reentrant() -> threading.RLock:
    """An RLock that a forked child finds open."""
    return opened_by_fork(threading.RLock())


def _after_fork() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # as the standard library does with its own


os.register_at_fork(after_in_child=_after_fork)
