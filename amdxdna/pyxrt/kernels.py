"""`pyxrt.kernel` and `pyxrt.run`: kernels of an xclbin, with or without control code in an ELF file."""

from __future__ import annotations

import errno
import math
import re
import threading
import time
import warnings
from operator import index
from struct import Struct
from typing import Any

from amdxdna import packet
from amdxdna.controlcode import ControlCode, ControlKernel
from amdxdna.errors import CommandFailed, CommandTimeout, WaitTimeout
from amdxdna.packet import State
from amdxdna.pyxrt.buffers import bo
from amdxdna.pyxrt.calls import INT, incompatible, plain, refuse, select, text, translated, whole
from amdxdna.pyxrt.contexts import hw_context
from amdxdna.pyxrt.devices import device
from amdxdna.pyxrt.elfs import elf
from amdxdna.pyxrt.enums import Enumeration, enumeration, ert_cmd_state
from amdxdna.pyxrt.modules import module
from amdxdna.pyxrt.uuids import uuid
from amdxdna.restart import Restartable
from amdxdna.weak import LiveSet

_NPU_WORDS, _PREEMPT_WORDS = 7, 13
"""Payload words of the two packets for control code; the last two hold the first argument."""
_HEAD = 8
"""Bytes of a packet before the register map: header and CU mask."""
_NO_BANK = 0xFFFF
_LOOK_SECONDS = 0.001
"""Seconds between two checks whether another thread's first start() is over."""
_VALUE, _ADDRESS = Struct("<i"), Struct("<Q")


@enumeration(exclusive=0, shared=1, none=2)
class _CuAccessMode(Enumeration):
    __slots__ = ()


_CuAccessMode.__name__, _CuAccessMode.__qualname__ = "cu_access_mode", "kernel.cu_access_mode"
_NAME = ("", text)
_CONTEXT = ("", lambda value: isinstance(value, hw_context))
_OF_DEVICE = (
    ("", lambda value: isinstance(value, device)),
    ("", lambda value: isinstance(value, uuid)),
    _NAME,
)


class kernel:
    """A kernel of a context's xclbin. Called, it starts a run over its arguments and returns that."""

    __module__ = "pyxrt"
    cu_access_mode = _CuAccessMode
    exclusive, shared, none = _CuAccessMode(0), _CuAccessMode(1), _CuAccessMode(2)
    _code: ControlKernel | None = None
    _banks: dict[int, int | None] | None
    _places: tuple[tuple[int, int], ...]
    """Of each argument, its byte in the packet and its size there."""

    def __init__(self, *args: Any) -> None:
        form, values = select(
            "__init__",
            args,
            {},
            (_CONTEXT, _NAME),
            _OF_DEVICE,
            (*_OF_DEVICE, ("", lambda value: isinstance(value, _CuAccessMode))),
        )
        if form:
            warnings.warn(
                "kernel(device, uuid, name) is deprecated: use kernel(hw_context, name)",
                DeprecationWarning,
                stacklevel=2,
            )
            self._open(hw_context(values[0], values[1]), values[2])
        else:
            self._open(values[0], values[1])

    def _open(self, context: hw_context, name: str, code: module | None = None) -> None:
        """Finds the compute unit of ``KERNEL`` or ``KERNEL:{INSTANCE,...}``; `code`: what runs on it."""
        base, colon, instance = name.partition(":")
        self._context = context.context
        self._owner = context
        file = context.file
        if code is not None and code.elf.read.columns is not None:
            refuse(
                "Invalid API called for xrt::kernel creation, xrt::module passed is created using full ELF"
            )
        if code is not None and code.elf.read.grouped:
            _ = code.elf.columns  # raises for a full ELF file that lacks what one must state
        found = file.metadata.kernel(base)
        if found is None:
            refuse(f"No such kernel '{base}'", errno.EINVAL)
        wanted = re.fullmatch(r"\{(.*)\}", instance)
        instances = wanted.group(1).split(",") if wanted else found.instances if not colon else ()
        names = {f"{base}:{each}" for each in instances}
        cus = self._context.cus
        units = [place for place, cu in enumerate(cus) if cu.name in names]
        if not units:
            if not colon and found.kind != "dpu":
                refuse(
                    f"CU name ({base}:{found.instances[0] if found.instances else ''}) not found "
                    f"(err={errno.ENOENT})",
                    errno.ENOENT,
                )
            refuse(f"No compute units matching '{name}'")
        self._arguments = found.arguments
        at = {each.index: each for each in found.arguments}
        self._places = tuple(
            (_HEAD + at[n].offset, min(at[n].size, 8)) if n in at else (0, 0)
            for n in range(max(at, default=-1) + 1)
        )
        self._names = tuple(at[n].name if n in at else "" for n in range(len(self._places)))
        with translated():
            self._packet = packet.register_map(units[0], found.map_words)
        if code is not None:
            self._control(code.elf, "", units[0], len(self._places))
        ip = next((n for n, each in enumerate(file.metadata.ips) if each == cus[units[0]].name), -1)
        self._banks = {each.index: file.metadata.bank(ip, each.index) for each in found.arguments}

    def _open_elf(self, context: hw_context, name: str) -> None:
        """Finds the control code of ``KERNEL`` or ``KERNEL:INSTANCE`` in the context's ELF files."""
        file, full_name = context.control_code(name)
        self._context, self._owner = context.context, context
        self._banks = None
        # XRT's names; the files name arguments by their index.
        count = file.read.kernels[name.partition(":")[0]].arguments
        self._names = tuple(f"argv{n}" for n in range(count))
        self._control(file, full_name, None, count)

    def _control(self, file: elf, name: str, cu: int | None, count: int) -> None:
        """Runs take control code. Arguments are written into it; the packet itself holds only the first."""
        with translated():
            self._code = ControlKernel(self._context, file.read, name, cu)
        end = 4 * (1 + _NPU_WORDS if self._code.opcode == packet.Opcode.START_NPU else 1 + _PREEMPT_WORDS)
        self._places = ((end - 8, 8), *((0, 0),) * (count - 1)) if count else ()

    def __call__(self, *args: Any) -> run:
        made = run(self)
        for number, value in enumerate(args[: len(self._places)]):
            made._try(number, value)
        made.start()
        return made

    def group_id(self, argument: Any) -> int:
        """The memory bank of an argument, with the context's number."""
        if not INT(argument):
            incompatible("group_id", self, argument)
        if self._banks is None:
            refuse("a kernel of an ELF file has no memory banks: use pyxrt.ext.bo")
        bank = self._banks.get(index(argument))
        return (_NO_BANK if bank is None else bank & _NO_BANK) | self._context.handle << 16


