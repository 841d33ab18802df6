"""Synthetic pictures: coloured shapes on a light ground, with questions and their answers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from .datafile import sections
from .phrases import checked

PATCH, CELL = 8, 16
"""Pixels of a side of a patch and of an image token's cell."""
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 35),
    "orange": (245, 140, 20),
    "yellow": (245, 220, 40),
    "green": (35, 160, 60),
    "blue": (35, 80, 215),
    "purple": (130, 45, 165),
    "pink": (245, 140, 185),
    "black": (25, 25, 25),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")
NUMBERS = ("zero", "one", "two", "three", "four", "five")
PLACES = (
    "at the top left",
    "at the top",
    "at the top right",
    "on the left",
    "in the middle",
    "on the right",
    "at the bottom left",
    "at the bottom",
    "at the bottom right",
)
HELD_OUT = frozenset(
    [
        ("red", "heart"),
        ("blue", "star"),
        ("green", "circle"),
        ("yellow", "square"),
        ("purple", "cross"),
        ("orange", "triangle"),
    ]
)
"""Colour and shape pairs that never appear in training pictures."""

SIZES = ((64, 64), (64, 64), (64, 64), (64, 48), (48, 64))
"""Widths and heights drawn, all of them fixed points of the image processor's resizing."""


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


@dataclass(frozen=True)
class Thing:
    """One shape drawn: centre and half-size in fractions of the picture's shorter side and of its axes."""

    colour: str
    shape: str
    x: float
    y: float
    size: float


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn. `kind` is one, many or pair."""

    kind: str
    width: int
    height: int
    ground: tuple[int, int, int]
    things: tuple[Thing, ...]
    seed: int


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def named(thing: Thing) -> str:
    """ "a red circle" or "an orange star"."""
    return f"{article(thing.colour)} {thing.colour} {thing.shape}"


def _pair(rng: random.Random, held_out: bool | None) -> tuple[str, str]:
    if held_out:
        return rng.choice(sorted(HELD_OUT))
    while True:
        pair = (rng.choice(list(COLOURS)), rng.choice(SHAPES))
        if held_out is None or pair not in HELD_OUT:
            return pair


def scene(rng: random.Random, held_out: bool | None = False, kind: str | None = None) -> Scene:
    """A random scene; `held_out` True uses only held-out pairs, False never uses them, None uses any."""
    width, height = rng.choice(SIZES)
    shade = rng.randint(228, 255)
    ground = tuple(min(255, shade + rng.randint(-10, 6)) for _ in range(3))
    kind = kind or rng.choice(("one", "one", "one", "many", "many", "many", "pair"))
    things: list[Thing] = []
    if kind == "one":
        colour, shape = _pair(rng, held_out)
        size = rng.uniform(0.13, 0.24) if rng.random() < 0.75 else rng.uniform(0.24, 0.40)
        column, row = (rng.randrange(3), rng.randrange(3)) if size < 0.24 else (1, 1)
        reach = min(width, height)
        x, y = (_third(rng, place, size * reach / side) for place, side in ((column, width), (row, height)))
        things.append(Thing(colour, shape, x, y, size))
    elif kind == "many":
        colour, shape = _pair(rng, held_out)
        count = rng.randint(2, 5)
        size = rng.uniform(0.10, 0.14)
        cells = rng.sample([(i, j) for i in range(3) for j in range(3)], count)
        for i, j in cells:
            x = (i + 0.5) / 3 + rng.uniform(-0.03, 0.03)
            y = (j + 0.5) / 3 + rng.uniform(-0.03, 0.03)
            things.append(Thing(colour, shape, x, y, size * rng.uniform(0.9, 1.05)))
    else:
        first = _pair(rng, held_out)
        second = _pair(rng, held_out)
        while second[0] == first[0] or second[1] == first[1]:
            second = _pair(rng, held_out)
        for x, (colour, shape) in ((0.25, first), (0.75, second)):
            y = rng.uniform(0.35, 0.65)
            things.append(Thing(colour, shape, x + rng.uniform(-0.03, 0.03), y, rng.uniform(0.14, 0.19)))
    return Scene(kind, width, height, (ground[0], ground[1], ground[2]), tuple(things), rng.getrandbits(30))


def _third(rng: random.Random, place: int, half: float) -> float:
    """A coordinate clearly in the first, middle or last third with `half` inside the picture."""
    if place == 1:
        return 0.5 + rng.uniform(-0.05, 0.05)
    edge = rng.uniform(half + 0.01, max(half + 0.02, 0.27))
    return edge if place == 0 else 1 - edge


def place_of(thing: Thing) -> str:
    """Where one shape is, as an answer says it."""
    column = 0 if thing.x < 0.4 else 2 if thing.x > 0.6 else 1
    row = 0 if thing.y < 0.4 else 2 if thing.y > 0.6 else 1
    return PLACES[row * 3 + column]


def _outline(shape: str, size: float, angle: float) -> list[tuple[float, float]]:
    if shape == "square":
        points = [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)]
    elif shape == "triangle":
        points = [(0.0, -1.0), (0.95, 0.8), (-0.95, 0.8)]
    elif shape == "star":
        points = []
        for i in range(10):
            r = 1.05 if i % 2 == 0 else 0.44
            points.append((r * math.sin(i * math.pi / 5), -r * math.cos(i * math.pi / 5)))
    elif shape == "cross":
        t = 0.33
        points = [
            (-t, -1),
            (t, -1),
            (t, -t),
            (1, -t),
            (1, t),
            (t, t),
            (t, 1),
            (-t, 1),
            (-t, t),
            (-1, t),
            (-1, -t),
            (-t, -t),
        ]
    elif shape == "heart":
        points = []
        for i in range(40):
            t = i * math.pi / 20
            x = 16 * math.sin(t) ** 3
            y = -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t))
            points.append((x / 16.5, y / 16.5))
    else:
        points = [(math.cos(i * math.pi / 24), math.sin(i * math.pi / 24)) for i in range(48)]
    c, s = math.cos(angle), math.sin(angle)
    return [(size * (x * c - y * s), size * (x * s + y * c)) for x, y in points]


def draw(scene: Scene, scale: int = 4) -> Image.Image:
    """The picture of a scene, drawn `scale` times larger and reduced, so that its edges are smooth."""
    rng = random.Random(scene.seed)
    image = Image.new("RGB", (scene.width * scale, scene.height * scale), scene.ground)
    pen = ImageDraw.Draw(image)
    reach = min(scene.width, scene.height) * scale
    for thing in scene.things:
        r, g, b = COLOURS[thing.colour]
        fill = tuple(max(0, min(255, v + rng.randint(-14, 14))) for v in (r, g, b))
        angle = rng.uniform(-0.12, 0.12)
        centre = (thing.x * scene.width * scale, thing.y * scene.height * scale)
        points = [(centre[0] + x, centre[1] + y) for x, y in _outline(thing.shape, thing.size * reach, angle)]
        pen.polygon(points, fill=fill)
    return image.resize((scene.width, scene.height), Image.Resampling.BICUBIC) if scale > 1 else image


def about(scene: Scene) -> dict[str, str]:
    """Every question kind a scene answers, with its answer."""
    first = scene.things[0]
    count = NUMBERS[len(scene.things)]
    if scene.kind == "one":
        return {
            "what": f"There is {named(first)} {place_of(first)}.",
            "colour": f"It is {first.colour}.",
            "shape": f"It is {article(first.shape)} {first.shape}.",
            "count": "There is one.",
            "place": f"It is {place_of(first)}.",
        }
    if scene.kind == "many":
        return {
            "what": f"There are {count} {first.colour} {first.shape}s.".replace("crosss", "crosses"),
            "count": f"There are {count}.",
            "colour": f"They are {first.colour}.",
        }
    second = scene.things[1]
    return {
        "what": f"There is {named(first)} on the left and {named(second)} on the right.",
        "left": f"There is {named(first)} on the left.",
        "right": f"There is {named(second)} on the right.",
    }


def ask(
    rng: random.Random,
    scene: Scene,
    held_out: bool = False,
    kind: str | None = None,
    fresh: bool = False,
) -> tuple[str, str, str]:
    """A question about a scene: (kind, question, answer); `fresh` takes QUESTIONS_FRESH."""
    answers = about(scene)
    kind = kind or rng.choice(list(answers))
    phrasings = (QUESTIONS_FRESH if fresh else QUESTIONS_HELD_OUT if held_out else QUESTIONS)[kind]
    if scene.kind == "many" and kind == "colour":
        return kind, rng.choice(("What color are they?", "What colour are they?")), answers[kind]
    question = rng.choice(phrasings).format(c=scene.things[0].colour, s=scene.things[0].shape)
    return kind, question.replace("crosss", "crosses"), answers[kind]


def labels(scene: Scene, cell: int = CELL) -> list[tuple[int, int, int]]:
    """For each image token, raster order: (colour, shape, holds a centre), 0 = none; trains the tower."""
    found = []
    reach = min(scene.width, scene.height)
    for row in range(scene.height // cell):
        for column in range(scene.width // cell):
            best, label = 0.15, (0, 0, 0)
            for thing in scene.things:
                half = thing.size * reach
                cx, cy = thing.x * scene.width, thing.y * scene.height
                w = min(cx + half, (column + 1) * cell) - max(cx - half, column * cell)
                h = min(cy + half, (row + 1) * cell) - max(cy - half, row * cell)
                share = max(0.0, w) * max(0.0, h) / min(cell * cell, 4 * half * half)
                if share > best:
                    best = share
                    inside = column * cell <= cx < (column + 1) * cell and row * cell <= cy < (row + 1) * cell
                    label = (
                        1 + list(COLOURS).index(thing.colour),
                        1 + SHAPES.index(thing.shape),
                        int(inside),
                    )
            found.append(label)
    return found


WHOLE = (len(NUMBERS), len(PLACES) + 1, len(COLOURS) + 1, len(SHAPES) + 1, len(COLOURS) + 1, len(SHAPES) + 1)
"""Classes of each of `summary`'s numbers."""


def summary(scene: Scene) -> tuple[int, ...]:
    """What is true of the whole picture, as classes (0 = does not apply); an auxiliary training target.

    Count, place of a single shape, colour and shape of the first, colour and shape of a second that differs.
    """
    first, last = scene.things[0], scene.things[-1]
    colours = list(COLOURS)
    pair = scene.kind == "pair"
    return (
        len(scene.things),
        1 + PLACES.index(place_of(first)) if scene.kind == "one" else 0,
        1 + colours.index(first.colour),
        1 + SHAPES.index(first.shape),
        1 + colours.index(last.colour) if pair else 0,
        1 + SHAPES.index(last.shape) if pair else 0,
    )
