"""bfp6s (bfp6s16): 6-bit weights, one scale byte for 16 consecutive k of a row; 6.5 bits a weight.

Scale byte s: c = 5 + (s & 3), exponent = (s >> 2) + 80; value = round_half_even(q*c/2) * 2^(exponent - 133)
with q in -32..31, so a weight is an int8 mantissa again once decoded. A group of 8 rows is a run of 832-byte
segments of 128 k. All functions are safe to call from any thread; the work releases the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35 import _host
from qwen35.formats import stream
from qwen35.formats.stream import Weights

NAME = "bfp6s"
CODE = 1
"""The number of this format in the emulator's instruction streams."""
K_STEP = 128
GROUP_BYTES = 832
"""Of 8 rows over K_STEP weights each."""


def nbytes(rows: int, k: int, *, bias: bool = False) -> int:
    """Bytes of a stream. Raises FormatError unless rows is a multiple of 8 and k of 128."""
    stream.check_shape(NAME, rows, k, K_STEP)
    return rows // 8 * (k // K_STEP) * GROUP_BYTES + (4 * rows if bias else 0)


def encode(
    weights: Weights,
    *,
    bias: NDArray[np.float32] | None = None,
    out: NDArray[np.uint8] | None = None,
    threads: int = 0,
) -> NDArray[np.uint8]:
    """The stream (uint8 [nbytes]) of [rows, k] float32 or bf16-bit weights; `bias` float32 [rows] goes last.

    Of every 16 weights the scale with the least sum of squared errors is taken (the scales around the one
    that just reaches the largest weight are tried, each with every weight at its nearest level). Raises
    FormatError for a shape the format cannot hold and for NaN or infinity.
    """
    body = nbytes(*weights.shape)
    return stream.encode(NAME, _host.lib.fmt_bfp6s_encode, _host.ffi, weights, body, bias, out, threads)


def decode_rows(
    data: NDArray[np.uint8], k: int, rows: Any, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Rows `rows` (integers, any order, repeats allowed) of a stream as float32 [len(rows), k], exactly.

    Raises FormatError for rows past the stream's end.
    """
    stream.check_shape(NAME, 8, k, K_STEP)
    return stream.decode_rows(
        NAME, _host.lib.fmt_bfp6s_decode, _host.ffi, data, k, k // K_STEP * GROUP_BYTES, rows, out
    )


def decode(data: NDArray[np.uint8], rows: int, k: int) -> NDArray[np.float32]:
    """The whole matrix, float32 [rows, k]; trailing bytes (a bias) are ignored."""
    stream.check_shape(NAME, rows, k, K_STEP)
    return decode_rows(data, k, np.arange(rows))
