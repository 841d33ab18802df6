"""Threads for calls that may have to wait."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from queue import SimpleQueue

from amdxdna.emu.driver.errors import error


class Workers:
    """Runs every task at once: a task never waits for another one to end. Threads are kept for the next."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def run(self, task: Callable[[], None]) -> None:
        """Starts a task, which raises nothing. Raises OSError(EAGAIN) when the system gives no thread."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                thread = threading.Thread(
                    target=self._main, daemon=True, name=f"{self._name} {self._threads + 1}"
                )
                try:
                    thread.start()
                except RuntimeError:
                    raise error(errno.EAGAIN) from None
                self._threads += 1
        self._tasks.put(task)

    def _main(self) -> None:
        while True:
            self._tasks.get()()
            with self._lock:
                self._idle += 1
