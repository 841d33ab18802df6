"""bfloat16 as uint16 bit patterns: the upper half of a float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 to bf16 bits of the same shape, rounded half to even; NaN stays NaN (quiet)."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if nan.any():
        rounded[nan] = ((bits[nan] >> 16) | 0x40).astype(np.uint16)
    return rounded


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bf16 bits to float32 of the same shape, exactly."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)
