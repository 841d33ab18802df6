"""Inline execution: a thread that would wait for a short command executes it.

Handing a command from thread to thread takes longer than many a command does. The contract:

* Who: any thread that would block until the context's oldest chain is over, and holds no lock.
* What: the oldest chain only, so the order is the worker's; and only one whose end is near and certain:
  known work below a limit, no hang, no delay, no injected fault; on a timed NPU one that computes nothing
  (`instant`: computing goes on beside the host there) and is over soon, within the thread's wait. Whatever
  else is the worker's, for which nothing has been done yet.
* Alone: `Context.turn` is held from the look at the chain to its answer. A thread that does not get it at
  once waits as if there was no inline execution.
* Once: a chain stays in the queue until it is answered, and nothing comes between its first effect and its
  answer. On the main thread signal handlers could: a front end whose user's threads come here calls from
  within :func:`amdxdna.signals.uninterrupted`. The wait for a handler is thus as long as the limit at most.
* While threads do this (`Context.inline`) the worker is not woken for each chain but looks in from time to
  time, and takes the chain that it sees twice. The first chain that is refused ends that.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from amdxdna._native import ffi
from amdxdna.emu import kernels
from amdxdna.emu.kernels import transaction
from amdxdna.emu.npu.context import Context, Reply
from amdxdna.emu.npu.executor import Executor
from amdxdna.emu.npu.memory import BadAddress
from amdxdna.emu.npu.schedule import Schedule
from amdxdna.emu.npu.slot import Slot
from amdxdna.emu.npu.status import Status

SHORT = 64e6
"""Multiply-adds of a chain that is short: about two milliseconds."""
PATIENT = 0.5
"""Seconds: who would wait at least that long takes chains of ten times as much, too. The binding waits for up
to a second at a time."""
TIMED = 0.025
"""Seconds until a chain has to be over by the model of a timed NPU."""
MOST_KNOWN = 1024
"""Commands kept for each context."""


class Command(NamedTuple):
    """A command that may come again: `program` was at `at` in this process, and `prepared` holds pointers, or
    is None where an operand was not there; both are good while the memory's stamp is `stamp`."""

    stamp: object
    at: int
    program: bytes
    family: int
    work: float
    prepared: kernels.Prepared | kernels.Result | None


def run_inline(npu: Executor, context: Context, seconds: float) -> bool:
    """Executes the context's oldest chain on this thread, which would wait for it for `seconds`.

    False, and nothing has been done, when there is none, another thread is at it, or it is the worker's.
    """
    if not context.turn.acquire(blocking=False):
        return False
    try:
        item = context.oldest()
        if item is None or context.gone.is_set():
            return False
        context.busy = True
        try:
            context.queued_at = item[2]
            reply = _run(npu, context, item[0], seconds)
        finally:
            context.busy = False
        if reply is None:
            if context.inline:
                context.inline = False
                context.bell.put(None)
            return False
        context.end(item, reply)
        if not context.inline:
            context.inline = True
            context.bell.put(None)
        return True
    finally:
        context.turn.release()


def _run(npu: Executor, context: Context, slots: list[Slot], seconds: float) -> Reply | None:
    """Runs a chain whose end is near; None for any other."""
    schedule = npu.schedule
    if npu.faults.active or (schedule is not None and not npu.instant):
        return None
    limit = math.inf if npu.instant else SHORT * (10 if seconds >= PATIENT else 1)
    commands = []
    try:
        stamp = npu.memory.stamp(context.id)
        for slot in slots:
            command = _known(npu, context, slot, stamp)
            if command is None:
                return None
            limit -= command.work
            if not limit >= 0:
                return None
            commands.append(command)
        if schedule is None:
            return _members(npu, context, slots, commands)
        times = [_time(schedule, command) for command in commands]
        pdis = (npu.pdi(context, slot) for slot in slots)
        if not schedule.begin_soon(context, min(TIMED, seconds), times, pdis):
            return None
        try:
            return _members(npu, context, slots, commands, times)
        finally:
            schedule.end(context, False)
    except BadAddress:
        return None
    finally:
        npu.memory.release(context.id)


def _time(schedule: Schedule, command: Command) -> float:
    """Seconds that a command's kernels take by the model: none where it cannot run."""
    if isinstance(command.prepared, kernels.Result):
        return 0.0
    return schedule.model.kernels(kernels.demands(command.program, command.family))


def _members(
    npu: Executor,
    context: Context,
    slots: list[Slot],
    commands: list[Command],
    times: Sequence[float] | None = None,
) -> Reply:
    """Runs the chain's commands; `times`: what their kernels take on a timed NPU."""
    schedule = npu.schedule
    for index, command in enumerate(commands):
        context.slot_index = index
        if schedule is not None and times is not None:
            schedule.command(context)
            npu.load(context, slots[index])
            if command.prepared is not None:
                schedule.add(context, times[index])
        status = _execute(npu, context, slots[index], command)
        if status:
            return Reply(status, index, status)
    return Reply(Status.OK)


def _known(npu: Executor, context: Context, slot: Slot, stamp: object) -> Command | None:
    """The command in a slot, from what is known when it came before; None when it cannot run."""
    key = slot.type, slot.cu, slot.args, slot.instructions, slot.instruction_bytes
    found: Command | None = context.known.get(key)
    if found is not None and stamp is not None and found.stamp == stamp and _same(found):
        return found
    status, program, family = npu.fetch(context, slot)
    if status or transaction.is_transaction(program):
        return None
    prepared: kernels.Prepared | kernels.Result | None = None
    with contextlib.suppress(BadAddress):
        prepared = kernels.prepare(program, family, npu.operands(context, slot))
    at = npu.resolve(context, slot.stream()[0], len(program))
    found = Command(stamp, at, program, family, _work(program, family), prepared)
    if len(context.known) >= MOST_KNOWN:
        context.known.clear()
    context.known[key] = found
    return found


def _execute(npu: Executor, context: Context, slot: Slot, command: Command) -> int:
    if command.prepared is not None:
        return npu.run(context, slot, command.program, command.prepared)
    try:
        return npu.execute(context, slot, command.program, command.family)
    except BadAddress as error:
        npu.log(f"context {context.id}: {error}")
        return Status.INVALID_BUFFER


def _same(command: Command) -> bool:
    """Whether the program is still what it was."""
    size = len(command.program)
    return bytes(ffi.buffer(ffi.cast("char *", command.at), size)) == command.program


@lru_cache(maxsize=1024)
def _work(program: bytes, family: int) -> float:
    """Multiply-adds of a stream; infinite for one that may wait or fail."""
    return kernels.work(program, family)
