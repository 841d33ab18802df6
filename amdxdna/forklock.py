"""Locks that a forked child finds open, whoever held them at the fork: that thread is not in the child.

What they guard is the parent's, and refused in the child by process id; the refusal must not wait.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, TypeVar

T = TypeVar("T")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


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
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the standard library does with its own


os.register_at_fork(after_in_child=_after_fork)
