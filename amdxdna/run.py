"""Runs: submitted commands, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, Protocol

from amdxdna import ioctl, packet
from amdxdna._native import ffi, lib
from amdxdna.allocation import allocate
from amdxdna.arguments import Uncopied, seconds
from amdxdna.arguments import buffers as _buffers
from amdxdna.buffer import Buffer
from amdxdna.causes import STILL_RUNNING
from amdxdna.client import Client
from amdxdna.errors import (
    CommandAborted,
    CommandFailed,
    CommandInFlight,
    CommandRejected,
    CommandTimeout,
    WaitTimeout,
    XdnaError,
)
from amdxdna.kmsg import KERNEL_LOG, around
from amdxdna.packet import STATE_MASK, Health, State
from amdxdna.profile import DriverProfile

__all__ = ["Command", "Health", "Run", "State"]

FOREVER = (1 << 63) - 1
NOT_SUBMITTED = (1 << 64) - 1
_HANDLES = 16
_NEARLY = 0.9
_SLICE_NS = 10**9
"""A wait is made of waits no longer than this: Python does not see a signal that comes between its last look
for one and the call that blocks before that call returns."""
_FRESH = (
    "Start again in a fresh context (a command that is run again has one; in programs kernels of Device.pool "
    "get one by themselves)"
)
_HUNG = (
    f"{_FRESH}. If it happens every time, xclbin and "
    "instruction stream do not fit each other or an argument is too small"
)


class Command(Uncopied):
    """A command buffer with the structs of its submit and its waits, made once and used again and again.

    Internal to the package: contexts keep a stock of them.
    """

    __slots__ = (
        "_handles",
        "_sync",
        "_waits",
        "began",
        "buffer",
        "exec",
        "exec_address",
        "handle_bytes",
        "members",
        "owned",
        "packet",
        "run",
        "spent",
        "state",
        "words",
    )

    def __init__(self, client: Client, hwctx: int, syncobj: int) -> None:
        self.buffer = allocate(client, packet.CMD_BYTES, "cmd")
        self.packet = self.buffer.memory()
        self.words = self.packet.cast("I")
        self.state: int | None = None
        """The final ERT state, once the context has seen it."""
        self.members: Sequence[Command] = ()
        self.run: Callable[[], object] = lambda: None
        """Gives the Run of a command in flight, None when that is gone."""
        self.owned = False
        """It belongs to a :class:`~amdxdna.restart.Restartable`: it does not go to its context's stock."""
        self.spent = False
        """The driver may still write to it: it must not be used again."""
        self.began = 0.0
        """When it was submitted (CLOCK_MONOTONIC, seconds), on drivers that do not tell a time-out."""
        self.exec = ffi.new(
            "struct amdxdna_drm_exec_cmd *",
            {
                "hwctx": hwctx,
                "type": lib.AMDXDNA_CMD_SUBMIT_EXEC_BUF,
                "cmd_handles": self.buffer.handle,
                "cmd_count": 1,
                "seq": NOT_SUBMITTED,
            },
        )
        self.exec_address = ioctl.address_of(self.exec)
        self._sync = ffi.new("uint32_t *", syncobj)
        # A stock of wait structs: several threads may wait, each with its own deadline.
        self._waits = [self._new_wait()]
        self.room(_HANDLES)

    def _new_wait(self) -> tuple[Any, Any, int]:
        point = ffi.new("uint64_t *")
        wait = ffi.new(
            "struct drm_syncobj_timeline_wait *",
            {
                "handles": ioctl.address_of(self._sync),
                "count_handles": 1,
                "points": ioctl.address_of(point),
                "flags": lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT,
            },
        )
        return wait, point, ioctl.address_of(wait)

    def room(self, handles: int) -> None:
        """Makes room for a list of `handles` buffer handles."""
        self._handles: Any = ffi.new("uint32_t[]", handles)
        self.handle_bytes = memoryview(ffi.buffer(self._handles))
        self.exec.args = ioctl.address_of(self._handles)

    def over(self, client: Client, sequence: int, deadline: int) -> bool:
        """Waits for submit `sequence` until `deadline` (CLOCK_MONOTONIC, ns); true when it is over."""
        # A context's first command has point 0, which a timeline wait takes for the newest point: it would
        # wait for the commands behind it too. The driver writes the state before it signals.
        if sequence == 0 and self.words[0] & STATE_MASK == State.COMPLETED:
            return True
        try:
            taken = self._waits.pop()
        except IndexError:
            taken = self._new_wait()
        wait, point, address = taken
        point[0] = sequence
        wait.timeout_nsec = deadline
        try:
            ioctl.call(client.node, "SYNCOBJ_TIMELINE_WAIT", address)
        except WaitTimeout:
            return False
        finally:
            self._waits.append(taken)
        return True

    def ended(self, client: Client) -> int:
        """The final state of a command that is over.

        A chain whose error index the driver has written has failed, whatever its state says: drivers before
        750817a7c41d (February 2026) put the firmware's 32-bit status into the state's four bits.
        """
        words = self.words
        state = words[0] & STATE_MASK
        if not self.members or (state == State.COMPLETED and words[3] == packet.UNTOUCHED):
            return state
        if state == State.TIMEOUT and words[1] != len(self.members):
            return state  # the driver has written its report over the chain
        profile = client.profile
        known_raw = not (profile.chains_trusted or profile.careful)
        if words[3] != packet.UNTOUCHED and (known_raw or state == State.COMPLETED):
            return State.ERROR
        return state

    def failed_member(self, profile: DriverProfile) -> int | None:
        """The index of a chain's member that failed or hung, where the driver tells it."""
        index, members = self.words[3], len(self.members)
        if self.words[1] != members or index >= members:
            return None
        told = self.state == State.ERROR or (self.state == State.TIMEOUT and profile.names_hung_member)
        return index if told else None

    def report(self, index: int | None) -> Health | None:
        """The health report of a timed-out command: drivers leave it in its packet, or in a chain's first
        member's or the failing one's."""
        holders = [self]
        if self.members:
            holders += [self.members[index]] if index is not None else self.members
            holders.append(self.members[0])
        found = (packet.health(each.words[1:9].tolist()) for each in holders)
        return next((health for health in found if health is not None), None)

    def waited_out(self, profile: DriverProfile) -> bool:
        """Whether a driver that does not tell a time-out may have given this command up for one."""
        seconds = profile.tdr_seconds
        return (
            not profile.tells_timeouts
            and seconds is not None
            and time.monotonic() - self.began >= _NEARLY * seconds
        )

    def close(self) -> None:
        """Gives the buffer back: only when the driver is done with it."""
        self.words.release()
        self.packet.release()
        self.buffer.close()


