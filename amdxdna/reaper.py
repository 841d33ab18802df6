"""What objects that were dropped without close() leave to do, and when it is done.

A finalizer can run in the middle of anything, also inside an emulated node's own critical sections, so it
only queues (:func:`doom`). :func:`reap` does the work in the thread that next allocates, closes or makes a
context. What has to wait for a command stays with :func:`later`, and is looked at again at each reap; nothing
here blocks but :func:`collect`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable

PATIENCE = 4.0
"""Seconds that whoever is short of something waits for commands of dropped contexts: past the driver's own
limit of 2 s for a hung one."""

Later = Callable[[int], bool]
"""Given a deadline (CLOCK_MONOTONIC, ns): waits until then for its work to be possible and does it; true when
it is done. It may be called from several threads at once, and again after it was done."""

_unmaps: deque[Callable[[], None]] = deque()
_doomed: deque[Callable[[], None]] = deque()
_waiting: dict[Later, None] = {}
_here = threading.local()
_done = 0
"""How much has been given back: whoever is short of something looks whether it has grown."""


def _after_fork() -> None:
    """What the parent's garbage collector gave up is the parent's to give back."""
    _unmaps.clear()
    _doomed.clear()
    _waiting.clear()


os.register_at_fork(after_in_child=_after_fork)


def doom(action: Callable[[], None], first: bool = False, *,
         _unmaps: deque[Callable[[], None]] = _unmaps, _doomed: deque[Callable[[], None]] = _doomed) -> None:
    """Queues what a finalizer has to do for the next :func:`reap`. Never blocks.

    Unmapping goes `first`: a buffer's mapping ends before its handle does. It works without its module's
    globals, which are gone when the interpreter ends.
    """
    (_unmaps if first else _doomed).append(action)


def later(action: Later) -> None:
    """Has every :func:`reap` try `action`, until it is done."""
    _waiting[action] = None


def reap() -> None:
    """Does what finalizers queued, in this thread. Errors are dropped: there is nobody to tell.

    Within an action it does nothing: the one that is at it goes on.
    """
    global _done
    if not (_unmaps or _doomed or _waiting) or getattr(_here, "reaping", False):
        return
    _here.reaping = True
    try:
        while _unmaps or _doomed:
            with contextlib.suppress(IndexError, OSError):
                (_unmaps or _doomed).popleft()()
                _done += 1
        if _waiting:
            _try_waiting(0)
    finally:
        _here.reaping = False
    if _unmaps or _doomed:
        reap()


def _try_waiting(deadline: int) -> None:
    global _done
    for action in list(_waiting):
        if action in _waiting and action(deadline):
            _waiting.pop(action, None)
            _done += 1


def reap_some() -> bool:
    """:func:`reap`; true when anything was given back."""
    before = _done
    reap()
    return _done != before


def collect(seconds: float = 0.0, gained: Callable[[], bool] | None = None) -> bool:
    """For whoever is short of something: gives garbage back until `gained()`; what that says in the end.

    `gained` None: until anything was given back. In turn: what finalizers queued, a run of the garbage
    collector, a wait of `seconds` at most for commands of contexts that nobody has any more.
    """
    before = _done
    enough = gained or (lambda: _done != before)
    reap()
    if not enough():
        gc.collect()
        reap()
    if not enough() and _waiting and seconds > 0:
        _try_waiting(time.monotonic_ns() + int(seconds * 1e9))
        reap()
    return enough()
