"""The reference runs that `export --refs` records: two prompts, and a picture where there is a tower."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle import Bundle
from qwen35.export.adopt import adopted_options, adopted_vision
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.plan import Options
from qwen35.export.refs import Request
from qwen35.export.vision import plan_vision

__all__ = ["picture_size", "standard_picture", "standard_requests"]

_STEPS = 64


def standard_requests(
    checkpoint: Checkpoint, options: Options, kernels: Bundle | None = None
) -> list[Request]:
    """One answer without and one with thinking, and one about a picture where the bundle gets a tower.

    `options` and `kernels` are those of the export.
    """
    requests = [
        Request("plain", "What is a penguin?", max_new=_STEPS),
        Request("thinking", "Why is the sky blue? Answer in one sentence.", thinking=True, max_new=_STEPS),
    ]
    tower = plan_vision(checkpoint, options if kernels is None else adopted_options(kernels))
    if kernels is not None:
        tower = adopted_vision(kernels, tower)
    if tower is not None:
        size = picture_size(tower.patch_size * tower.spatial_merge_size, tower.min_pixels, tower.max_pixels)
        picture = standard_picture(*size)
        requests.append(Request("picture", "Describe this image.", picture=picture, max_new=_STEPS))
    return requests


def picture_size(step: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width, wider than high if that is possible, of a picture that no size rule changes.

    Where there is none (no two multiples of `step` fit), a square that is nearly right.
    """
    side = max(1, math.ceil(math.sqrt(min_pixels) / step))
    fits = [
        (rows, columns)
        for rows in range(1, side + 1)
        for columns in range(rows, 3 * rows + 1)
        if min_pixels <= rows * columns * step * step <= max_pixels
    ]
    rows, columns = max(fits, key=lambda size: (size[0] < size[1], size[0], -size[1]), default=(side, side))
    return rows * step, columns * step


def standard_picture(height: int, width: int) -> NDArray[np.uint8]:
    """A drawn scene, uint8 [height, width, 3]: sky over sea, a sun, a dark diamond."""
    y, x = np.mgrid[0:height, 0:width]
    y, x = y / height, x / width
    sky = np.stack([120 + 60 * y, 170 + 40 * y, 255 - 30 * y], axis=-1)
    sea = np.stack([20 + 30 * x, 70 + 60 * y, 130 + 20 * np.sin(40 * x + 60 * y)], axis=-1)
    picture = np.where((y < 0.6)[..., None], sky, sea)
    picture[(x - 0.75) ** 2 + (y - 0.25) ** 2 < 0.012] = (255, 220, 60)
    picture[np.abs(x - 0.35) + np.abs(y - 0.6) < 0.15] = (25, 25, 35)
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)
