"""Instruction streams of the emulated kernels: exact words, every malformation, fuzz."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.stream import Copy, Delay, Fail, Gemm, Gemv, Hang, StreamError

MAGIC = 0x31554D45


def words(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def pack(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def gemm_op(**changes: int) -> Gemm:
    fields = {
        "m": 4,
        "chunks": 2,
        "k": 16,
        "n": 64,
        "lda": 20,
        "c_stride": 40,
        "flags": 1,
        "format": 0,
        "b_bytes": 64 * 2 * 9,
    }
    fields.update(changes)
    return Gemm(**fields)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (
            stream.gemm(256, 2048, 12288, chunks=3, swiglu=True, lda=2048, c_stride=6144),
            [MAGIC, 1, 1, 1 | 10 << 16, 256, 3, 2048, 12288, 2048, 6144, 1, 0, 12288 * 256 * 9],
        ),
        (
            stream.gemm(8, 128, 16, bias=True, format=1),
            [MAGIC, 1, 1, 1 | 10 << 16, 8, 1, 128, 16, 128, 16, 2, 1, 2 * 832 + 64],
        ),
        (stream.gemv(16, 8), [MAGIC, 1, 1, 2 | 6 << 16, 16, 8, 0, 0, 144]),
        (stream.gemv(8, 256, format=1, bias=True), [MAGIC, 1, 1, 2 | 6 << 16, 8, 256, 2, 1, 2 * 832 + 32]),
        (stream.copy(64, 7), [MAGIC, 1, 1, 3 | 3 << 16, 64, 7]),
        (stream.delay(1500), [MAGIC, 1, 1, 4 | 2 << 16, 1500]),
        (stream.hang(), [MAGIC, 1, 1, 5 | 1 << 16]),
        (stream.fail(0x123), [MAGIC, 1, 1, 6 | 2 << 16, 0x123]),
    ],
)
def test_words(built: bytes, expected: list[int]) -> None:
    assert words(built) == expected


def test_program_and_parse_are_inverse() -> None:
    ops = [gemm_op(), Gemv(16, 8, 2, 0, 144 + 64), Copy(8, 0xFFFFFFFF), Delay(0), Hang(), Fail(9)]
    data = stream.program(ops)
    assert stream.parse(data) == ops
    assert stream.parse(memoryview(data)) == ops
    assert stream.program(stream.parse(data)) == data


def test_spans_are_from_first_to_last_byte() -> None:
    op = gemm_op()
    assert (op.rows, op.columns) == (8, 32)
    assert op.spans() == (2 * (7 * 20 + 16), 1152, 2 * (7 * 40 + 32))
    assert Gemv(16, 8, 0, 0, 144).spans() == (16, 144, 32)
    assert Copy(12, 0).spans() == (12, 12)


@pytest.mark.parametrize(
    ("n", "k", "format", "flags", "expected"),
    [
        (8, 8, 0, 0, 72),
        (8, 8, 0, 2, 104),
        (2048, 6144, 0, 0, 2048 * 6144 // 8 * 9),
        (8, 128, 1, 0, 832),
        (64, 2048, 1, 2, 8 * 16 * 832 + 256),
        (8, 8, 0, 8, 144),
        (8, 8, 0, 10, 176),
    ],
)
def test_weight_bytes(n: int, k: int, format: int, flags: int, expected: int) -> None:
    assert stream.weight_bytes(n, k, format, flags) == expected


@pytest.mark.parametrize(
    ("n", "k", "format"),
    [
        (7, 8, 0),
        (0, 8, 0),
        (8, 12, 0),
        (8, 0, 0),
        (8, 64, 1),
        (8, 8, 2),
    ],
)
def test_weight_bytes_refuses(n: int, k: int, format: int) -> None:
    with pytest.raises(StreamError):
        stream.weight_bytes(n, k, format)


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (gemm_op(m=0), "rows"),
        (gemm_op(chunks=0), "rows"),
        (gemm_op(m=1 << 20, chunks=1 << 20), "rows"),
        (gemm_op(k=12, lda=20), "K = 12"),
        (gemm_op(n=32, b_bytes=32 * 2 * 9), "multiple of 64"),
        (gemm_op(flags=16), "unknown flags"),
        (gemm_op(flags=5), "exclude"),
        (gemm_op(format=7), "format 7"),
        (gemm_op(format=1, b_bytes=8), "multiple of 128"),
        (gemm_op(b_bytes=64 * 2 * 9 - 1), "b_bytes"),
        (gemm_op(flags=3), "b_bytes"),
        (gemm_op(lda=15), "lda"),
        (gemm_op(c_stride=31), "c_stride"),
        (Gemv(12, 8, 0, 0, 108), "multiple of 8"),
        (Gemv(8, 8, 1, 0, 72), "unknown flags"),
        (Gemv(8, 8, 0, 0, 73), "w_bytes"),
        (Copy(0, 0), "multiple of 4"),
        (Copy(6, 0), "multiple of 4"),
        (Fail(0), "status 0"),
        (Delay(1 << 32), "32-bit"),
        (Delay(-1), "32-bit"),
    ],
)
def test_ops_that_cannot_run(op: stream.Op, why: str) -> None:
    with pytest.raises(StreamError, match=why):
        stream.program([op])
    fields = op.fields()
    if all(0 <= f < 1 << 32 for f in fields):
        with pytest.raises(StreamError, match=f"op 0 at word 3.*{why}"):
            stream.parse(pack(MAGIC, 1, 1, op.opcode | (1 + len(fields)) << 16, *fields))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "at least three"),
        (pack(MAGIC, 1), "at least three"),
        (stream.hang() + b"\0", "whole 32-bit"),
        (pack(0, 1, 1, 5 | 1 << 16), "compiled AIE code"),
        (pack(MAGIC, 2, 1, 5 | 1 << 16), "version 2"),
        (pack(MAGIC, 1, 0), "0 ops"),
        (pack(MAGIC, 1, 0xFFFFFFFF, 5 | 1 << 16), "ops"),
        (pack(MAGIC, 1, 2, 5 | 1 << 16), "op 1 of 2 starts at word 4"),
        (pack(MAGIC, 1, 1, 5 | 1 << 16, 0), "follow the last op"),
        (pack(MAGIC, 1, 1, 7 | 1 << 16), "opcode 7"),
        (pack(MAGIC, 1, 1, 5), "takes 1 words, says 0"),
        (pack(MAGIC, 1, 1, 4 | 3 << 16, 1, 2), "takes 2 words, says 3"),
        (pack(MAGIC, 1, 1, 2 | 6 << 16, 8, 8), "3 remain"),
    ],
)
def test_malformed_streams(data: bytes, why: str) -> None:
    with pytest.raises(StreamError, match=why):
        stream.parse(data)


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", -1),
        (pack(MAGIC), -1),
        (pack(MAGIC, 1), -1),
        (pack(MAGIC, 1, 1), -1),
        (pack(MAGIC, 1, 256, 5 | 1 << 16), -1),
        (pack(MAGIC, 1, 1, 5 | 2 << 16), -1),
        (stream.copy(64)[:-1], -1),
        (pack(5), 0),
        (pack(MAGIC, 2), 0),
        (pack(MAGIC, 2, 1, 5 | 1 << 16), 0),
        (pack(MAGIC, 1, 0, 5 | 1 << 16), 0),
        (pack(MAGIC, 1, 257, 5 | 1 << 16), 0),
        (stream.hang(), 16),
        (pack(MAGIC, 1, 1, 5), 16),
        (stream.copy(64) + b"abc", 24),
        (stream.program([Hang(), Copy(4, 0)]) + bytes(8), 28),
    ],
)
def test_how_long_a_stream_is_by_itself(data: bytes, length: int) -> None:
    assert stream.own_bytes(data) == length


def test_too_many_ops_and_rows() -> None:
    assert len(stream.parse(stream.program([Hang()] * 256))) == 256
    assert stream.parse(stream.program([gemm_op(m=1 << 12, chunks=1 << 12)]))
    with pytest.raises(StreamError):
        stream.program([gemm_op(m=(1 << 24) + 1, chunks=1)])
    with pytest.raises(StreamError, match="257 ops"):
        stream.parse(pack(MAGIC, 1, 257, *[5 | 1 << 16] * 257))
    with pytest.raises(StreamError):
        stream.program([Hang()] * 257)
    with pytest.raises(StreamError):
        stream.program([])


def test_fuzz() -> None:
    """Whatever the bytes, parse gives ops that pass their own checks, or StreamError."""
    rng = np.random.default_rng(11)
    seeds = [
        stream.program([gemm_op(), Gemv(16, 8, 0, 0, 144), Copy(8, 1), Delay(3), Fail(2)]),
        stream.gemm(256, 2048, 2048, chunks=2),
        stream.gemv(8, 128, format=1),
        stream.hang(),
    ]
    parsed = refused = 0
    for _ in range(6000):
        data = bytearray(seeds[rng.integers(len(seeds))])
        for _ in range(rng.integers(1, 4)):
            kind = rng.integers(4)
            if kind == 0 and data:
                data[rng.integers(len(data))] = rng.integers(256)
            elif kind == 1:
                del data[rng.integers(len(data) + 1) :]
            elif kind == 2:
                data += rng.bytes(4 * rng.integers(3))
            elif len(data) >= 16:
                at = 4 * rng.integers(len(data) // 4)
                data[at : at + 4] = pack(int(rng.choice([0, 1, 8, 0x7FFFFFFF, 0xFFFFFFFF])))
        try:
            ops = stream.parse(bytes(data))
        except StreamError:
            refused += 1
        else:
            parsed += 1
            assert stream.program(ops) == bytes(data)
    assert parsed > 200
    assert refused > 2000
