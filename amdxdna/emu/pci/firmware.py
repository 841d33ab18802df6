"""The NPU2 firmware's message interface, protocols 6 from 6.12 on and 7, over the NPU model.

Opcodes and sizes are in messages.py, statuses with the NPU model. Messages of
the management channel are answered at once, except the asynchronous-event registrations, whose replies
wait for an event; command lists on a context's channel are answered when the NPU model has run them.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from amdxdna.emu import identity
from amdxdna.emu.faults import Faults
from amdxdna.emu.npu import BadAddress, Npu, Reply, Slot, Status

from . import commands
from . import registers as reg
from .guest_memory import GuestMemory
from .mailbox import Channel, Message
from .messages import (
    ADD_HOST_BUFFER,
    ASSIGN_PASID,
    CALIBRATE_CLOCK,
    CONFIGURE_CUS,
    CONFIGURE_DEBUG_BO,
    CONFIGURE_LOG,
    CREATE_CONTEXT,
    DESTROY_CONTEXT,
    GET_APP_HEALTH,
    GET_DEVICE_REVISION,
    GET_FIRMWARE_VERSION,
    GET_RUNTIME_CONFIG,
    GET_TELEMETRY,
    MANAGEMENT,
    MAP_HOST_BUFFER,
    QUERY_AIE_VERSION,
    QUERY_COLUMN_STATUS,
    QUERY_TILE_INFO,
    REGISTER_ASYNC_EVENT,
    RESUME,
    SET_RUNTIME_CONFIG,
    SET_TRACE_CATEGORIES,
    START_TRACE,
    STOP_TRACE,
    SUSPEND,
    SYNC_BO,
    UPDATE_PROPERTY,
    failure,
)
from .msix import Interrupts

MAILBOX_MAGIC = 0x55504E5F

_MAX_CUS = 32
_PDI_SHIFT, _PDI_MASK = 15, 0x1FFFF
_FUNCTION_SHIFT, _FUNCTION_MASK = 17, 0xFF


@dataclass(frozen=True)
class FirmwareOptions:
    """What the firmware reports and how much it can do.

    `protocol`: (7, 0), or (6, minor) for what a driver that wants firmware of protocol 6 expects: newer
    messages are then unknown, and below 6.15 so are the NPU command lists. `revision`: 1 is Strix.
    `slots`, `columns`, `threads`, `instant`: see :class:`amdxdna.emu.npu.Npu`.
    """

    protocol: tuple[int, int] = (7, 0)
    version: tuple[int, int, int, int] = identity.FIRMWARE_VERSION
    revision: int = 1
    slots: int = 16
    columns: int = 8
    threads: int = 0
    instant: bool = False


@dataclass
class _Event:
    """A registered buffer for asynchronous events, and the request to answer when one is in it."""

    request: Message
    address: int
    size: int


@dataclass
class _State:
    """What a start creates and a stop forgets."""

    npu: Npu
    channels: dict[int, Channel]
    """By number; a context's channel has the context's id + 1."""
    events: list[_Event] = field(default_factory=list)
    runtime: dict[int, int] = field(default_factory=dict)


class Firmware:
    """Message handling. Every public method takes the function's lock itself.

    `overrides` maps an opcode (management or context) to a function of (request, answer) whose result is sent
    instead of `answer`; None sends nothing. Fault-injection tests use it. `observer` is called with each
    context and list of commands before they run.
    """

    def __init__(
        self,
        bars: reg.Bars,
        interrupts: Interrupts,
        memory: GuestMemory,
        lock: threading.RLock,
        options: FirmwareOptions | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.options = options or FirmwareOptions()
        self.faults = Faults()
        self.observer: Callable[[int, list[Slot]], None] | None = None
        self.overrides: dict[int, Callable[[Message, bytes | None], bytes | None]] = {}
        self._bars = bars
        self._interrupts = interrupts
        self._memory = memory
        self._lock = lock
        self._log = log
        self._state: _State | None = None
        self._ending: list[Npu] = []
        """What was stopped while it computed."""
        self._management: dict[int, Callable[[Message], bytes | None]] = {
            CREATE_CONTEXT: self._create_context,
            DESTROY_CONTEXT: self._destroy_context,
            GET_TELEMETRY: self._telemetry,
            QUERY_COLUMN_STATUS: self._column_status,
            QUERY_TILE_INFO: self._tile_info,
            QUERY_AIE_VERSION: lambda _: struct.pack("<IHH", Status.OK, *Npu.AIE_VERSION),
            SUSPEND: self._suspend,
            RESUME: self._resume,
            ASSIGN_PASID: lambda _: status(Status.OK),
            MAP_HOST_BUFFER: self._host_buffer,
            ADD_HOST_BUFFER: self._host_buffer,
            GET_FIRMWARE_VERSION: lambda _: struct.pack("<5I", Status.OK, *self.options.version),
            SET_RUNTIME_CONFIG: self._set_runtime,
            GET_RUNTIME_CONFIG: self._get_runtime,
            REGISTER_ASYNC_EVENT: self._register_event,
            UPDATE_PROPERTY: lambda _: status(Status.OK),
            GET_APP_HEALTH: self._health,
            GET_DEVICE_REVISION: lambda _: struct.pack("<III", Status.OK, self.options.revision, 0),
            CALIBRATE_CLOCK: lambda _: status(Status.OK),
            # The model has nothing to log or trace: their vectors are told, and never raised.
            CONFIGURE_LOG: lambda _: struct.pack(
                "<III20x", Status.OK, reg.LOG_VECTOR, reg.interrupt_address(reg.LOG_VECTOR)
            ),
            START_TRACE: lambda _: struct.pack(
                "<IIQI", Status.OK, reg.TRACE_VECTOR, 0, reg.interrupt_address(reg.TRACE_VECTOR)
            ),
            STOP_TRACE: lambda _: status(Status.OK),
            SET_TRACE_CATEGORIES: lambda _: status(Status.OK),
        }
        # Sizes of these bodies differ between protocols, or do not matter.
        self._context: dict[int, Callable[[Channel, Message], bytes]] = {
            CONFIGURE_CUS: self._configure_cus,
            SYNC_BO: lambda channel, request: status(Status.OK),
            CONFIGURE_DEBUG_BO: lambda channel, request: status(Status.OK),
        }

    # -- life

    def start(self) -> None:
        """Boots: announces the management channel."""
        with self._lock:
            self.stop()
            channel = Channel(self._bars, self._interrupts, 0)
            options = self.options
            npu = Npu(
                self._memory,
                slots=options.slots,
                columns=options.columns,
                threads=options.threads,
                instant=options.instant,
                faults=self.faults,
                log=self._log,
            )
            self._state = _State(npu, {0: channel})
            info = struct.pack(
                "<16I",
                *channel.rings(head_first=False),
                MAILBOX_MAGIC,
                channel.vector,
                *options.protocol,
                0,
                0,
                0,
                0,
            )
            self._bars.write(reg.SRAM_BAR, reg.CHANNEL_INFO, info)
            self._bars.store(reg.REGISTERS_BAR, reg.PWAITMODE, 0)
            self._bars.store(reg.SRAM_BAR, reg.FIRMWARE_ALIVE, reg.SRAM_BASE + reg.CHANNEL_INFO)
            self._log("firmware started, protocol {}.{}".format(*options.protocol))

    def stop(self) -> None:
        """Ends it: contexts are gone, replies still due are dropped. Idempotent."""
        with self._lock:
            state, self._state = self._state, None
            if state is None:
                return
            for channel in state.channels.values():
                channel.close()
            self._ending = [npu for npu in (*self._ending, state.npu) if not npu.close(0)]

    def ended(self, seconds: float) -> bool:
        """Waits, `seconds` at most, until nothing that was stopped computes any more; whether that is so.

        Not to be called with the function's lock held: what ends may need it.
        """
        end = time.monotonic() + seconds
        return all(npu.close(max(end - time.monotonic(), 0.0)) for npu in self._ending)

    @property
    def running(self) -> bool:
        """Whether the firmware was started and not stopped since."""
        return self._state is not None

    @property
    def contexts(self) -> int:
        """Contexts that exist now."""
        return self._state.npu.contexts if self._state else 0

    @property
    def npu(self) -> Npu | None:
        """The running NPU model."""
        return self._state.npu if self._state else None

    def pointer_written(self, offset: int) -> None:
        """The driver wrote a mailbox register: takes what it sent, pushes what waits for room."""
        number = (offset - reg.MAILBOX_REGISTERS) // reg.MAILBOX_STRIDE
        with self._lock:
            channel = self._state.channels.get(number) if self._state else None
            if channel is None:
                return
            if offset == channel.i2x_head:
                channel.push()
            elif offset == channel.x2i_tail:
                while request := channel.take():
                    self._dispatch(channel, request)

    def _dispatch(self, channel: Channel, request: Message) -> None:
        self._log(f"channel {channel.vector} opcode {request.opcode:#x} {request.body.hex()}")
        if channel.vector and request.opcode in (*commands.CHAINS, *commands.SINGLES):
            self._submit(channel, request)
            return
        answer: bytes | None
        if channel.vector:
            answer = self._context.get(request.opcode, self._unknown_context)(channel, request)
        else:
            answer = self._managed(request)
        self._answer(channel, request, answer)

    def _answer(self, channel: Channel, request: Message, answer: bytes | None) -> None:
        if request.opcode in self.overrides:
            answer = self.overrides[request.opcode](request, answer)
        if answer is not None:
            channel.reply(request, answer)

    def _managed(self, request: Message) -> bytes | None:
        """What the management channel answers; None where the answer comes later."""
        layout = MANAGEMENT.get(request.opcode)
        if layout is None or self.options.protocol < layout.since:
            return self._unknown(request)
        if len(request.body) != layout.request:
            return failure(request.opcode, Status.INVALID_PARAM)
        return self._management[request.opcode](request)

    def _unknown(self, request: Message) -> bytes:
        self._log(f"  unknown opcode {request.opcode:#x}")
        return failure(request.opcode, Status.INVALID_COMMAND)

    def _unknown_context(self, channel: Channel, request: Message) -> bytes:
        self._log(f"  unknown opcode {request.opcode:#x}")
        return status(Status.INVALID_COMMAND)

    # -- management messages

    def _running(self) -> _State:
        assert self._state is not None
        return self._state

    def _suspend(self, request: Message) -> bytes:
        self._bars.store(reg.REGISTERS_BAR, reg.PWAITMODE, 1)
        return status(Status.OK)

    def _resume(self, request: Message) -> bytes:
        self._bars.store(reg.REGISTERS_BAR, reg.PWAITMODE, 0)
        return status(Status.OK)

    def _set_runtime(self, request: Message) -> bytes:
        kind, value = struct.unpack("<IQ", request.body)
        self._running().runtime[kind] = value
        return status(Status.OK)

    def _get_runtime(self, request: Message) -> bytes:
        (kind,) = struct.unpack("<I", request.body)
        return struct.pack("<IQ", Status.OK, self._running().runtime.get(kind, 0))

    def _tile_info(self, request: Message) -> bytes:
        info = self._running().npu.tile_info()
        return struct.pack("<II20H", Status.OK, info[0], *info[1:], 0)

    def _register_event(self, request: Message) -> None:
        address, size = struct.unpack("<QI", request.body)
        self._running().events.append(_Event(request, address, size))

    def _column_status(self, request: Message) -> bytes:
        address, size, _, bitmap = struct.unpack("<QIII", request.body)
        dump = self._running().npu.column_status(bitmap)[:size]
        try:
            self._memory.write(address, dump)
        except BadAddress:
            return struct.pack("<II", Status.INVALID_PARAM, 0)
        return struct.pack("<II", Status.OK, len(dump))

    def _telemetry(self, request: Message) -> bytes:
        return struct.pack("<IIII", 1, 0, 0, Status.OK)

    def _create_context(self, request: Message) -> bytes:
        _, first, columns, _, _, queues, _, pasid, *_ = struct.unpack("<IBBBBBBHIIII", request.body)
        state = self._running()
        result, context = state.npu.create_context(first, columns, pasid=pasid)
        if result == Status.OK and (queues != 1 or context + 1 >= reg.CHANNELS):
            state.npu.destroy_context(context)
            result = Status.NO_CONTEXT_FREE
        if result != Status.OK:
            return struct.pack("<IIHBB", result, 0xFFFFFFFF, 0, 0, 0) + bytes(64)
        self._memory.bind(context, pasid)
        number = context + 1
        channel = state.channels[number] = Channel(self._bars, self._interrupts, number)
        return struct.pack(
            "<IIHBB8I", Status.OK, context, channel.vector, 1, 0, *channel.rings(head_first=True)
        ) + bytes(32)

    def _destroy_context(self, request: Message) -> bytes:
        (context,) = struct.unpack("<I", request.body)
        state = self._running()
        channel = state.channels.pop(context + 1, None)
        if channel:
            channel.close()
        result = state.npu.destroy_context(context)
        self._memory.unbind(context)
        return status(result)

    def _host_buffer(self, request: Message) -> bytes:
        context, address, size = struct.unpack("<IQQ", request.body)
        if not self._memory.reaches(context, address, size):
            return status(Status.INVALID_PARAM)
        add = request.opcode == ADD_HOST_BUFFER
        return status(self._running().npu.map_heap(context, address, size, add=add))

    def _health(self, request: Message) -> bytes:
        context, size, address = struct.unpack("<IIQ", request.body)
        result, health = self._running().npu.health(context)
        report = health.pack()
        if result == Status.OK:
            if size < len(report):
                result = Status.INVALID_PARAM
            else:
                try:
                    self._memory.write(address, report)
                except BadAddress:
                    result = Status.INVALID_BUFFER
        return struct.pack("<9I", result, len(report), *[0] * 7)

    # -- context messages

    def _configure_cus(self, channel: Channel, request: Message) -> bytes:
        if len(request.body) != 4 * (1 + _MAX_CUS):
            return status(Status.INVALID_PARAM)
        count, *words = struct.unpack(f"<{1 + _MAX_CUS}I", request.body)
        cus = [
            ((word & _PDI_MASK) << _PDI_SHIFT, word >> _FUNCTION_SHIFT & _FUNCTION_MASK)
            for word in words[:count]
        ]
        if count > _MAX_CUS:
            return status(Status.INVALID_PARAM)
        return status(self._running().npu.config_cus(channel.vector - 1, cus))

    def _submit(self, channel: Channel, request: Message) -> None:
        """Decodes one command or a list and hands it to the NPU model; its reply answers the message."""
        chain = request.opcode in commands.CHAINS
        npu, context = self._running().npu, channel.vector - 1
        known = self.options.protocol >= commands.SINCE.get(request.opcode, (0, 0))

        def done(reply: Reply) -> None:
            words = (reply.status, reply.failed, reply.slot_status) if chain else (reply.status,)
            with self._lock:
                self._answer(channel, request, struct.pack(f"<{len(words)}I", *words))

        try:
            if not known:
                raise commands.BadCommand(0, f"opcode {request.opcode:#x} is of a newer protocol")
            if chain:
                address, size, count = commands.list_location(request.opcode, request.body)
                slots = commands.decode_list(request.opcode, npu.read(context, address, size), count)
            else:
                slots = [commands.decode_single(request.opcode, request.body)]
        except commands.BadCommand as error:
            self._log(f"context {context}: {error}")
            done(Reply(Status.INVALID_COMMAND, error.index, Status.INVALID_COMMAND))
            return
        except BadAddress as error:
            self._log(f"context {context}: {error}")
            done(Reply(Status.INVALID_BUFFER, 0, Status.INVALID_BUFFER))
            return
        if self.observer:
            self.observer(context, slots)
        result = npu.submit(context, slots, done)
        if result != Status.OK:
            done(Reply(result, 0, result))

    # -- events

    def raise_array_error(self, row: int, column: int, event: int = 59) -> bool:
        """Reports an asynchronous error of a core, as the array does; False when no buffer is registered.

        Layout: count, code, reserved, then one entry of row, column, module (1: core) and event id
        (drivers/accel/amdxdna/aie2_error.c).
        """
        with self._lock:
            if not self._state or not self._state.events:
                return False
            entry = self._state.events.pop(0)
            self._memory.write(entry.address, struct.pack("<IIIBBHIB3x", 1, 0, 0, row, column, 0, 1, event))
            self._answer(self._state.channels[0], entry.request, struct.pack("<II", Status.OK, 0))
            return True


def status(value: int) -> bytes:
    """A reply of one status word."""
    return struct.pack("<I", value)
