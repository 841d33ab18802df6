"""Packed weight streams: bfp16 and bfp6s.

A weight stream holds a matrix of `rows` outputs over `k` inputs in groups of 8 rows, a group's bytes
contiguous, optionally followed by one float32 bias an output. One stream serves the prefill GEMM
(rows = its columns) and the decode GEMV.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35._host import ffi, lib
from qwen35.threads import Threads

Weights = NDArray[Any]
"""[rows, k] as float32, or as bf16 bit patterns (uint16)."""

PIECE = 1 << 22


class FormatError(ValueError):
    """Weights that the format cannot hold, or bytes that are no stream of it."""


@dataclass(frozen=True)
class Format:
    """A packed weight format. Its methods may be called from any thread and release the GIL in their work."""

    name: str
    k_step: int
    """What k is a multiple of."""
    group_bytes: int
    """Of 8 rows over `k_step` weights each."""
    encoder: Any
    decoder: Any

    def nbytes(self, rows: int, k: int, *, bias: bool = False) -> int:
        """Bytes of a stream. Raises FormatError unless rows is a multiple of 8 and k of `k_step`."""
        if rows < 8 or rows % 8:
            raise FormatError(f"{self.name}: {rows} rows; pad to a multiple of 8")
        if k < self.k_step or k % self.k_step:
            raise FormatError(f"{self.name}: {k} columns; pad to a multiple of {self.k_step}")
        return rows // 8 * (k // self.k_step) * self.group_bytes + (4 * rows if bias else 0)

    def encode(
        self,
        weights: Weights,
        *,
        bias: NDArray[np.float32] | None = None,
        out: NDArray[np.uint8] | None = None,
        threads: int = 0,
    ) -> NDArray[np.uint8]:
        """The stream (uint8 [nbytes]) of [rows, k] float32 or bf16-bit weights, made on `threads` threads.

        `bias` float32 [rows] goes last; 0 threads: one a core. Raises FormatError for a shape the format
        cannot hold and for NaN or infinity.
        """
        name = self.name
        if weights.dtype not in (np.float32, np.uint16) or weights.ndim != 2:
            raise FormatError(f"{name}: weights are float32 or bf16 bits [rows, k], not {weights.dtype}")
        rows, k = weights.shape
        body = self.nbytes(rows, k)
        size = weights.itemsize
        if weights.strides[1] != size or weights.strides[0] % size or weights.strides[0] < 0:
            weights = np.ascontiguousarray(weights)
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
            bad = self.encoder(
                source + start * weights.strides[0],
                int(weights.dtype == np.uint16),
                stride,
                min(step, rows - start),
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
        self, data: NDArray[np.uint8], k: int, rows: Any, *, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Rows `rows` (integers, any order, repeats allowed) of a stream as float32 [len(rows), k], exactly.

        Only the bytes of those rows are read. Raises FormatError for rows past the stream's end.
        """
        name, group = self.name, self.nbytes(8, k)
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise FormatError(f"{name}: a stream is contiguous bytes, not {data.dtype}{data.shape}")
        picked = np.ascontiguousarray(rows, np.int64).reshape(-1)
        held = data.size // group * 8
        # One row is looked up at every token: numpy's reductions would cost more than the row.
        one = picked.size == 1
        low, high = (picked[0], picked[0]) if one else (picked.min(initial=0), picked.max(initial=0))
        if picked.size and not 0 <= low <= high < held:
            raise FormatError(f"{name}: rows {picked.min()}..{picked.max()} of a stream that holds {held}")
        if out is None:
            out = np.empty((picked.size, k), np.float32)
        elif out.dtype != np.float32 or out.shape != (picked.size, k) or not out.flags.c_contiguous:
            raise FormatError(f"{name}: out must be contiguous float32 {(picked.size, k)}")
        self.decoder(
            ffi.from_buffer("uint8_t[]", data),
            k,
            ffi.from_buffer("int64_t[]", picked),
            picked.size,
            ffi.from_buffer("float[]", out),
        )
        return out

    def decode(self, data: NDArray[np.uint8], rows: int, k: int) -> NDArray[np.float32]:
        """The whole matrix, float32 [rows, k]; trailing bytes (a bias) are ignored."""
        self.nbytes(rows, k)
        return self.decode_rows(data, k, np.arange(rows))


bfp16 = Format("bfp16", 8, 72, lib.fmt_bfp16_encode, lib.fmt_bfp16_decode)
"""bfp16ebs8: 8 consecutive k of a row share an exponent byte; 9 bytes, 9 bits a weight.

value = m * 2^(e - 133), m int8. Row r, block b of a stream sits at (r//8)*(k/8*72) + b*72 + (r%8)*9. Encoded,
e is the largest biased float32 exponent of a block, mantissas are rounded half to even and saturated to
[-128, 127].
"""
bfp6s = Format("bfp6s", 128, 832, lib.fmt_bfp6s_encode, lib.fmt_bfp6s_decode)
"""bfp6s16: 6-bit weights, one scale byte for 16 consecutive k of a row; 6.5 bits a weight.

Scale byte s: c = 5 + (s & 3), exponent = (s >> 2) + 80; value = round_half_even(q*c/2) * 2^(exponent - 133)
with q in -32..31, so a weight is an int8 mantissa again once decoded. A group of 8 rows is a run of 832-byte
segments of 128 k. Of every 16 weights the scale with the least sum of squared errors is taken (the scales
around the one that just reaches the largest weight are tried, each with every weight at its nearest level).
"""
