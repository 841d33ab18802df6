"""bfp16 (bfp16ebs8): 8 consecutive k of a row share an exponent byte; 9 bytes, 9 bits a weight.

value = m * 2^(e - 133), m int8. Row r, block b of a stream sits at (r//8)*(k/8*72) + b*72 + (r%8)*9.
All functions are safe to call from any thread; the work releases the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35 import _host
from qwen35.formats import stream
from qwen35.formats.stream import Weights

NAME = "bfp16"
CODE = 0
"""The number of this format in the emulator's instruction streams."""
K_STEP = 8
GROUP_BYTES = 72
"""Of 8 rows over K_STEP weights each."""


def nbytes(rows: int, k: int, *, bias: bool = False) -> int:
    """Bytes of a stream. Raises FormatError unless rows and k are multiples of 8."""
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

    e is the largest biased float32 exponent of a block, mantissas are rounded half to even and saturated
    to [-128, 127]. Raises FormatError for a shape the format cannot hold and for NaN or infinity.
    """
    body = nbytes(*weights.shape)
    return stream.encode(NAME, _host.lib.fmt_bfp16_encode, _host.ffi, weights, body, bias, out, threads)


def decode_rows(
    data: NDArray[np.uint8], k: int, rows: Any, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Rows `rows` (integers, any order, repeats allowed) of a stream as float32 [len(rows), k], exactly.

    Only the bytes of those rows are read. Raises FormatError for rows past the stream's end.
    """
    stream.check_shape(NAME, 8, k, K_STEP)
    return stream.decode_rows(NAME, _host.lib.fmt_bfp16_decode, _host.ffi, data, k, k * 9, rows, out)


def decode(data: NDArray[np.uint8], rows: int, k: int) -> NDArray[np.float32]:
    """The whole matrix, float32 [rows, k]; trailing bytes (a bias) are ignored."""
    stream.check_shape(NAME, rows, k, K_STEP)
    return decode_rows(data, k, np.arange(rows))
