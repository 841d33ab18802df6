"""Hardware contexts: a partition of the array with its PDIs, and the queue commands go through."""

from __future__ import annotations

import errno
import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any

from amdxdna import ioctl, packet
from amdxdna._native import ffi, lib
from amdxdna.abandoned import RESETS, abandon, destroy, hold
from amdxdna.allocation import allocate
from amdxdna.arguments import Uncopied, instance, wants, whole
from amdxdna.arguments import buffers as _buffers
from amdxdna.arguments import seconds as _seconds
from amdxdna.buffer import Buffer
from amdxdna.causes import from_errno
from amdxdna.client import Client
from amdxdna.create_hwctx import DEFAULT_OPS_PER_CYCLE, QoS, create
from amdxdna.errors import BadArgument, DeviceLost, XdnaError, closed
from amdxdna.forklock import reentrant
from amdxdna.losses import pause
from amdxdna.packet import State
from amdxdna.pdis import load_pdis
from amdxdna.reaper import Finalizer, reap
from amdxdna.run import NOT_SUBMITTED, Command, Run
from amdxdna.signals import interruptible, section, uninterrupted
from amdxdna.xclbin import Xclbin
from amdxdna.xclbin.reader import Cu

PREEMPTION_BYTES = 512 << 10
"""Of each column, what a preempted command saves: an AIE2P memory tile (XRT's xrt_elf.cpp)."""
DRAIN_SECONDS = 4.0
"""How long :meth:`HwContext.close` waits for commands: past the limit of 2 s of Linux 7.2 and newer."""

HANDLE_LISTS = tuple(Struct(f"<{count}I") for count in range(packet.MAX_BUFFERS + 2))


class Owner(weakref.ref[Any]):
    """Refers to the user of a command: once that is gone, the command is its context's."""

    __slots__ = ("command",)
    command: Command
    # The user's, where it is gone before it was asked for, would be an error.
    __hash__ = object.__hash__


def _submitting() -> object:
    """In place of the Run of a command that is being submitted."""
    return _submitting


def _nobody() -> None:
    """In place of the Run of a command whose submit a handler's exception cut short."""


