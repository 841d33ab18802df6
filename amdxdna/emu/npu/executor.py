"""What the NPU does with a chain: its commands one after the other, by the worker of their context."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from amdxdna._native import ffi
from amdxdna.emu import kernels
from amdxdna.emu.faults import Fault, Faults
from amdxdna.emu.kernels import stream as streams
from amdxdna.emu.kernels import transaction
from amdxdna.emu.kernels.families import PDI_BYTES
from amdxdna.emu.npu.context import Context, Cu, Reply
from amdxdna.emu.npu.memory import BadAddress, Memory
from amdxdna.emu.npu.schedule import Schedule
from amdxdna.emu.npu.slot import MAX_ARGUMENT_WORDS, MAX_MAP_WORDS, Slot, SlotType
from amdxdna.emu.npu.status import Status

MAX_STREAM = 1 << 20
"""Longest instruction stream, bytes."""


class Executor:
    """Executes commands of contexts that it is given, each context's from one thread at a time.

    `threads`, `instant`, `faults`, `log`: see :class:`~amdxdna.emu.npu.npu.Npu`.
    """

    schedule: Schedule | None = None
    """What the commands of a timed NPU wait for."""

    def __init__(
        self, memory: Memory, threads: int, instant: bool, faults: Faults | None, log: Callable[[str], None]
    ) -> None:
        self.memory = memory
        self.threads = threads
        self.instant = instant
        self.faults = faults or Faults()
        self.executed = 0
        """Commands executed, for statistics."""
        self.log = log

    def chain(self, context: Context, slots: list[Slot]) -> Reply | None:
        """Runs a chain; None where there is no answer: its context is gone."""
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
        return self._run(context, prepared)

    def _run(self, context: Context, prepared: kernels.Prepared | kernels.Result) -> int:
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
            status = self._run(context, self._prepared(context, stream, family, addresses))
            if status:
                return status
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