class Cost(Protocol):
    """What a context's user says of its commands."""

    @property
    def gops(self) -> int:
        """Giga operations a command."""


class Context(Protocol):
    """What a run needs of the context it is in (:class:`amdxdna.hwctx.HwContext`)."""

    client: Client

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    @property
    def qos(self) -> Cost: ...

    def in_flight(self) -> set[tuple[int, int]]:
        """The commands in flight on the whole open."""

    def give_up(self) -> None:
        """A wait for a command was given up: what is submitted next needs a fresh context."""

    def finished(self, command: Command) -> None:
        """Takes a command back that is over. The lock is held."""


class Run(Uncopied):
    """A submitted command (or chain). Made by :meth:`amdxdna.kernel.Kernel.start`.

    Up to four are in flight in a context; the submit of a fifth blocks until one is over. The buffers of a
    run are kept alive until it is over, also when the Run itself is dropped. Any thread may wait for it,
    several at once too.
    """

    __slots__ = ("__weakref__", "_command", "_context", "_error", "_sequence", "_state", "outputs")

    def __init__(self, context: Context, command: Command) -> None:
        self.outputs: Sequence[Buffer] = ()
        """Buffers that every wait makes readable for the host."""
        self._context: Context | None = context
        """None once the command is over: who keeps a Run does not keep its context."""
        self._sequence: int = command.exec.seq
        self._state: int = State.NEW
        self._error: XdnaError | None = None
        self._command: Command | None = command

    def __repr__(self) -> str:
        return f"<Run {'in flight' if self._command is not None else State(self._state).name}>"

    @property
    def done(self) -> bool:
        """True once the command is over, well or badly. Does not block, does not raise what became of it."""
        return self._command is None or self._over(0)

    @property
    def state(self) -> State:
        """COMPLETED, or how it failed; NEW while it is in flight."""
        return State(self._state) if self.done else State.NEW

    def wait(self, timeout: float | None = None, outputs: Sequence[Buffer] = ()) -> Run:
        """Waits for the end and returns itself; `timeout` in seconds.

        Without one it waits as long as commands of this open get over, and then for ``Device.wait_seconds``
        more, plus a second for each giga operation that the context's kernels declare.

        Buffers in `outputs`, and those given to the start, are then made readable for the host
        (:meth:`Buffer.from_device`); nothing else is touched. Ctrl-C works while it blocks and leaves the Run
        waitable.

        Raises WaitTimeout when `timeout` passes (the command runs on and can be waited for again),
        CommandInFlight when that limit does,
        CommandFailed, CommandTimeout, CommandAborted or CommandRejected as the command ended; again at every
        further wait. That it completed is the driver's word: whether it wrote its result the result alone can
        tell, see :class:`amdxdna.marks.Marks`.
        """
        if timeout is not None:
            timeout = seconds("wait", "timeout", timeout, past=True)
        if type(outputs) is not tuple or outputs:
            _buffers("wait", "outputs", outputs, Buffer)
        context = self._context
        if self._command is not None and context is not None:
            if timeout is None:
                limit = context.client.wait_half_ns
                if not self._over(time.monotonic_ns() + limit if limit else FOREVER):
                    self._wait_on()
            elif not self._over(_deadline(timeout)):
                raise WaitTimeout(
                    f"the command has not completed within {timeout} s",
                    call="SYNCOBJ_TIMELINE_WAIT",
                    remedy=STILL_RUNNING,
                )
        if self._error is not None:
            # A copy: its traceback holds the caller's frames, which the Run must not keep.
            raise copy(self._error)
        for buffer in outputs:
            buffer.from_device()
        for buffer in self.outputs:
            buffer.from_device()
        return self

    def _wait_on(self) -> None:
        """Goes on waiting, after half of the open's limit, while anything on it gets over.

        Raises CommandInFlight.
        """
        context, command = self._context, self._command
        if command is None or context is None:
            return
        half = context.client.wait_half_ns * 1e-9 + context.qos.gops * (len(command.members) or 1)
        before = context.in_flight()
        while not self._over(_deadline(half)):
            now = context.in_flight()
            if before <= now:
                context.give_up()
                raise in_flight(command, context.client, half + context.client.wait_half_ns * 1e-9)
            before = now

    def _over(self, deadline: int) -> bool:
        command = self._command
        context = self._context
        if command is None or context is None:
            return True
        while command.state is None:
            until = deadline and min(deadline, time.monotonic_ns() + _SLICE_NS)
            if command.over(context.client, self._sequence, until):
                break
            if until == deadline:
                return False
        with context.lock:
            # Another thread may have finished this run meanwhile, and the command may be in a new one.
            if self._command is command:
                # With another number it is finished, and a handler's exception came before the last line.
                if command.exec.seq == self._sequence:
                    if command.state is None:
                        command.state = command.ended(context.client)
                    self._state = command.state
                    if self._state != State.COMPLETED:
                        self._error = failure(command, context.client)
                    context.finished(command)
                self._command = None
                self._context = None
        return True


