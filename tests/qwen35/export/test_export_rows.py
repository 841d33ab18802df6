"""Row sources: whatever block is asked for, the rows are those of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from qwen35.export.rows import Columns, Interleave, Joined, Matrix, Padded, Rows, to_float32

RNG = np.random.default_rng(3)
A = RNG.standard_normal((13, 6)).astype(np.float32)
B = RNG.standard_normal((3, 6)).astype(np.float32)
BITS = RNG.integers(0, 0x7F00, (13, 6)).astype(np.uint16)


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def zeros(rows: int, columns: int = 6) -> NDArray[np.float32]:
    return np.zeros((rows, columns), np.float32)


GATE, UP = RNG.standard_normal((12, 6)).astype(np.float32), RNG.standard_normal((12, 6)).astype(np.float32)
CASES: dict[str, tuple[Rows, NDArray[np.float32]]] = {
    "matrix": (Matrix(A), A),
    "bits": (Matrix(BITS), widened(BITS)),
    "half": (Matrix(A.astype(np.float16)), A.astype(np.float16).astype(np.float32)),
    "joined": (Joined([Matrix(A), Matrix(B), Matrix(A)]), np.concatenate([A, B, A])),
    "joined mixed": (Joined([Matrix(BITS), Matrix(B)]), np.concatenate([widened(BITS), B])),
    "padded": (Padded(Matrix(A), 20), np.concatenate([A, zeros(7)])),
    "padded later": (Padded(Matrix(A), 8, 8), np.concatenate([A[8:], zeros(3)])),
    "padded beyond": (Padded(Matrix(A), 4, 40), zeros(4)),
    "cut": (Padded(Matrix(A), 5), A[:5]),
    "columns": (Columns(Matrix(A), 2, 5), A[:, 2:5]),
    "columns beyond": (Columns(Matrix(BITS), 4, 8), np.concatenate([widened(BITS)[:, 4:], zeros(13, 2)], 1)),
    "interleaved": (
        Interleave(Matrix(GATE), Matrix(UP), 4),
        np.concatenate([GATE[:4], UP[:4], GATE[4:8], UP[4:8], GATE[8:], UP[8:]]),
    ),
    "interleaved mixed": (
        Interleave(Padded(Matrix(BITS), 14), Padded(Matrix(A), 14), 7),
        np.concatenate([widened(BITS)[:7], A[:7], widened(BITS)[7:], zeros(1), A[7:], zeros(1)]),
    ),
    "joined and cut": (Padded(Joined([Matrix(A), Matrix(B)]), 20, 1), np.concatenate([A[1:], B, zeros(5)])),
}


@pytest.mark.parametrize("name", CASES)
def test_every_block(name: str) -> None:
    source, whole = CASES[name]
    assert (source.rows, source.k) == whole.shape
    for first in range(source.rows):
        for last in range(first + 1, source.rows + 1):
            block = source.read(first, last)
            assert block.dtype in (np.uint16, np.float32)
            assert block.strides[1] == block.itemsize
            np.testing.assert_array_equal(to_float32(block), whole[first:last])


def test_views_are_not_copied() -> None:
    joined = Joined([Matrix(A), Matrix(B)])
    for source in (Matrix(A), joined, Padded(Matrix(A), 20), Columns(Matrix(A), 1, 4)):
        assert np.shares_memory(source.read(2, 9), A)


def test_unaligned_values_are_copied() -> None:
    odd = np.frombuffer(b"\0" + A.tobytes(), np.float32, A.size, 1).reshape(A.shape)
    block = Matrix(odd).read(0, 13)
    assert block.flags.aligned
    np.testing.assert_array_equal(block, A)


def test_parts_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="columns differ"):
        Joined([Matrix(A), Matrix(A[:, :4])])
    with pytest.raises(ValueError, match="in blocks of 5"):
        Interleave(Matrix(GATE), Matrix(UP), 5)
    with pytest.raises(ValueError, match="in blocks of 1"):
        Interleave(Matrix(GATE), Matrix(A), 1)
