"""The reference runs that `export --refs` records: two prompts, and a picture where there is a tower."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qwen35.export.checkpoint import Checkpoint
from qwen35.export.plan import Options
from qwen35.export.refs import Request
from qwen35.export.vision import plan_vision

__all__ = ["standard_picture", "standard_requests"]

_STEPS = 64


def standard_requests(checkpoint: Checkpoint, *, with_picture: bool = True) -> list[Request]:
    """One answer without and one with thinking, and one about a picture where the checkpoint has a tower."""
    requests = [
        Request("plain", "What is a penguin?", max_new=_STEPS),
        Request("thinking", "Why is the sky blue? Answer in one sentence.", thinking=True, max_new=_STEPS),
    ]
    tower = plan_vision(checkpoint, Options()) if with_picture else None
    if tower is not None:
        step = tower.patch * tower.merge
        side = math.ceil(math.sqrt(tower.min_pixels) / step) * step
        picture = standard_picture(side, side + step)
        requests.append(Request("picture", "Describe this image.", picture=picture, max_new=_STEPS))
    return requests


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
