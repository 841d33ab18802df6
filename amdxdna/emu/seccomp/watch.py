"""Learns when nobody holds the program's side of a client any more: no descriptor and no mapping."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable
from typing import Any

from amdxdna.emu.driver.errors import error

_IN_CLOSE = 0x08 | 0x10
_IN_IGNORED = 0x8000
_EVENT = struct.Struct("<iIII")
_libc: Any = ctypes.CDLL(None, use_errno=True)


class CloseWatch:
    """inotify on memfds: the kernel reports the last close of an open file, as a driver's release is called.

    A second open of the memfd through /proc is what is watched; the memfd's own open reports nothing.
    """

    def __init__(self) -> None:
        """Raises OSError when the process has no inotify instance left."""
        self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise error(ctypes.get_errno())
        self._lock = threading.RLock()
        self._actions: dict[int, Callable[[], None]] = {}
        threading.Thread(target=self._main, daemon=True, name="amdxdna-emu closes").start()

    def add(self, fd: int, action: Callable[[], None]) -> None:
        """Calls `action`, which must not block, when a second open of `fd` is closed. Raises OSError."""
        with self._lock:
            number = _libc.inotify_add_watch(self._fd, f"/proc/self/fd/{fd}".encode(), _IN_CLOSE)
            if number < 0:
                raise error(ctypes.get_errno())
            self._actions[number] = action

    def drain(self) -> None:
        """Acts on every close so far: a process's own are known before its next system call is."""
        with self._lock:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                action = self._actions.pop(number, None)
                if action is not None and not mask & _IN_IGNORED:
                    _libc.inotify_rm_watch(self._fd, number)
                    action()

    def _main(self) -> None:
        while True:
            select.select([self._fd], [], [])
            self.drain()
