"""GEMV of the emulated NPU: every variant of the C kernel against the plain numpy model."""

from __future__ import annotations

import numpy as np
import pytest

from amdxdna.emu.kernels import model
from amdxdna.emu.kernels.stream import BFP6S, BFP16, BIAS, Gemv, weight_bytes
from tests.support.kernel_cases import (
    FORMATS,
    ISAS,
    assert_close,
    bf16,
    gemv_model,
    integer_stream,
    random_stream,
    run_gemv,
    with_bias,
)

pytestmark = pytest.mark.parametrize("name", ISAS)
formats = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS.keys())


def gemv(m: int, k: int, format: int, flags: int = 0) -> Gemv:
    return Gemv(m, k, flags, format, weight_bytes(m, k, format, flags))


@formats
@pytest.mark.parametrize(("m", "blocks"), [(8, 1), (16, 3), (24, 2), (72, 5), (200, 4)])
@pytest.mark.parametrize("flags", [0, BIAS])
def test_exact_sums(name: str, format: int, m: int, blocks: int, flags: int) -> None:
    """Small integers: no sum rounds in any order, so the result is the model's bit for bit."""
    k = blocks * (8 if format == BFP16 else 128)
    rng = np.random.default_rng(m * k + flags)
    op, w = gemv(m, k, format, flags), integer_stream(rng, m, k, format)
    if flags:
        w = with_bias(w, rng.integers(-500, 500, m))
    x = bf16(rng.integers(-15, 16, k))
    np.testing.assert_array_equal(run_gemv(op, x, w, name), gemv_model(op, x, w))


@formats
@pytest.mark.parametrize(("m", "k"), [(8, 128), (64, 1024), (40, 2048), (128, 384)])
@pytest.mark.parametrize("tail", [0.5, 3.0])
def test_against_float64(name: str, format: int, m: int, k: int, tail: float) -> None:
    """Activations alike, and spread over many octaves."""
    rng = np.random.default_rng(m + k)
    op, w = gemv(m, k, format), random_stream(rng, m, k, format)
    x = bf16(rng.standard_normal(k) * np.exp(tail * rng.standard_normal(k)))
    matrix, values = model.weights(w, m, k, format, 0), model.from_bf16(x)
    assert_close(run_gemv(op, x, w, name), matrix @ values, np.abs(matrix) @ np.abs(values))


@formats
def test_huge_range_within_a_block(name: str, format: int) -> None:
    """The largest activations meet zero weights, the least decide: nothing of them may be lost."""
    rng = np.random.default_rng(5)
    m, k = 16, 256
    op, w = gemv(m, k, format), integer_stream(rng, m, k, format)
    x = rng.integers(-200, 201, k).astype(np.float64)
    big = np.arange(3, k, 8)
    signs = rng.choice([-1.0, 1.0], big.size)
    x[big] = np.ldexp(signs * rng.integers(128, 256, big.size), rng.integers(0, 110, big.size))
    x[np.arange(5, k, 16)] = np.ldexp(213.0, 20)
    zero_weight_at(w, np.concatenate([big, np.arange(5, k, 16)]), format)
    matrix = model.weights(w, m, k, format, 0)
    assert not matrix[:, big].any()
    assert np.abs(matrix).sum() > 0
    np.testing.assert_array_equal(run_gemv(op, bf16(x), w, name), gemv_model(op, bf16(x), w))


