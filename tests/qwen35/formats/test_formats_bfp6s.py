"""bfp6s streams: decoding against plain Python, the encoder against an exhaustive search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qwen35.formats import bfp6s, bfp16, by_name, to_bf16
from qwen35.formats.stream import FormatError


def plain_value(segment: Any, row: int, k: int) -> float:
    """Weight (row of 8, k of 128) of an 832-byte segment, by the format page."""
    tile, half, j = k // 16, k % 16 // 8, k % 8
    lane = row * 8 + j
    nib = int(segment[96 * tile + lane]) >> 4 * half & 15
    two = int(segment[96 * tile + 64 + lane % 32]) >> (4 * half + (0 if lane < 32 else 2)) & 3
    s = int(segment[768 + 8 * tile + row])
    q, c, exponent = (nib | two << 4) - 32, 5 + (s & 3), (s >> 2) + 80
    return round(q * c / 2) * 2.0 ** (exponent - 133)


def plain_decode(stream: Any, rows: int, k: int) -> Any:
    out = np.empty((rows, k), np.float32)
    for r in range(rows):
        for i in range(k):
            at = (r // 8 * (k // 128) + i // 128) * 832
            out[r, i] = plain_value(stream[at : at + 832], r % 8, i % 128)
    return out


LEVELS = np.array([[round(q * c / 2) for q in range(-32, 32)] for c in (5, 6, 7, 8)], np.float64)


def least_error(block: Any) -> float:
    """The least sum of squared errors of 16 values over all 256 scales, each value at its nearest level."""
    best = np.inf
    for s in range(256):
        levels = LEVELS[s & 3] * 2.0 ** ((s >> 2) + 80 - 133)
        best = min(best, np.square(np.abs(block[:, None] - levels[None]).min(1)).sum())
    return best


def test_decoding_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    stream = rng.integers(0, 256, bfp6s.nbytes(24, 256), np.uint8)
    expected = plain_decode(stream, 24, 256)
    np.testing.assert_array_equal(bfp6s.decode(stream, 24, 256), expected)
    picked = [23, 0, 9, 9]
    np.testing.assert_array_equal(bfp6s.decode_rows(stream, 256, picked), expected[picked])


def test_one_weight_by_hand() -> None:
    """Row 5, k = 29 (tile 1, half 1, j = 5): u = 0b101101, scale 0b110010_11: c = 8, exponent 130."""
    stream = np.zeros(832, np.uint8)
    for tile in range(8):  # u = 32, q = 0 everywhere
        stream[96 * tile + 64 : 96 * tile + 96] = 0b10101010
    stream[96 + 5 * 8 + 5] = 0b1101_0000
    stream[96 + 64 + 1 * 8 + 5] = 0b10_10_10_10
    stream[768 + 8 + 5] = 0b110010_11
    decoded = bfp6s.decode(stream, 8, 128)
    assert decoded[5, 29] == (0b101101 - 32) * 4 * 2.0 ** (130 - 133)
    decoded[5, 29] = 0
    assert not decoded.any()


CASES = ["normal", "small", "large", "outlier", "uniform", "heavy", "sparse", "bf16"]


@pytest.mark.parametrize("case", CASES)
def test_encoder_finds_the_least_error(case: str) -> None:
    rng = np.random.default_rng(2)
    w = rng.standard_normal((16, 128))
    if case == "small":
        w *= 1e-9
    elif case == "large":
        w *= 50.0
    elif case == "outlier":
        w[:, ::16] *= 20
    elif case == "uniform":
        w = rng.uniform(-1, 1, w.shape)
    elif case == "heavy":
        w = rng.standard_t(2, w.shape)
    elif case == "sparse":
        w *= rng.random(w.shape) < 0.1
    weights = w.astype(np.float32)
    stream = bfp6s.encode(to_bf16(weights) if case == "bf16" else weights)
    source = weights if case != "bf16" else (to_bf16(weights).astype(np.uint32) << 16).view(np.float32)
    decoded = plain_decode(stream, 16, 128).astype(np.float64)
    blocks = source.astype(np.float64).reshape(-1, 16)
    errors = np.square(decoded.reshape(-1, 16) - blocks).sum(1)
    best = np.array([least_error(block) for block in blocks])
    assert (errors >= best * (1 - 1e-9)).all()  # the model is right: nothing beats the exhaustive search
    worse = errors > best * (1 + 1e-4) + 1e-300
    assert worse.sum() == 0, (errors[worse] / best[worse]).max()


@pytest.mark.parametrize("exponent", [-140, -60, -53, -50, 10, 18, 100, 127])
def test_range(exponent: int) -> None:
    """Beyond the scales' range small weights become zero and large ones saturate, and nothing breaks."""
    rng, scale = np.random.default_rng(3), 2.0**exponent
    weights = (rng.uniform(0.5, 1, (8, 128)) * rng.choice([-1, 1], (8, 128)) * scale).astype(np.float32)
    decoded = bfp6s.decode(bfp6s.encode(weights), 8, 128).astype(np.float64)
    if scale < 2.0**-56:
        assert not decoded.any()
    elif scale > 2.0**17:
        assert set(np.unique(decoded)) <= {-128.0 * 2**10, 124.0 * 2**10}
    else:
        np.testing.assert_allclose(decoded, weights, atol=max(scale * 0.05, 1.5 * 2.0**-53))


def test_zero_weights_are_zero() -> None:
    weights = np.zeros((8, 256), np.float32)
    weights[3, 130] = -0.75
    decoded = bfp6s.decode(bfp6s.encode(weights), 8, 256)
    assert decoded[3, 130] == -0.75
    decoded[3, 130] = 0
    assert not decoded.any()


def test_signal_to_noise_beside_bfp16() -> None:
    """Normal weights: about 33.5 dB at 6.5 bits and 44 dB at 9."""
    weights = np.random.default_rng(4).standard_normal((256, 512)).astype(np.float32) * 0.02

    def snr(decoded: Any) -> float:
        noise = np.square(decoded.astype(np.float64) - weights).sum()
        return float(10 * np.log10(np.square(weights.astype(np.float64)).sum() / noise))

    six = snr(bfp6s.decode(bfp6s.encode(weights), 256, 512))
    nine = snr(bfp16.decode(bfp16.encode(weights), 256, 512))
    assert 33.3 < six < 34
    assert 43 < nine < 45


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_and_bias(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen35.formats.stream.PIECE", 1 << 10)
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((64, 384)).astype(np.float32)
    bias = rng.standard_normal(64).astype(np.float32)
    stream = bfp6s.encode(weights[:, 128:], bias=bias, threads=threads)
    assert stream.size == bfp6s.nbytes(64, 256, bias=True) == 8 * 2 * 832 + 256
    np.testing.assert_array_equal(stream[-256:].view(np.float32), bias)
    for group in range(8):
        alone = bfp6s.encode(np.ascontiguousarray(weights[8 * group : 8 * group + 8, 128:]))
        np.testing.assert_array_equal(stream[group * 1664 : (group + 1) * 1664], alone)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: bfp6s.encode(np.zeros((8, 64), np.float32)), "multiple of 128"),
        (lambda: bfp6s.encode(np.full((8, 128), np.nan, np.float32)), "row 0 holds"),
        (lambda: bfp6s.decode_rows(np.zeros(832, np.uint8), 128, [8]), "holds 8"),
    ],
)
def test_bad_input(call: Any, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        call()


def test_by_name() -> None:
    assert by_name("bfp6s") is bfp6s
    assert by_name("bfp16") is bfp16
