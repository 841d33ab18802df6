"""The NPU2 of Strix parts as its firmware presents it: eight columns shared in time by a few contexts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from amdxdna._native import ffi
from amdxdna.emu import identity, kernels
from amdxdna.emu.faults import Fault, Faults
from amdxdna.emu.kernels import stream as streams
from amdxdna.emu.kernels import transaction
from amdxdna.emu.kernels.families import PDI_BYTES
from amdxdna.emu.npu import inline
from amdxdna.emu.npu.context import Context, Cu, Done, Reply
from amdxdna.emu.npu.health import Health
from amdxdna.emu.npu.memory import BadAddress, Memory
from amdxdna.emu.npu.schedule import Schedule
from amdxdna.emu.npu.slot import MAX_ARGUMENT_WORDS, MAX_MAP_WORDS, Slot, SlotType
from amdxdna.emu.npu.status import Status
from amdxdna.emu.npu.tiles import COLUMN_BYTES, TileInfo, geometry
from amdxdna.emu.timing import TimingModel

MAX_CUS = 32
MAX_STREAM = 1 << 20
"""Longest instruction stream, bytes."""
NO_CONTEXT = 0xFFFFFFFF
COMPUTES_NOTHING = (
    "instant: no kernel computes: only times mean something, what programs answer means nothing"
)


class Npu:
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
        self.memory = memory
        self.clock = clock
        self.slots = slots
        self.columns = columns
        self.threads = threads
        self.instant = instant
        self.faults = faults or Faults()
        self.executed = 0
        """Commands executed, for statistics."""
        self.log = log
        self.schedule: Schedule | None = None
        """What the commands of a timed NPU wait for."""
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
        return geometry(self.columns, *self.AIE_VERSION)

    def create_context(
        self, start_column: int = 0, columns: int = 8, *, pasid: int = 0, priority: int = 2
    ) -> tuple[int, int]:
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
            self._contexts[number] = Context(number, start_column, columns, priority, pasid, self.clock)
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
                found.prepare(self._chain)

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
            found.enqueue(self._chain, list(slots), done, came)
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

    # -- on a worker

    def _chain(self, context: Context, slots: list[Slot]) -> Reply | None:
        schedule = self.schedule
        if schedule is None:
            return self._members(context, slots)
        if not schedule.begin(context):
            return None
        try:
            return self._members(context, slots)
        finally:
            schedule.end(context, not self.instant)

    def _members(self, context: Context, slots: list[Slot]) -> Reply | None:
        fault = self.faults.chain() if self.faults.active and len(slots) > 1 else None
        if fault is not None:
            self.log(f"injected fault: context {context.id}: {fault.kind}")
            if fault.kind == "chain_hang":
                self._wait(context, None)
                return None
        for index, slot in enumerate(slots):
            if fault is not None and index:
                if fault.kind == "chain_fail":
                    status = fault.value or Status.INVALID_INSTRUCTION
                    return Reply(status, index, status)
                if fault.kind == "chain_skip":
                    return Reply(Status.OK)
            context.slot_index = index
            if self.schedule is not None:
                self.schedule.command(context)
            try:
                status = self._command(context, slot)
            except BadAddress as error:
                if not context.gone.is_set():  # a context that is reset has lost its memory
                    self.log(f"context {context.id}: {error}")
                status = Status.INVALID_BUFFER
            except Exception as error:  # a front end's own failure must not end the worker silently
                self.log(f"context {context.id}: {type(error).__name__}: {error}")
                status = Status.INVALID_COMMAND
            finally:
                self.memory.release(context.id)
            if context.gone.is_set():
                return None
            if status:
                return Reply(status, index, status)
        if fault is not None and fault.kind == "chain_corrupt":
            self._corrupt(context, slots[-1], fault.value)
        return Reply(Status.OK)

    def _corrupt(self, context: Context, slot: Slot, at: int) -> None:
        """Flips a bit of byte `at` of the command's result."""
        address = [each for each in slot.buffers() if each][-1]
        try:
            byte = ffi.cast("uint8_t *", self.resolve(context, address + at, 1))
        except BadAddress:
            self.log(f"context {context.id}: no byte {at} of a result to corrupt: byte 0 instead")
            byte = ffi.cast("uint8_t *", self.resolve(context, address, 1))
        byte[0] = byte[0] ^ 1

    def _command(self, context: Context, slot: Slot) -> int:
        injected = self.faults.command() if self.faults.active else []
        if injected:
            status = self._injected(context, injected)
            if status or context.gone.is_set():
                self.executed += 1
                return status
            if any(fault.kind == "skip" for fault in injected):
                return Status.OK
        status, program, family = self.fetch(context, slot)
        if status:
            self.executed += 1
            return status
        self.load(context, slot)
        status = self.execute(context, slot, program, family)
        for fault in injected:
            if fault.kind == "corrupt" and not status:
                self._corrupt(context, slot, fault.value)
        return status

    def load(self, context: Context, slot: Slot) -> None:
        """Has a timed NPU configured for a command's CU."""
        if self.schedule is not None and (pdi := self.pdi(context, slot)) is not None:
            self.schedule.load(context, pdi)

    def pdi(self, context: Context, slot: Slot) -> int | None:
        """Device address of the PDI of a command's CU, if the context has CUs."""
        return context.cus[0 if slot.type == SlotType.ELF else slot.cu].pdi if context.cus else None

    def fetch(self, context: Context, slot: Slot) -> tuple[int, bytes, int]:
        """(status, instruction stream, kernel family) of a command."""
        most = MAX_MAP_WORDS if slot.type == SlotType.START_CU else MAX_ARGUMENT_WORDS
        if not SlotType.START_CU <= slot.type <= SlotType.ELF or len(slot.args) > most:
            return Status.INVALID_COMMAND, b"", 0
        own = slot.type == SlotType.ELF and not context.cus
        cu = 0 if slot.type == SlotType.ELF else slot.cu
        if cu >= len(context.cus) and not own:
            return Status.INVALID_PARAM, b"", 0
        address, size = slot.stream()
        if not 0 < size <= MAX_STREAM:
            return Status.INVALID_INSTRUCTION, b"", 0
        family = context.loaded if own else self._family(context, context.cus[cu])
        if family is None and not own:
            return Status.PDI_LOAD_FAILED, b"", 0
        program = self._stream(context, address, size)
        if family is None and not transaction.is_transaction(program):
            self.log(f"context {context.id}: control code that loads no PDI")
            return Status.PDI_LOAD_FAILED, b"", 0
        return (Status.INVALID_INSTRUCTION if len(program) % 4 else Status.OK), program, family or 0

    def _stream(self, context: Context, address: int, size: int) -> bytes:
        """The instruction stream at `address`, whose size a command gives as `size`.

        Programs give it in bytes or in words (mlir-air's tests and older mlir-aie: words), and both run on
        hardware: what counts is what the stream's own header says.
        """
        program = self._read(context, address, size)
        own = _own_bytes(program)
        if (own == -1 or own > size) and 4 * size <= MAX_STREAM:
            with contextlib.suppress(BadAddress):
                whole = self._read(context, address, 4 * size)
                if _own_bytes(whole) == 4 * size:
                    return whole
        return program

    def execute(self, context: Context, slot: Slot, program: bytes, family: int) -> int:
        """Runs a command of which stream and family are known. Raises BadAddress."""
        if transaction.is_transaction(program):
            return self._transaction(context, slot, program, family)
        prepared = self._prepared(context, program, family, slot.buffers())
        return self.run(context, slot, program, prepared)

    def _prepared(
        self, context: Context, program: bytes, family: int, addresses: Iterable[int]
    ) -> kernels.Prepared | kernels.Result:
        """A stream with its operands, which takes its time if it can run. Raises BadAddress."""
        prepared = kernels.prepare(program, family, self._operands(context, addresses))
        if self.schedule is not None and isinstance(prepared, kernels.Prepared):
            self.schedule.kernels(context, kernels.demands(program, family))
        return prepared

    def run(
        self, context: Context, slot: Slot, program: bytes, prepared: kernels.Prepared | kernels.Result
    ) -> int:
        """Runs a command whose operands are resolved; its status."""
        self.executed += 1
        context.stream = (slot.stream()[0], program)
        result = prepared.run(
            threads=self.threads, instant=self.instant, wait=self._kernel_wait(context), stop=context.halt
        )
        if result.status and not context.gone.is_set():
            self.log(f"context {context.id}: {result.message}")
        return result.status

    def _transaction(self, context: Context, slot: Slot, program: bytes, family: int) -> int:
        """Runs the kernels that a transaction carries, one after the other; the first failure's status."""
        self.executed += 1
        context.stream = (slot.stream()[0], program)
        try:
            steps = transaction.parse(program)
        except streams.StreamError as error:
            self.log(f"context {context.id}: {error}")
            return kernels.INVALID
        for step in steps:
            if step.pdi:
                try:
                    family = int(kernels.family_of(self._read(context, step.pdi, PDI_BYTES)))
                except kernels.UnknownPdi as error:
                    self.log(f"context {context.id}: {error}")
                    return Status.PDI_LOAD_FAILED
                context.loaded = family
                if self.schedule is not None:
                    self.schedule.load(context, step.pdi)
            stream, addresses = step.program, step.addresses(slot.buffers())
            if step.updates:
                stream, addresses = step.updated(addresses, self._read(context, *step.table))
            result = self._prepared(context, stream, family, addresses).run(
                threads=self.threads, instant=self.instant, wait=self._kernel_wait(context)
            )
            if result.status:
                self.log(f"context {context.id}: {result.message}")
                return result.status
        return Status.OK

    def operands(self, context: Context, slot: Slot) -> list[kernels.Operand]:
        """What resolves each buffer of a command. Raises BadAddress, which names the argument."""
        return self._operands(context, slot.buffers())

    def _operands(self, context: Context, addresses: Iterable[int]) -> list[kernels.Operand]:
        return [partial(self._operand, context, index, address) for index, address in enumerate(addresses)]

    def _operand(self, context: Context, index: int, address: int, size: int) -> int:
        try:
            return self.resolve(context, address, size)
        except BadAddress as error:
            error.argument = index
            raise

    def _family(self, context: Context, cu: Cu) -> int | None:
        """The family of a CU, whose PDI is read once; None when it is not one that can run here."""
        if cu.family is not None:
            return cu.family
        try:
            cu.family = int(kernels.family_of(self._read(context, cu.pdi, PDI_BYTES)))
        except (BadAddress, kernels.UnknownPdi) as error:
            self.log(f"context {context.id}: {error}")
        return cu.family

    def _injected(self, context: Context, faults: list[Fault]) -> int:
        for fault in faults:
            if fault.kind == "slow":
                self._wait(context, fault.value * 1e-6)
            elif fault.kind == "hang":
                self.log(f"injected fault: context {context.id} hangs")
                self._wait(context, None)
            elif fault.kind == "fail":
                status = fault.value or Status.INVALID_INSTRUCTION
                self.log(f"injected fault: context {context.id}: status {int(status):#x}")
                return status
        return Status.OK

    def _wait(self, context: Context, seconds: float | None) -> bool:
        """An injected wait; on a timed NPU it is part of the command's time."""
        return context.wait(seconds) if self.schedule is None else self.schedule.wait(context, seconds)

    def _kernel_wait(self, context: Context) -> kernels.Wait:
        return context.wait if self.schedule is None else partial(self.schedule.kernel_wait, context)

    def resolve(self, context: Context, address: int, size: int) -> int:
        """A pointer for a bus address or a device heap address. Raises BadAddress."""
        host = context.heap.host(address, size) if address in context.heap else address
        return self.memory.pointer(context.id, host, size)

    def _read(self, context: Context, address: int, size: int) -> bytes:
        return bytes(ffi.buffer(ffi.cast("char *", self.resolve(context, address, size)), size))


def _own_bytes(data: bytes) -> int:
    """The length that a stream has by its own words; -1 where the data end before they tell, 0 for none."""
    return transaction.own_bytes(data) or streams.own_bytes(data)


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
