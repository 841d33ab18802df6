"""Instruction streams of the emulated NPU's kernels: build them, parse them.

A stream is little-endian 32-bit words: magic ``"EMU1"``, version 1, the number of ops, then the ops.
An op's first word is ``opcode | words << 16`` where `words` counts the op's own words, that one
included. The layout is this project's; compiled AIE instruction streams are not interpreted.

====== ====== =========================================================================== ==========
opcode name   fields                                                                      arguments
====== ====== =========================================================================== ==========
1      GEMM   M (rows a chunk), chunks, K, N, lda, c_stride, flags, format, b_bytes       A, B, C
2      GEMV   M, K, flags, format, w_bytes                                                x, W, y
3      COPY   bytes, addend                                                               src, dst
4      DELAY  microseconds
5      HANG
6      FAIL   status
====== ====== =========================================================================== ==========

Every op of a stream names its arguments by position, so the ops of one stream share them.
Everything here is pure and safe to call from any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple, TypeAlias

MAGIC = 0x31554D45
VERSION = 1
MAX_OPS = 256
MAX_ROWS = 1 << 24
"""Most rows (M * chunks) of one GEMM."""

SWIGLU = 1
"""Flag: columns come in blocks of 32 gate | 32 up; C holds silu(gate) * up, N/2 columns."""
BIAS = 2
"""Flag: the weight stream ends with one float32 an output, added before any epilogue."""

GELU = 4
"""Flag (GEMM): C holds the GELU, in its tanh form, of every column."""
PAIR = 8
"""Flag (GEMM): two streams of the same shape one after the other; their products are summed."""

BFP16 = 0
BFP6S = 1
FORMATS = {"bfp16": BFP16, "bfp6s": BFP6S}

_U32 = 0xFFFFFFFF


class StreamError(ValueError):
    """An instruction stream that cannot be run; the message says which word or op and why."""


class Demand(NamedTuple):
    """What an op asks of the hardware: arithmetic operations (a multiply-add is two), bytes to and from
    memory, and seconds that it takes by definition."""

    operations: int
    nbytes: int
    seconds: float = 0.0


def weight_bytes(n: int, k: int, format: int = BFP16, flags: int = 0) -> int:
    """Bytes of the packed stream of `n` outputs over `k` inputs, bias included when `flags` has it.

    Raises StreamError when the format cannot hold the shape: n is a multiple of 8; k of 8 (bfp16)
    or 128 (bfp6s).
    """
    step = {BFP16: 8, BFP6S: 128}.get(format)
    if step is None:
        raise StreamError(f"weight format {format} is unknown (0 bfp16, 1 bfp6s)")
    if n < 8 or n % 8:
        raise StreamError(f"{n} outputs: not a positive multiple of 8")
    if k < step or k % step:
        raise StreamError(f"K = {k}: not a positive multiple of {step}")
    body = n * (k // 8) * 9 if format == BFP16 else (n // 8) * (k // 128) * 832
    return body * (2 if flags & PAIR else 1) + (4 * n if flags & BIAS else 0)


class _Words:
    """One op: a dataclass of the words after its first."""

    opcode: ClassVar[int]

    def fields(self) -> tuple[int, ...]:
        """The words after the op's first."""
        return tuple(vars(self).values())

    def spans(self) -> tuple[int, ...]:
        """Bytes each argument must grant, in argument order."""
        return ()

    def check(self) -> None:
        """Raises StreamError unless the fields agree with each other."""


