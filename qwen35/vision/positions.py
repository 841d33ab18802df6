"""Where each patch sits: the resampled position table and the two-axis rotation, in merge-block order.

The arithmetic is transformers' Qwen3.5 vision model: the learned table [side, side, D] is sampled bilinearly
with aligned corners; of a head's hd / 2 rotation frequencies the first half turn with the patch's row, the
second with its column.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


def block_order(grid: tuple[int, int], merge: int) -> tuple[I64, I64]:
    """(row, column) of each patch: merge x merge blocks in raster order, raster order inside a block."""
    rows, columns = grid
    index = np.arange(rows * columns, dtype=np.int64).reshape(rows // merge, merge, columns // merge, merge)
    flat = index.transpose(0, 2, 1, 3).reshape(-1)
    return flat // columns, flat % columns


def _taps(count: int, side: int) -> tuple[I64, I64, F32]:
    """For each of `count` samples along an axis of `side`: the two table rows and the second's weight."""
    at = np.linspace(0, side - 1, count, dtype=np.float32)
    low = at.astype(np.int64)
    return low, np.minimum(low + 1, side - 1), at - low.astype(np.float32)


def resample(table: F32, side: int, grid: tuple[int, int], merge: int) -> F32:
    """The position rows float32 [patches, D] of a grid, from the table [side * side, D]."""
    row_low, row_high, row_part = (a[block_order(grid, merge)[0]] for a in _taps(grid[0], side))
    col_low, col_high, col_part = (a[block_order(grid, merge)[1]] for a in _taps(grid[1], side))
    one = np.float32(1.0)
    out: F32 = table[row_low * side + col_low] * ((one - row_part) * (one - col_part))[:, None]
    out += table[row_low * side + col_high] * ((one - row_part) * col_part)[:, None]
    out += table[row_high * side + col_low] * (row_part * (one - col_part))[:, None]
    out += table[row_high * side + col_high] * (row_part * col_part)[:, None]
    return out


def rotation(grid: tuple[int, int], merge: int, hd: int, theta: float) -> tuple[F32, F32]:
    """Cosines and sines float32 [patches, hd / 2]."""
    quarter = hd // 4
    exponent = np.arange(quarter, dtype=np.float32) * 4 / np.float32(hd)
    frequency = np.float32(1.0) / np.float32(theta) ** exponent
    row, column = block_order(grid, merge)
    angles = np.concatenate([row[:, None] * frequency, column[:, None] * frequency], axis=1)
    angles = angles.astype(np.float32)
    return np.cos(angles), np.sin(angles)
