"""What the packed weight formats share: argument checks, threads, the row interleave of gate and up.

A weight stream holds a matrix of `rows` outputs over `k` inputs in groups of 8 rows, a group's bytes
contiguous, optionally followed by one float32 bias an output. One stream serves the prefill GEMM
(rows = its columns) and the decode GEMV.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35.threads import Threads

Weights = NDArray[Any]
"""[rows, k] as float32, or as bf16 bit patterns (uint16)."""

PIECE = 1 << 22


class FormatError(ValueError):
    """Weights that the format cannot hold, or bytes that are no stream of it."""


def check_shape(name: str, rows: int, k: int, step: int) -> None:
    """Raises FormatError unless rows is a positive multiple of 8 and k of `step`."""
    if rows < 8 or rows % 8:
        raise FormatError(f"{name}: {rows} rows; pad to a multiple of 8")
    if k < step or k % step:
        raise FormatError(f"{name}: {k} columns; pad to a multiple of {step}")


Encoder = Callable[[Any, int, int, int, int, Any], int]
Decoder = Callable[[Any, int, Any, int, Any], None]


def encode(
    name: str,
    function: Encoder,
    ffi: Any,
    weights: Weights,
    body: int,
    bias: NDArray[np.float32] | None,
    out: NDArray[np.uint8] | None,
    threads: int,
) -> NDArray[np.uint8]:
    """Encodes by pieces of rows on `threads` threads (0: one a core); `body` is the stream without bias."""
    if weights.dtype not in (np.float32, np.uint16) or weights.ndim != 2:
        raise FormatError(f"{name}: weights are float32 or bf16 bits [rows, k], not {weights.dtype}")
    size = weights.itemsize
    if weights.strides[1] != size or weights.strides[0] % size or weights.strides[0] < 0:
        weights = np.ascontiguousarray(weights)
    rows, k = weights.shape
    if bias is not None and bias.shape != (rows,):
        raise FormatError(f"{name}: bias {bias.shape} for {rows} rows")
    total = body + (0 if bias is None else 4 * rows)
    if out is None:
        out = np.empty(total, np.uint8)
    elif out.dtype != np.uint8 or out.shape != (total,) or not out.flags.carray:
        raise FormatError(f"{name}: out must be {total} contiguous writable bytes")
    stride = weights.strides[0] // size
    source = ffi.cast("char *", weights.ctypes.data)
    target = ffi.cast("uint8_t *", out.ctypes.data)
    step = max(8, PIECE // k // 8 * 8)

    def piece(start: int) -> None:
        count = min(step, rows - start)
        bad = function(
            source + start * weights.strides[0],
            int(weights.dtype == np.uint16),
            stride,
            count,
            k,
            target + body // rows * start,
        )
        if bad >= 0:
            raise FormatError(f"{name}: row {start + bad} holds a value that is not finite")

    starts = range(0, rows, step)
    workers = min(threads or len(os.sched_getaffinity(0)), len(starts))
    if workers > 1:
        with Threads(workers) as pool:
            list(pool.map(piece, starts))
    else:
        for start in starts:
            piece(start)
    if bias is not None:
        out[body:] = np.ascontiguousarray(bias, "<f4").view(np.uint8)
    return out


def decode_rows(
    name: str,
    function: Decoder,
    ffi: Any,
    stream: NDArray[np.uint8],
    k: int,
    group_bytes: int,
    index: Any,
    out: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Decodes the rows `index` of a stream whose 8-row groups take `group_bytes`."""
    if stream.dtype != np.uint8 or stream.ndim != 1 or not stream.flags.c_contiguous:
        raise FormatError(f"{name}: a stream is contiguous bytes, not {stream.dtype}{stream.shape}")
    picked = np.ascontiguousarray(index, np.int64).reshape(-1)
    held = stream.size // group_bytes * 8
    # One row is looked up at every token: numpy's reductions would cost more than the row.
    low, high = (picked[0], picked[0]) if picked.size == 1 else (picked.min(initial=0), picked.max(initial=0))
    if picked.size and not 0 <= low <= high < held:
        raise FormatError(f"{name}: rows {picked.min()}..{picked.max()} of a stream that holds {held}")
    if out is None:
        out = np.empty((picked.size, k), np.float32)
    elif out.dtype != np.float32 or out.shape != (picked.size, k) or not out.flags.c_contiguous:
        raise FormatError(f"{name}: out must be contiguous float32 {(picked.size, k)}")
    function(
        ffi.from_buffer("uint8_t[]", stream),
        k,
        ffi.from_buffer("int64_t[]", picked),
        picked.size,
        ffi.from_buffer("float[]", out),
    )
    return out


def interleave_gate_up(gate: Weights, up: Weights) -> Weights:
    """[I, k] gate and up as the [2 I, k] rows a SwiGLU GEMM reads: blocks of 32 gate | 32 up rows.

    I is padded with zero rows to a multiple of 32 (zero gate times zero up is zero).
    """
    if gate.shape != up.shape or gate.dtype != up.dtype or gate.ndim != 2:
        raise FormatError(f"gate {gate.dtype}{gate.shape} and up {up.dtype}{up.shape} differ")
    rows, k = gate.shape
    blocks = -(-rows // 32)
    both = np.zeros((blocks * 32, 2, k), gate.dtype)
    both[:rows, 0] = gate
    both[:rows, 1] = up
    interleaved: Weights = both.reshape(blocks, 32, 2, k).swapaxes(1, 2).reshape(blocks * 64, k)
    return interleaved
