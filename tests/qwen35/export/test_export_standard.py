"""The reference runs that every export records, and the picture of one of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from qwen35.export.checkpoint import Checkpoint
from qwen35.export.plan import Options
from qwen35.export.standard import picture_size, standard_picture, standard_requests
from qwen35.images import smart_resize
from tests.support.synthetic import SHAPES, smaller, write_checkpoint


def test_what_is_asked(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, smaller(SHAPES["vision"], layers=1))
    for vision in ("w8", "none"):
        made = standard_requests(Checkpoint(tmp_path), Options(vision=vision))
        assert [(one.name, one.thinking, one.max_new) for one in made] == [
            ("plain", False, 64),
            ("thinking", True, 64),
            ("picture", False, 64),
        ][: 3 if vision == "w8" else 2]
        shapes = [None if one.picture is None else one.picture.shape for one in made]
        assert shapes == [None, None, (16, 24, 3)][: len(made)]


@pytest.mark.parametrize(
    ("step", "least", "most", "size"),
    [
        (32, 65536, 1 << 20, (256, 288)),
        (16, 6144, 9216, (80, 96)),
        (1, 2, 2, (1, 2)),
        (1, 3, 3, (1, 3)),
        (8, 256, 256, (16, 16)),  # a square, as nothing wider fits
        (8, 257, 300, (24, 24)),  # nothing does
        (8, 1, 1, (8, 8)),
    ],
)
def test_a_size_that_no_rule_changes(step: int, least: int, most: int, size: tuple[int, int]) -> None:
    assert picture_size(step, least, most) == size
    if least <= math.prod(size) <= most:
        assert smart_resize(*size, step, least, most) == size


def test_the_scene() -> None:
    """Colours by place, and how much of the picture the sun's disc and the diamond take."""
    picture = standard_picture(200, 400).astype(int)
    for (row, column), colour in {
        (0, 0): (120, 170, 255),
        (100, 0): (150, 190, 240),
        (180, 200): (35, 124, 130 + 20 * math.sin(20 + 54)),
        (180, 0): (20, 124, 130 + 20 * math.sin(54)),
        (50, 300): (255, 220, 60),
        (120, 140): (25, 25, 35),
    }.items():
        np.testing.assert_allclose(picture[row, column], colour, atol=0.5)
    for colour, share in {(255, 220, 60): math.pi * 0.012, (25, 25, 35): 2 * 0.15**2}.items():
        assert (picture == colour).all(-1).mean() == pytest.approx(share, rel=0.02)
    blue = np.where(np.arange(200) < 120, 200, 0)
    assert np.array_equal(picture[:, 0, 2] > 200, blue > 0), "sky above, sea below 0.6 of the height"
