"""bf16 bits: rounding half to even, exact widening, NaN."""

from __future__ import annotations

import numpy as np
import pytest

from qwen35.formats import from_bf16, to_bf16


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (0.0, 0),
        (-0.0, 0x8000),
        (np.inf, 0x7F80),
        (-np.inf, 0xFF80),
        (1.00390625, 0x3F80),  # a tie, to even below
        (1.01171875, 0x3F82),  # a tie, to even above
        (1.0039064, 0x3F81),
        (3.4028235e38, 0x7F80),
        (1e-45, 0),
        (9.2e-41, 0x0001),
        (0.1, 0x3DCD),
    ],
)
def test_rounding(value: float, bits: int) -> None:
    assert int(to_bf16(np.array([value], np.float32))[0]) == bits


def test_nan_stays_nan() -> None:
    patterns = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(from_bf16(to_bf16(patterns))).all()


def test_every_pattern_returns() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = from_bf16(bits)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.view(np.uint32), bits.astype(np.uint32) << 16)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(to_bf16(values)[numbers], bits[numbers])


def test_shape_and_strides_are_kept() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    np.testing.assert_array_equal(from_bf16(to_bf16(values)), values)
