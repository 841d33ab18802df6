"""The synthetic pictures of the training, and what is asked about them."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from qwen35.images import smart_resize
from qwen35.train import grounds, pictures, scenes
from qwen35.train.drawing import draw
from qwen35.train.grammar import core
from qwen35.train.pictures import NONE, ask, facts, several_facts, what
from qwen35.train.scenes import (
    CELL,
    CELL_CLASSES,
    COLOURS,
    CONTRAST,
    HELD_OUT,
    KINDS,
    MAX_PIXELS,
    MIN_PIXELS,
    PLACES,
    SHAPES,
    SIZES,
    WHOLE_BITS,
    WHOLE_CLASSES,
    Scene,
    Thing,
    labels,
    place_of,
    plain,
    scene,
    summary,
)

RED = (220, 30, 35)


def _thing(
    colour: str = "red", shape: str = "circle", x: float = 0.5, y: float = 0.5, size: float = 0.2
) -> Thing:
    return Thing(colour, shape, x, y, size, rgb=COLOURS[colour][0])


def _one(thing: Thing, width: int = 96, height: int = 96) -> Scene:
    return Scene("one", width, height, (thing,), 5, plain=True)


@pytest.mark.parametrize("colour", COLOURS)
def test_the_middle_has_the_colour_and_the_corner_the_ground(colour: str) -> None:
    image = np.asarray(draw(_one(_thing(colour))), int)
    assert image.shape == (96, 96, 3)
    assert np.abs(image[48, 48] - COLOURS[colour][0]).max() <= 1
    assert tuple(image[2, 2]) == (255, 255, 255)


def test_areas_tell_shapes_apart() -> None:
    areas = {}
    for shape in SHAPES:
        image = np.asarray(draw(_one(_thing("black", shape))), float)
        areas[shape] = (image.mean(-1) < 128).sum() / (2 * 0.2 * 96) ** 2
    assert areas["circle"] == pytest.approx(np.pi / 4, abs=0.05)
    assert areas["square"] == pytest.approx(0.86**2, abs=0.05)
    assert areas["triangle"] == pytest.approx(1.9 * 1.8 / 8, abs=0.05)
    assert areas["cross"] == pytest.approx((2 * 0.66 * 2 - 0.66**2) / 4, abs=0.05)


def test_an_outline_is_empty_inside_and_a_tall_picture_squeezes_as_the_processor_does() -> None:
    outline = replace(_thing(size=0.4), look="outline")
    image = np.asarray(draw(_one(outline)), int)
    assert tuple(image[48, 48]) == (255, 255, 255)
    assert np.abs(image - RED).max(-1).min() <= 1
    tall = np.asarray(draw(_one(_thing(size=0.4), 1080, 1920)), int)
    assert tall.shape[:2] == smart_resize(1920, 1080, CELL, MIN_PIXELS, MAX_PIXELS)
    dark = np.argwhere(np.abs(tall - RED).max(-1) < 40)
    height, width = np.ptp(dark, axis=0) + 1
    assert width == pytest.approx(0.8 * tall.shape[1], abs=2)
    assert height == pytest.approx(0.8 * 1080 / 1920 * tall.shape[0], abs=2)


def test_one_scene_is_one_picture() -> None:
    rng = random.Random(6)
    for kind in KINDS:
        made = scene(rng, kind=kind)
        assert np.asarray(draw(made)).shape[:2] == made.fitted
        assert np.array_equal(np.asarray(draw(made)), np.asarray(draw(made)))


@pytest.mark.parametrize("name", grounds.SHAPELESS)
@pytest.mark.parametrize(("height", "width"), [(96, 96), (48, 192), (37, 20)])
def test_shapeless_pictures_fill_any_size(name: str, height: int, width: int) -> None:
    made = grounds.SHAPELESS[name](np.random.default_rng(3), height, width)
    assert made.shape == (height, width, 3)
    assert np.isfinite(made).all()
    other = grounds.SHAPELESS[name](np.random.default_rng(4), height, width)
    assert not np.array_equal(made, other)


@pytest.mark.parametrize("kind", grounds.GROUNDS)
def test_grounds_are_of_their_colours(kind: str) -> None:
    made = grounds.ground(kind, (40, 90, 200), (200, 90, 40), 60, 90, 8)
    assert made.shape == (60, 90, 3)
    low, high = made.mean((0, 1)).min(), made.mean((0, 1)).max()
    assert low >= 35 and high <= 205
    assert (made.std((0, 1)).max() > 1) == (kind != "plain")


@pytest.mark.parametrize(("number", "place"), list(enumerate(PLACES)))
def test_place_names(number: int, place: str) -> None:
    row, column = divmod(number, 3)
    assert place_of(_thing("red", "star", (0.25, 0.5, 0.75)[column], (0.25, 0.5, 0.75)[row])) == place


def _said(made: Scene) -> dict[str, str]:
    return {fact.kind: fact.answer for fact in facts(made, random.Random(0))}


def test_answers_of_each_kind() -> None:
    one = _said(_one(_thing("orange", "star", 0.2, 0.2)))
    assert one["what"] == "There is an orange star at the top left."
    assert one["shape"] == "It is a star."
    crosses = tuple(_thing("blue", "cross", 0.2 + 0.3 * i, 0.5, 0.1) for i in range(3))
    many = _said(Scene("many", 64, 64, crosses, 1))
    assert many["what"] == "There are three blue crosses."
    assert many["count"] == "There are three."
    assert many["colours"] == "They are blue."
    heart = _thing("red", "heart", 0.8, 0.5, 0.1)
    pair = _said(Scene("pair", 64, 64, (heart, crosses[0]), 1))
    assert pair["what"] == "There is a blue cross on the left and a red heart on the right."
    assert pair["right"] == "There is a red heart on the right."
    assert pair["count"] == "There are two."
    above = _said(Scene("pair", 64, 64, (replace(heart, x=0.5, y=0.2), _thing("gray", "star", 0.5, 0.8)), 1))
    assert above["what"] == "There is a red heart at the top and a gray star at the bottom."
    mixed = Scene("mixed", 64, 64, (crosses[2], crosses[0], heart), 1)
    assert what(mixed) == "There are three shapes: a blue cross, a blue cross and a red heart."
    assert what(replace(mixed, things=(*mixed.things, heart))) == "There are four shapes."
    counted = {f.answer for s in range(20) for f in facts(mixed, random.Random(s)) if f.kind == "count shape"}
    assert (
        {"There are two.", "There is one."}
        <= counted
        <= {"There are two.", "There is one.", "There are none."}
    )
    assert set(_said(Scene("none", 64, 64, (), 1, shapeless="static")).values()) == {NONE}


def test_several_pictures_are_told_in_order() -> None:
    first, second = _one(_thing("red", "star")), Scene("none", 64, 64, (), 1, shapeless="static")
    told = {(f.kind, f.nth): f.answer for f in several_facts((first, second), random.Random(0))}
    assert told["all", 0] == "The first picture shows a red star. The second picture shows no simple shape."
    assert told["nth", 1] == "The second picture shows no simple shape."
    assert told["nth colour", 0] == "It is red."
    assert told["nth colour", 1] == told["nth count", 1] == NONE
    assert told["which", 0] == "The first picture."


def test_scenes_hold_pairs_out_and_keep_shapes_inside_and_apart() -> None:
    rng = random.Random(3)
    kinds: dict[str, int] = {}
    for number in range(500):
        made = scene(rng) if number % 4 else plain(rng)
        kinds[made.kind] = kinds.get(made.kind, 0) + 1
        reach = min(made.width, made.height)
        for thing in made.things:
            assert (thing.colour, thing.shape) not in HELD_OUT
            assert thing.size * reach <= min(thing.x, 1 - thing.x) * made.width + 0.05 * reach
            assert thing.size * reach <= min(thing.y, 1 - thing.y) * made.height + 0.05 * reach
            if made.ground in ("plain", "noise", "paper"):
                assert made.plain or grounds.contrast(made.first, thing.rgb) >= CONTRAST
        places = [(t.x * made.width, t.y * made.height) for t in made.things]
        for i, a in enumerate(places):
            for b, thing in zip(places[:i], made.things, strict=False):
                assert max(abs(a[0] - b[0]), abs(a[1] - b[1])) > 1.5 * thing.size * reach
        assert all((t.colour, t.shape) in HELD_OUT for t in scene(rng, True).things)
    assert set(kinds) == set(KINDS)


def test_sizes_cover_what_people_bring_and_are_kept_by_the_processor() -> None:
    """A picture drawn at its fitted size must not be resized again."""
    rng = random.Random(4)
    seen = set()
    for of in (*SIZES, *[scene(rng).fitted[::-1] for _ in range(300)]):
        height, width = scene(rng, of=of).fitted
        seen.add((height, width))
        assert smart_resize(height, width, CELL, MIN_PIXELS, MAX_PIXELS) == (height, width)
    wanted = {(1080, 1920): (128, 64), (400, 800): (128, 64), (1920, 1080): (64, 128), (512, 512): (96, 96)}
    for of, (height, width) in wanted.items():
        assert scene(rng, of=of).fitted == (height, width)
    assert len(seen) >= 15


def test_questions_name_what_they_must_and_held_out_ones_are_never_made() -> None:
    for group in (pictures.QUESTIONS_HELD_OUT, pictures.QUESTIONS_FRESH):
        for kind, asked in group.items():
            assert not set(asked) & set(pictures.QUESTIONS[kind])
    rng = random.Random(9)
    for _ in range(1500):
        made = scene(rng)
        fact, question = ask(rng, made)
        said = core(question)
        assert not re.search(r"[{}<>()|]|  | \?$", question), question
        if fact.must:
            assert (fact.shape or fact.colour) in said, question
        fixed = [k for k in pictures.KEPT if "{" not in k]
        assert not any(k in said for k in fixed), question
    assert ask(rng, scene(rng, kind="one"), True, "place")[1] != ""


def test_labels_mark_the_cell_of_the_centre() -> None:
    found = labels(_one(_thing("green", "heart", 0.375, 0.625, 0.08)))
    assert len(found) == 36
    centre = [i for i, label in enumerate(found) if label[2]]
    assert centre == [3 * 6 + 2]
    assert found[20] == (1 + list(COLOURS).index("green"), 1 + SHAPES.index("heart"), 1)
    assert found[0] == (0, 0, 0)


def test_labels_and_summary_say_what_the_scene_holds() -> None:
    rng = random.Random(8)
    for _ in range(200):
        made = scene(rng, None)
        cells = labels(made)
        assert len(cells) == made.tokens
        assert all(0 <= n < c for cell in cells for n, c in zip(cell, CELL_CLASSES, strict=True))
        assert sum(cell[2] for cell in cells) <= len(made.things)
        count, place, *bits = summary(made)
        assert len(bits) == WHOLE_BITS
        assert count == len(made.things) < WHOLE_CLASSES[0] and place < WHOLE_CLASSES[1]
        assert (place > 0) == (made.kind == "one")
        if place:
            assert PLACES[place - 1] in what(made)
        there = [name for name, bit in zip((*COLOURS, *SHAPES), bits, strict=True) if bit]
        assert set(there) == {t.colour for t in made.things} | {t.shape for t in made.things}


def test_shapes_find_room_however_long_it_takes() -> None:
    """Five shapes of a small picture that were tried 400 times before."""
    rng = random.Random("picture 1 3027")
    rng.random()
    of = scenes.size(rng)
    found = [scenes.scene(rng, of=of) for _ in range(8)][-1]
    assert of == (80, 80)
    assert len(found.things) >= 4
