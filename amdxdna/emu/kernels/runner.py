"""Runs an instruction stream: the one entry the NPU model calls."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from .. import _kernels
from . import isa
from .families import WORK, Family
from .stream import Copy, Delay, Demand, Fail, Gemm, Gemv, Hang, Op, StreamError, parse

Operand = Callable[[int], int]
"""Resolves an argument: called with the bytes the kernel will touch, returns a host address valid for
that many, or raises; what it raises reaches execute()'s caller before anything has run."""

Wait = Callable[["float | None"], bool]
"""Waits that many seconds (None: until aborted); True when the command was aborted meanwhile."""

OK = 0
INVALID = 0x4000003
"""The firmware's status for an invalid parameter."""
ABORTED = 0x4000004
"""The command was aborted in a DELAY, a HANG or a computation (the emulator's own value)."""


class Stop:
    """Ends a computation from another thread, for good. Thread-safe."""

    __slots__ = ("word",)

    def __init__(self) -> None:
        self.word: Any = _kernels.ffi.new("int *")

    def set(self) -> None:
        """From now on nothing begins, and what computes ends within a fraction of a second."""
        self.word[0] = 1

    def __bool__(self) -> bool:
        return bool(self.word[0])


class Result(NamedTuple):
    """Outcome of a stream: a status (0 is success), which op it is of, and a sentence for a log."""

    status: int
    op: int
    message: str

    def run(
        self, *, threads: int = 0, instant: bool = False, wait: Wait | None = None, stop: Stop | None = None
    ) -> Result:
        """What a stream that cannot run gives whenever it is run: this."""
        return self


_DONE = Result(OK, 0, "")
STOPPED = "stopped"
"""What an op gives that :class:`Stop` has ended."""
_NULL = _kernels.ffi.NULL

Step = tuple[Op, tuple[int, ...]]
"""An op and the bytes it touches of each argument."""


def _name(op: Op) -> str:
    return type(op).__name__.upper()


@lru_cache(maxsize=256)
def _steps(program: bytes, family: int) -> tuple[Step, ...]:
    ops = parse(program)
    try:
        work = WORK[Family(family)]
    except ValueError:
        raise StreamError(f"kernel family {family} is unknown") from None
    for index, op in enumerate(ops):
        if not isinstance(op, (work, Delay, Hang, Fail)):
            raise StreamError(f"op {index}: {_name(op)} does not run in a {Family(family).label} PDI")
    return tuple((op, op.spans()) for op in ops)


@lru_cache(maxsize=256)
def work(program: bytes, family: int) -> float:
    """Multiply-adds (words, for COPY) of a stream: how long it takes.

    Infinite for one that waits or fails by itself, or cannot run.
    """
    try:
        return sum(_work(op) for op, _ in _steps(program, family))
    except StreamError:
        return math.inf


@lru_cache(maxsize=1024)
def demands(program: bytes, family: int) -> tuple[Demand, ...]:
    """What each op of a stream asks of the hardware, up to one that hangs or fails: nothing runs behind it.

    Nothing for a stream that cannot run.
    """
    found: list[Demand] = []
    try:
        for op, _ in _steps(program, family):
            if isinstance(op, (Hang, Fail)):
                break
            found.append(op.demand())
    except StreamError:
        return ()
    return tuple(found)


def _work(op: Op) -> float:
    if isinstance(op, Gemm):
        return op.rows * op.k * op.n
    if isinstance(op, Gemv):
        return op.m * op.k
    return op.nbytes // 4 if isinstance(op, Copy) else math.inf


def _stalled(seconds: float | None) -> bool:
    return True


class Prepared:
    """A stream with its operands resolved. It may run again while the pointers are valid."""

    __slots__ = ("_plan",)

    def __init__(self, plan: Sequence[tuple[Op, list[int]]]) -> None:
        self._plan = plan

    def run(
        self, *, threads: int = 0, instant: bool = False, wait: Wait = _stalled, stop: Stop | None = None
    ) -> Result:
        """See :func:`execute`."""
        for index, (op, pointers) in enumerate(self._plan):
            if isinstance(op, Hang):
                while not wait(None):
                    pass
                return Result(ABORTED, index, f"op {index}: HANG aborted")
            if isinstance(op, Fail):
                return Result(op.status, index, f"op {index}: FAIL with status 0x{op.status:x}")
            if instant:
                if not isinstance(op, Delay):
                    _sign(op, pointers[-1])
                continue
            if isinstance(op, Delay):
                if wait(op.microseconds * 1e-6):
                    return Result(ABORTED, index, f"op {index}: DELAY aborted")
                continue
            if stop:
                return Result(ABORTED, index, f"op {index}: {_name(op)} aborted")
            status = compute(op, pointers, threads, _NULL if stop is None else stop.word)
            if status == STOPPED:
                return Result(ABORTED, index, f"op {index}: {_name(op)} aborted")
            if status:
                return Result(INVALID, index, f"op {index}: {_name(op)}: {status}")
        return _DONE


