"""Pictures as the vision tower takes them."""

from __future__ import annotations

import numpy as np


def pixels(rng: np.random.Generator, grid: tuple[int, int], patch: int) -> np.ndarray:
    values = rng.integers(0, 256, (grid[0] * grid[1], 3 * patch * patch)).astype(np.float32)
    return (values - np.float32(127.5)) / np.float32(127.5)
