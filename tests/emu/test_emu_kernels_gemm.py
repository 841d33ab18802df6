"""GEMM of the emulated NPU: every variant of the C kernel against the plain numpy model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amdxdna.emu.kernels import model
from amdxdna.emu.kernels.stream import BFP16, BIAS, SWIGLU, Gemm, weight_bytes
from tests.support.kernel_cases import (
    FORMATS,
    ISAS,
    SENTINEL,
    assert_close,
    bf16,
    gemm_model,
    integer_stream,
    random_stream,
    run_gemm,
    with_bias,
)

pytestmark = pytest.mark.parametrize("name", ISAS)
formats = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS.keys())


def gemm(m: int, k: int, n: int, format: int, **more: int) -> Gemm:
    flags = more.get("flags", 0)
    columns = n // 2 if flags & SWIGLU else n
    strides = more.get("lda", k), more.get("c_stride", columns)
    return Gemm(m, more.get("chunks", 1), k, n, *strides, flags, format, weight_bytes(n, k, format, flags))


def spread_rows(op: Gemm, rows: Any) -> Any:
    """A's span: `rows` [rows, k] as bf16 bits, lda apart, NaN in the gaps, which belong to no row."""
    a = np.full(op.rows * op.lda, 0x7FC1, np.uint16).reshape(op.rows, op.lda)
    a[:, : op.k] = bf16(rows)
    return a.reshape(-1)[: op.a_bytes // 2].copy()


@formats
@pytest.mark.parametrize("rows", [*range(1, 27), 37])
def test_every_row_count(name: str, format: int, rows: int) -> None:
    """Small integers, every size of a last tile: bit for bit the model's."""
    rng = np.random.default_rng(rows)
    op, b = gemm(rows, 128, 72, format), integer_stream(rng, 72, 128, format)
    a = spread_rows(op, rng.integers(-15, 16, (rows, 128)))
    np.testing.assert_array_equal(run_gemm(op, a, b, name), gemm_model(op, a, b))


@pytest.mark.parametrize("n", [8, 16, 24, 32, 40, 56, 64, 120, 128, 136])
@pytest.mark.parametrize("k", [8, 24, 64])
def test_every_width(name: str, n: int, k: int) -> None:
    rng = np.random.default_rng(n + k)
    op, b = gemm(5, k, n, BFP16), integer_stream(rng, n, k, BFP16)
    a = spread_rows(op, rng.integers(-15, 16, (5, k)))
    np.testing.assert_array_equal(run_gemm(op, a, b, name), gemm_model(op, a, b))


@formats
@pytest.mark.parametrize("chunks", [1, 2, 3, 5])
def test_chunks_strides_and_bias(name: str, format: int, chunks: int) -> None:
    """Chunk j's rows follow chunk j - 1's; gaps between rows are neither read nor written."""
    rng = np.random.default_rng(chunks)
    op = gemm(7, 256, 40, format, chunks=chunks, lda=277, c_stride=51, flags=BIAS)
    b = with_bias(integer_stream(rng, 40, 256, format), rng.integers(-99, 100, 40) * 0.25)
    rows = rng.integers(-15, 16, (7 * chunks, 256))
    rows[3] = 0
    rows[7 * chunks - 1] = 0
    a = spread_rows(op, rows)
    got = run_gemm(op, a, b, name)
    np.testing.assert_array_equal(got, gemm_model(op, a, b))
    gaps = np.append(got, np.full(11, SENTINEL, np.uint16)).reshape(7 * chunks, 51)[:, 40:]
    assert (gaps == SENTINEL).all()


@formats
def test_k_slices_of_a_wider_matrix(name: str, format: int) -> None:
    """down_proj: A is a column range of another GEMM's C, read in place; the slices add up to the whole."""
    rng = np.random.default_rng(2)
    rows, d, slices = 9, 128, 3
    wide = bf16(rng.integers(-9, 10, (rows + 1, slices * d)))
    total = np.zeros((rows, 64))
    exact = np.zeros((rows, 64))
    for s in range(slices):
        op, b = gemm(rows, d, 64, format, lda=slices * d), integer_stream(rng, 64, d, format)
        a = wide.reshape(-1)[s * d :][: op.a_bytes // 2]
        part = run_gemm(op, a, b, name).reshape(rows, 64)
        np.testing.assert_array_equal(part, gemm_model(op, a, b).reshape(rows, 64))
        total += model.from_bf16(part)
        exact += model.from_bf16(wide[:rows, s * d : (s + 1) * d]) @ model.weights(b, 64, d, format, 0).T
    assert np.abs(total - exact).max() <= 2.0**-7 * np.abs(exact).max()


@formats
@pytest.mark.parametrize("k", [128, 1024, 2048])
def test_against_float64(name: str, format: int, k: int) -> None:
    rng = np.random.default_rng(k)
    op, b = gemm(19, k, 72, format), random_stream(rng, 72, k, format)
    a = spread_rows(op, rng.standard_normal((19, k)) * np.exp(rng.standard_normal((19, k))))
    matrix, values = model.weights(b, 72, k, format, 0), model.from_bf16(a.reshape(19, k))
    got = run_gemm(op, a, b, name).reshape(19, 72)
    assert_close(got, values @ matrix.T, np.abs(values) @ np.abs(matrix).T)


@formats
@pytest.mark.parametrize("flags", [SWIGLU, SWIGLU | BIAS])
def test_swiglu(name: str, format: int, flags: int) -> None:
    """silu(gate) * up over 32 | 32 column pairs, from float32 sums: one rounding to bf16."""
    rng = np.random.default_rng(21)
    k, n = 128, 192
    op = gemm(13, k, n, format, flags=flags, c_stride=100)
    b = random_stream(rng, n, k, format, exponent=124)
    if flags & BIAS:
        b = with_bias(b, rng.standard_normal(n) * 5)
    rows = rng.standard_normal((13, k))
    rows[4] = 0
    rows[5] *= 300  # gates far out on both sides
    a = spread_rows(op, rows)
    got, expected = run_gemm(op, a, b, name), gemm_model(op, a, b)
    np.testing.assert_array_equal(got == SENTINEL, expected == SENTINEL)
    # Float32's error in the gate moves the result by |gate| times as much.
    np.testing.assert_allclose(
        model.from_bf16(got), model.from_bf16(expected), rtol=2.0**-7, atol=1e-4, equal_nan=False
    )


def test_swiglu_over_the_whole_range_of_gates(name: str) -> None:
    """Gates by the bias alone, -120 to 120: silu to half a bf16 step and float32's exponential."""
    gates = np.linspace(-120, 120, 32 * 40).astype(np.float32)
    k, n = 8, 64 * 40
    bias = np.ones((40, 2, 32), np.float32)
    bias[:, 0] = gates.reshape(40, 32)
    b = with_bias(np.zeros(weight_bytes(n, k), np.uint8), bias.reshape(-1))
    op = gemm(2, k, n, BFP16, flags=SWIGLU | BIAS)
    a = spread_rows(op, np.array([[0] * 8, [1] * 8]))
    got = model.from_bf16(run_gemm(op, a, b, name)).reshape(2, -1)
    np.testing.assert_array_equal(got[0], got[1])
    with np.errstate(over="ignore"):
        exact = gates.astype(np.float64) / (1 + np.exp(-gates.astype(np.float64)))
    # Below about -88, e^-gate overflows float32 and silu is zero.
    np.testing.assert_allclose(got[0], exact, rtol=2.0**-7.98, atol=2e-36)


def test_swiglu_of_non_finite(name: str) -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    bias = np.zeros((2, 32), np.float32)
    bias[0, :16], bias[1, :16] = np.repeat(values, 4), np.tile(values, 4)
    op = gemm(1, 8, 64, BFP16, flags=SWIGLU | BIAS)
    b = with_bias(np.zeros(weight_bytes(64, 8), np.uint8), bias.reshape(-1))
    a = spread_rows(op, np.ones((1, 8)))
    got, expected = model.from_bf16(run_gemm(op, a, b, name)), model.from_bf16(gemm_model(op, a, b))
    np.testing.assert_array_equal(got, expected)


@formats
def test_zero_rows(name: str, format: int) -> None:
    """Padding rows give the bias (or nothing), whether zero is +0 or -0, and only they are skipped."""
    rng = np.random.default_rng(31)
    op, b = gemm(64, 128, 64, format, flags=BIAS), integer_stream(rng, 64, 128, format)
    bias = rng.standard_normal(64).astype(np.float32)
    rows = np.zeros((64, 128))
    rows[::3] = -0.0
    rows[23, 127] = 1
    rows[40, 0] = -2
    a = spread_rows(op, rows)
    b = with_bias(b, bias)
    got = run_gemm(op, a, b, name).reshape(64, 64)
    np.testing.assert_array_equal(got, gemm_model(op, a, b).reshape(64, 64))
    idle = [r for r in range(64) if r not in (23, 40)]
    np.testing.assert_array_equal(got[idle], np.tile(bf16(bias), (62, 1)))
    nothing = gemm(64, 128, 64, format)
    assert not run_gemm(nothing, np.zeros_like(a), b[: nothing.b_bytes].copy(), name).any()


@formats
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_non_finite_rows_stay_alone(name: str, format: int, bad: float) -> None:
    rng = np.random.default_rng(41)
    op, b = gemm(14, 128, 64, format), random_stream(rng, 64, 128, format)
    rows = rng.standard_normal((14, 128))
    clean = run_gemm(op, spread_rows(op, rows), b, name).reshape(14, 64)
    rows[6, 50] = bad
    a = spread_rows(op, rows)
    got = run_gemm(op, a, b, name).reshape(14, 64)
    expected = gemm_model(op, a, b).reshape(14, 64)
    np.testing.assert_array_equal(model.from_bf16(got[6]), model.from_bf16(expected[6]))
    others = [r for r in range(14) if r != 6]
    np.testing.assert_array_equal(got[others], clean[others])


@formats
def test_threads_do_not_change_a_bit(name: str, format: int) -> None:
    rng = np.random.default_rng(51)
    op = gemm(41, 256, 64 * 80, format, flags=SWIGLU)  # more panels than threads
    b = random_stream(rng, 64 * 80, 256, format, exponent=123)
    rows = rng.standard_normal((41, 256))
    rows[7:20] = 0
    a = spread_rows(op, rows)
    one = run_gemm(op, a, b, name, 1)
    for threads in (2, 3, 64):
        np.testing.assert_array_equal(run_gemm(op, a, b, name, threads), one)


def test_rows_do_not_depend_on_their_neighbours(name: str) -> None:
    """A row's result is the same bits alone and among others: prefill chunks may be cut anywhere."""
    rng = np.random.default_rng(61)
    b = random_stream(rng, 64, 512, BFP16)
    rows = rng.standard_normal((23, 512))
    op = gemm(23, 512, 64, BFP16)
    together = run_gemm(op, spread_rows(op, rows), b, name).reshape(23, 64)
    one = gemm(1, 512, 64, BFP16)
    for r in (0, 11, 12, 22):
        np.testing.assert_array_equal(run_gemm(one, spread_rows(one, rows[r : r + 1]), b, name), together[r])


def test_more_rows_than_are_packed_at_once(name: str) -> None:
    rng = np.random.default_rng(71)
    op, b = gemm(1030, 8, 8, BFP16, chunks=2), integer_stream(rng, 8, 8, BFP16)
    rows = rng.integers(-15, 16, (2060, 8))
    rows[rng.random(2060) < 0.3] = 0
    a = spread_rows(op, rows)
    np.testing.assert_array_equal(run_gemm(op, a, b, name), gemm_model(op, a, b))