def _deadline(seconds: float) -> int:
    """CLOCK_MONOTONIC in `seconds`, in the nanoseconds of a signed 64-bit number; inf is for ever."""
    if not seconds < FOREVER * 1e-9:
        return FOREVER
    return min(time.monotonic_ns() + int(max(seconds, 0.0) * 1e9), FOREVER)


JUST_NOW = 2.0
"""Seconds before a submit of which the kernel log's newest line is told where it has none from then on."""
_LINES = 3


def failure(command: Command, client: Client) -> CommandFailed:
    """What the words of a command that is over, and not completed, mean."""
    state = command.state or 0
    if state in State.__members__.values():
        state = State(state)
    profile = client.profile
    index = command.failed_member(profile)
    count = len(command.members)
    where = ""
    if count > 1:
        where = (
            f" (member {index} of {count} in the chain)"
            if index is not None
            else f" (a chain of {count}; which member is not told)"
        )
    if state == State.TIMEOUT:
        health = command.report(index)
        return CommandTimeout(
            f"the command made no progress{_for(profile.tdr_seconds)}{where} and the driver reset the "
            f"context: {health if health is not None else 'the driver left no health report'}",
            call="EXEC_CMD",
            state=state,
            index=index,
            health=health,
            remedy=f"{_HUNG}; {health.lookup}" if health is not None and health.lookup else _HUNG,
        )
    if state in (State.NEW, State.ABORT) and command.waited_out(profile):
        return CommandTimeout(
            f"the command{where}, or one before it in its context, made no progress"
            f"{_for(profile.tdr_seconds)} and the driver reset the context, leaving no health report",
            call="EXEC_CMD",
            state=state,
            index=index,
            remedy=_HUNG,
        )
    if state == State.NEW:
        first = (command.members or (command,))[0]
        old = packet.opcode_of(first.words[0]) in packet.PREEMPTION
        return CommandRejected(
            f"the driver dropped the packet without running it{where}: the context no longer works, or the "
            "packet is malformed"
            + (
                ", or a child process has ended, with which this driver drops every context"
                if profile.loses_contexts
                else ""
            )
            + (
                ", or the firmware is too old for control code that saves its state or loads PDIs"
                if old
                else ""
            ),
            call="EXEC_CMD",
            state=state,
            index=index,
            remedy=f"{_FRESH}; see `dmesg`"
            + ("; update the firmware (linux-firmware, amdnpu)" if old else ""),
        )
    if state == State.ABORT:
        return CommandAborted(
            f"the command was dropped{where}, since its context was reset or destroyed",
            call="EXEC_CMD",
            state=state,
            index=index,
            remedy="Start it again",
        )
    name = state.name if isinstance(state, State) else str(state)
    return CommandFailed(
        f"the firmware refused the command or failed in it{where} (state {name})"
        + _said(client, command.began),
        call="EXEC_CMD",
        state=state,
        index=index,
        remedy=f"{_FRESH}, as when the "
        "firmware has refused the compute units. If it fails every time, check that the instruction "
        "stream belongs to this xclbin and that the buffers are large enough; the device's last "
        "asynchronous error may say more",
    )


