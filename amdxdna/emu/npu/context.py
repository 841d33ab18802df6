"""One context of the NPU: its heap window, its CUs, and its commands, which are executed in order.

Its worker executes them, or a thread that waits for them: see :mod:`amdxdna.emu.npu.inline`.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from amdxdna.emu import kernels
from amdxdna.emu.npu.heap import HeapWindow
from amdxdna.emu.npu.slot import Slot
from amdxdna.emu.threads import Started, start


class Reply(NamedTuple):
    """The firmware's answer to a chain: OK, or the first command that failed and its status."""

    status: int
    failed: int = 0
    """Index in the chain of the command that failed."""
    slot_status: int = 0


Done = Callable[[Reply], None]
Item = tuple[list[Slot], Done, float]
"""A chain, what is called with its answer, and when it came."""
Chain = Callable[["Context", list[Slot]], "Reply | None"]

LOOK_IN = 0.005
"""Seconds between the worker's looks at the queue while waiters run the commands. It takes a chain that it
sees twice, so one that nobody waits for begins at most twice as much later."""
LOOKS = 40
"""Looks at an empty queue until the worker sleeps again."""


class Cu:
    """A configured CU; `family` is that of its PDI once a command has loaded it."""

    __slots__ = ("family", "function", "pdi")

    def __init__(self, pdi: int, function: int) -> None:
        self.pdi = pdi
        self.function = function
        self.family: int | None = None


class Context:
    """State that the NPU keeps for one context. Belongs to :class:`~amdxdna.emu.npu.npu.Npu`."""

    def __init__(
        self,
        number: int,
        start_column: int,
        columns: int,
        pasid: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = number
        self.start_column = start_column
        self.columns = columns
        self.pasid = pasid
        self.heap = HeapWindow()
        self.cus: list[Cu] = []
        self.gone = threading.Event()
        """Set when the context is destroyed: whatever it waits for ends, and nothing is answered any more."""
        self.halt = kernels.Stop()
        """Set with it: ends a computation."""
        self.busy = False
        self._clock = clock
        self._wait = 0.0, 0.0
        """When the last wait of a command (hang, delay, injected fault) began, and when it is over."""
        self.queued_at = 0.0
        """When the chain came that is executed."""
        self.loaded: int | None = None
        """Family of the PDI that control code has loaded."""
        self.slot_index = 0
        self.stream: tuple[int, bytes] = (0, b"")
        """Device address and bytes of the stream being executed, for the health report."""
        self.known: dict[object, Any] = {}
        """What the NPU keeps about commands that come again."""
        self._queue: deque[Item] = deque()
        """Chains that are not over, the oldest first: it stays until it is answered."""
        self.turn = threading.Lock()
        """Held by the thread that executes the oldest chain."""
        self.bell: SimpleQueue[None] = SimpleQueue()
        self.inline = False
        """Waiters execute the chains: the worker is not woken for each."""
        self._worker: Started | None = None

    @property
    def idle(self) -> bool:
        """Whether every chain is over."""
        return not self._queue

    def wait(self, seconds: float | None) -> bool:
        """Waits `seconds` (None: for ever); True as soon as the context is gone."""
        with self.wait_of(seconds):
            return self.gone.wait(seconds)

    @contextlib.contextmanager
    def wait_of(self, seconds: float | None) -> Iterator[None]:
        """Notes, for the block, that the command which is executed waits for `seconds` (None: for ever)."""
        now = self._clock()
        self._wait = now, math.inf if seconds is None else now + seconds
        try:
            yield
        finally:
            self._wait = now, 0.0

    def end_wait(self) -> None:
        """What a command waits for has come: its thread need not have got the processor since."""
        self._wait = self._wait[0], 0.0

    @property
    def waiting(self) -> bool:
        """Whether a command is in a wait rather than computing. A wait that is over counts as computing, also
        when its thread has not got the processor since."""
        return self._clock() < self._wait[1]

    @property
    def waiting_since(self) -> float:
        """When the last wait of a command began."""
        return self._wait[0]

    def prepare(self, run: Chain) -> None:
        """Starts the worker, once. Callers are serialised. OSError: there can be no thread."""
        if self._worker is None:
            self._worker = start(f"amdxdna-emu context {self.id}", self._work, run)

    def enqueue(self, run: Chain, slots: list[Slot], done: Done, came: float | None = None) -> None:
        """Hands a chain to the worker, which is started by the first one. Callers are serialised.

        `came`: when, if not now.
        """
        self.prepare(run)
        self._queue.append((slots, done, self._clock() if came is None else came))
        if not self.inline:
            self.bell.put(None)

    def stop(self) -> None:
        """Ends the command the worker is in, and the worker; commands behind that one are dropped."""
        self.gone.set()
        self.halt.set()
        self.bell.put(None)

    @property
    def alive(self) -> bool:
        """Whether some thread may still be inside a command."""
        worker = None if self._worker is None else self._worker()
        return self.busy or (worker is not None and worker.is_alive())

    def join(self, seconds: float) -> None:
        """Waits for the command in progress and for the worker to end, `seconds` at most."""
        end = time.monotonic() + seconds
        worker = None if self._worker is None else self._worker()
        if worker is not None and worker is not threading.current_thread():
            worker.join(seconds)
        if self.turn.acquire(timeout=max(end - time.monotonic(), 0.0)):
            self.turn.release()

    def end(self, item: Item, reply: Reply | None) -> None:
        """Answers the oldest chain, if there is an answer, and takes it out."""
        if reply is not None and not self.gone.is_set():
            item[1](reply)
        self._queue.popleft()

    def _work(self, run: Chain) -> None:
        looks = 0
        seen: object = None
        while not self.gone.is_set():
            if not self.inline:
                if not self._step(run):
                    self.bell.get()
                looks = 0
                continue
            with contextlib.suppress(Empty):
                self.bell.get(timeout=LOOK_IN)
            head = self.oldest()
            if head is not None and head is seen:
                self._step(run)
            looks = 0 if head is not None else looks + 1
            seen = head
            if looks == LOOKS:
                # A chain that comes from now on rings the bell; one that has come is seen before any sleep.
                self.inline = False

    def oldest(self) -> Item | None:
        """The chain to execute next."""
        try:
            return self._queue[0]
        except IndexError:
            return None

    def _step(self, run: Chain) -> bool:
        """The worker executes the oldest chain; False when there is none, or it is in other hands."""
        if not self._queue or not self.turn.acquire(blocking=not self.inline):
            return False
        try:
            item = self.oldest()
            if item is None or self.gone.is_set():
                return False
            self.busy = True
            self.queued_at = item[2]
            try:
                reply = run(self, item[0])
            finally:
                self.busy = False
            self.end(item, reply)
            self.inline = False
            return True
        finally:
            self.turn.release()
