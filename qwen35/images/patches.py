"""From RGB bytes to the tower's input: the size rule, the scaling to [-1, 1], the order of the patches.

The rule and the order are transformers' Qwen2-VL image processor (the one Qwen3.5 checkpoints name); the
scaling is its torchvision form, (v - 127.5) / 127.5 in float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qwen35.errors import ImageError
from qwen35.images.load import MAX_RATIO, ImageLike, load
from qwen35.images.resize import resize

CHANNELS = 3


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width) a picture is resized to: multiples of `factor` with min_pixels <= h * w <= max_pixels.

    Sides are rounded half to even; above the limit both shrink by the same ratio and are rounded down, below
    it they grow and are rounded up. Raises ImageError for a picture thinner than 200:1.
    """
    if max(height, width) > MAX_RATIO * min(height, width):
        raise ImageError(
            f"the picture is too thin ({width}x{height}); at most {MAX_RATIO}:1 is read", remedy="crop it"
        )
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > max_pixels:
        ratio = math.sqrt((height * width) / max_pixels)
        tall = max(factor, math.floor(height / ratio / factor) * factor)
        wide = max(factor, math.floor(width / ratio / factor) * factor)
    elif tall * wide < min_pixels:
        ratio = math.sqrt(min_pixels / (height * width))
        tall = math.ceil(height * ratio / factor) * factor
        wide = math.ceil(width * ratio / factor) * factor
    return tall, wide


class Prepared(NamedTuple):
    """A picture ready for the tower."""

    patches: NDArray[np.float32]
    """[grid_h * grid_w, 3 * patch * patch], in merge-block order, (channel, row, column) inside a patch."""
    grid: tuple[int, int]
    """Patch rows and columns, both multiples of the merge size."""
    original: tuple[int, int]
    """(width, height) of the picture as given."""
    resized: tuple[int, int]
    """(width, height) that the patches cover."""


class Preprocessor(NamedTuple):
    """A checkpoint's constants: bundle params `v.patch`, `v.merge`, `v.min_pixels`, `v.max_pixels`."""

    patch: int
    merge: int
    min_pixels: int
    max_pixels: int

    def __call__(self, source: ImageLike) -> Prepared:
        """Loads, resizes and cuts up one picture. Raises ImageError. Thread-safe."""
        rgb = load(source)
        height, width = rgb.shape[:2]
        tall, wide = smart_resize(height, width, self.patch * self.merge, self.min_pixels, self.max_pixels)
        return Prepared(
            self.cut(resize(rgb, tall, wide)),
            (tall // self.patch, wide // self.patch),
            (width, height),
            (wide, tall),
        )

    def tokens(self, grid: tuple[int, int]) -> int:
        """How many prompt tokens a picture of that patch grid takes."""
        return grid[0] * grid[1] // (self.merge * self.merge)

    def cut(self, rgb: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The patches of `rgb` uint8 [h, w, 3], whose sides are multiples of patch * merge."""
        p, m = self.patch, self.merge
        rows, columns = rgb.shape[0] // (p * m), rgb.shape[1] // (p * m)
        blocks = rgb.reshape(rows, m, p, columns, m, p, CHANNELS).transpose(0, 3, 1, 4, 6, 2, 5)
        values = np.ascontiguousarray(blocks, dtype=np.float32)
        values -= np.float32(127.5)
        values /= np.float32(127.5)
        return values.reshape(rows * columns * m * m, CHANNELS * p * p)
