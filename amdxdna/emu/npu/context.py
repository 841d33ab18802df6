"""One context of the NPU: its heap window, its CUs, and the worker that executes its commands in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from amdxdna.emu.npu.slot import Slot


class Reply(NamedTuple):
    """The firmware's answer to a chain: OK, or the first command that failed and its status."""

    status: int
    failed: int = 0
    """Index in the chain of the command that failed."""
    slot_status: int = 0


Done = Callable[[Reply], None]
Chain = Callable[["Context", list[Slot]], "Reply | None"]


class Chunk(NamedTuple):
    """A part of the device heap: device addresses from `device` on are at `host`."""

    device: int
    host: int
    size: int


class Cu:
    """A configured CU; `family` is that of its PDI once a command has loaded it."""

    __slots__ = ("family", "function", "pdi")

    def __init__(self, pdi: int, function: int) -> None:
        self.pdi = pdi
        self.function = function
        self.family: int | None = None


class Context:
    """State that the NPU keeps for one context. Belongs to :class:`~amdxdna.emu.npu.npu.Npu`."""

    def __init__(self, number: int, start_column: int, columns: int, priority: int, pasid: int) -> None:
        self.id = number
        self.start_column = start_column
        self.columns = columns
        self.priority = priority
        self.pasid = pasid
        self.heap: list[Chunk] = []
        self.cus: list[Cu] = []
        self.gone = threading.Event()
        """Set when the context is destroyed: whatever it waits for ends, and nothing is answered any more."""
        self.busy = False
        self.waiting = False
        """A command is in a wait (hang, delay, injected fault) rather than computing."""
        self.queued = 0
        self.finished = 0
        """Chains handed to the worker, and those it is through with."""
        self.slot_index = 0
        self.stream: tuple[int, bytes] = (0, b"")
        """Device address and bytes of the stream being executed, for the health report."""
        self._queue: SimpleQueue[tuple[list[Slot], Done] | None] = SimpleQueue()
        self._worker: threading.Thread | None = None

    def wait(self, seconds: float | None) -> bool:
        """Waits that long (None: for ever); True as soon as the context is gone."""
        self.waiting = True
        try:
            return self.gone.wait(seconds)
        finally:
            self.waiting = False

    def enqueue(self, run: Chain, slots: list[Slot], done: Done) -> None:
        """Hands a chain to the worker, which is started by the first one. Callers are serialised."""
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, args=(run,), daemon=True,
                                            name=f"amdxdna-emu context {self.id}")
            self._worker.start()
        self.queued += 1
        self._queue.put((slots, done))

    def stop(self) -> None:
        """Ends the worker after the command it is in; commands behind that one are dropped."""
        self.gone.set()
        self._queue.put(None)

    @property
    def alive(self) -> bool:
        """Whether the worker may still be inside a command."""
        return self._worker is not None and self._worker.is_alive()

    def join(self, seconds: float) -> None:
        """Waits for the worker to end, at most that long."""
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join(seconds)

    def _work(self, run: Chain) -> None:
        get, gone = self._queue.get, self.gone.is_set
        while True:
            item = get()
            if item is None or gone():
                return
            self.busy = True
            reply = run(self, item[0])
            self.busy = False
            self.finished += 1
            if reply is not None and not gone():
                item[1](reply)
            del item
