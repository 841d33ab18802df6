"""Pictures that tests make."""

from __future__ import annotations

import struct

import numpy as np


def tiny_gif(width: int, height: int) -> bytes:
    """43 bytes that ask for a canvas of that size, with transparency."""
    canvas = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(3) + b"\xff" * 3
    frame = b"!\xf9\x04\x01" + bytes(4) + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0)
    return b"GIF89a" + canvas + frame + b"\x02\x02D\x01\x00;"


def pixels(rng: np.random.Generator, grid: tuple[int, int], patch: int) -> np.ndarray:
    """As the vision tower takes them."""
    values = rng.integers(0, 256, (grid[0] * grid[1], 3 * patch * patch)).astype(np.float32)
    return (values - np.float32(127.5)) / np.float32(127.5)
