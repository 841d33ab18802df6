"""Operands of the emulated kernels' tests: random streams, the numpy model's answers, tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np

from amdxdna.emu import _kernels
from amdxdna.emu.kernels import isa, model, stream
from amdxdna.emu.kernels.stream import BFP6S, BFP16, Gemm, Gemv

ISAS = isa.supported()
FORMATS = {"bfp16": BFP16, "bfp6s": BFP6S}
SENTINEL = 0x7E57


def bf16(values: Any) -> Any:
    """float values to bf16 bits, half to even."""
    return model.to_bf16(np.asarray(values, np.float64))


def random_stream(rng: Any, n: int, k: int, format: int, *, exponent: int = 127, spread: int = 3) -> Any:
    """A stream with random mantissas; scales spread over `spread` octaves around 2^(exponent - 127)."""
    data = rng.integers(0, 256, stream.weight_bytes(n, k, format), np.uint8)
    if format == BFP16:
        data.reshape(-1, 9)[:, 0] = exponent - 1 + rng.integers(0, spread, data.size // 9)
    else:
        scales = data.reshape(-1, 832)[:, 768:]
        scales[:] = (exponent - 80 + rng.integers(0, spread, scales.shape)) << 2 | scales & 3
    return data


def integer_stream(rng: Any, n: int, k: int, format: int) -> Any:
    """A stream of small integers, so that every sum of a test is exact in float32."""
    data = rng.integers(0, 256, stream.weight_bytes(n, k, format), np.uint8)
    if format == BFP16:
        blocks = data.reshape(-1, 9)
        blocks[:, 1:] = rng.integers(-9, 10, blocks[:, 1:].shape).astype(np.int8).view(np.uint8)
        blocks[:, 0] = 133 + rng.integers(0, 2, len(blocks))
    else:
        scales = data.reshape(-1, 832)[:, 768:]
        scales[:] = (133 - 80) << 2 | scales & 3
    return data


def with_bias(data: Any, bias: Any) -> Any:
    """The stream followed by its bias."""
    return np.concatenate([data, np.asarray(bias, "<f4").view(np.uint8)])


def run_gemm(op: Gemm, a: Any, b: Any, name: str, threads: int = 1) -> Any:
    """C's whole span, sentinel where the kernel wrote nothing."""
    c = np.full(op.c_bytes // 2, SENTINEL, np.uint16)
    assert (a.nbytes, b.nbytes) == (op.a_bytes, op.b_bytes)
    op.check()
    shape = (op.rows, op.k, op.n, op.lda, op.c_stride, op.flags, op.format)
    how = (threads, isa.variants().index(name) + 1, _kernels.ffi.NULL)
    assert _kernels.lib.emu_gemm(a.ctypes.data, b.ctypes.data, c.ctypes.data, *shape, *how) == 0
    return c


def run_gemv(op: Gemv, x: Any, w: Any, name: str, threads: int = 1) -> Any:
    """y of M values."""
    y = np.full(op.m, SENTINEL, np.uint16)
    op.check()
    assert (x.nbytes, w.nbytes) == (2 * op.k, op.w_bytes)
    how = (threads, isa.variants().index(name) + 1, _kernels.ffi.NULL)
    pointers = (x.ctypes.data, w.ctypes.data, y.ctypes.data)
    assert _kernels.lib.emu_gemv(*pointers, op.m, op.k, op.flags, op.format, *how) == 0
    return y


def gemm_model(op: Gemm, a: Any, b: Any) -> Any:
    """C's whole span by the numpy model."""
    c = np.full(op.c_bytes // 2, SENTINEL, np.uint16)
    model.gemm(op, a, b, c)
    return c


def gemv_model(op: Gemv, x: Any, w: Any) -> Any:
    """y by the numpy model."""
    y = np.full(op.m, SENTINEL, np.uint16)
    model.gemv(op, x, w, y)
    return y


def step(values: Any) -> Any:
    """The distance between neighbouring bf16 numbers at each value."""
    _, exponent = np.frexp(np.asarray(values, np.float64))
    return np.ldexp(1.0, np.maximum(exponent - 8, -133))


def assert_close(got: Any, exact: Any, magnitude: Any) -> None:
    """Half a bf16 step of the exact sum, plus float32's rounding of terms of `magnitude` in all."""
    values = model.from_bf16(got)
    error = np.abs(values - exact)
    allowed = 0.5 * step(np.maximum(np.abs(values), np.abs(exact))) + 2.0**-21 * magnitude
    worst = np.argmax(error - allowed)
    assert (error <= allowed).all(), (values.flat[worst], exact.flat[worst], allowed.flat[worst])
