"""Questions about scenes and their answers: of one picture, or of several in one question."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from qwen35.train.datafile import sections
from qwen35.train.grammar import Grammar, apart, core
from qwen35.train.phrases import checked
from qwen35.train.scenes import COLOURS, NUMBERS, SHAPES, Scene, Thing, place_of

NONE = "I see no simple shape."
"""The answer to every question about a picture that holds none."""
ORDINALS = ("first", "second", "third")


def _questions(wanted: str) -> dict[str, tuple[str, ...]]:
    found = {}
    for section in sections("questions.txt"):
        kind, group = section.want("kind", "set")
        if group == wanted:
            found[kind] = checked(section, ("s", "c"))
    return found


QUESTIONS = _questions("trained")
"""Phrasings by kind; `{s}` is the shape, `{c}` its colour."""
QUESTIONS_HELD_OUT = _questions("held out")
"""Never trained on."""
QUESTIONS_FRESH = _questions("fresh")
"""Never trained on either."""
KEPT = tuple(
    core(text)
    for group in (QUESTIONS_HELD_OUT, QUESTIONS_FRESH)
    for texts in group.values()
    for text in texts
)
"""What no composed phrasing may hold."""


@cache
def _grammar(kind: str) -> Grammar:
    return Grammar("looking.txt", start=kind)


class Fact(NamedTuple):
    """One thing to ask about a picture: the kind of question, what it names, the answer.

    `must` is the slot that a phrasing has to hold, where the picture alone does not tell what is meant.
    """

    kind: str
    answer: str
    shape: str = ""
    colour: str = ""
    nth: int = 0
    must: str = ""


def article(word: str) -> str:
    """The word's indefinite article."""
    return "an" if word[0] in "aeiou" else "a"


def named(thing: Thing) -> str:
    """ "a red circle" or "an orange star"."""
    return f"{article(thing.colour)} {thing.colour} {thing.shape}"


def plural(shape: str) -> str:
    """The shape's plural."""
    return shape + ("es" if shape.endswith("s") else "s")


def _there_are(count: int) -> str:
    return "There is one." if count == 1 else f"There are {NUMBERS[count] if count else 'none'}."


def in_order(scene: Scene) -> list[Thing]:
    """The shapes from left to right, of a tall picture from top to bottom."""
    return sorted(scene.things, key=lambda t: t.y if scene.tall else t.x)


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def sides(scene: Scene) -> tuple[tuple[str, Thing], tuple[str, Thing]]:
    """Where the two shapes of a pair are: left and right, or top and bottom where that tells more."""
    a, b = scene.things
    if abs(a.x - b.x) * scene.width >= abs(a.y - b.y) * scene.height:
        first, second = sorted((a, b), key=lambda t: t.x)
        return ("left", first), ("right", second)
    first, second = sorted((a, b), key=lambda t: t.y)
    return ("top", first), ("bottom", second)


_SIDE = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom"}


def short(scene: Scene) -> str:
    """What a picture shows, as part of a sentence."""
    count = len(scene.things)
    if not count:
        return "no simple shape"
    if scene.kind == "many":
        return f"{NUMBERS[count]} {scene.things[0].colour} {plural(scene.things[0].shape)}"
    if count > 3:
        return f"{NUMBERS[count]} shapes"
    return _listed([named(thing) for thing in in_order(scene)])


def what(scene: Scene) -> str:
    """The answer that describes a picture."""
    count = len(scene.things)
    if not count:
        return NONE
    if scene.kind == "one":
        return f"There is {short(scene)} {place_of(scene.things[0])}."
    if scene.kind == "pair":
        return (
            "There is " + " and ".join(f"{named(thing)} {_SIDE[side]}" for side, thing in sides(scene)) + "."
        )
    if scene.kind == "mixed" and count == 3:
        return f"There are three shapes: {short(scene)}."
    return f"There are {short(scene)}."