def zero_weight_at(w: np.ndarray, columns: np.ndarray, format: int) -> None:
    """Makes whole columns of a stream of 16 rows by 256 k zero (q = 0 of bfp6s is u = 32)."""
    if format == BFP16:
        w.reshape(2, 32, 8, 9)[:, columns // 8, :, 1 + columns % 8] = 0
        return
    segments = w.reshape(2, 2, 832)
    for column in columns:
        segment, tile, half, j = column // 128, column // 16 % 8, column // 8 % 2, column % 8
        for row in range(8):
            nib, two = 96 * tile + row * 8 + j, 96 * tile + 64 + row % 4 * 8 + j
            shift = 4 * half + (2 if row >= 4 else 0)
            segments[:, segment, nib] &= 0x0F if half else 0xF0
            segments[:, segment, two] &= ~np.uint8(3 << shift)
            segments[:, segment, two] |= np.uint8(2 << shift)


@formats
def test_every_top_mantissa(name: str, format: int) -> None:
    """Blocks led by +-255 * 2^n: the largest integers an activation can become."""
    k, op = 1024, gemv(8, 1024, format)
    w = integer_stream(np.random.default_rng(8), 8, k, format)
    x = np.tile([255.0, -255.0, 1.0, 255.0, -1.0, 254.0, 128.0, -254.0], k // 8)
    np.testing.assert_array_equal(run_gemv(op, bf16(x), w, name), gemv_model(op, bf16(x), w))
    w[:] = 0x80 if format == BFP16 else 0  # the most negative mantissas
    if format == BFP16:
        w[::9] = 127
    np.testing.assert_array_equal(run_gemv(op, bf16(np.abs(x)), w, name), gemv_model(op, bf16(np.abs(x)), w))


@formats
@pytest.mark.parametrize("scale", [-133, -126, -120, -60, 60, 100, 112, 120])
def test_range_of_activations(name: str, format: int, scale: int) -> None:
    """Down to bf16's denormals and up to near its largest numbers."""
    rng = np.random.default_rng(3)
    op, w = gemv(16, 128, format), random_stream(rng, 16, 128, format, exponent=131 if scale < 0 else 90)
    x = bf16(np.ldexp(rng.integers(-20, 21, 128).astype(np.float64), scale))
    matrix, values = model.weights(w, 16, 128, format, 0), model.from_bf16(x)
    assert_close(run_gemv(op, x, w, name), matrix @ values, np.abs(matrix) @ np.abs(values))


def test_least_and_greatest_exponents(name: str) -> None:
    """Weight exponents over the whole range an encoder gives, one a row."""
    rng = np.random.default_rng(4)
    op, w = gemv(256, 8, BFP16), random_stream(rng, 256, 8, BFP16)
    w.reshape(-1, 9)[:, 0] = np.arange(256)
    rows = np.arange(255)  # 255 is no finite weight's
    x = bf16(rng.integers(1, 128, 8))
    x[3:] = 0
    got, matrix = run_gemv(op, x, w, name), model.weights(w, 256, 8, BFP16, 0)
    exact, magnitude = matrix @ model.from_bf16(x), np.abs(matrix) @ model.from_bf16(x)
    within = rows[(magnitude[rows] < 2.0**127)]
    assert within.size > 240
    # An exponent byte of 0 holds weights below 2^-126: they may count as zero.
    assert_close(got[within], exact[within], magnitude[within] + np.where(within == 0, 2.0**-96, 0))


@formats
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_non_finite_activations(name: str, format: int, bad: float) -> None:
    rng = np.random.default_rng(6)
    op, w = gemv(16, 128, format), random_stream(rng, 16, 128, format)
    x = rng.standard_normal(128)
    x[77] = bad
    got, expected = run_gemv(op, bf16(x), w, name), gemv_model(op, bf16(x), w)
    assert not np.isfinite(model.from_bf16(expected)).any()
    np.testing.assert_array_equal(np.isnan(model.from_bf16(got)), np.isnan(model.from_bf16(expected)))
    infinite = np.isinf(model.from_bf16(expected))
    np.testing.assert_array_equal(got[infinite], expected[infinite])


@formats
def test_zero_activations(name: str, format: int) -> None:
    op, w = gemv(16, 128, format), random_stream(np.random.default_rng(7), 16, 128, format)
    zeros = np.zeros(128, np.uint16)
    zeros[::3] = 0x8000
    assert not (run_gemv(op, zeros, w, name) & 0x7FFF).any()
    biased = gemv(16, 128, format, BIAS)
    bias = np.array([1e-3, -2.0, 3.14159, 1e30] * 4, np.float32)
    np.testing.assert_array_equal(run_gemv(biased, zeros, with_bias(w, bias), name), bf16(bias))


@formats
def test_threads_do_not_change_a_bit(name: str, format: int) -> None:
    rng = np.random.default_rng(9)
    m, k = 1208, 1024
    op, w = gemv(m, k, format), random_stream(rng, m, k, format)
    x = bf16(rng.standard_normal(k) * np.exp(2 * rng.standard_normal(k)))
    one = run_gemv(op, x, w, name, 1)
    for threads in (2, 3, 64):
        np.testing.assert_array_equal(run_gemv(op, x, w, name, threads), one)


def test_long_k(name: str) -> None:
    """K beyond what is prepared as integers falls to the portable variant, with the same numbers."""
    k = (1 << 17) + 8
    op, w = gemv(8, k, BFP16), integer_stream(np.random.default_rng(10), 8, k, BFP16)
    x = bf16(np.random.default_rng(12).integers(-3, 4, k))
    np.testing.assert_array_equal(run_gemv(op, x, w, name), gemv_model(op, x, w))


def test_all_six_bit_weights(name: str) -> None:
    """Each q with each c alone, against round_half_even(q * c / 2) in plain Python."""
    for c in (5, 6, 7, 8):
        expected = [round(q * c / 2) for q in range(-32, 32)]
        w = np.zeros(832, np.uint8)
        w[768:] = (133 - 80) << 2 | (c - 5)
        for row in range(8):
            for j in range(8):
                u = row * 8 + j
                w[row * 8 + j] = u & 15
                w[64 + row % 4 * 8 + j] |= (u >> 4) << (0 if row < 4 else 2)
        op = gemv(8, 128, BFP6S)
        for j in range(8):
            x = np.zeros(128)
            x[j] = 1
            got = model.from_bf16(run_gemv(op, bf16(x), w, name))
            assert [round(v) for v in got] == [expected[row * 8 + j] for row in range(8)]
