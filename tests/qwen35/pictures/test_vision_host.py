"""The tower's host stages against plain float64 numpy, on every instruction set of this processor."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from qwen35 import host
from qwen35.formats import bf16
from qwen35.vision.host import GELU_ERF, GELU_TANH, NONE, FullAttention, LayerNorm, activate
from tests.support.fences import fenced


@pytest.fixture(params=["portable", "avx2", "avx512", "avx512bf16"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        host.set_isa(request.param)
    except ValueError:
        pytest.skip(f"no {request.param} on this processor")
    yield request.param
    host.set_isa(None)


def half(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Random bf16 bits and their values as float64."""
    bits = fenced(bf16.to_bf16(rng.standard_normal(shape).astype(np.float32)))
    return bits, bf16.from_bf16(bits).astype(np.float64)


def close(got: np.ndarray, want: np.ndarray) -> None:
    """`got` bf16 bits within one bf16 step of `want`."""
    np.testing.assert_allclose(bf16.from_bf16(got), want, rtol=2**-8, atol=2e-6)


@pytest.mark.parametrize("dim", [8, 72, 768, 1152])
@pytest.mark.parametrize("factored", [False, True])
def test_layer_norm_and_residual(isa: str, dim: int, factored: bool) -> None:
    rng = np.random.default_rng([dim, factored])
    n = 37
    x = (rng.standard_normal((n, dim)) * 3 + 20).astype(np.float32)  # a mean much larger than the deviation
    weight, bias, factors = (fenced(rng.standard_normal(dim), np.float32) for _ in range(3))
    (p, p_value), (q, q_value) = half(rng, n + 2, dim + 8), half(rng, n, dim)
    total = x + (p_value[:n, :dim] + q_value) * (factors if factored else 1.0)
    out = np.zeros((n + 1, dim + 8), np.uint16)
    norm = LayerNorm(weight, bias, 2, factors if factored else None)
    norm.rows(x, [p[:, :dim], q], out)
    assert not out[n].any()
    out = out[:n]
    np.testing.assert_allclose(x, total, rtol=1e-6, atol=1e-5)
    centred = total - total.mean(axis=1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6) * weight + bias
    np.testing.assert_allclose(bf16.from_bf16(out[:, :dim]), want, rtol=2**-8, atol=1e-4)
    assert not out[:, dim:].any()


@pytest.mark.parametrize("kind", [NONE, GELU_TANH, GELU_ERF])
@pytest.mark.parametrize("dim", [5, 64, 4304])
def test_activations(isa: str, kind: int, dim: int) -> None:
    rng = np.random.default_rng([kind, dim])
    parts = [half(rng, 20, dim) for _ in range(4)]
    factors = fenced(rng.random(dim) * 4, np.float32)
    x = sum(value for _, value in parts) * factors
    if kind == GELU_TANH:
        want = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    elif kind == GELU_ERF:
        want = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    else:
        want = x
    out = np.zeros((21, dim + 1), np.uint16)
    activate(kind, 20, dim, [bits for bits, _ in parts], out, factors)
    close(out[:20, :dim], want)
    assert not out[20].any() and not out[:, dim].any()


def test_activation_in_place_and_extremes(isa: str) -> None:
    values = np.array([[-1e30, -100.0, -9.0, 0.0, 9.0, 100.0, 1e18, np.nan]], np.float32)
    bits = bf16.to_bf16(values)
    activate(GELU_TANH, 1, 8, [bits], bits)
    got = bf16.from_bf16(bits)[0]
    assert got[:4].tolist() == [0, 0, got[2], 0]
    assert abs(got[2]) < 1e-6
    np.testing.assert_array_equal(got[4:7], bf16.from_bf16(bf16.to_bf16(values))[0, 4:7])
    assert np.isnan(got[7])


