"""Rotary positions: partial RoPE with interleaved M-RoPE axes (t, h, w), and the positions of a prompt.

Angles are float32 products of a float32 frequency and the position, as transformers computes them: at
position 8,192 a double-precision angle would differ from those by 5e-4 rad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35.errors import ModelError

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig

__all__ = ["Rope", "prompt_positions", "text_positions"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class Rope:
    """cos and sin tables of a model. Immutable.

    `frequencies` float32 [rope_dim/2] = theta^(-2j/rope_dim); `axes` int64 [rope_dim/2]: pair j turns with
    axis h (1) if j % 3 == 1 and j < 3*section[1], w (2) if j % 3 == 2 and j < 3*section[2], else t (0).
    """

    def __init__(self, config: ModelConfig) -> None:
        half = config.rotary_dim // 2
        exponents = np.arange(0, config.rotary_dim, 2, dtype=np.float32) / np.float32(config.rotary_dim)
        self.frequencies: F32 = (1.0 / np.float32(config.rope_theta) ** exponents).astype(np.float32)
        pairs, self.axes = np.arange(half), np.zeros(half, np.int64)
        section = config.mrope_section or (half, 0, 0)
        for axis in (1, 2):
            self.axes[(pairs % 3 == axis) & (pairs < 3 * section[axis])] = axis

    def tables(self, positions: I64) -> tuple[F32, F32]:
        """cos and sin, float32 [n, rope_dim/2], of integer positions [n] (all axes alike) or [3, n]."""
        spread = np.asarray(positions, np.float32)
        by_pair = spread[:, None] if spread.ndim == 1 else np.ascontiguousarray(spread[self.axes].T)
        angles = by_pair * self.frequencies
        return np.cos(angles), np.sin(angles)

    def row(self, position: int, cosines: F32, sines: F32) -> None:
        """The tables of one text position, written to float32 [rope_dim/2] each."""
        angles = np.float32(position) * self.frequencies
        np.cos(angles, out=cosines)
        np.sin(angles, out=sines)


def text_positions(count: int, start: int = 0) -> I64:
    """Positions int64 [3, count] of text: start, start + 1, ... on every axis."""
    return np.broadcast_to(np.arange(start, start + count, dtype=np.int64), (3, count))


def prompt_positions(
    ids: Sequence[int], image_token: int, grids: Sequence[tuple[int, int]], merge: int, start: int = 0
) -> I64:
    """Positions int64 [3, len(ids)] of a prompt whose runs of `image_token` stand for images, in order.

    `grids` are the images' patch grids (rows, columns); an image takes (rows/merge) * (columns/merge) tokens
    in raster order at t = start, h = start + row, w = start + column, and the token after it stands at start
    + max(rows, columns)/merge. Raises ModelError where runs and grids do not match.
    """
    tokens = np.asarray(ids, np.int64)
    out = np.empty((3, tokens.size), np.int64)
    at, position = 0, start
    is_image = tokens == image_token

    def text(until: int) -> None:
        nonlocal at, position
        out[:, at:until] = np.arange(position, position + until - at)
        position, at = position + until - at, until

    for rows, columns in grids:
        rows, columns = rows // merge, columns // merge
        following = np.flatnonzero(is_image[at:])
        if following.size < rows * columns:
            raise ModelError(f"an image needs {rows * columns} image tokens, {following.size} are left")
        text(at + int(following[0]))
        end = at + rows * columns
        if not is_image[at:end].all():
            raise ModelError(f"the {rows * columns} tokens of an image are not in one run")
        out[0, at:end] = position
        out[1, at:end] = position + np.repeat(np.arange(rows), columns)
        out[2, at:end] = position + np.tile(np.arange(columns), rows)
        position, at = position + max(rows, columns), end
    if is_image[at:].any():
        raise ModelError("the prompt has more image tokens than its images take")
    text(tokens.size)
    return out