def prepare(program: bytes, family: int, args: Sequence[Operand]) -> Prepared | Result:
    """Resolves a stream's operands; the result where it cannot run. See :func:`execute`."""
    try:
        steps = _steps(program, family)
    except StreamError as error:
        return Result(INVALID, 0, str(error))
    plan: list[tuple[Op, list[int]]] = []
    for index, (op, spans) in enumerate(steps):
        if len(spans) > len(args):
            why = f"op {index}: {_name(op)} takes {len(spans)} arguments, not {len(args)}"
            return Result(INVALID, index, why)
        pointers = [args[place](nbytes) for place, nbytes in enumerate(spans)]
        if isinstance(op, (Gemm, Gemv)) and (pointers[0] | pointers[2]) & 1:
            return Result(INVALID, index, f"op {index}: a bf16 operand is not aligned to two bytes")
        plan.append((op, pointers))
    return Prepared(plan)


def execute(
    program: bytes,
    family: int,
    args: Sequence[Operand],
    *,
    threads: int = 0,
    instant: bool = False,
    wait: Wait = _stalled,
    stop: Stop | None = None,
) -> Result:
    """Runs `program` as kernel `family` on `args`; returns when it completed, failed or was aborted.

    Every operand span of every op is resolved before the first op runs, so nothing is half done when
    an operand turns out too small; a resolver's exception passes through. A stream that does not
    parse, belongs to another family or names an argument that is not there gives INVALID and changes
    nothing. DELAY and HANG call `wait`; a true answer ends the stream with ABORTED, and so does `stop`, in
    the middle of an op too.

    threads: kernel threads, 0 for one a core. Results do not depend on it. instant: skip GEMM, GEMV,
    COPY and DELAY, for measuring what the host costs; of each output only the first element and the last
    row are written, 0, by which it can be told that the command ran. Thread-safe: runs of
    several threads take turns on the kernel threads; the GIL is released while C runs.
    """
    return prepare(program, family, args).run(threads=threads, instant=instant, wait=wait, stop=stop)


def _sign(op: Gemm | Gemv | Copy, at: int) -> None:
    """Writes of a result at `at` what shows that its command ran (amdxdna.marks): first element, last row."""
    nbytes = op.spans()[-1]
    row = 2 * op.columns if isinstance(op, Gemm) else 2
    _kernels.ffi.cast("uint16_t *", at)[0] = 0
    _kernels.ffi.buffer(_kernels.ffi.cast("char *", at + nbytes - row), row)[:] = bytes(row)


def compute(op: Gemm | Gemv | Copy, at: list[int], threads: int, stop: Any) -> str:
    """Runs one op on host addresses; returns why it was refused, or nothing.

    STOPPED as soon as `stop`, an int in C's memory or NULL, is not 0.
    """
    if isinstance(op, Copy):
        return _told(_kernels.lib.emu_copy(at[0], at[1], op.nbytes, op.addend, stop))
    try:
        variant = isa.chosen()
    except ValueError as error:
        return str(error)
    if isinstance(op, Gemv):
        shape = (op.m, op.k, op.flags, op.format)
        code = _kernels.lib.emu_gemv(at[0], at[1], at[2], *shape, threads, variant, stop)
    else:
        code = _kernels.lib.emu_gemm(
            at[0],
            at[1],
            at[2],
            op.rows,
            op.k,
            op.n,
            op.lda,
            op.c_stride,
            op.flags,
            op.format,
            threads,
            variant,
            stop,
        )
    return _told(code)


def _told(code: int) -> str:
    if code == -errno.ECANCELED:
        return STOPPED
    return "" if code == 0 else f"the kernel returned {code} (out of memory)"