class HwContext(Uncopied):
    """One hardware context, with a compute unit for every DPU kernel of `xclbin`.

    Without an xclbin it is `columns` wide and has no compute units, for control code that brings its own
    PDIs (XRT sends no CONFIG_HWCTX for such a context).

    The PDIs' buffers stay open with it: the driver configures the units again whenever it resumes the device.
    ``broken`` is set once the driver has reset or abandoned it, or it fails whatever runs in it; then nothing
    more should be submitted (a command within half a second of a timeout can break the re-created context for
    good), and a fresh context is needed. Who goes on all the same keeps the command buffers of each reset
    (4 KiB a command) until close(), without a bound: only the destruction of a context tells that the driver
    has let go of them. Raises NoFreeContext when all contexts of the device are taken, ContextRefused when
    the firmware refuses for another reason, BadArgument for a partition wider than the array.

    Thread-safe, except that close() must not overlap a start.
    """

    @section
    def __init__(
        self,
        client: Client,
        xclbin: Xclbin | None,
        qos: QoS | None = None,
        pdis: Sequence[Buffer] | None = None,
        patient: bool = True,
        columns: int = 0,
        cus: Sequence[Cu] | None = None,
    ) -> None:
        """`pdis`: in place of own ones. `patient`: when the device is full, looks for garbage first. `cus`:
        the xclbin's in another order."""
        if xclbin is not None:
            instance("context", "xclbin", xclbin, Xclbin, "Give Xclbin.read(path), or None")
        if qos is not None:
            instance("context", "qos", qos, QoS, "Give a QoS, or None")
        columns = whole("context", "columns", columns)
        if cus is not None and not (isinstance(cus, Sequence) and all(isinstance(cu, Cu) for cu in cus)):
            raise wants("context", "cus", cus, "Give units of xclbin.cus")
        reap()
        client.check_open()
        self.client = client
        self.xclbin = xclbin
        self.qos = qos or QoS()
        self.lock = reentrant()
        self.broken = False
        self.broken_at = 0.0
        self.lost = False
        """The driver no longer knows it: some drop every context when a child process ends (see
        ``DriverProfile.loses_contexts``)."""
        self.hung = False
        """A wait for one of its commands was given up: nothing is waited for before it is destroyed."""
        self.unended = False
        """Set by close() where a command was not over even then: its buffers must not be used again."""
        self._good = False
        """Whether the last command that is over completed."""
        self._scratch: Buffer | None = None
        self._dropped: deque[object] = deque()
        """Something for every Run that was dropped before it was over."""
        self._free: list[Command] = []
        self._spent: list[Command] = []
        """Commands that were reset: the driver may write to them until it has destroyed the context."""
        self._pending: dict[Command, object] = {}
        self._own_pdis = pdis is None
        self._orphans: deque[Owner] = deque()
        """For every Restartable that is gone."""
        self._owners: set[Owner] = set()
        array = client.metadata
        what = "the control code"
        self.cus: tuple[Cu, ...] = ()
        if xclbin is not None:
            columns, what = xclbin.partition.column_width, xclbin.path
            self.cus = xclbin.cus if cus is None else tuple(cus)
        if not 0 < columns <= array.cols:
            raise BadArgument(
                f"{what} needs {columns} columns, the device has {array.cols}",
                call="CREATE_HWCTX",
                remedy="Use a file compiled for this device",
            )
        if len(self.cus) > packet.MAX_CUS:
            raise BadArgument(
                f"{what} has {len(self.cus)} compute units; a context takes {packet.MAX_CUS}",
                call="CONFIG_HWCTX",
                remedy="Split the xclbin",
            )
        self.columns = columns
        _ = client.heap  # the driver refuses a context before there is one
        self._pdis = tuple(pdis or ()) if pdis is not None or xclbin is None else load_pdis(client, xclbin)
        self.handle = 0
        self.syncobj = 0
        self._open: list[int] = []
        try:
            losses = 0
            while not self._made(columns, array.core.row_count, patient):
                losses += 1
                pause(losses, "CONFIG_HWCTX")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> HwContext:
        self.client.check_open()
        if not self.handle:
            raise closed("hardware context")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _made(self, columns: int, rows: int, patient: bool) -> bool:
        """Creates and configures the context; false where the driver has dropped it in between."""
        self._create(columns, rows, patient)
        try:
            if self.cus:
                self._configure()
        except BadArgument as error:
            if error.errno == errno.EINVAL and self.client.profile.loses_contexts and self._was_dropped():
                return False
            raise
        return True

    def _was_dropped(self) -> bool:
        """Whether the driver knows this context no more, which was never used. It is gone then."""
        dropped = not destroy(self.client, self.handle)
        self._finalizer.detach()
        self._open.clear()
        self.handle = 0
        abandon(self.client, self._open, self.syncobj, {}, [])
        if dropped:
            self.client.losses += 1
        return dropped

    def _create(self, columns: int, rows: int, patient: bool) -> None:
        opc = 0 if self.xclbin is None else self.xclbin.partition.ops_per_cycle or DEFAULT_OPS_PER_CYCLE
        create(self.client, columns, rows, self._own, self.qos, opc, patient)

    def _own(self, request: Any) -> None:
        """Takes over what CREATE_HWCTX made.

        The timeline lives as long as this object, past close(): a Run may be about to wait on it, and a new
        context may get its number.
        """
        if self.handle:
            return
        self.handle = request.handle
        self.syncobj = request.syncobj_handle
        hold(self.client, self._open, self.handle)
        left = self._open, self.syncobj, self._pending, self._spent, self._pdis
        self._finalizer = Finalizer(self, partial(abandon, self.client, *left))

    def _configure(self) -> None:
        cus = self.cus
        size = ffi.sizeof("struct amdxdna_hwctx_param_config_cu") + len(cus) * ffi.sizeof(
            "struct amdxdna_cu_config"
        )
        config = ffi.new("struct amdxdna_hwctx_param_config_cu *", {"cu_configs": len(cus)})
        config.num_cus = len(cus)
        for place, cu in zip(config.cu_configs, cus, strict=True):
            place.cu_bo = self._pdis[cu.pdi].handle
            place.cu_func = cu.function
        request = ffi.new(
            "struct amdxdna_drm_config_hwctx *",
            {
                "handle": self.handle,
                "param_type": lib.DRM_AMDXDNA_HWCTX_CONFIG_CU,
                "param_val": ioctl.address_of(config),
                "param_val_size": size,
            },
        )
        ioctl.call(self.client.node, "CONFIG_HWCTX", request, detail=f"{len(cus)} compute units")

    def preemption_scratch(self) -> Buffer:
        """Where commands that are preempted save the memory tiles: one buffer a context. Internal."""
        with self.lock:
            if self._scratch is None:
                self._scratch = allocate(self.client, PREEMPTION_BYTES * self.columns)
            return self._scratch

    def take(self) -> Command:
        """A command buffer that is not in use. Internal."""
        with self.lock:
            if self._dropped:
                self._collect()
            if self._orphans:
                self._adopt()
            if self._free:
                return self._free.pop()
        if not self.handle:
            raise closed("hardware context")
        return Command(self.client, self.handle, self.syncobj)

    def assign(self, user: object) -> Command:
        """A command for a :class:`~amdxdna.restart.Restartable`, until that is gone. Internal."""
        command = self.take()
        # Behind it: where there is no command, there is none to take over.
        owner = Owner(user, self._orphans.append)
        owner.command = command
        command.owned = True
        with self.lock:
            self._owners.add(owner)
        return command

    def _adopt(self) -> None:
        """Takes over the commands of Restartables that are gone. The lock is held."""
        while self._orphans:
            owner = self._orphans.popleft()
            self._owners.discard(owner)
            command = owner.command
            command.owned = False
            if command.spent or any(
                command is head or command in head.members for head in list(self._pending)
            ):
                continue
            command.members = ()  # of a chain whose start a signal's handler cut short
            if self.handle:
                self._free.append(command)
            else:
                command.close()

    def touches(self, command: Command, handles: Sequence[int]) -> None:
        """Notes the buffer handles that `command` touches, each once, for its submit. Internal."""
        if len(handles) < len(HANDLE_LISTS):
            HANDLE_LISTS[len(handles)].pack_into(command.handle_bytes, 0, *handles)
        else:
            command.room(len(handles))
            Struct(f"<{len(handles)}I").pack_into(command.handle_bytes, 0, *handles)
        command.exec.arg_count = len(handles)

    def submit(self, command: Command, keep: object) -> Run:
        """Submits what is in `command`'s packet, with the buffers that were listed. Internal.

        Blocks while four commands are in flight in this context. An exception out of a signal handler leaves
        the command either not submitted or known to the context, which close() then waits for.
        """
        exec_ = command.exec
        command.state = None
        command.began = time.monotonic()
        command.run = _submitting
        self._pending[command] = keep
        try:
            if not self._open:  # lost, and its number is another's by now
                raise from_errno("EXEC_CMD", errno.EINVAL)
            ioctl.call(self.client.node, "EXEC_CMD", command.exec_address)
            run = Run(self, command)
            # C code, which no signal handler interrupts as it would a __del__.
            command.run = weakref.ref(run, self._dropped.append)
            return run
        except BaseException as error:
            command.run = _nobody
            if isinstance(error, BadArgument) and error.errno == errno.EINVAL:
                self.lost = self.broken = True
            if exec_.seq == NOT_SUBMITTED:
                with self.lock:
                    self._recycle(command)
            else:
                self._dropped.append(None)
            raise

    def run(self, words: bytes, buffers: Sequence[Buffer] = ()) -> Run:
        """Submits a packet of :mod:`amdxdna.packet` as it is, touching `buffers`. For tools and tests."""
        if not isinstance(words, (bytes, bytearray, memoryview)):
            raise wants("EXEC_CMD", "words", words, "Give the packet's bytes")
        buffers = _buffers("EXEC_CMD", "buffers", buffers, Buffer)
        if len(words) > packet.CMD_BYTES:
            raise BadArgument(
                f"a packet of {len(words)} bytes", call="EXEC_CMD", remedy=f"At most {packet.CMD_BYTES} fit"
            )
        command = self.take()
        command.packet[: len(words)] = words
        self.touches(command, tuple(dict.fromkeys(b.handle for b in buffers)))
        return self.submit(command, tuple(buffers))

    def finished(self, command: Command) -> None:
        """Takes a command back that is over. Internal; the lock is held."""
        state = command.state
        reset = state in RESETS
        # A context whose CUs the firmware refused to configure (which the driver does not tell) fails every
        # command for ever, so one that fails its first command, or two in a row, is not trusted further.
        good, self._good = self._good, state == State.COMPLETED
        if (reset or state == State.NEW or not (good or self._good)) and not self.broken:
            self.broken_at = time.monotonic() if reset else 0.0
            self.broken = True
        if reset:
            uninterrupted(self._recycle, command, True)
        else:
            self._recycle(command)

    def _recycle(self, command: Command, reset: bool = False) -> None:
        self._pending.pop(command, None)
        members, command.members = command.members, ()
        command.exec.seq = NOT_SUBMITTED
        command.run = _nobody
        for each in dict.fromkeys((command, *members)) if members else (command,):
            if reset:
                each.spent = True
                self._spent.append(each)
            elif each.owned:
                continue
            elif self.handle:
                self._free.append(each)
            else:
                each.close()
        if reset and not self.handle:
            self._end_spent(not self.unended)

    def _end_spent(self, destroyed: bool) -> None:
        """Gives the commands that were reset back, once the driver has `destroyed` the context: that waits
        until it has let go of them all (job_free_wq in aie2_hwctx_fini of amdxdna's aie2_ctx.c)."""
        while self._spent:
            each = self._spent.pop()
            if destroyed:
                each.close()
            else:
                each.buffer.abandon()

    def _collect(self) -> None:
        """Takes back the commands of dropped Runs that are over. The lock is held."""
        count = len(self._dropped)
        left = False
        for command in list(self._pending):
            if command.run() is None:
                if self.settle(command, 0):
                    self.finished(command)
                else:
                    left = True
        for _ in range(0 if left else count):
            self._dropped.popleft()

    def settle(self, command: Command, deadline: int) -> bool:
        """Waits for a command until `deadline` and sets the state for its Run; true when over. Internal."""
        if command.state is not None:
            return True
        sequence = command.exec.seq
        if sequence == NOT_SUBMITTED:
            return False
        if not (
            interruptible(command.over, self.client, sequence, deadline)
            if deadline
            else command.over(self.client, sequence, 0)
        ):
            return False
        with self.lock:
            if command.state is None and command.exec.seq == sequence:
                command.state = command.ended(self.client)
        return True

    def give_up(self) -> None:
        """A wait for a command was given up: what is submitted next needs a fresh context."""
        with self.lock:
            self.hung = self.broken = True

    def in_flight(self) -> set[tuple[int, int]]:
        """The commands in flight on this open, each by an identity of its submit. Does not block."""
        return self.unfinished().union(*(pool.in_flight() for pool in list(self.client.pools)))

    def unfinished(self) -> set[tuple[int, int]]:
        """The commands in flight of this context alone, as :meth:`in_flight` gives all of the open's."""
        return {
            (id(command), command.exec.seq) for command in list(self._pending) if not self.settle(command, 0)
        }

    def idle(self) -> bool:
        """True when no command is in flight. Does not block."""
        return all(self.settle(command, 0) for command in list(self._pending))

    def drain(self, seconds: float = DRAIN_SECONDS) -> bool:
        """Waits until no command is in flight, at most `seconds`; true when so. Runs stay waitable."""
        deadline = time.monotonic_ns() + int(min(_seconds("drain", "seconds", seconds), 1e9) * 1e9)
        return all(self.settle(command, deadline) for command in list(self._pending))

    @section
    def close(self) -> None:
        """Waits for the commands in flight, then destroys the context. Idempotent; Runs stay waitable.

        A command that hangs is given :data:`DRAIN_SECONDS`; destroying its context then takes the driver two
        seconds more. Ctrl-C leaves the context open.
        """
        usable = not self.client.closed and self.client.pid == os.getpid()
        try:
            if self.handle and usable:
                self._destroy()
        except XdnaError as error:
            self._forget(usable, destroyed=False)
            # ENODEV: the device was removed, and every context with it (DRM's drm_ioctl; drm_dev_enter in
            # amdxdna_drm_destroy_hwctx_ioctl of amdxdna_ctx.c). ENOSYS: the emulating process is gone.
            if not (isinstance(error, DeviceLost) and error.errno in (errno.ENODEV, errno.ENOSYS)):
                raise
            return
        self._forget(usable)

    def _destroy(self) -> None:
        if not (self.hung or self.lost):
            self.drain()
        # That it is gone is no news once the context is known to be lost, and none on a driver that drops
        # contexts whenever a child process ends.
        loses = self.client.profile.loses_contexts
        try:
            if self._open and not destroy(self.client, self.handle, known=not (self.lost or loses)):
                self.lost = True
                if loses:
                    self._open.clear()
                    self.client.losses += 1
        except XdnaError:
            raise
        except BaseException:
            # A signal handler's, out of the emulated driver's wait for a hung command: the context is gone
            # all the same.
            self.idle()
            self._forget(True)
            raise
        # Destroying ends every command, so this no longer blocks for long.
        self.drain()

    def _forget(self, usable: bool, destroyed: bool = True) -> None:
        """What close() does on this side, also when the driver could not destroy the context."""
        with self.lock:
            self._open.clear()
            self.handle = 0
            for command, keep in list(self._pending.items()):
                if command.state is None:
                    # Still not over: what the NPU may write to stays, until the driver ends with the node.
                    self.unended = True
                    self.client.abandoned.append(keep)
                    command.state = State.ABORT
            if usable:
                self._collect()
                self._adopt()
            for command in self._free:
                command.close()
            self._free.clear()
            self._end_spent(destroyed and not self.unended)
        if self._own_pdis:
            for buffer in self._pdis:
                buffer.close()
        if self._scratch is not None and not self.unended:
            self._scratch.close()
