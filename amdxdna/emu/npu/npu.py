"""The NPU2 of Strix parts as its firmware presents it: eight columns shared in time by a few contexts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from amdxdna.emu import identity
from amdxdna.emu.faults import Faults
from amdxdna.emu.kernels import stream as streams
from amdxdna.emu.kernels import transaction
from amdxdna.emu.npu import inline
from amdxdna.emu.npu.context import Context, Cu, Done
from amdxdna.emu.npu.executor import Executor
from amdxdna.emu.npu.health import Health
from amdxdna.emu.npu.memory import BadAddress, Memory
from amdxdna.emu.npu.schedule import Schedule
from amdxdna.emu.npu.slot import Slot
from amdxdna.emu.npu.status import Status
from amdxdna.emu.npu.tiles import COLUMN_BYTES, TileInfo
from amdxdna.emu.timing import TimingModel

MAX_CUS = 32
NO_CONTEXT = 0xFFFFFFFF
COMPUTES_NOTHING = (
    "instant: no kernel computes: only times mean something, what programs answer means nothing"
)


class Npu(Executor):
    """The device. Every method may be called from any thread; none blocks for a command.

    `slots`: contexts it can hold. `threads`: threads a kernel uses, 0 for one a core. `instant`: kernels
    return at once and compute nothing, for measuring what the host costs. `timing`: commands take the time
    that they take on such hardware. `log` receives one line for each thing worth telling a person (a PDI that
    cannot run, an injected fault, that nothing is computed).

    Management calls return a status word. Commands are answered through their `done` callback.
    """

    AIE_VERSION = (2, 0)
    FIRMWARE_VERSION = identity.FIRMWARE_VERSION

    def __init__(
        self,
        memory: Memory,
        *,
        slots: int = 16,
        columns: int = 8,
        threads: int = 0,
        instant: bool = False,
        timing: TimingModel | None = None,
        faults: Faults | None = None,
        log: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(memory, threads, instant, faults, log)
        self.clock = clock
        self.slots = slots
        self.columns = columns
        self.time(timing)
        self._lock = threading.Lock()
        self._contexts: dict[int, Context] = {}
        self._leaving: dict[int, Context] = {}
        if instant:
            log(COMPUTES_NOTHING)

    def time(self, model: TimingModel | None) -> None:
        """Makes commands take a model's time from now on; None: the time they take. Nothing is in flight."""
        self.schedule = None if model is None else Schedule(model, self.columns, self.clock, self.log)

    # -- management

    @property
    def contexts(self) -> int:
        """Contexts that exist."""
        return len(self._contexts)

    def context(self, number: int) -> Context:
        """The state of a context. KeyError: there is none of this id."""
        return self._contexts[number]

    @property
    def computing(self) -> bool:
        """Whether some command is being computed, or about to be, as opposed to waiting or hanging.

        Kernels take longer here than on an array: a watchdog must not take that for a hang.
        """
        return any(not (c.idle or c.waiting) for c in list(self._contexts.values())) or any(
            c.busy and not c.waiting for c in list(self._leaving.values())
        )

    @property
    def waiting_since(self) -> float:
        """When the command began its wait that was the last to begin; 0 when none waits."""
        return max((c.waiting_since for c in list(self._contexts.values()) if c.waiting), default=0.0)

    def tile_info(self) -> TileInfo:
        """Geometry of the array."""
        return TileInfo(COLUMN_BYTES, *self.AIE_VERSION, self.columns)

    def create_context(self, start_column: int = 0, columns: int = 8, *, pasid: int = 0) -> tuple[int, int]:
        """(status, context id): NO_CONTEXT_FREE when every slot is taken; the id is then 0xFFFFFFFF.

        Ids are the lowest free ones; an id whose worker is still inside a command is not free.
        """
        refused = self.faults.event("refuse", Status.NO_CONTEXT_FREE) if self.faults.active else 0
        if refused:
            self.log(f"injected fault: context refused with status {refused:#x}")
            return refused, NO_CONTEXT
        if not (start_column >= 0 and columns >= 1 and start_column + columns <= self.columns):
            return Status.INVALID_PARAM, NO_CONTEXT
        with self._lock:
            if len(self._contexts) >= self.slots:
                return Status.NO_CONTEXT_FREE, NO_CONTEXT
            for number in [n for n, context in self._leaving.items() if not context.alive]:
                del self._leaving[number]
            number = 0
            while number in self._contexts or number in self._leaving:
                number += 1
            self._contexts[number] = Context(number, start_column, columns, pasid, self.clock)
        return Status.OK, number

    def destroy_context(self, context: int) -> int:
        """Drops the context and every command in it unanswered; a hung command ends.

        A computing command ends within a fraction of a second, unfinished (its memory must stay until
        :meth:`Memory.release`), and a reply that was already on its way may still arrive.
        """
        with self._lock:
            found = self._contexts.pop(context, None)
            if found is None:
                return Status.INVALID_PARAM
            self._leaving[context] = found
            found.stop()
            if self.schedule is not None:
                self.schedule.wake()
                self.schedule.forget(context)
        return Status.OK

    def map_heap(self, context: int, address: int, size: int, *, add: bool = False) -> int:
        """Makes `size` bytes at host address `address` the next part of the context's device heap.

        The first call maps device address 0x4000000; later ones (`add`) continue where the last ended.
        INVALID_PARAM unless both numbers are multiples of 64 MiB, and past 512 MiB.
        """
        with self._lock:
            found = self._contexts.get(context)
            if found is None or not found.heap.map(address, size, add=add):
                return Status.INVALID_PARAM
        return Status.OK

    def config_cus(self, context: int, cus: Sequence[tuple[int, int]]) -> int:
        """Sets the context's CUs: (device address of the PDI, function) of each, at most 32.

        A PDI is loaded, and needed, until a command has used its CU. INVALID_PARAM for a context that has
        CUs.
        """
        refused = self.faults.event("refuse_config", Status.INVALID_PARAM) if self.faults.active else 0
        if refused:
            self.log(f"injected fault: CU configuration refused with status {refused:#x}")
            return refused
        with self._lock:
            found = self._contexts.get(context)
            if found is None or found.cus or not 1 <= len(cus) <= MAX_CUS:
                return Status.INVALID_PARAM
            found.cus = [Cu(*cu) for cu in cus]
        return Status.OK

    def health(self, context: int) -> tuple[int, Health]:
        """(status, report): where the context is."""
        found = self._contexts.get(context)
        if found is None:
            return Status.INVALID_PARAM, Health(context)
        report = Health(context)
        if found.busy:
            address, program = found.stream
            report.slot = found.slot_index
            report.transaction, offset = _stalled_at(program)
            report.dpu_pc = report.context_pc = address + offset
        return Status.OK, report

    def column_status(self, bitmap: int) -> bytes:
        """A dump of the columns in `bitmap`: one block of COLUMN_BYTES each, zero (nothing is modelled)."""
        return bytes(COLUMN_BYTES * bin(bitmap & ((1 << self.columns) - 1)).count("1"))

    # -- commands

    def prepare(self, context: int) -> None:
        """Has what :meth:`submit` needs for a context, lest that fails. OSError: there is no memory."""
        with self._lock:
            found = self._contexts.get(context)
            if found is not None:
                found.prepare(self.chain)

    def submit(self, context: int, slots: Iterable[Slot], done: Done) -> int:
        """Queues a chain; `done(reply)` is called later, from the context's worker, in order.

        Returns INVALID_PARAM at once, without calling `done`, for an unknown context, else OK.
        `done` must not block for long: it holds up the context.
        """
        with self._lock:
            found = self._contexts.get(context)
            if found is None:
                return Status.INVALID_PARAM
            came = None if self.schedule is None else self.schedule.asks(context)
            found.enqueue(self.chain, list(slots), done, came)
        return Status.OK

    def run_inline(self, context: int, seconds: float) -> bool:
        """Executes the context's oldest chain on the calling thread, which would wait for it for `seconds`.

        False, and nothing has been done, when that is not possible: see :mod:`amdxdna.emu.npu.inline`.
        """
        found = self._contexts.get(context)
        if found is None:
            return False
        if self.schedule is not None:
            self.schedule.asks(context)
        return inline.run_inline(self, found, seconds)

    def read(self, context: int, address: int, size: int) -> bytes:
        """Copies `size` bytes of a context's memory, device heap included; for front ends that decode lists.

        Raises BadAddress, also for an unknown context.
        """
        found = self._contexts.get(context)
        if found is None:
            raise BadAddress(address, size)
        return self._read(found, address, size)

    def close(self, seconds: float = 2.0) -> bool:
        """Destroys every context and waits for the workers, `seconds` at most in all; whether all have ended.

        One that computes still uses pointers. Call it again to wait on.
        """
        with self._lock:
            contexts = list(self._contexts)
        for number in contexts:
            self.destroy_context(number)
        end = time.monotonic() + seconds
        leaving = list(self._leaving.values())
        for left in leaving:
            left.join(max(end - time.monotonic(), 0.0))
        return not any(left.alive for left in leaving)


def _stalled_at(program: bytes) -> tuple[int, int]:
    """Index and byte offset of the operation that a stream can be waiting in (the first hang or delay)."""
    if transaction.is_transaction(program):
        with contextlib.suppress(streams.StreamError):
            for step in transaction.parse(program):
                if any(isinstance(op, (streams.Hang, streams.Delay)) for op in streams.parse(step.program)):
                    return step.op, step.offset
        return 0, 0
    with contextlib.suppress(streams.StreamError):
        offset = 12
        for index, op in enumerate(streams.parse(program)):
            if isinstance(op, (streams.Hang, streams.Delay)):
                return index, offset
            offset += 4 * (1 + len(op.fields()))
    return 0, 0