def facts(scene: Scene, rng: random.Random) -> list[Fact]:
    """What can be asked about a picture; what it names beyond the scene is drawn."""
    if not scene.things:
        shape, colour = rng.choice(SHAPES), rng.choice(list(COLOURS))
        kinds = ("what", "what", "what", "colour", "shape", "count", "count shape", "place")
        return [Fact(kind, NONE, shape, colour) for kind in kinds]
    first, count = scene.things[0], len(scene.things)
    every = Fact("what", what(scene))
    total = Fact("count", _there_are(count), first.shape, first.colour)
    if scene.kind == "one":
        return [
            every,
            Fact("colour", f"It is {first.colour}.", first.shape),
            Fact("shape", f"It is {article(first.shape)} {first.shape}.", first.shape, first.colour),
            total,
            Fact("place", f"It is {place_of(first)}.", first.shape, first.colour),
        ]
    if scene.kind == "many":
        return [every, total, Fact("colours", f"They are {first.colour}.", first.shape)]
    found = [every, total._replace(shape="shape", colour="")]
    if scene.kind == "pair":
        found += [Fact(side, f"There is {named(thing)} {_SIDE[side]}.") for side, thing in sides(scene)]
    shapes, colours = Counter(t.shape for t in scene.things), Counter(t.colour for t in scene.things)
    for thing in scene.things:
        if shapes[thing.shape] == 1:
            found.append(Fact("colour", f"It is {thing.colour}.", thing.shape, must="{s}"))
            found.append(Fact("place", f"It is {place_of(thing)}.", thing.shape, thing.colour, must="{s}"))
        if colours[thing.colour] == 1:
            answer = f"It is {article(thing.shape)} {thing.shape}."
            found.append(Fact("shape", answer, "", thing.colour, must="{c}"))
    shape = rng.choice([*shapes, *shapes, rng.choice(SHAPES)])
    colour = rng.choice([*colours, *colours, rng.choice(list(COLOURS))])
    found.append(Fact("count shape", _there_are(shapes[shape]), shape))
    found.append(Fact("count colour", _there_are(colours[colour]), "", colour))
    return found


def several_facts(scenes: Sequence[Scene], rng: random.Random) -> list[Fact]:
    """What can be asked about several pictures at once."""
    told = [f"The {ORDINALS[i]} picture shows {short(scene)}." for i, scene in enumerate(scenes)]
    found = [Fact("all", " ".join(told))] * len(scenes)
    for i, scene in enumerate(scenes):
        found.append(Fact("nth", told[i], nth=i))
        thing = scene.things[0] if scene.things else None
        if scene.kind in ("one", "none"):
            answer = f"It is {thing.colour}." if thing else NONE
            found.append(Fact("nth colour", answer, thing.shape if thing else rng.choice(SHAPES), nth=i))
        answer = _there_are(len(scene.things)) if thing else NONE
        same = thing.shape if thing and scene.kind in ("one", "many") else "shape"
        found.append(Fact("nth count", answer, same, nth=i))
    where: dict[str, set[int]] = {}
    for i, scene in enumerate(scenes):
        for thing in scene.things:
            where.setdefault(thing.shape, set()).add(i)
    alone = sorted(shape for shape, pictures in where.items() if len(pictures) == 1)
    if alone:
        shape = rng.choice(alone)
        found.append(Fact("which", f"The {ORDINALS[min(where[shape])]} picture.", shape))
    return found


def worded(template: str, fact: Fact) -> str:
    """A phrasing with what it names put in."""
    text = template.format(
        s=fact.shape, c=fact.colour, n=ORDINALS[fact.nth], N=NUMBERS[fact.nth + 1], d=fact.nth + 1
    )
    for shape in (*SHAPES, "shape"):
        text = text.replace(f"{shape}s", plural(shape))
    return text.replace("crosseses", "crosses")


def phrasing(rng: random.Random, fact: Fact) -> str:
    """A phrasing to train with: listed or composed."""

    def draw() -> str:
        listed = QUESTIONS.get(fact.kind, ())
        if listed and rng.random() < 0.4:
            return rng.choice(listed)
        return _grammar(fact.kind).draw(rng)

    def fits() -> str:
        while True:
            text = draw()
            named = ("{s}" not in text or fact.shape) and ("{c}" not in text or fact.colour)
            if named and fact.must in text:
                return text

    return apart(fits, KEPT)


def ask(
    rng: random.Random,
    scene: Scene,
    held_out: bool = False,
    kind: str | None = None,
    fresh: bool = False,
) -> tuple[Fact, str]:
    """A fact of a scene and a question for it; `held_out` and `fresh` take those sets' phrasings."""
    known = facts(scene, rng)
    if held_out or fresh:
        group = QUESTIONS_FRESH if fresh else QUESTIONS_HELD_OUT
        known = [fact for fact in known if fact.kind in group]
    if kind is not None:
        known = [fact for fact in known if fact.kind == kind]
    fact = rng.choice(known)
    template = rng.choice(group[fact.kind]) if held_out or fresh else phrasing(rng, fact)
    return fact, worded(template, fact)