@dataclass(frozen=True)
class Gemm(_Words):
    """C[chunks*M, N] = A[chunks*M, K] B[K, N]; strides in elements; the weight format of B in `format`."""

    m: int
    chunks: int
    k: int
    n: int
    lda: int
    c_stride: int
    flags: int
    format: int
    b_bytes: int

    opcode: ClassVar[int] = 1

    @property
    def rows(self) -> int:
        """Rows of A and C: chunk j's rows follow chunk j-1's."""
        return self.m * self.chunks

    @property
    def columns(self) -> int:
        """Columns of C: N, or N/2 with the SwiGLU epilogue."""
        return self.n // 2 if self.flags & SWIGLU else self.n

    @property
    def a_bytes(self) -> int:
        """Bytes from A's first element to its last, inclusive."""
        return 2 * ((self.rows - 1) * self.lda + self.k)

    @property
    def c_bytes(self) -> int:
        """Bytes from C's first element to its last, inclusive."""
        return 2 * ((self.rows - 1) * self.c_stride + self.columns)

    def demand(self) -> Demand:
        """Every row of every chunk, and each operand once."""
        products = 2 if self.flags & PAIR else 1
        return Demand(
            2 * products * self.rows * self.k * self.n,
            2 * self.rows * (self.k + self.columns) + self.b_bytes,
        )

    def spans(self) -> tuple[int, ...]:
        return self.a_bytes, self.b_bytes, self.c_bytes

    def check(self) -> None:
        if self.m < 1 or self.chunks < 1 or self.rows > MAX_ROWS:
            raise StreamError(f"GEMM: {self.chunks} chunks of {self.m} rows: 1..{MAX_ROWS} rows in all")
        if self.flags & ~(SWIGLU | BIAS | GELU | PAIR):
            raise StreamError(f"GEMM: unknown flags 0x{self.flags:x}")
        if self.flags & SWIGLU and self.flags & GELU:
            raise StreamError("GEMM: SwiGLU and GELU exclude each other")
        if self.flags & SWIGLU and self.n % 64:
            raise StreamError(f"GEMM: N = {self.n} is no multiple of 64, which SwiGLU's 32|32 pairs need")
        expected = weight_bytes(self.n, self.k, self.format, self.flags)
        if self.b_bytes != expected:
            raise StreamError(f"GEMM: b_bytes = {self.b_bytes}; N = {self.n}, K = {self.k} take {expected}")
        if self.lda < self.k:
            raise StreamError(f"GEMM: lda = {self.lda} is less than K = {self.k}")
        if self.c_stride < self.columns:
            raise StreamError(f"GEMM: c_stride = {self.c_stride} is less than C's {self.columns} columns")


@dataclass(frozen=True)
class Gemv(_Words):
    """y[M] = W[M, K] x[K]."""

    m: int
    k: int
    flags: int
    format: int
    w_bytes: int

    opcode: ClassVar[int] = 2

    def demand(self) -> Demand:
        """Each weight once."""
        return Demand(2 * self.m * self.k, sum(self.spans()))

    def spans(self) -> tuple[int, ...]:
        return 2 * self.k, self.w_bytes, 2 * self.m

    def check(self) -> None:
        if self.flags & ~BIAS:
            raise StreamError(f"GEMV: unknown flags 0x{self.flags:x}")
        expected = weight_bytes(self.m, self.k, self.format, self.flags)
        if self.w_bytes != expected:
            raise StreamError(f"GEMV: w_bytes = {self.w_bytes}; M = {self.m}, K = {self.k} take {expected}")


@dataclass(frozen=True)
class Copy(_Words):
    """dst[i] = src[i] + addend, modulo 2^32, over 32-bit words (the self-test)."""

    nbytes: int
    addend: int

    opcode: ClassVar[int] = 3

    def demand(self) -> Demand:
        """Read and written once."""
        return Demand(0, 2 * self.nbytes)

    def spans(self) -> tuple[int, ...]:
        return self.nbytes, self.nbytes

    def check(self) -> None:
        if self.nbytes < 4 or self.nbytes % 4:
            raise StreamError(f"COPY: {self.nbytes} bytes: not a positive multiple of 4")


@dataclass(frozen=True)
class Delay(_Words):
    """Keeps the context busy for `microseconds`."""

    microseconds: int

    opcode: ClassVar[int] = 4

    def demand(self) -> Demand:
        """Time only."""
        return Demand(0, 0, self.microseconds * 1e-6)


@dataclass(frozen=True)
class Hang(_Words):
    """Never completes."""

    opcode: ClassVar[int] = 5


@dataclass(frozen=True)
class Fail(_Words):
    """Ends the command with `status` (not 0)."""

    status: int

    opcode: ClassVar[int] = 6

    def check(self) -> None:
        """Raises StreamError for status 0, which would be no failure."""
        if not self.status:
            raise StreamError("FAIL: status 0 means success")


Op: TypeAlias = Gemm | Gemv | Copy | Delay | Hang | Fail

OPS: dict[int, type[Op]] = {kind.opcode: kind for kind in (Gemm, Gemv, Copy, Delay, Hang, Fail)}


def program(ops: Iterable[Op]) -> bytes:
    """The stream of `ops`, which run in order. Raises StreamError for an op that could not run."""
    words: list[int] = []
    count = 0
    for op in ops:
        values = op.fields()
        for value in values:
            if not 0 <= value <= _U32:
                raise StreamError(f"{type(op).__name__.upper()}: {value} does not fit a 32-bit word")
        op.check()
        words += [op.opcode | (1 + len(values)) << 16, *values]
        count += 1
    if not 1 <= count <= MAX_OPS:
        raise StreamError(f"{count} ops: a stream holds 1..{MAX_OPS}")
    return struct.pack(f"<{3 + len(words)}I", MAGIC, VERSION, count, *words)