@pytest.mark.parametrize(("heads", "hd"), [(2, 64), (3, 72), (1, 4), (2, 16)])
@pytest.mark.parametrize("n", [1, 16, 255, 300, 777])
def test_full_attention(isa: str, heads: int, hd: int, n: int) -> None:
    rng = np.random.default_rng([heads, hd, n])
    qkv, value = half(rng, n, 3 * heads * hd)
    factors = fenced(rng.random(3 * heads * hd) * 3, np.float32)
    angles = rng.standard_normal((n, hd // 2)) * 5
    cosines, sines = fenced(np.cos(angles), np.float32), fenced(np.sin(angles), np.float32)
    q, k, v = (value * factors).reshape(n, 3, heads, hd).transpose(1, 2, 0, 3)
    c, s = np.concatenate([cosines] * 2, 1).astype(float), np.concatenate([sines] * 2, 1).astype(float)

    def rotated(x: np.ndarray) -> np.ndarray:
        return x * c + np.concatenate([-x[..., hd // 2 :], x[..., : hd // 2]], -1) * s

    pairs = isa == "avx512bf16"  # whose products take bf16

    def rounded(x: np.ndarray) -> np.ndarray:
        return bf16.from_bf16(bf16.to_bf16(x.astype(np.float32))).astype(np.float64) if pairs else x

    scale = math.log2(math.e) / math.sqrt(hd)
    scores = rounded(rotated(q) * scale) @ rounded(rotated(k)).transpose(0, 2, 1)
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    want = (weights / weights.sum(-1, keepdims=True)) @ rounded(v)
    attention = FullAttention(heads, hd, factors)
    out, room = np.zeros((n + 1, heads * hd), np.uint16), attention.scratch(n).size
    scratch = np.full(room + 1, 7, np.float32)
    attention.rows(qkv, cosines, sines, scratch, out)
    assert scratch[room] == 7 and not out[n].any()
    out = out[:n]
    np.testing.assert_allclose(
        bf16.from_bf16(out).reshape(n, heads, hd),
        want.transpose(1, 0, 2),
        rtol=2**-7,
        atol=1e-2 if pairs else 2e-4,
    )


@pytest.mark.parametrize("n", [64, 151])
def test_scores_far_apart(isa: str, n: int) -> None:
    """Each query is 2,048 times a key, in any order, and gets that key's value to the bit: any other key's
    weight is smaller by a factor of 2^100 or more."""
    rng = np.random.default_rng(n)
    signs = rng.choice(1 << 15, n, replace=False)[:, None] >> np.arange(16) & 1
    keys = bf16.to_bf16((2.0 * signs - 1).astype(np.float32))
    queries = bf16.to_bf16(2048 * bf16.from_bf16(keys)[order := rng.permutation(n)])
    values = bf16.to_bf16(rng.standard_normal((n, 16)).astype(np.float32))
    turns = np.ones((n, 8), np.float32), np.zeros((n, 8), np.float32)
    out, attention = np.zeros((n, 16), np.uint16), FullAttention(1, 16)
    attention.rows(np.concatenate([queries, keys, values], 1), *turns, attention.scratch(n), out)
    np.testing.assert_array_equal(out, values[order])


def test_keys_in_parts_give_the_same_bits(isa: str) -> None:
    """However rows are shared out: here the first lane sees its own keys before the second's are loaded."""
    rng = np.random.default_rng(10)
    n, cut, heads = 333, 128, 3
    qkv, _ = half(rng, n, 3 * heads * 16)
    angles = rng.standard_normal((n, 8)).astype(np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    attention = FullAttention(heads, 16)
    whole, parts = (np.zeros((n, heads * 16), np.uint16) for _ in range(2))
    attention.rows(qkv, cosines, sines, attention.scratch(n), whole)
    scratch = attention.scratch(n)
    scratch[:] = np.nan
    for first, end in ((0, cut), (cut, n)):
        attention.load(qkv[first:end], cosines, sines, scratch, first, end)
        attention.part(scratch, n, (0, cut), (first, end), (0, 1), parts)
        attention.part(scratch, n, (0, cut), (first, end), (1, heads), parts)
    assert not parts[cut:].any()
    attention.part(scratch, n, (cut, n), (0, 64), (0, heads), parts[cut:])
    attention.part(scratch, n, (cut, n), (64, n), (0, heads), parts[cut:])
    np.testing.assert_array_equal(parts, whole)


def test_same_bits_with_one_thread_and_many() -> None:
    rng = np.random.default_rng(9)
    qkv, _ = half(rng, 500, 3 * 128)
    angles = rng.standard_normal((500, 32)).astype(np.float32)
    attention = FullAttention(2, 64)
    outs = []
    before = host.threads()
    for threads in (1, 2, 5):
        host.set_threads(threads)
        out = np.zeros((500, 128), np.uint16)
        attention.rows(qkv, np.cos(angles), np.sin(angles), attention.scratch(500), out)
        outs.append(out)
    host.set_threads(before)
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])


def test_wrong_shapes_are_refused() -> None:
    attention = FullAttention(2, 64)
    good = np.zeros((8, 384), np.uint16)
    angle = np.zeros((8, 32), np.float32)
    with pytest.raises(ValueError, match="scratch"):
        attention.rows(good, angle, angle, np.zeros(4, np.float32), np.zeros((8, 128), np.uint16))
    scratch, out = attention.scratch(8), np.zeros((8, 128), np.uint16)
    for qkv, cosines, sines in (
        (good[:4], angle, angle),
        (good, angle[:, :31], angle),
        (good, angle, angle[:7]),
    ):
        with pytest.raises(ValueError, match="rows of the rotation and of q, k, v differ"):
            attention.rows(qkv, cosines, sines, scratch, out)
    for rotation in (
        (angle, np.zeros((8, 64), np.float32)[:, ::2]),
        (np.zeros((8, 64), np.float32)[:, ::2], angle),
    ):
        with pytest.raises(ValueError, match="the rotation has gaps"):
            attention.rows(good, *rotation, scratch, out)
    with pytest.raises(ValueError, match="too few rows for the result"):
        attention.part(scratch, 8, (0, 8), (0, 8), (0, 2), out[:7])
    with pytest.raises(ValueError, match="rows of 384 contiguous elements"):
        attention.rows(good[:, :383], angle, angle, scratch, out)
    with pytest.raises(ValueError, match="rows of 128 contiguous elements"):
        attention.rows(good, angle, angle, scratch, out[:, :127])
    norm, x = LayerNorm(np.ones(16, np.float32), np.ones(16, np.float32), 1), np.zeros((4, 16), np.float32)
    bits = np.zeros((4, 16), np.uint16)
    for given in (
        (x[:, :8].copy(), [bits]),
        (np.zeros((4, 32), np.float32)[:, ::2], [bits]),
        (x, []),
        (x, [bits] * 2),
    ):
        with pytest.raises(ValueError, match="does not fit this norm"):
            norm.rows(*given, bits)
    for adds, result in (([bits[:3]], bits), ([bits], bits[:3])):
        with pytest.raises(ValueError, match="too few rows for this norm"):
            norm.rows(x, adds, result)
    for adds, result in (([bits[:3]], bits), ([bits], bits[:3]), ([], bits)):
        with pytest.raises(ValueError, match="too few rows to activate"):
            activate(GELU_TANH, 4, 16, adds, result)
    for queries, keys, heads in (
        ((1, 8), (0, 8), (0, 2)),
        ((0, 4), (0, 8), (0, 2)),
        ((0, 9), (0, 8), (0, 2)),
        ((0, 8), (0, 7), (0, 2)),
        ((0, 8), (0, 8), (0, 3)),
        ((0, 8), (0, 8), (-1, 1)),
    ):
        with pytest.raises(ValueError, match=r"multiples|few"):
            attention.part(attention.scratch(8), 8, queries, keys, heads, np.zeros((8, 128), np.uint16))
    with pytest.raises(ValueError, match="rotation"):
        wide = np.zeros((8, 64), np.float32)[:, :32]
        attention.load(good, wide, wide, attention.scratch(8), 0, 8)
    with pytest.raises(ValueError, match="multiples"):
        FullAttention(1, 130).rows(
            np.zeros((1, 390), np.uint16),
            np.zeros((1, 65), np.float32),
            np.zeros((1, 65), np.float32),
            np.zeros(10**6, np.float32),
            np.zeros((1, 130), np.uint16),
        )
