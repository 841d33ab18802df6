"""What a training picture holds, and what is true of it: shapes, their places, the tower's labels."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from qwen35.images import smart_resize
from qwen35.train import grounds
from qwen35.train.grounds import Rgb

PATCH, CELL = 8, 16
"""Pixels of a side of a patch and of an image token's cell."""
MIN_PIXELS, MAX_PIXELS = 64 * 96, 96 * 96
"""Pixels of a picture after the processor's resizing: 24 to 36 image tokens, fewer only beyond 5:1."""
COLOURS: dict[str, tuple[Rgb, ...]] = {
    "red": ((220, 30, 35), (255, 0, 0), (190, 20, 20), (230, 50, 40)),
    "orange": ((245, 140, 20), (255, 165, 0), (255, 120, 0)),
    "yellow": ((245, 220, 40), (255, 255, 0), (255, 215, 0), (250, 235, 90)),
    "green": ((35, 160, 60), (0, 128, 0), (0, 200, 0), (0, 255, 0), (80, 185, 80)),
    "blue": ((35, 80, 215), (0, 0, 255), (30, 60, 160), (65, 105, 225), (50, 140, 235)),
    "purple": ((130, 45, 165), (128, 0, 128), (150, 70, 205), (95, 30, 140)),
    "pink": ((245, 140, 185), (255, 182, 193), (255, 105, 180)),
    "black": ((25, 25, 25), (0, 0, 0)),
    "white": ((250, 250, 250), (255, 255, 255)),
    "gray": ((128, 128, 128), (150, 150, 150), (105, 105, 108)),
    "brown": ((130, 75, 35), (139, 69, 19), (105, 65, 35), (155, 95, 55)),
}
"""Shades of each colour, the commonest first."""
PLAIN_COLOURS = tuple(COLOURS)[:8]
"""Those drawn on plain light grounds."""
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
PLAIN_SIZES = ((64, 64), (64, 64), (64, 64), (64, 48), (48, 64))
"""Widths and heights of plain scenes."""
SIZES = (
    *[(512, 512)] * 6,
    *[(1080, 1920), (400, 800), (1920, 1080)] * 2,
    *[(640, 480), (480, 640), (600, 400), (400, 600)] * 2,
    (1200, 400),
    (400, 1200),
    (1600, 400),
    (64, 64),
    (64, 48),
    (48, 64),
    (80, 80),
)
"""Widths and heights that people bring; half the pictures have one of any ratio up to 5:1."""
KINDS = ("one", "one", "one", "many", "many", "pair", "pair", "mixed", "mixed", "none")
CONTRAST = 190.0
"""Least contrast of a shape with its ground."""


@dataclass(frozen=True)
class Thing:
    """One shape drawn: centre in fractions of the axes, half-size in fractions of the shorter side.

    `look` is filled, outline or edged (filled with a rim of another colour).
    """

    colour: str
    shape: str
    x: float
    y: float
    size: float
    look: str = "filled"
    rgb: Rgb = (0, 0, 0)


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn. `kind` is one, many, pair, mixed or none.

    A `plain` scene is drawn clean; of kind none, `shapeless` names one of `grounds.SHAPELESS`.
    """

    kind: str
    width: int
    height: int
    things: tuple[Thing, ...]
    seed: int
    ground: str = "plain"
    first: Rgb = (255, 255, 255)
    second: Rgb = (255, 255, 255)
    plain: bool = False
    shapeless: str = ""

    @property
    def fitted(self) -> tuple[int, int]:
        """(height, width) in pixels after the processor's resizing."""
        return smart_resize(self.height, self.width, CELL, MIN_PIXELS, MAX_PIXELS)

    @property
    def grid(self) -> tuple[int, int]:
        """Patch rows and columns."""
        return self.fitted[0] // PATCH, self.fitted[1] // PATCH

    @property
    def tokens(self) -> int:
        """Image tokens."""
        return self.fitted[0] * self.fitted[1] // CELL**2

    @property
    def tall(self) -> bool:
        """Whether shapes are told from top to bottom instead of left to right."""
        return self.height > 1.3 * self.width


def _pair(
    rng: random.Random, held_out: bool | None, colours: tuple[str, ...] = tuple(COLOURS)
) -> tuple[str, str]:
    if held_out:
        return rng.choice(sorted(HELD_OUT))
    while True:
        pair = (rng.choice(colours), rng.choice(SHAPES))
        if held_out is None or pair not in HELD_OUT:
            return pair


def _third(rng: random.Random, place: int, half: float) -> float:
    """A coordinate clearly in the first, middle or last third with `half` inside the picture."""
    if place == 1:
        return 0.5 + rng.uniform(-0.05, 0.05)
    edge = rng.uniform(half + 0.01, max(half + 0.02, 0.27))
    return edge if place == 0 else 1 - edge