def _said(client: Client, began: float) -> str:
    """What the driver's log has of the time since a submit; of which command or context, it does not tell."""
    since, before = around(client.node.text(KERNEL_LOG), began, JUST_NOW)
    if since:
        lines = list(dict.fromkeys(since))
        if len(lines) > _LINES:
            lines[_LINES:] = [f"{len(lines) - _LINES} more"]
        return f"; the driver's log says (by its clock since the submit): {' | '.join(lines)}"
    if not before:
        return ""
    seconds, line = before[-1]
    when = f"by its clock, which may be behind, {seconds:.1f} s before the submit"
    return f"; the driver's log says ({when}): {line}"


def _for(seconds: float | None) -> str:
    return "" if seconds is None else f" for {seconds:g} s"


def in_flight(command: Command, client: Client, seconds: float) -> CommandInFlight:
    """The error for a command that nobody waits for any longer, though the driver has not given it up."""
    members = f" (a chain of {len(command.members)})" if len(command.members) > 1 else ""
    return CommandInFlight(
        f"the command has made no progress for {seconds:g} s{members} and is still in flight: the NPU may "
        f"yet write to its buffers, which must not be used again. {client.profile.name} {client.profile.tdr}",
        call="SYNCOBJ_TIMELINE_WAIT",
        state=State.NEW,
        remedy=f"{_FRESH} with other buffers. If the command needs longer, raise the limit: {client.longer}",
    )
