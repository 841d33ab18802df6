"""Matrices read by rows, so that a projection is packed without being held: views, joins and paddings.

A source gives rows [first, last) as bf16 bits (uint16) or float32; nothing is copied that a view can give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns", "Interleave", "Joined", "Matrix", "Padded", "Rows", "all_finite", "to_float32"]

Values = NDArray[Any]


class Rows(Protocol):
    """A matrix [rows, k] that is read a block of rows at a time."""

    @property
    def rows(self) -> int:
        """Rows (outputs)."""

    @property
    def k(self) -> int:
        """Columns (inputs)."""

    def read(self, first: int, last: int) -> Values:
        """Rows first..last-1 as uint16 bf16 bits or float32 [last - first, k], columns contiguous."""


def to_float32(values: Values) -> NDArray[np.float32]:
    """bf16 bits (uint16), float16 or float32 as float32, exactly."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(values, np.float32)


def all_finite(values: Values) -> bool:
    """Whether no element of bf16 bits (uint16), float16 or float32 is NaN or infinite."""
    if values.dtype == np.uint16:
        return not bool(((values & 0x7F80) == 0x7F80).any())
    return bool(np.isfinite(values).all())


class Matrix:
    """A 2-D array of bf16 bits, float16 or float32."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.rows, self.k = values.shape

    def read(self, first: int, last: int) -> Values:
        """See Rows."""
        part = self._values[first:last]
        if part.dtype == np.float16:
            return part.astype(np.float32)
        return part if part.flags.aligned else part.copy()


class Joined:
    """Matrices one below the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        if len({part.k for part in parts}) != 1:
            raise ValueError(f"columns differ: {[part.k for part in parts]}")
        self._parts = parts
        self.rows, self.k = sum(part.rows for part in parts), parts[0].k

    def read(self, first: int, last: int) -> Values:
        """See Rows."""
        found, at = [], 0
        for part in self._parts:
            low, high = max(first - at, 0), min(last - at, part.rows)
            if low < high:
                found.append(part.read(low, high))
            at += part.rows
        return _stack(found or [self._parts[0].read(0, 0)])


class Interleave:
    """The rows of two equal matrices in turns: `block` of the first, `block` of the second, and so on."""

    def __init__(self, first: Rows, second: Rows, block: int) -> None:
        if (first.rows, first.k) != (second.rows, second.k) or first.rows % block:
            raise ValueError(f"{first.rows} x {first.k}, {second.rows} x {second.k} in blocks of {block}")
        self._pair, self._block = (first, second), block
        self.rows, self.k = 2 * first.rows, first.k

    def read(self, first: int, last: int) -> Values:
        """See Rows."""
        step, pair = self._block, 2 * self._block
        low, high = first // pair, -(-last // pair)
        halves = [source.read(low * step, high * step) for source in self._pair]
        if halves[0].dtype != halves[1].dtype:
            halves = [to_float32(half) for half in halves]
        mixed = np.stack([half.reshape(high - low, step, self.k) for half in halves], axis=1)
        return mixed.reshape(-1, self.k)[first - low * pair : last - low * pair]


class Columns:
    """Columns [first, last) of a matrix; those past its width are zeros."""

    def __init__(self, source: Rows, first: int, last: int) -> None:
        self._source, self._first, self._last = source, first, last
        self.rows, self.k = source.rows, last - first

    def read(self, first: int, last: int) -> Values:
        """See Rows."""
        whole = self._source.read(first, last)
        part = whole[:, self._first : self._last]
        if part.shape[1] == self.k:
            return part
        padded = np.zeros((last - first, self.k), whole.dtype)
        padded[:, : part.shape[1]] = part
        return padded


class Padded:
    """Rows [first, first + rows) of a matrix; those past its end are zeros."""

    def __init__(self, source: Rows, rows: int, first: int = 0) -> None:
        self._source, self._start = source, first
        self.rows, self.k = rows, source.k

    def read(self, first: int, last: int) -> Values:
        """See Rows."""
        low = min(self._start + first, self._source.rows)
        high = min(self._start + last, self._source.rows)
        part = self._source.read(low, high)
        if high - low == last - first:
            return part
        padded = np.zeros((last - first, self.k), part.dtype)
        padded[: high - low] = part
        return padded


def _stack(parts: list[Values]) -> Values:
    if len(parts) == 1:
        return parts[0]
    if len({part.dtype for part in parts}) > 1:
        parts = [to_float32(part) for part in parts]
    return np.concatenate(parts)