def plain(rng: random.Random, held_out: bool | None = False, kind: str | None = None) -> Scene:
    """A clean scene on a light ground, of one, many (alike) or pair; `held_out` as for `scene`."""
    width, height = rng.choice(PLAIN_SIZES)
    shade = rng.randint(228, 255)
    red, green, blue = (min(255, shade + rng.randint(-10, 6)) for _ in range(3))
    kind = kind or rng.choice(("one", "one", "one", "many", "many", "many", "pair"))
    things: list[Thing] = []

    def add(pair: tuple[str, str], x: float, y: float, size: float) -> None:
        rgb = grounds.near(rng, COLOURS[pair[0]][0], 14)
        things.append(Thing(*pair, x, y, size, rgb=rgb))

    if kind == "one":
        pair = _pair(rng, held_out, PLAIN_COLOURS)
        size = rng.uniform(0.13, 0.24) if rng.random() < 0.75 else rng.uniform(0.24, 0.40)
        column, row = (rng.randrange(3), rng.randrange(3)) if size < 0.24 else (1, 1)
        reach = min(width, height)
        x, y = (_third(rng, place, size * reach / side) for place, side in ((column, width), (row, height)))
        add(pair, x, y, size)
    elif kind == "many":
        pair = _pair(rng, held_out, PLAIN_COLOURS)
        size = rng.uniform(0.10, 0.14)
        for i, j in rng.sample([(i, j) for i in range(3) for j in range(3)], rng.randint(2, 5)):
            x = (i + 0.5) / 3 + rng.uniform(-0.03, 0.03)
            y = (j + 0.5) / 3 + rng.uniform(-0.03, 0.03)
            add(pair, x, y, size * rng.uniform(0.9, 1.05))
    else:
        first = _pair(rng, held_out, PLAIN_COLOURS)
        second = _pair(rng, held_out, PLAIN_COLOURS)
        while second[0] == first[0] or second[1] == first[1]:
            second = _pair(rng, held_out, PLAIN_COLOURS)
        for x, pair in ((0.25, first), (0.75, second)):
            y = rng.uniform(0.35, 0.65)
            add(pair, x + rng.uniform(-0.03, 0.03), y, rng.uniform(0.14, 0.19))
    return Scene(
        kind, width, height, tuple(things), rng.getrandbits(30), first=(red, green, blue), plain=True
    )


def size(rng: random.Random) -> tuple[int, int]:
    """Width and height of a picture that somebody brings."""
    if rng.random() < 0.5:
        return rng.choice(SIZES)
    ratio = math.exp(rng.uniform(-math.log(5), math.log(5)) * rng.random())
    side = rng.choice((100, 200, 400, 400, 800))
    return max(16, round(side * math.sqrt(ratio))), max(16, round(side / math.sqrt(ratio)))


def scene(
    rng: random.Random,
    held_out: bool | None = False,
    kind: str | None = None,
    of: tuple[int, int] | None = None,
) -> Scene:
    """A scene as people bring it, `of` (width, height).

    `held_out` True uses only held-out pairs of colour and shape, False never uses them, None uses any.
    """
    width, height = of or size(rng)
    kind = kind or rng.choice(KINDS)
    seed = rng.getrandbits(30)
    if kind == "none":
        return Scene(kind, width, height, (), seed, shapeless=rng.choice(list(grounds.SHAPELESS)))
    pairs = _pairs(rng, kind, held_out)
    things = _placed(rng, kind, pairs, width / min(width, height), height / min(width, height))
    look = rng.choice(("filled", "filled", "filled", "outline", "outline", "edged"))
    shades = {pair: grounds.near(rng, rng.choice(COLOURS[pair[0]]), 12) for pair in pairs}
    alike = rng.random() < 0.8
    made = tuple(
        Thing(*pair, x, y, reach, look if alike else rng.choice(("filled", "outline")), shades[pair])
        for pair, (x, y, reach) in zip(pairs, things, strict=True)
    )
    ground, first, second = _ground(rng, [thing.rgb for thing in made])
    return Scene(kind, width, height, made, seed, ground, first, second)


def _pairs(rng: random.Random, kind: str, held_out: bool | None) -> list[tuple[str, str]]:
    """Colour and shape of each thing of a scene."""
    first = _pair(rng, held_out)
    if kind == "one":
        return [first]
    if kind == "many":
        return [first] * rng.randint(2, 5)
    if kind == "pair":
        second = _pair(rng, held_out)
        while second == first:
            second = _pair(rng, held_out)
        return [first, second]
    found = [first]
    for _ in range(rng.randint(2, 4)):
        found.append(rng.choice(found) if rng.random() < 0.3 else _pair(rng, held_out))
    if len(set(found)) == 1:
        return _pairs(rng, kind, held_out)
    rng.shuffle(found)
    return found


