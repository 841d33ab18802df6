"""The threads that receive a program's calls: one at a time, and another where that one is held up."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.store import memfd_device
from amdxdna.emu.seccomp.call import Call
from amdxdna.emu.seccomp.tree import Tree

_PATIENCE = 0.25
"""Seconds; a call that keeps the receiver for twice as long goes on beside the others' calls."""
_LAST_WAIT = 1.0
"""Seconds for each receiver that is held up when the program has ended."""


class Receivers:
    """Passes each call that concerns the device, with its path, to `dispatch`, in the order of their coming.

    A call may hold up its receiver: memory of the program's that nobody fills (userfaultfd), or a path of a
    file system that does not answer. Such a read has no time limit: it goes on until it has what it waits
    for, or its process ends. So another receiver takes the place of one that is held up; the calls of both
    may be dispatched at the same time then.
    """

    def __init__(
        self, listener: int, tree: Tree, opens: Callable[[], int], dispatch: Callable[[Call, bytes], None]
    ) -> None:
        """`opens`: how many of the device there are. Receives from :meth:`start` on. Raises OSError."""
        self._listener, self._tree, self._opens, self._dispatch = listener, tree, opens, dispatch
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._over = threading.Event()
        self._interests: list[Any] = []
        """Of each receiver there was, the present one's last."""
        self._threads: list[threading.Thread] = []
        self._overseer = threading.Thread(target=self._oversee, name="amdxdna-emu overseer")

    @property
    def seen(self) -> int:
        """Calls that came."""
        return sum(int(each.seen) for each in self._interests)

    def start(self) -> None:
        """Begins. Raises RuntimeError where the system gives no thread."""
        lib.xdna_notice_start(self._listener)
        self._begin()
        self._overseer.start()

    def close(self) -> None:
        """Ends the receivers, once the program has ended."""
        self._over.set()
        if self._overseer.ident is not None:
            self._overseer.join()
        os.eventfd_write(self._stop, 1)
        for thread in self._threads:
            thread.join(_LAST_WAIT)

    def _begin(self) -> None:
        interest = ffi.new("struct xdna_interest *")
        # Not waited for at the end of the interpreter: what holds it up need not be a process of the program.
        thread = threading.Thread(
            target=self._receive, args=(interest,), daemon=True, name="amdxdna-emu calls"
        )
        thread.start()
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        self._interests.append(interest)

    def _oversee(self) -> None:
        last = -1
        while not self._over.wait(_PATIENCE):
            present = self._interests[-1]
            now = int(present.seen) if present.busy else -1
            if now >= 0 and now == last:
                try:
                    self._begin()
                except RuntimeError:  # no thread to be had: tried again
                    continue
                present.retired = 1
                now = -1
            last = now

    def _receive(self, interest: Any) -> None:
        notice = ffi.new("struct xdna_notice *")
        tree = self._tree
        texts = [ffi.new("char[]", text) for text in (tree.tokens, os.fsencode(tree.root + "/"), tree.listed)]
        interest.device = memfd_device()
        interest.node_dev, interest.node_ino = tree.node_file
        interest.tokens, interest.root, interest.listed = texts
        while not interest.retired:
            interest.opens = self._opens()
            found = lib.xdna_notice_next(self._listener, self._stop, interest, notice)
            if found == -errno.EINTR:
                continue
            if found <= 0:
                return
            self._dispatch(Call(self._listener, notice), ffi.string(notice.path))