class run:
    """A run of a kernel, started again with the arguments set by then. Keeps its buffers alive."""

    __module__ = "pyxrt"

    def __init__(self, *args: Any) -> None:
        if not args:
            self._kernel: kernel | None = None
            return
        if len(args) > 1 or not isinstance(args[0], kernel):
            incompatible("__init__", *args)
        self._kernel = args[0]
        self._places = args[0]._places
        self._lists: LiveSet[object] = LiveSet()
        """How often it is on a runlist."""
        self._marked: ert_cmd_state | None = None
        self._bos: dict[int, bo] = {}
        self._code: ControlCode | None = None
        self._starting = threading.Lock()
        with translated():
            words = args[0]._packet if args[0]._code is None else b""
            if args[0]._code is not None:
                self._code = args[0]._code.load()
                words = self._code.packet()
            self._job = Restartable(args[0]._context, words)

    @property
    def job(self) -> Restartable:
        """The binding's command. Raises RuntimeError for an empty run."""
        if self._kernel is None:
            refuse("this run object is empty: make it with a kernel")
        return self._job

    def set_arg(self, argument: Any, value: Any) -> None:
        """Sets an argument for the next start. Raises IndexError for one that the kernel does not have."""
        job = self.job
        if not INT(argument) or not (isinstance(value, bo) or INT(value)):
            incompatible("set_arg", self, argument, value)
        place = index(argument)
        if not 0 <= place < len(self._places):
            raise IndexError(
                f"vector::_M_range_check: __n (which is {place % (1 << 64)}) >= this->size() "
                f"(which is {len(self._places)})"
            )
        self._set(job, place, value)

    def _set(self, job: Restartable, place: int, value: Any) -> None:
        offset, size = self._places[place]
        if self._code is not None and self._kernel is not None:
            if job.in_flight:
                refuse("xrt::run::set_arg called while command is still in progress")
            number = value._address if isinstance(value, bo) else index(value) & 0xFFFFFFFF
            self._code.set(place, self._kernel._names[place], number)
        if isinstance(value, bo):
            job.packet[offset : offset + size] = _ADDRESS.pack(value._address)[:size]
            self._bos[place] = value
        else:
            # XRT writes four bytes, of an argument of eight too.
            count = min(size, 4)
            job.packet[offset : offset + count] = _VALUE.pack(index(value))[:count]
            self._bos.pop(place, None)

    def _try(self, place: int, value: Any) -> None:
        """Sets what is a buffer or a number; anything else leaves the argument 0, as programs rely on."""
        if isinstance(value, bo) or INT(value):
            self._set(self._job, place, value)

    def buffers(self) -> list[Any]:
        """The binding's buffers that a start touches."""
        own = () if self._code is None else self._code.buffers
        return [*(each.buffer for each in self._bos.values()), *own]

    def prepare(self) -> None:
        """Flushes changed control code; called just before a start."""
        if self._code is not None:
            self._code.flush()

    def start(self) -> None:
        """Submits it. Raises RuntimeError while it is in flight, or on a runlist."""
        job = self.job
        if self._lists:
            refuse("Run object belongs to a runlist and cannot be explicitly started", errno.EINVAL)
        # Held: another thread is starting this run, or was at the fork: refused. Of two that find it free one
        # waits for the other. `with`: a handler may raise between an acquire() and its try.
        if self._starting.locked():
            refuse("bad command state, can't launch")
        with self._starting:
            if job.in_flight:
                refuse("bad command state, can't launch")
            with translated():
                self.prepare()
                job.start(self.buffers())

    def wait(self, *timeout: Any) -> ert_cmd_state:
        """Waits for its end, at most `timeout` milliseconds (0: no limit); its state, or TIMEOUT when the
        limit passes, after which it can be waited for again."""
        if len(timeout) > 1 or not all(map(whole(32), timeout)):
            incompatible("wait", self, *timeout)
        return self._wait(index(timeout[0]) if timeout else 0)[0]

    def wait2(self, *timeout: Any) -> None:
        """Waits for its end. Raises RuntimeError unless it completed."""
        if timeout:
            incompatible("wait2", self, *timeout)
        state, error = self._wait(0)
        if int(state) != State.COMPLETED:
            raise RuntimeError(failure("Command failed to complete successfully", state, error)) from error

    def _wait(self, milliseconds: int) -> tuple[ert_cmd_state, CommandFailed | None]:
        """Waits for the latest start as of now; its state, and its error where it failed."""
        started = self.job.run
        if self._marked is not None:
            return self._marked, None
        if started is None and self._starting.locked():
            # Its first start is under way in another thread.
            with translated():
                self._job.context.client.check_open()  # in the child of a fork that thread is not there
            if not self._over(milliseconds / 1000 if milliseconds else threading.TIMEOUT_MAX):
                return ert_cmd_state(State.TIMEOUT), None
            started = self._job.run
        if started is None:
            refuse("this run is not started")
        with translated():
            try:
                started.wait(milliseconds / 1000 if milliseconds else math.inf)
            except WaitTimeout:
                return ert_cmd_state(State.TIMEOUT), None
            except CommandFailed as error:
                # The runlist itself sets each member's state.
                return self._marked or ert_cmd_state(int(started.state)), error
        return self._marked or ert_cmd_state(State.COMPLETED), None

    def _over(self, seconds: float) -> bool:
        """Waits at most that long for the end of a first start; false where it is still under way."""
        # Polls: start() refuses where it finds the lock held.
        end = time.monotonic() + seconds
        while self._job.run is None and self._starting.locked():
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_LOOK_SECONDS, left))
        return True

    def state(self) -> ert_cmd_state:
        """NEW until the driver has answered."""
        _ = self.job
        return self._state()

    def _state(self) -> ert_cmd_state:
        with translated():
            return ert_cmd_state(int(self._job.state)) if self._marked is None else self._marked

    def get_ctrl_scratchpad_bo(self) -> bo:
        """The control scratchpad, as the NPU left it. Raises RuntimeError for control code without one."""
        _ = self.job
        if self._code is None:
            refuse("No module associated with run object", errno.EINVAL)
        if self._code.scratchpad is None:
            refuse("Control scratchpad memory is not present\n")
        self._code.scratchpad.from_device()
        return bo.over(self._code.scratchpad)

    def add_callback(self, *args: Any) -> None:
        """Raises TypeError for all arguments, as XRT's own module does."""
        incompatible("add_callback", self, *args)


def failure(what: str, state: ert_cmd_state, error: CommandFailed | None) -> str:
    """XRT's text for a failed run: its state, where it stood if it hung, then the cause and what to do."""
    lines = [f"{what} ({state.name})"]
    health = error.health if isinstance(error, CommandTimeout) else None
    if health is not None:
        lines += [
            f"{name} = {value:#x}"
            for name, value in (
                ("txn_op_idx", health.txn_op_idx),
                ("ctx_pc", health.ctx_pc),
                ("fatal_error_type", health.fatal_error_type),
                ("fatal_error_exception_type", health.fatal_error_exception_type),
                ("fatal_error_exception_pc", health.fatal_error_exception_pc),
                ("fatal_error_app_module", health.fatal_error_app_module),
            )
        ]
    if error is not None:
        lines.append(plain(str(error)))
    return "\n".join(lines)
