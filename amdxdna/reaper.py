"""What objects that were dropped without close() leave to do, and when it is done.

A finalizer can run in the middle of anything, also inside an emulated node's own critical sections, so it
only queues, by C code, into which no signal handler breaks. :func:`reap` does the work in the thread that
next allocates, closes or makes a context. What has to wait for a command stays with :func:`later`, and is
looked at again at each reap; nothing here blocks but :func:`collect`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from amdxdna.signals import section

PATIENCE = 4.0
"""Seconds that whoever is short of something waits for commands of dropped contexts: past the driver's own
limit of 2 s for a hung one."""

Later = Callable[[int], bool]
"""Given a deadline (CLOCK_MONOTONIC, ns): waits until then for its work to be possible and does it; true when
it is done. It may be called from several threads at once, and again after it was done."""

_unmaps: dict[Callable[[], None], object] = {}
_gone: deque[Finalizer] = deque()
_finalizers: dict[int, Finalizer] = {}
_queued: deque[Callable[[], None]] = deque()
_waiting: dict[Later, None] = {}
_here = threading.local()
_done = 0
"""How much has been given back: whoever is short of something looks whether it has grown."""


def _after_fork() -> None:
    """What the parent's garbage collector gave up is the parent's to give back."""
    _unmaps.clear()
    _gone.clear()
    _queued.clear()
    _waiting.clear()


os.register_at_fork(after_in_child=_after_fork)


class Finalizer(weakref.ref[Any]):
    """Has the next :func:`reap` do `action` when `owner` is gone, unless it is detached."""

    __slots__ = ("action",)
    action: Callable[[], None]

    def __new__(cls, owner: object, action: Callable[[], None]) -> Finalizer:
        return super().__new__(cls, owner, _gone.append)

    def __init__(self, owner: object, action: Callable[[], None]) -> None:
        super().__init__(owner, _gone.append)  # type: ignore[call-arg]  # as the docs of weakref say
        self.action = action
        _finalizers[id(self)] = self

    def detach(self) -> bool:
        """Forgets the action; true when it has been neither done nor forgotten before."""
        if _finalizers.pop(id(self), None) is None:
            return False
        del self.action
        return True


def unmapping(action: Callable[[], None]) -> Callable[[object], object]:
    """A destructor for :func:`ffi.gc` that has the next :func:`reap` do `action`, before anything else: a
    buffer's mapping ends before its handle does."""
    return partial(_unmaps.setdefault, action)


def enqueue(action: Callable[[], None]) -> None:
    """Has the next :func:`reap` do `action`. Never blocks."""
    _queued.append(action)


def later(action: Later) -> None:
    """Has every :func:`reap` try `action`, until it is done."""
    _waiting[action] = None


def reap() -> None:
    """Does what finalizers queued, in this thread. Errors are dropped: there is nobody to tell.

    Within an action it does nothing: the one that is at it goes on.
    """
    if (_unmaps or _queued or _gone or _waiting) and not getattr(_here, "reaping", False):
        _reap()


@section
def _reap() -> None:
    global _done
    _here.reaping = True
    try:
        while _unmaps or _queued or _gone:
            with contextlib.suppress(IndexError, KeyError, OSError):
                _next()
                _done += 1
        if _waiting:
            _try_waiting(0)
    finally:
        _here.reaping = False
    if _unmaps or _queued or _gone:
        _reap()


def _next() -> None:
    """Does one thing that is queued."""
    if _unmaps:
        _unmaps.popitem()[0]()
    elif _queued:
        _queued.popleft()()
    else:
        finalizer = _finalizers.pop(id(_gone.popleft()))  # KeyError: detached
        finalizer.action()


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
