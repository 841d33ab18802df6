"""Threads of the emulated device."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from amdxdna.signals import uninterrupted

Started = weakref.ref[threading.Thread]
"""A thread that was started here: None some time after its end."""

_kept: set[threading.Thread] = set()
"""The only owner of threads, until another is started: threading has a weak set of all, whose callbacks are
Python, and a Ctrl-C that comes in one, where an ended thread is dropped, is lost."""


def start(name: str, target: Callable[..., None], *arguments: Any) -> Started:
    """A daemon thread that runs `target`. No signal handler breaks in.

    Raises OSError (ENOMEM) where the process can have no more threads or memory.
    """
    try:
        return uninterrupted(_start, name, target, arguments)
    except (RuntimeError, MemoryError):  # "can't start new thread"
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None


def _start(name: str, target: Callable[..., None], arguments: tuple[Any, ...]) -> Started:
    for thread in _kept.copy():
        if not thread.is_alive():
            _kept.discard(thread)
    thread = threading.Thread(target=target, args=arguments, daemon=True, name=name)
    thread.start()
    _kept.add(thread)
    return weakref.ref(thread)
