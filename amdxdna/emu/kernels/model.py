"""The kernel families in plain numpy: what the C kernels are checked against, and their definition.

Weights are decoded byte by byte as the format page says, sums are float64, and only the result is rounded: to
float32, then to bf16, half to even. The C kernels add in float32, so they agree bit for bit where no sum
rounds, and within a bf16 step otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .stream import BFP16, BIAS, GELU, PAIR, SWIGLU, Gemm, Gemv, weight_bytes

Bits = NDArray[np.uint16]
Values = NDArray[np.float64]


def from_bf16(bits: Bits) -> Values:
    """bf16 bit patterns as float64."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def to_bf16(values: Values) -> Bits:
    """Rounded to float32, then to bf16 bit patterns, each half to even; NaN stays NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), bits >> 16 | 0x40, rounded).astype(np.uint16)


def decode_bfp16(data: NDArray[np.uint8], n: int, k: int) -> Values:
    """[n, k] of a bfp16 stream: groups of 8 rows, k/8 blocks of 8 rows, 9 bytes a row."""
    blocks = data[: n * k // 8 * 9].reshape(n // 8, k // 8, 8, 9)
    exponents = blocks[..., :1].astype(np.int32) - 133
    values = np.ldexp(blocks[..., 1:].view(np.int8).astype(np.float64), exponents)
    matrix: Values = values.transpose(0, 2, 1, 3).reshape(n, k)
    return matrix


def decode_bfp6s(data: NDArray[np.uint8], n: int, k: int) -> Values:
    """[n, k] of a bfp6s stream: groups of 8 rows, k/128 segments, 8 tiles of 96 bytes and 64 scales."""
    segments = data[: n // 8 * (k // 128) * 832].reshape(n // 8, k // 128, 832)
    tiles = segments[..., :768].reshape(n // 8, k // 128, 8, 96)
    nibbles = tiles[..., :64].astype(np.int32)
    twos = np.concatenate([tiles[..., 64:], tiles[..., 64:] >> 2], axis=-1).astype(np.int32)
    u = np.stack([nibbles & 15 | (twos & 3) << 4, nibbles >> 4 | (twos >> 4 & 3) << 4], axis=-2)
    q = u.reshape(n // 8, k // 128, 8, 2, 8, 8) - 32  # group, segment, tile, half, row, k
    scales = segments[..., 768:].reshape(n // 8, k // 128, 8, 1, 8, 1).astype(np.int32)
    mantissas = np.rint(q * (5 + (scales & 3)) / 2)
    values = np.ldexp(mantissas, (scales >> 2) + 80 - 133)
    matrix: Values = values.transpose(0, 4, 1, 2, 3, 5).reshape(n, k)
    return matrix


def weights(data: NDArray[np.uint8], n: int, k: int, format: int, flags: int) -> Values:
    """[n, k] of a stream; of a pair, the sum of both."""
    decode = decode_bfp16 if format == BFP16 else decode_bfp6s
    total: Values = decode(data, n, k)
    if flags & PAIR:
        total = total + decode(data[weight_bytes(n, k, format) :], n, k)
    return total


def biases(data: NDArray[np.uint8], n: int, flags: int) -> Values:
    """[n]: the float32 values at the stream's end, or zeros."""
    if not flags & BIAS:
        return np.zeros(n)
    tail: Values = data[len(data) - 4 * n :].copy().view("<f4").astype(np.float64)
    return tail


def gemm(op: Gemm, a: Bits, b: NDArray[np.uint8], c: Bits) -> None:
    """Runs `op` on one-dimensional operands, writing C's rows into `c` and nothing between them."""
    rows = np.lib.stride_tricks.as_strided(a, (op.rows, op.k), (2 * op.lda, 2), writeable=False)
    with np.errstate(all="ignore"):
        sums = from_bf16(rows) @ weights(b, op.n, op.k, op.format, op.flags).T + biases(b, op.n, op.flags)
        if op.flags & SWIGLU:
            pairs = sums.reshape(op.rows, op.n // 64, 2, 32)
            gate = pairs[:, :, 0]
            sums = (gate / (1 + np.exp(-gate)) * pairs[:, :, 1]).reshape(op.rows, op.n // 2)
        elif op.flags & GELU:
            sums = sums / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (sums + 0.044715 * sums**3)))
    out = np.lib.stride_tricks.as_strided(c, (op.rows, op.columns), (2 * op.c_stride, 2))
    out[:] = to_bf16(sums)


def gemv(op: Gemv, x: Bits, w: NDArray[np.uint8], y: Bits) -> None:
    """Runs `op`, writing y's M values."""
    with np.errstate(all="ignore"):
        matrix = weights(w, op.m, op.k, op.format, op.flags)
        y[: op.m] = to_bf16(matrix @ from_bf16(x[: op.k]) + biases(w, op.m, op.flags))
