"""bfp16 streams: the encoder against integer arithmetic in plain Python, positions, decoding."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from qwen35.formats import bfp16, by_name, from_bf16, to_bf16
from qwen35.formats.stream import FormatError


def plain_block(values: list[float]) -> list[int]:
    """Exponent and mantissas by the format page, on the bits of the float32 values."""
    parts = []
    for value in values:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        field = bits >> 23 & 0xFF
        parts.append((bits >> 31, field, bits & 0x7FFFFF | (0x800000 if field else 0)))
    e = max(field for _, field, _ in parts)
    out = [e]
    for sign, field, magnitude in parts:
        shift = 17 + e - max(field, 1)  # a denormal's own exponent is 1
        kept, rest = magnitude >> shift, magnitude & (1 << shift) - 1
        if rest > 1 << shift - 1 or (rest == 1 << shift - 1 and kept & 1):
            kept += 1
        out.append(max(-128, min(127, -kept if sign else kept)))
    return out


def plain_stream(weights: Any) -> bytes:
    rows, k = weights.shape
    out = bytearray(rows * k // 8 * 9)
    for r in range(rows):
        for b in range(k // 8):
            block = plain_block([float(v) for v in weights[r, 8 * b : 8 * b + 8]])
            at = (r // 8) * (k // 8 * 72) + b * 72 + (r % 8) * 9
            out[at : at + 9] = bytes(v & 0xFF for v in block)
    return bytes(out)


def test_check_values() -> None:
    weights = np.zeros((8, 8), np.float32)
    weights[3] = [64, 14.9375, 106.5, 94.5, 0, -1.5, -2.5, 3]
    stream = bfp16.encode(weights)
    assert stream[27] == 133
    assert stream[28:36].view(np.int8).tolist() == [64, 15, 106, 94, 0, -2, -2, 3]
    assert not np.delete(stream, np.arange(27, 36)).any()


@pytest.mark.parametrize(("rows", "k"), [(8, 8), (16, 24), (24, 128), (40, 16)])
@pytest.mark.parametrize("spread", [0.0, 2.0, 15.0])
def test_encoder_bit_for_bit(rows: int, k: int, spread: float) -> None:
    rng = np.random.default_rng(rows + k)
    sizes = np.exp(spread * rng.standard_normal((rows, k)))
    weights = (rng.standard_normal((rows, k)) * sizes).astype(np.float32)
    assert bfp16.encode(weights).tobytes() == plain_stream(weights)
    bits = to_bf16(weights)
    assert bfp16.encode(bits).tobytes() == plain_stream(from_bf16(bits))


@pytest.mark.parametrize(
    "block",
    [
        [0.0] * 8,
        [-0.0] * 8,
        [1e-45, -1e-45, 1e-40, 5e-39, 0, 0, 0, -1e-38],  # denormals
        [1.1754944e-38, 1e-39, 0, 0, 0, 0, 0, 0],
        [2.0**-120, 2.0**-127, -(2.0**-121), 0, 0, 0, 0, 0],
        [3.4028235e38, -3.4028235e38, 1, -1, 2e38, 0, 1e38, 1e37],  # saturates at 127 and -128
        [127.5, -127.5, 126.5, -126.5, 0.5, -0.5, 1.5, -1.5],  # ties
        [1.0, 2.0**-7, 2.0**-8, -(2.0**-7), 2.0**-30, 1.9921875, 1.99609375, -1.99609375],
    ],
)
def test_encoder_at_the_edges(block: list[float]) -> None:
    weights = np.tile(np.array(block, np.float32), (8, 1))
    assert bfp16.encode(weights).tobytes() == plain_stream(weights)


def test_decoding_bit_for_bit() -> None:
    """Random bytes, exponent 255 left out (no finite weight has it)."""
    rng = np.random.default_rng(3)
    rows, k = 32, 64
    stream = rng.integers(0, 256, bfp16.nbytes(rows, k), np.uint8)
    stream[::9] = rng.integers(0, 255, stream[::9].shape)
    expected = np.empty((rows, k), np.float32)
    for r in range(rows):
        for i in range(k):
            at = (r // 8) * (k // 8 * 72) + i // 8 * 72 + (r % 8) * 9
            value = int(stream[at + 1 + i % 8].view(np.int8)) * 2.0 ** (int(stream[at]) - 133)
            expected[r, i] = np.float32(value) if abs(value) < 2.0**128 else -np.inf  # -128 * 2^121
    got = bfp16.decode(stream, rows, k)
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
    picked = [31, 0, 7, 8, 8]
    np.testing.assert_array_equal(bfp16.decode_rows(stream, k, picked), expected[picked])


def test_decoded_weights_encode_to_the_same_bytes() -> None:
    """All but blocks with a mantissa of -128, whose own exponent is one more than the block's."""
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((48, 256)).astype(np.float32)
    stream = bfp16.encode(weights).reshape(-1, 9)
    again = bfp16.encode(bfp16.decode(stream.reshape(-1), 48, 256)).reshape(-1, 9)
    same = ~(stream[:, 1:] == 0x80).any(1)
    assert same.mean() > 0.95
    np.testing.assert_array_equal(again[same], stream[same])


