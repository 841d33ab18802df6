"""Test drawings by signed distances in numpy; shares no code and no table with the training's generator.

What people bring: any ground, any ratio, outlines, turned, blurred, JPEG, several pictures, mixed counts, and
pictures without a shape. `tests()` gives each with its question and what an answer has to say.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Random = np.random.Generator

PAINTS: dict[str, tuple[str, ...]] = {
    "red": ("ff0000", "d62828", "c1121f", "e63946"),
    "orange": ("ff8c00", "f77f00", "fb8500"),
    "yellow": ("ffff00", "ffd60a", "f9dc35"),
    "green": ("008000", "2a9d3f", "38b000", "00c040"),
    "blue": ("0000ff", "1d4ed8", "2563eb", "3070c0"),
    "purple": ("800080", "7b2cbf", "6a0dad"),
    "pink": ("ff69b4", "ff9ecb", "f78fb3"),
    "black": ("000000", "1a1a1a"),
    "white": ("ffffff", "f6f6f6"),
    "gray": ("808080", "8d8d8d"),
    "brown": ("8b4513", "7a4a21"),
}
FORMS = ("circle", "square", "triangle", "star", "cross", "heart")
COUNTS = ("zero", "one", "two", "three", "four", "five")
SPOTS = {
    (0, 0): "at the top left",
    (1, 0): "at the top",
    (2, 0): "at the top right",
    (0, 1): "on the left",
    (1, 1): "in the middle",
    (2, 1): "on the right",
    (0, 2): "at the bottom left",
    (1, 2): "at the bottom",
    (2, 2): "at the bottom right",
}
DESCRIBE = (
    "What is this?",
    "Describe the picture.",
    "What do you see?",
    "What does the picture show?",
    "What is in this picture?",
)


@dataclass(frozen=True)
class Drawn:
    """One test: its mark, the pictures [h, w, 3] in order, the question, and what the answer must say.

    `says` are phrases that the answer holds: a group for each sentence, or one group for all of it.
    """

    mark: str
    pictures: tuple[Bytes, ...]
    question: str
    says: tuple[tuple[str, ...], ...]


def paint(rng: Random, name: str) -> Floats:
    """A shade of the colour `name`, float [3], 0 to 255."""
    code = PAINTS[name][rng.integers(len(PAINTS[name]))]
    return np.array([int(code[i : i + 2], 16) for i in (0, 2, 4)], float)


def _polygon(x: Floats, y: Floats, corners: list[tuple[float, float]]) -> Floats:
    """Signed distance to a polygon: that to the nearest edge, negative inside (by ray crossings)."""
    best = np.full(x.shape, np.inf)
    inside = np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        ex, ey = bx - ax, by - ay
        along = np.clip(((x - ax) * ex + (y - ay) * ey) / (ex * ex + ey * ey), 0, 1)
        best = np.minimum(best, np.hypot(x - ax - along * ex, y - ay - along * ey))
        if ay != by:
            inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) * ex / ey)
    signed: Floats = np.where(inside, -best, best)
    return signed


def distance(form: str, x: Floats, y: Floats) -> Floats:
    """Signed distance (negative inside) to a form of about unit half-size around the origin, y down."""
    if form == "circle":
        round_: Floats = np.hypot(x, y) - 1
        return round_
    if form == "square":
        dx, dy = np.abs(x) - 0.85, np.abs(y) - 0.85
        near: Floats = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0)) + np.minimum(np.maximum(dx, dy), 0)
        return near
    if form == "triangle":
        turns = np.deg2rad([-90, 30, 150])
        return _polygon(x, y, [(1.05 * np.cos(t), 1.05 * np.sin(t) + 0.15) for t in turns])
    if form == "star":
        turns = np.deg2rad(-90 + 36 * np.arange(10))
        radii = np.where(np.arange(10) % 2 == 0, 1.0, 0.42)
        return _polygon(x, y, list(zip(radii * np.cos(turns), radii * np.sin(turns), strict=True)))
    if form == "cross":
        upright = np.maximum(np.abs(x) - 0.3, np.abs(y) - 1)
        across = np.maximum(np.abs(x) - 1, np.abs(y) - 0.3)
        return np.asarray(np.minimum(upright, across), float)
    # heart: a square on its corner and two half discs on its upper sides
    s = 0.62
    u, v = (x + y - 0.25) / np.sqrt(2), (y - 0.25 - x) / np.sqrt(2)
    body = np.maximum(np.abs(u), np.abs(v)) - s
    left = np.hypot(u + s, v) - s
    right = np.hypot(u, v + s) - s
    return np.asarray(np.minimum(body, np.minimum(left, right)), float)


def stamp(
    image: Floats,
    form: str,
    colour: Floats,
    centre: tuple[float, float],
    reach: float,
    turn: float,
    line: float,
) -> None:
    """Draws a form of half-size `reach` pixels; `line` > 0 draws an outline of that width only."""
    height, width = image.shape[:2]
    margin = 1.5 * reach + line + 2
    top, left = max(0, int(centre[1] - margin)), max(0, int(centre[0] - margin))
    bottom, right = min(height, int(centre[1] + margin) + 1), min(width, int(centre[0] + margin) + 1)
    y, x = np.mgrid[top:bottom, left:right]
    x, y = (x + 0.5 - centre[0]) / reach, (y + 0.5 - centre[1]) / reach
    c, s = np.cos(turn), np.sin(turn)
    found = distance(form, x * c + y * s, y * c - x * s) * reach
    if line:
        found = np.abs(found + line / 2) - line / 2
    cover = np.clip(0.5 - found, 0, 1)[..., None]
    part = image[top:bottom, left:right]
    part[:] = part * (1 - cover) + colour * cover


def cloudy(rng: Random, height: int, width: int, power: float) -> Floats:
    """Noise whose spectrum falls as frequency^-power, scaled to [0, 1]; made small and enlarged."""
    h, w = min(height, 160), min(width, 160)
    fy, fx = np.fft.fftfreq(h)[:, None] * h, np.fft.rfftfreq(w)[None] * w
    scale = np.maximum(np.hypot(fy, fx), 1) ** -power
    waves = (rng.normal(size=scale.shape) + 1j * rng.normal(size=scale.shape)) * scale
    flat = np.fft.irfft2(waves, s=(h, w))
    flat = (flat - flat.min()) / (np.ptp(flat) + 1e-9)
    rows = np.minimum(np.arange(height) * h // height, h - 1)
    columns = np.minimum(np.arange(width) * w // width, w - 1)
    enlarged: Floats = flat[rows][:, columns]
    return enlarged


def soften(image: Floats, sigma: float) -> Floats:
    """Gaussian blur."""
    reach = max(1, int(3 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / max(sigma, 1e-3)) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        pads = [(reach, reach) if a == axis else (0, 0) for a in range(3)]
        padded = np.pad(image, pads, mode="edge")
        size = image.shape[axis]
        image = sum(k * np.take(padded, np.arange(i, i + size), axis) for i, k in enumerate(kernel))
    return image


def squeezed(image: Bytes, quality: int) -> Bytes:
    """The picture after JPEG."""
    from PIL import Image

    packed = io.BytesIO()
    Image.fromarray(image).save(packed, "JPEG", quality=quality)
    return np.asarray(Image.open(packed).convert("RGB"))


def whole(image: Floats) -> Bytes:
    """The picture in whole numbers, uint8."""
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def apart(one: Floats, other: Floats) -> float:
    """How well two colours are told apart: difference of luma, and of hue at less weight."""
    luma = np.array([0.299, 0.587, 0.114])
    return float(abs((one - other) @ luma) + 0.35 * np.abs(one - other).sum() / 3 * 2)


def backdrop(rng: Random, kind: str, height: int, width: int) -> tuple[Floats, list[Floats]]:
    """A ground and the colours that occur in it."""
    light = rng.uniform(222, 255) + rng.uniform(-8, 0, 3)
    dark = rng.uniform(0, 45) + rng.uniform(0, 14, 3)
    full = rng.uniform(0, 255, 3)
    base = {"light": light, "dark": dark, "coloured": full}.get(kind, (light, dark, full)[rng.integers(3)])
    image = np.ones((height, width, 1)) * base
    if kind == "gradient":
        end = rng.uniform(0, 255, 3)
        turn = rng.uniform(0, 2 * np.pi)
        y, x = np.mgrid[0:height, 0:width]
        share = x / width * np.cos(turn) + y / height * np.sin(turn)
        share = ((share - share.min()) / np.ptp(share))[..., None]
        return base * (1 - share) + end * share, [base, end, (base + end) / 2]
    if kind == "paper":
        image = image + 22 * (cloudy(rng, height, width, 1.2)[..., None] - 0.5)
        if rng.random() < 0.5:
            image[:: max(8, height // 14)] -= 40
    elif kind == "noise":
        image = image + rng.normal(0, rng.uniform(8, 26), (height, width, 3))
    return image, [base]


def chosen(rng: Random, grounds: list[Floats], used: tuple[str, ...] = ()) -> tuple[str, Floats] | None:
    """A colour that stands out from the grounds, by name."""
    names = [name for name in PAINTS if name not in used]
    for name in rng.permutation(names):
        colour = paint(rng, str(name))
        if all(apart(colour, ground) > 85 for ground in grounds):
            return str(name), colour
    return None


def single(
    rng: Random, kind: str, size: tuple[int, int], line: bool = False, spot: tuple[int, int] = (1, 1)
) -> tuple[Floats, str, str]:
    """One shape on a ground of size (width, height): the picture, the colour's and the shape's names."""
    width, height = size
    while True:
        image, grounds = backdrop(rng, kind, height, width)
        found = chosen(rng, grounds)
        if found is not None:
            break
    form = FORMS[rng.integers(len(FORMS))]
    short = min(width, height)
    reach = short * (rng.uniform(0.18, 0.36) if spot == (1, 1) else rng.uniform(0.13, 0.19))
    at = []
    for place, side in zip(spot, size, strict=True):
        at.append(
            side * (rng.uniform(0.47, 0.53) if place == 1 else abs((place == 2) - rng.uniform(0.2, 0.23)))
        )
    turn = rng.uniform(-0.1, 0.1)
    stroke = reach * rng.uniform(0.14, 0.26) if line else 0.0
    stamp(image, form, found[1], (at[0], at[1]), reach, turn, stroke)
    return image, found[0], form


def crowd(rng: Random, count: int, size: tuple[int, int]) -> tuple[Bytes, list[tuple[str, str]]]:
    """`count` shapes, not all alike, on a quiet ground."""
    width, height = size
    short = min(size)
    image, grounds = backdrop(rng, ("light", "dark")[rng.integers(2)], height, width)
    spots: list[tuple[float, float]] = []
    while len(spots) < count:
        x, y = rng.uniform(0.16, 0.84) * width, rng.uniform(0.16, 0.84) * height
        if all(np.hypot(x - u, y - v) > 0.34 * short for u, v in spots):
            spots.append((x, y))
        elif rng.random() < 0.01:
            spots = []
    told: list[tuple[str, str]] = []
    while len(set(told)) < 2:
        told = [
            (name, FORMS[rng.integers(len(FORMS))])
            for name, _ in (chosen(rng, grounds) or ("red", grounds[0]) for _ in range(count))
        ]
    for (name, form), spot in zip(told, spots, strict=True):
        colour = paint(rng, name)
        stamp(image, form, colour, spot, short * rng.uniform(0.10, 0.13), rng.uniform(-0.15, 0.15), 0.0)
    return whole(image), told


def shapeless(rng: Random, kind: int, height: int, width: int) -> Bytes:
    """A photograph of sorts, noise, or rows of letters."""
    if kind == 0:  # clouds of three colours
        share = cloudy(rng, height, width, rng.uniform(1.3, 2.0))[..., None]
        low, middle, high = rng.uniform(0, 255, (3, 3))
        return whole(
            np.where(
                share < 0.5, low + (middle - low) * share * 2, middle + (high - middle) * (share * 2 - 1)
            )
        )
    if kind == 1:  # a landscape: sky, land, grain
        edge = height * (0.35 + 0.3 * cloudy(rng, 1, width, 1.5)[0])
        land = np.arange(height)[:, None] > edge[None]
        sky = rng.uniform(120, 255, 3) - 60 * np.linspace(0, 1, height)[:, None, None]
        earth = rng.uniform(20, 150, 3) + 70 * (cloudy(rng, height, width, 1.0)[..., None] - 0.5)
        return whole(np.where(land[..., None], earth, sky))
    if kind == 2:  # a blurred heap of boxes
        image = np.ones((height, width, 1)) * rng.uniform(0, 255, 3)
        for _ in range(30):
            x, y = rng.integers(width), rng.integers(height)
            w, h = rng.integers(width // 8, width // 2), rng.integers(height // 8, height // 2)
            image[max(0, y - h // 2) : y + h // 2, max(0, x - w // 2) : x + w // 2] = rng.uniform(0, 255, 3)
        return whole(soften(image, min(height, width) * rng.uniform(0.03, 0.08)))
    if kind == 3:  # noise
        grain = max(1, min(height, width) // int(rng.integers(40, 120)))
        cells = rng.uniform(0, 255, (-(-height // grain), -(-width // grain), int(rng.choice((1, 3)))))
        return whole(
            np.broadcast_to(cells.repeat(grain, 0).repeat(grain, 1)[:height, :width], (height, width, 3))
        )
    paper, ink = (
        (rng.uniform(215, 255, 3), rng.uniform(0, 90, 3))
        if rng.random() < 0.7
        else (rng.uniform(0, 40, 3), rng.uniform(180, 255, 3))
    )
    image = np.ones((height, width, 1)) * paper
    dot = max(1, min(height, width) // int(rng.integers(70, 130)))
    for top in range(2 * dot, height - 7 * dot, 9 * dot):
        for left in range(2 * dot, width - 5 * dot, 4 * dot):
            if rng.random() < 0.82:
                letter = (rng.random((5, 3)) < 0.6).repeat(dot, 0).repeat(dot, 1)
                image[top : top + 5 * dot, left : left + 3 * dot][letter] = ink
    return whole(image)


SIZES = ((320, 320), (400, 300), (300, 400), (512, 512))
LONG = ((1080, 1920), (400, 800), (1920, 1080), (1500, 500), (420, 1400), (1600, 400))


def _one(mark: str, rng: Random, size: tuple[int, int], made: tuple[Floats, str, str]) -> Drawn:
    image, name, form = made
    return Drawn(mark, (whole(image),), DESCRIBE[rng.integers(len(DESCRIBE))], ((f"{name} {form}",),))


def _any_size(rng: Random) -> tuple[int, int]:
    return SIZES[rng.integers(len(SIZES))]


def _on(kind: str) -> Callable[[Random, int], Drawn]:
    def make(rng: Random, number: int) -> Drawn:
        size = _any_size(rng)
        return _one(f"drawings: {kind}", rng, size, single(rng, kind, size))

    return make


def _long(rng: Random, number: int) -> Drawn:
    size = LONG[number % len(LONG)]
    return _one(
        "drawings: tall and wide", rng, size, single(rng, ("light", "dark", "coloured")[number % 3], size)
    )


def _outlined(rng: Random, number: int) -> Drawn:
    size = _any_size(rng)
    return _one(
        "drawings: outlines", rng, size, single(rng, ("light", "dark", "paper")[number % 3], size, True)
    )


def _worn(rng: Random, number: int) -> Drawn:
    size = _any_size(rng)
    width, height = size
    image, grounds = backdrop(rng, ("light", "dark", "coloured")[number % 3], height, width)
    found = chosen(rng, grounds)
    while found is None:
        image, grounds = backdrop(rng, "light", height, width)
        found = chosen(rng, grounds)
    form = FORMS[rng.integers(len(FORMS))]
    turn = rng.uniform(0.12, 0.32) * rng.choice((-1, 1))
    stamp(image, form, found[1], (width / 2, height / 2), min(size) * rng.uniform(0.18, 0.33), turn, 0.0)
    made = whole(soften(image, min(size) * rng.uniform(0.002, 0.010)))
    made = squeezed(made, int(rng.integers(8, 35)))
    return Drawn(
        "drawings: turned, blurred, JPEG",
        (made,),
        DESCRIBE[number % len(DESCRIBE)],
        ((f"{found[0]} {form}",),),
    )


def _place(rng: Random, number: int) -> Drawn:
    spot = (number % 3, number // 3 % 3)
    image, _, form = single(
        rng, ("light", "dark", "coloured")[number % 3], _any_size(rng), number % 4 == 3, spot
    )
    return Drawn("drawings: position", (whole(image),), f"Where is the {form}?", ((SPOTS[spot],),))


def _count(rng: Random, number: int) -> Drawn:
    image, told = crowd(rng, 2 + number % 4, _any_size(rng))
    return Drawn(
        "drawings: count of mixed shapes", (image,), "How many shapes are there?", ((COUNTS[len(told)],),)
    )


def _several(rng: Random, number: int) -> Drawn:
    kinds = ("light", "dark", "coloured")
    made = [single(rng, kinds[rng.integers(3)], _any_size(rng)) for _ in range(2)]
    question = (
        "What do the pictures show?",
        "Describe the pictures.",
        "What is in these pictures?",
        "What is in the first picture?",
        "What is in the second picture?",
    )[number % 5]
    said = tuple((f"{name} {form}",) for _, name, form in made)
    if number % 5 >= 3:
        said = (said[number % 5 - 3],)
    return Drawn("drawings: two pictures", tuple(whole(image) for image, _, _ in made), question, said)


def _none(rng: Random, number: int) -> Drawn:
    width, height = _any_size(rng)
    made = shapeless(rng, number % 5, height, width)
    return Drawn(
        "drawings: no shape", (made,), DESCRIBE[number % len(DESCRIBE)], (("I see no simple shape",),)
    )


GROUPS: tuple[tuple[Callable[[Random, int], Drawn], int], ...] = (
    *((_on(kind), 60) for kind in ("light", "dark", "coloured", "gradient", "paper", "noise")),
    (_long, 72),
    (_outlined, 60),
    (_worn, 60),
    (_place, 63),
    (_count, 80),
    (_several, 60),
    (_none, 60),
)
"""Each group's maker and how many tests it has: 815 in all."""


def tests(seed: int, share: float = 1.0) -> Iterator[Drawn]:
    """Every test, or a share of each group; one seed gives one list."""
    for group, (make, count) in enumerate(GROUPS):
        for number in range(max(1, round(count * share))):
            yield make(np.random.default_rng([seed, group, number]), number)
