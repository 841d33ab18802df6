"""Antialiased bicubic resizing of RGB bytes, bit for bit as torch's uint8 `interpolate` computes it.

The arithmetic (torch 2.x, ATen's uint8 antialias path, which torchvision's resize calls): Keys' cubic with
a = -0.5, its support widened by the scale when shrinking; weights normalised to one in double precision, then
rounded to int16 with the most fraction bits (at most 22) at which the axis's largest weight still fits; the
horizontal pass first, each pass rounded and clamped to bytes; a pass that changes no size is skipped.
tests/qwen35/pictures/test_image_resize.py proves the equality.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qwen35._host import ffi, lib

_A = -0.5
_SUPPORT = 2.0
_MAX_PRECISION = 22


class Taps(NamedTuple):
    """One axis: each output sample's source range and its weights [out, taps], with `precision` bits."""

    first: NDArray[np.int32]
    length: NDArray[np.int32]
    weights: NDArray[np.int16]
    precision: int


def _cubic(x: float) -> float:
    x = abs(x)
    if x < 1.0:
        return ((_A + 2.0) * x - (_A + 3.0)) * x * x + 1.0
    if x < 2.0:
        return (((x - 5.0) * x + 8.0) * x - 4.0) * _A
    return 0.0


@functools.lru_cache(maxsize=64)
def axis_taps(size_in: int, size_out: int) -> Taps:
    """The weights that turn `size_in` samples into `size_out`."""
    scale = size_in / size_out
    support = _SUPPORT * max(scale, 1.0)
    inverse = 1.0 / scale if scale >= 1.0 else 1.0
    taps = math.ceil(support) * 2 + 1
    first = np.zeros(size_out, np.int32)
    length = np.zeros(size_out, np.int32)
    exact = np.zeros((size_out, taps), np.float64)
    for i in range(size_out):
        center = scale * (i + 0.5)
        low = max(int(center - support + 0.5), 0)
        n = min(min(int(center + support + 0.5), size_in) - low, taps)
        row = [_cubic((j + low - center + 0.5) * inverse) for j in range(n)]
        total = _sum(row)
        first[i], length[i] = low, n
        exact[i, :n] = [w / total for w in row] if total else row
    largest = float(exact.max())
    precision = 0
    while precision < _MAX_PRECISION and int(0.5 + largest * (1 << (precision + 1))) < 1 << 15:
        precision += 1
    scaled = exact * (1 << precision)
    weights = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int16)
    return Taps(first, length, weights, precision)


def _sum(row: list[float]) -> float:
    """Left to right, as the reference adds: the normalised weights must match to the last bit."""
    total = 0.0
    for weight in row:
        total += weight
    return total


def resize(rgb: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """`rgb` uint8 [h, w, 3] resized to uint8 [`height`, `width`, 3]. Thread-safe."""
    src = np.ascontiguousarray(rgb)
    rows, columns = src.shape[:2]
    if columns != width:
        out = np.empty((rows, width, 3), np.uint8)
        t = axis_taps(columns, width)
        lib.resize_rows_u8(_p("uint8_t[]", src), rows, columns, width, *_pointers(t), _p("uint8_t[]", out))
        src = out
    if rows != height:
        out = np.empty((height, width, 3), np.uint8)
        t = axis_taps(rows, height)
        lib.resize_lines_u8(_p("uint8_t[]", src), width * 3, height, *_pointers(t), _p("uint8_t[]", out))
        src = out
    return src if src is not rgb else src.copy()


def _pointers(t: Taps) -> tuple[object, object, object, int, int]:
    return (
        _p("int32_t[]", t.first),
        _p("int32_t[]", t.length),
        _p("int16_t[]", t.weights),
        t.weights.shape[1],
        t.precision,
    )


def _p(ctype: str, array: NDArray[np.generic]) -> object:
    return ffi.from_buffer(ctype, array)