def _placed(
    rng: random.Random, kind: str, pairs: list[tuple[str, str]], across: float, down: float
) -> list[tuple[float, float, float]]:
    """Centre and half-size of each thing of a picture `across` by `down` times its shorter side."""
    count, ratio = len(pairs), max(across, down)
    if count == 1:
        reach = rng.uniform(0.13, 0.24) if rng.random() < 0.6 else rng.uniform(0.24, 0.42)
        column, row = (rng.randrange(3), rng.randrange(3)) if rng.random() < 0.7 else (1, 1)
        if reach > 0.24:
            column, row = (column, 1) if across > 1.9 else (1, row) if down > 1.9 else (1, 1)
        return [(_third(rng, column, reach / across), _third(rng, row, reach / down), reach)]
    if kind == "pair":
        along = rng.random() < (0.8 if across >= down else 0.2)
        reach = rng.uniform(0.12, 0.19)
        spots = []
        for place in (0.25, 0.75):
            other = rng.uniform(0.35, 0.65)
            place += rng.uniform(-0.05, 0.05)
            x, y = (place, other) if along else (other, place)
            spots.append((x, y, reach * rng.uniform(0.9, 1.15)))
        return spots
    reach = rng.uniform(0.10, 0.14) * min(1.6, math.sqrt(ratio))
    attempt = 0
    while True:  # ends, since the shapes get smaller
        attempt += 1
        reach *= 0.99 if attempt % 8 == 0 else 1.0
        spots = []
        for _ in range(count):
            half = reach * rng.uniform(0.85, 1.15)
            x = rng.uniform(half + 0.02, across - half - 0.02) / across
            y = rng.uniform(half + 0.02, down - half - 0.02) / down
            spots.append((x, y, half))
        if all(
            math.hypot((a[0] - b[0]) * across, (a[1] - b[1]) * down) > 1.3 * (a[2] + b[2]) + 0.02
            for i, a in enumerate(spots)
            for b in spots[:i]
        ):
            return spots


def _ground(rng: random.Random, shown: list[Rgb]) -> tuple[str, Rgb, Rgb]:
    """A ground that every colour shown stands out from."""
    kind = rng.choice(("plain", "plain", "plain", *grounds.GROUNDS))

    def fits(ground: Rgb) -> bool:
        return all(grounds.contrast(ground, rgb) >= CONTRAST for rgb in shown)

    fallback = max(
        ((255, 255, 255), (0, 0, 0), (128, 128, 128)),
        key=lambda g: min(grounds.contrast(g, rgb) for rgb in shown),
    )
    first = next((g for g in (grounds.colour(rng) for _ in range(40)) if fits(g)), fallback)
    if kind in ("linear", "radial", "blotches"):
        for _ in range(40):
            second = grounds.colour(rng)
            middle = tuple((a + b) // 2 for a, b in zip(first, second, strict=True))
            if fits(second) and fits((middle[0], middle[1], middle[2])):
                return kind, first, second
        return kind, first, grounds.near(rng, first, 20)
    return kind, first, grounds.colour(rng)


def place_of(thing: Thing) -> str:
    """Where one shape is, as an answer says it."""
    column = 0 if thing.x < 0.4 else 2 if thing.x > 0.6 else 1
    row = 0 if thing.y < 0.4 else 2 if thing.y > 0.6 else 1
    return PLACES[row * 3 + column]


def labels(scene: Scene) -> list[tuple[int, int, int]]:
    """For each image token, raster order: (colour, shape, holds a centre), 0 = none; trains the tower."""
    rows, columns = scene.fitted
    found = []
    reach = min(scene.width, scene.height)
    boxes = []
    for thing in scene.things:
        cx, cy = thing.x * columns, thing.y * rows
        boxes.append(
            (cx, cy, thing.size * reach * columns / scene.width, thing.size * reach * rows / scene.height)
        )
    for row in range(rows // CELL):
        for column in range(columns // CELL):
            best, label = 0.15, (0, 0, 0)
            for thing, (cx, cy, across, down) in zip(scene.things, boxes, strict=True):
                w = min(cx + across, (column + 1) * CELL) - max(cx - across, column * CELL)
                h = min(cy + down, (row + 1) * CELL) - max(cy - down, row * CELL)
                share = max(0.0, w) * max(0.0, h) / min(CELL * CELL, 4 * across * down)
                inside = column * CELL <= cx < (column + 1) * CELL and row * CELL <= cy < (row + 1) * CELL
                share += inside  # a cell tells of the shape whose centre it holds
                if share > best:
                    best = share
                    colour, shape = list(COLOURS).index(thing.colour), SHAPES.index(thing.shape)
                    label = (1 + colour, 1 + shape, int(inside))
            found.append(label)
    return found


CELL_CLASSES = (len(COLOURS) + 1, len(SHAPES) + 1, 2)
"""Classes of each of a token's labels."""
WHOLE_CLASSES = (len(NUMBERS), len(PLACES) + 1)
"""Classes of `summary`'s first numbers; the others are yes or no."""
WHOLE_BITS = len(COLOURS) + len(SHAPES)


def summary(scene: Scene) -> tuple[int, ...]:
    """What is true of the whole picture; an auxiliary training target.

    Count, place of a single shape (0: not one), then for each colour and each shape whether it is there.
    """
    place = 1 + PLACES.index(place_of(scene.things[0])) if scene.kind == "one" else 0
    colours, shapes = {t.colour for t in scene.things}, {t.shape for t in scene.things}
    return (
        len(scene.things),
        place,
        *[int(c in colours) for c in COLOURS],
        *[int(s in shapes) for s in SHAPES],
    )