def test_error_is_half_a_unit() -> None:
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((64, 512)).astype(np.float32)
    decoded = bfp16.decode(bfp16.encode(weights), 64, 512)
    largest = np.abs(weights).reshape(64, 64, 8).max(-1, keepdims=True)
    unit = 2.0 ** (np.floor(np.log2(largest)) - 6)
    error = np.abs(decoded - weights).reshape(64, 64, 8) / unit
    # A mantissa rounded up to 128 saturates at 127: that one may be a whole unit off.
    assert (error <= np.where(np.abs(weights).reshape(64, 64, 8) / unit >= 127.5, 1.0, 0.5)).all()
    noise = np.square(decoded.astype(np.float64) - weights).sum()
    assert 10 * np.log10(np.square(weights.astype(np.float64)).sum() / noise) > 42


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["rows", "columns", "fortran"])
def test_views_threads_and_out(threads: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strided sources, many pieces, and a caller's buffer with bias."""
    monkeypatch.setattr("qwen35.formats.stream.PIECE", 1 << 10)
    rng = np.random.default_rng(6)
    whole = rng.standard_normal((160, 192)).astype(np.float32)
    weights = {"rows": whole[::2], "columns": whole[:80, 64:], "fortran": np.asfortranarray(whole[:80])}[kind]
    rows, k = weights.shape
    bias = rng.standard_normal(rows).astype(np.float32)
    out = np.zeros(bfp16.nbytes(rows, k, bias=True), np.uint8)
    assert bfp16.encode(weights, bias=bias, out=out, threads=threads) is out
    body = bfp16.nbytes(rows, k)
    np.testing.assert_array_equal(out[:body], bfp16.encode(np.ascontiguousarray(weights)))
    np.testing.assert_array_equal(out[body:].view(np.float32), bias)
    np.testing.assert_array_equal(bfp16.decode(out, rows, k), bfp16.decode(out[:body], rows, k))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 13, 31])
def test_non_finite_weights_name_their_row(bad: float, row: int) -> None:
    weights = np.ones((32, 16), np.float32)
    weights[row, 9] = bad
    with pytest.raises(FormatError, match=f"row {row} holds"):
        bfp16.encode(weights)
    with pytest.raises(FormatError, match=f"row {row} holds"):
        bfp16.encode(to_bf16(weights))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: bfp16.encode(np.zeros((7, 8), np.float32)), "7 rows"),
        (lambda: bfp16.encode(np.zeros((8, 12), np.float32)), "12 columns"),
        (lambda: bfp16.encode(np.zeros((8, 8), np.float64)), "float32 or bf16"),
        (
            lambda: bfp16.encode(
                np.zeros(8, np.float32)[:, None] * np.ones(8, np.float32)[None], bias=np.zeros(7, np.float32)
            ),
            "bias",
        ),
        (lambda: bfp16.encode(np.zeros((8, 8), np.float32), out=np.zeros(73, np.uint8)), "72 contiguous"),
        (lambda: bfp16.decode_rows(np.zeros(72, np.uint8), 8, [8]), "holds 8"),
        (lambda: bfp16.decode_rows(np.zeros(72, np.uint8), 8, [-1]), "rows -1"),
        (lambda: bfp16.decode_rows(np.zeros(71, np.uint8), 8, [0]), "holds 0"),
        (lambda: bfp16.decode_rows(np.zeros((8, 9), np.uint8), 8, [0]), "contiguous bytes"),
        (
            lambda: bfp16.decode_rows(np.zeros(72, np.uint8), 8, [0], out=np.zeros((2, 8), np.float32)),
            "out must be",
        ),
        (lambda: by_name("fp8"), "fp8"),
    ],
)
def test_bad_input(call: Any, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        call()
