"""The synthetic pictures."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qwen35.train import pictures
from qwen35.train.pictures import (
    COLOURS,
    HELD_OUT,
    PLACES,
    SHAPES,
    WHOLE,
    Scene,
    Thing,
    about,
    draw,
    labels,
    place_of,
    scene,
    summary,
)

WHITE = (255, 255, 255)


def _one(
    colour: str = "red", shape: str = "circle", x: float = 0.5, y: float = 0.5, size: float = 0.2
) -> Scene:
    return Scene("one", 64, 64, WHITE, (Thing(colour, shape, x, y, size),), 5)


@pytest.mark.parametrize("colour", COLOURS)
def test_the_middle_has_the_colour_and_the_corner_the_ground(colour: str) -> None:
    image = np.asarray(draw(_one(colour)), int)
    assert image.shape == (64, 64, 3)
    assert np.abs(image[32, 32] - COLOURS[colour]).max() <= 15
    assert tuple(image[2, 2]) == WHITE


def test_areas_tell_shapes_apart() -> None:
    areas = {}
    for shape in SHAPES:
        image = np.asarray(draw(_one("black", shape)), float)
        areas[shape] = (image.mean(-1) < 128).sum() / (2 * 0.2 * 64) ** 2
    assert areas["circle"] == pytest.approx(np.pi / 4, abs=0.05)
    assert areas["square"] == pytest.approx(0.86**2, abs=0.05)
    assert areas["triangle"] == pytest.approx(1.9 * 1.8 / 8, abs=0.05)
    assert areas["cross"] == pytest.approx((2 * 0.66 * 2 - 0.66**2) / 4, abs=0.05)


@pytest.mark.parametrize(("number", "place"), list(enumerate(PLACES)))
def test_place_names(number: int, place: str) -> None:
    row, column = divmod(number, 3)
    assert place_of(Thing("red", "star", (0.25, 0.5, 0.75)[column], (0.25, 0.5, 0.75)[row], 0.2)) == place


def test_answers_of_the_three_kinds() -> None:
    one = about(_one("orange", "star", 0.2, 0.2))
    assert one["what"] == "There is an orange star at the top left."
    assert one["shape"] == "It is a star."
    things = tuple(Thing("blue", "cross", 0.2 + 0.3 * i, 0.5, 0.1) for i in range(3))
    many = about(Scene("many", 64, 64, WHITE, things, 1))
    assert many["what"] == "There are three blue crosses."
    assert many["count"] == "There are three."
    pair = about(Scene("pair", 64, 64, WHITE, (things[0], Thing("red", "heart", 0.8, 0.5, 0.1)), 1))
    assert pair["what"] == "There is a blue cross on the left and a red heart on the right."
    assert pair["right"] == "There is a red heart on the right."


def test_scenes_hold_pairs_out_and_keep_shapes_inside_and_apart() -> None:
    rng = random.Random(3)
    for _ in range(400):
        made = scene(rng)
        reach = min(made.width, made.height)
        for thing in made.things:
            assert (thing.colour, thing.shape) not in HELD_OUT
            assert thing.size * reach <= min(thing.x, 1 - thing.x) * made.width + 3
            assert thing.size * reach <= min(thing.y, 1 - thing.y) * made.height + 3
        places = [(t.x * made.width, t.y * made.height) for t in made.things]
        for i, a in enumerate(places):
            for b, thing in zip(places[:i], made.things, strict=False):
                assert max(abs(a[0] - b[0]), abs(a[1] - b[1])) > 1.6 * thing.size * reach
        assert all((t.colour, t.shape) in HELD_OUT for t in scene(rng, True).things)


def test_held_out_questions_are_apart() -> None:
    for kind, asked in pictures.QUESTIONS_HELD_OUT.items():
        assert not set(asked) & set(pictures.QUESTIONS[kind])


def test_labels_mark_the_cell_of_the_centre() -> None:
    found = labels(_one("green", "heart", 0.375, 0.625, 0.12))
    assert len(found) == 16
    centre = [i for i, label in enumerate(found) if label[2]]
    assert centre == [2 * 4 + 1]
    assert found[9] == (1 + list(COLOURS).index("green"), 1 + SHAPES.index("heart"), 1)
    assert found[0] == (0, 0, 0)


def test_summary_says_what_the_answers_say() -> None:
    rng = random.Random(8)
    for _ in range(200):
        made = scene(rng, None)
        numbers = summary(made)
        assert all(0 <= number < classes for number, classes in zip(numbers, WHOLE, strict=True))
        said = about(made)["what"]
        count, place, colour, shape, second, other = numbers
        assert f"{list(COLOURS)[colour - 1]} {SHAPES[shape - 1]}" in said
        assert (place > 0) == (made.kind == "one")
        assert count == len(made.things)
        if place:
            assert PLACES[place - 1] in said
        if second:
            assert f"{list(COLOURS)[second - 1]} {SHAPES[other - 1]} on the right" in said