def gemm(
    m: int,
    k: int,
    n: int,
    *,
    chunks: int = 1,
    lda: int | None = None,
    c_stride: int | None = None,
    swiglu: bool = False,
    bias: bool = False,
    gelu: bool = False,
    pair: bool = False,
    format: int = BFP16,
) -> bytes:
    """The stream of one GEMM over `chunks` chunks of `m` rows; strides default to dense rows."""
    flags = (SWIGLU if swiglu else 0) | (BIAS if bias else 0) | (GELU if gelu else 0) | (PAIR if pair else 0)
    columns = n // 2 if swiglu else n
    return program(
        [
            Gemm(
                m,
                chunks,
                k,
                n,
                k if lda is None else lda,
                columns if c_stride is None else c_stride,
                flags,
                format,
                weight_bytes(n, k, format, flags),
            ),
        ]
    )


def gemv(m: int, k: int, *, bias: bool = False, format: int = BFP16) -> bytes:
    """The stream of one GEMV, y[m] = W[m, k] x[k]."""
    flags = BIAS if bias else 0
    return program([Gemv(m, k, flags, format, weight_bytes(m, k, format, flags))])


def copy(nbytes: int, addend: int = 0) -> bytes:
    """The stream of one COPY of `nbytes`, adding `addend` to every 32-bit word."""
    return program([Copy(nbytes, addend)])


def delay(microseconds: int) -> bytes:
    """The stream of one DELAY."""
    return program([Delay(microseconds)])


def hang() -> bytes:
    """The stream of one HANG."""
    return program([Hang()])


def fail(status: int) -> bytes:
    """The stream of one FAIL with `status`."""
    return program([Fail(status)])


def own_bytes(data: bytes) -> int:
    """The length that the stream in `data` has by its own header and ops; -1 where `data` ends before that, 0
    for what is no stream."""
    words = memoryview(data[: len(data) // 4 * 4]).cast("I")
    if len(words) < 3 or words[0] != MAGIC or words[1] != VERSION or not 1 <= words[2] <= MAX_OPS:
        return -1 if bytes(words) == struct.pack("<II", MAGIC, VERSION)[: words.nbytes] else 0
    at = 3
    for _ in range(words[2]):
        if at >= len(words):
            return -1
        at += max(words[at] >> 16, 1)
    return 4 * at if at <= len(words) else -1


def parse(data: bytes | bytearray | memoryview) -> list[Op]:
    """The ops of a stream, every field checked. Raises StreamError; never reads past `data`.

    Words after the last op are refused: a stream's length is part of the packet that names it.
    """
    raw = bytes(data)
    if len(raw) % 4 or len(raw) < 12:
        raise StreamError(f"{len(raw)} bytes: a stream is at least three whole 32-bit words")
    words = struct.unpack(f"<{len(raw) // 4}I", raw)
    if words[0] != MAGIC:
        raise StreamError(
            f"magic 0x{words[0]:08x}, not 0x{MAGIC:08x}: not an emulator stream "
            "(compiled AIE code is not interpreted)"
        )
    if words[1] != VERSION:
        raise StreamError(f"version {words[1]}: this emulator reads version {VERSION}")
    if not 1 <= words[2] <= MAX_OPS:
        raise StreamError(f"{words[2]} ops: a stream holds 1..{MAX_OPS}")
    ops: list[Op] = []
    at = 3
    for index in range(words[2]):
        if at >= len(words):
            raise StreamError(f"op {index} of {words[2]} starts at word {at} of {len(words)}")
        opcode, count = words[at] & 0xFFFF, words[at] >> 16
        kind = OPS.get(opcode)
        if kind is None:
            raise StreamError(f"op {index} at word {at}: opcode {opcode} is unknown")
        size = 1 + len(fields(kind))
        if count != size or at + count > len(words):
            raise StreamError(
                f"op {index} at word {at}: {kind.__name__.upper()} takes {size} words, "
                f"says {count}, and {len(words) - at} remain"
            )
        op = kind(*words[at + 1 : at + count])
        try:
            op.check()
        except StreamError as error:
            raise StreamError(f"op {index} at word {at}: {error}") from None
        ops.append(op)
        at += count
    if at != len(words):
        raise StreamError(f"{len(words) - at} words follow the last op")
    return ops
