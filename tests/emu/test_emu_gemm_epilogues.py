"""GEMM flags of the vision tower: GELU epilogue, paired (hi + lo) streams, with bias and odd widths."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from amdxdna.emu import _kernels
from amdxdna.emu.kernels import stream
from tests.support.synthetic import bf16_round, bfp16_round
from tests.support.synthetic_bundle import bfp16_stream

ISAS = [i for i in range(8) if _kernels.lib.emu_isa_supported(i)]


def gelu_tanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def run(
    a: NDArray[np.float32], weights: NDArray[np.uint8], n: int, flags: int, isa: int, threads: int = 1
) -> NDArray[np.float32]:
    """C of A (bf16-exact values) as float32; two spare columns must stay as they were."""
    rows, k = a.shape
    assert weights.nbytes == stream.weight_bytes(n, k, stream.BFP16, flags)
    bits = (np.ascontiguousarray(a).view(np.uint32) >> 16).astype(np.uint16)
    c = np.full((rows, n + 2), 0x1234, np.uint16)
    status = _kernels.lib.emu_gemm(
        bits.ctypes.data,
        weights.ctypes.data,
        c.ctypes.data,
        rows,
        k,
        n,
        k,
        n + 2,
        flags,
        0,
        threads,
        isa + 1,
        _kernels.ffi.NULL,
    )
    assert status == 0
    assert (c[:, n:] == 0x1234).all()
    return (c[:, :n].astype(np.uint32) << 16).view(np.float32)


def operands(
    rows: int, k: int, n: int, flags: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.float64]]:
    """A, the packed stream and the exact sums, bias included."""
    rng = np.random.default_rng(rows + 7 * n + flags)
    a = bf16_round(rng.standard_normal((rows, k)).astype(np.float32))
    a[rows // 2] = 0
    w = (rng.standard_normal((n, k)) * 3 / np.sqrt(k)).astype(np.float32)
    high = bfp16_round(w)
    parts, exact = [bfp16_stream(w)], high.astype(np.float64)
    if flags & stream.PAIR:
        parts.append(bfp16_stream(w - high))
        exact = exact + bfp16_round(w - high)
    sums = a.astype(np.float64) @ exact.T
    if flags & stream.BIAS:
        bias = rng.standard_normal(n).astype(np.float32)
        parts.append(bias.tobytes())
        sums = sums + bias
    return a, np.frombuffer(b"".join(parts), np.uint8), sums


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "k", "n"), [(5, 64, 40), (33, 128, 104), (7, 16, 8), (17, 64, 192)])
@pytest.mark.parametrize("flags", [4, 8, 6, 10, 12, 14])
def test_against_float64(rows: int, k: int, n: int, flags: int, isa: int) -> None:
    a, weights, sums = operands(rows, k, n, flags)
    wanted = gelu_tanh(sums) if flags & stream.GELU else sums
    got = run(a, weights, n, flags, isa)
    # half a bf16 step, and float32's own error where terms cancel
    np.testing.assert_allclose(got, wanted, rtol=2.0**-7.98, atol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_threads_do_not_change_a_bit(isa: int) -> None:
    a, weights, _ = operands(40, 64, 200, 14)
    np.testing.assert_array_equal(run(a, weights, 200, 14, isa, 1), run(a, weights, 200, 14, isa, 3))


@pytest.mark.parametrize("isa", ISAS)
def test_gelu_at_the_ends(isa: int) -> None:
    """x from the bias alone: every finite x gives a finite result, NaN stays, infinities saturate."""
    x = np.array(
        [np.inf, -np.inf, np.nan, 3e38, -3e38, 1e20, -1e20, 20, -20, 15.9, -15.9, 0, -0.0, 1, -1, 1e-30],
        np.float32,
    )
    weights = np.frombuffer(bfp16_stream(np.zeros((16, 8), np.float32)) + x.tobytes(), np.uint8)
    for a in (np.zeros((2, 8), np.float32), np.ones((2, 8), np.float32)):
        got = run(a, weights, 16, stream.GELU | stream.BIAS, isa)
        with np.errstate(all="ignore"):
            wanted = np.where(x < -10, 0, np.where(x > 10, x, gelu_tanh(x.astype(np.float64))))
        np.testing.assert_allclose(got, np.stack([wanted, wanted]), rtol=2.0**-7.98, atol=1e-40)


def test_streams_say_so() -> None:
    (op,) = stream.parse(stream.gemm(4, 64, 40, bias=True, gelu=True, pair=True))
    assert isinstance(op, stream.Gemm)
    assert op.flags == stream.BIAS | stream.GELU | stream.PAIR == 14
    assert op.b_bytes == 2 * 40 * 8 * 9 + 160
    with pytest.raises(stream.StreamError, match="exclude each other"):
        stream.gemm(4, 64, 64, swiglu=True, gelu=True)
    with pytest.raises(stream.StreamError, match="unknown flags"):
        stream.program([stream.Gemm(4, 1, 64, 64, 64, 64, 16, 0, 64 * 72)])
    with pytest.raises(stream.StreamError, match="unknown flags"):
        stream.program([stream.Gemv(64, 64, stream.PAIR, 0, 2 * 64 * 72)])
