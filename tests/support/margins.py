"""How far two models' logits may be apart."""

from __future__ import annotations

import numpy as np


def margins(logits: np.ndarray) -> np.ndarray:
    """How far each row's largest value is above its second."""
    top = np.sort(logits, axis=-1)
    return top[:, -1] - top[:, -2]
