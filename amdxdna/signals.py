"""Critical sections that no signal handler breaks into.

Python runs signal handlers in the main thread, between any two of its bytecodes, and what a handler raises
(KeyboardInterrupt, SystemExit, an exception of the user's) leaves whatever function it finds there. A kernel
does not know this: a system call is over, or was never begun, when the handler runs.
:func:`uninterrupted` calls a function in that way. Meanwhile each Python handler is replaced by one that
notes the signal; at the end the handlers are back and those of the noted signals are called, so that a
handler's exception comes out of the call when its work is whole. (They are not sent again: who listens on
:func:`signal.set_wakeup_fd`, as asyncio does, was told when the signal came.) :func:`interruptible` is the
way out for a wait inside: handlers run, and raise, in it.

Only the main thread is concerned; elsewhere both are plain calls. SIG_DFL, SIG_IGN and handlers in C stay as
they are. Handlers themselves can be replaced by :func:`signal.signal` at any time but within a section.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
POLL_SECONDS = 0.05
"""Seconds after which a section that waits for a lock lets handlers in."""


class Lock(Protocol):
    """A lock of threading's."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...


# What signal.signal and signal.getsignal call: those wrap numbers in enums, for several times the price.
_c: Any = importlib.import_module("_signal")
_get: Callable[[int], Any] = _c.getsignal
_set: Callable[[int, Any], Any] = _c.signal

_NUMBERS = tuple(
    sorted(
        int(number)
        for number in signal.valid_signals()
        - {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    )
)
"""The signals that are put off: every one but KILL and STOP, which have no handlers, and those of a fault:
the instruction that made it is repeated as soon as Python has noted it, so no handler in Python ends it."""


class _Main:
    """What the main thread is in. Only that thread changes it."""

    def __init__(self) -> None:
        self.ident = threading.main_thread().ident
        self.noting = False
        """In a section, and not in one of its waits."""
        self.replaced = False
        """The handlers in `numbers` are :meth:`note`."""
        self.noted: dict[int, FrameType | None] = {}
        """Signals that came in the section, in their order, with the frames they found: each number once, as
        the kernel keeps a blocked one."""
        self.originals: dict[int, Any] = {}
        self.seen: list[Any] = []
        """The handlers of all signals when `numbers` was made."""
        self.numbers: list[int] = []
        """Signals with a handler in Python."""
        self.handler = self.note

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal: in a section later; in its waits, and while the handlers are exchanged, now."""
        if self.noting:
            self.noted.setdefault(number, frame)
        else:
            self.originals[number](number, frame)

    def look(self, found: list[Any]) -> None:
        """Learns which signals have handlers in Python."""
        self.seen = []
        self.numbers = []
        for number, handler in zip(_NUMBERS, found, strict=True):
            if callable(handler):
                self.numbers.append(number)
                if handler is not self.handler:
                    self.originals[number] = handler
        self.seen = found


MAIN = _Main()


def _after_fork() -> None:
    """In a child of another thread than the main one, nobody comes back to end the section."""
    if MAIN.ident == get_ident():
        return
    MAIN.ident = get_ident()
    MAIN.noting = MAIN.replaced = False
    MAIN.noted.clear()
    _restore()


os.register_at_fork(after_in_child=_after_fork)


def uninterrupted(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `function`; what a signal handler raises meanwhile is raised at its end, in place of its value.

    Sections may lie in each other: the outermost counts.
    """
    main = MAIN
    if main.noting or get_ident() != main.ident:
        return function(*args, **kwargs)
    if main.replaced:
        # A handler that runs in a section's wait.
        try:
            main.noting = True
            return function(*args, **kwargs)
        finally:
            main.noting = False
            if main.noted:
                _handle_noted()
    found = [*map(_get, _NUMBERS)]
    if found != main.seen:
        main.look(found)
    handler = main.handler
    try:
        main.replaced = True
        for number in main.numbers:
            _set(number, handler)
        main.noting = True
        return function(*args, **kwargs)
    finally:
        main.noting = main.replaced = False
        try:
            for number in main.numbers:
                if _get(number) is handler:  # no handler that ran in a wait has set another
                    _set(number, main.originals[number])
        except BaseException:
            # A handler that is back may raise before the rest are.
            _restore()
            raise
        finally:
            if main.noted:
                _handle_noted()


def _restore() -> None:
    """Puts the handlers back that are not."""
    main = MAIN
    try:
        for number in main.numbers:
            if _get(number) is main.handler:
                _set(number, main.originals[number])
    except BaseException:
        _restore()
        raise


def _handle_noted() -> None:
    """Calls the handlers of the signals that were noted, whatever each raises."""
    main = MAIN
    try:
        while main.noted:
            number = next(iter(main.noted))
            frame = main.noted.pop(number)
            handler = _get(number)
            if handler is main.handler:
                handler = main.originals[number]
            if callable(handler):  # none that ran before has taken it away
                handler(number, frame)
    finally:
        if main.noted:
            _handle_noted()


def interruptible(wait: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `wait`, which blocks and changes nothing, so that signal handlers run and may raise in it."""
    main = MAIN
    if not main.noting or get_ident() != main.ident:
        return wait(*args, **kwargs)
    try:
        main.noting = False
        if main.noted:
            _handle_noted()
        return wait(*args, **kwargs)
    finally:
        main.noting = True


def section(function: Callable[P, T]) -> Callable[P, T]:
    """Makes every call of `function` one of :func:`uninterrupted`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return uninterrupted(function, *args, **kwargs)

    return call


_importing: Any = threading.RLock()
_forks_wait = False


def _let_forks_wait() -> None:
    """From now on a fork waits for the imports under way. Holds the lock.

    A fork runs the hooks that came last first, and an import may ask for logging's lock, for which logging
    has such a hook: this one has to come later, so that both take the two locks in one order.
    """
    global _forks_wait
    if not _forks_wait:
        importlib.import_module("logging")
        os.register_at_fork(
            before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_in_child
        )
        _forks_wait = True


def _in_child() -> None:
    try:
        _importing.release()
    except RuntimeError:  # a handler's exception has cut the wait before the fork short
        _importing._at_fork_reinit()


def imports(*names: str) -> None:
    """Imports modules, each whole: what a handler raises comes when they are there, and a fork waits for it.

    An import that is cut short is begun again by the next one, which numpy does not survive: the submodules
    and extensions that were ready are not run again. In the child of a fork in the middle of another
    thread's, the next one would wait for that thread. Raises what an import raises.
    """
    for name in names:
        if name not in sys.modules:
            uninterrupted(_import, name)


def _import(name: str) -> None:
    with _importing:
        _let_forks_wait()
        importlib.import_module(name)


def _nothing() -> None:
    pass


def let_in() -> None:
    """Has the handlers of signals that have come in this section run, and raise, now."""
    interruptible(_nothing)


def acquire(lock: Lock, seconds: float = threading.TIMEOUT_MAX) -> bool:
    """Takes a lock in a section, within `seconds`; false when it could not.

    Handlers run while it waits; where one raises, the lock is not taken.
    """
    if lock.acquire(False):
        return True
    end = time.monotonic() + seconds
    while True:
        let_in()
        left = end - time.monotonic()
        if left <= 0:
            return lock.acquire(False)
        if lock.acquire(True, min(POLL_SECONDS, left)):
            return True
