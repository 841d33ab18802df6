"""Grounds that shapes are drawn on, and pictures that hold no simple shape; float32 [h, w, 3], 0 to 255."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Rgb = tuple[int, int, int]
Pixels = NDArray[np.float32]
GROUNDS = ("plain", "linear", "radial", "paper", "lined", "noise", "blotches")


def colour(rng: random.Random) -> Rgb:
    """A ground's colour: light, dark, grey or of any hue."""
    roll = rng.random()
    if roll < 0.36:
        shade = rng.randint(215, 255)
    elif roll < 0.60:
        shade = rng.randint(0, 60)
    elif roll < 0.72:
        shade = rng.randint(60, 215)
    else:
        return (rng.randint(0, 255), rng.randint(0, 255), rng.randint(0, 255))
    tint = rng.choice((0, 6, 16))
    red, green, blue = (max(0, min(255, shade + rng.randint(-tint, tint))) for _ in range(3))
    return (red, green, blue)


def near(rng: random.Random, base: Rgb, reach: int) -> Rgb:
    """A colour at most `reach` from another in each channel."""
    red, green, blue = (max(0, min(255, v + rng.randint(-reach, reach))) for v in base)
    return (red, green, blue)


def contrast(one: Rgb, other: Rgb) -> float:
    """How different two colours look, 0 to 765 (the weights follow the eye: green counts most)."""
    r, g, b = (x - y for x, y in zip(one, other, strict=True))
    return math.sqrt(2 * r * r + 4 * g * g + 3 * b * b)


def smooth(noise: np.random.Generator, height: int, width: int, cells: int) -> Pixels:
    """Low-frequency noise in [-1, 1]: `cells` values along the shorter side, interpolated."""
    unit = max(1.0, min(height, width) / cells)
    shape = (max(2, round(height / unit)), max(2, round(width / unit)))
    coarse = Image.fromarray(noise.uniform(-1, 1, shape).astype(np.float32))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)


def fractal(noise: np.random.Generator, height: int, width: int, octaves: int = 5) -> Pixels:
    """Noise of several scales, each half as strong as the one before."""
    made = sum(smooth(noise, height, width, 2 << i) * 0.6**i for i in range(octaves))
    return np.asarray(made, np.float32)


def ground(kind: str, first: Rgb, second: Rgb, height: int, width: int, seed: int) -> Pixels:
    """A ground of one of `GROUNDS` from one colour to another."""
    noise = np.random.default_rng(seed)
    a, b = np.array(first, np.float32), np.array(second, np.float32)
    flat = np.broadcast_to(a, (height, width, 3)).astype(np.float32)
    if kind == "plain":
        return flat
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    x, y = x / width - 0.5, y / height - 0.5
    if kind == "linear":
        turn = noise.uniform(0, 2 * math.pi)
        share = np.clip(0.5 + x * math.cos(turn) + y * math.sin(turn), 0, 1)
    elif kind == "radial":
        share = np.clip(np.hypot(x - noise.uniform(-0.2, 0.2), y - noise.uniform(-0.2, 0.2)) * 1.5, 0, 1)
    elif kind == "blotches":
        share = np.clip(0.5 + 0.6 * fractal(noise, height, width, 3), 0, 1)
    elif kind == "noise":
        strength = noise.uniform(6, 34)
        channels = 3 if noise.random() < 0.5 else 1
        return flat + noise.normal(0, strength, (height, width, channels)).astype(np.float32)
    else:  # paper, plain or with lines
        grain = noise.normal(0, noise.uniform(1, 5), (height, width, 1)).astype(np.float32)
        made = flat + grain + noise.uniform(2, 10) * fractal(noise, height, width, 4)[..., None]
        if kind == "lined":
            step, phase = noise.integers(6, 20), noise.integers(0, 6)
            rows = (np.arange(height) + phase) % step == 0
            columns = (np.arange(width) + phase) % step == 0
            lines = rows[:, None] | (columns[None] if noise.random() < 0.5 else np.zeros_like(columns)[None])
            made[lines] = made[lines] * 0.6 + 0.4 * b
        return made
    made = a + (b - a) * share[..., None].astype(np.float32)
    return np.asarray(made, np.float32)


def _any(noise: np.random.Generator) -> Pixels:
    return noise.uniform(0, 255, 3).astype(np.float32)


def _clouds(noise: np.random.Generator, height: int, width: int) -> Pixels:
    """A photograph of nothing in particular: two or three colours in fractal noise."""
    made = np.broadcast_to(_any(noise), (height, width, 3)).astype(np.float32)
    for _ in range(noise.integers(1, 4)):
        share = np.clip(0.5 + noise.uniform(0.5, 2.0) * fractal(noise, height, width), 0, 1)[..., None]
        made = made * (1 - share) + _any(noise) * share
    return made


def _landscape(noise: np.random.Generator, height: int, width: int) -> Pixels:
    """Layers behind a rugged horizon, textured."""
    sky = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    made = _any(noise) * (1 - sky) + _any(noise) * sky + np.zeros((height, width, 1), np.float32)
    level = noise.uniform(0.2, 0.5)
    for _ in range(noise.integers(1, 4)):
        edge = level * height + 0.15 * height * fractal(noise, height, width, 4)[0]
        below = np.arange(height)[:, None] > edge[None]
        layer = _any(noise) + 25 * fractal(noise, height, width)[..., None]
        made = np.where(below[..., None], layer, made)
        level += noise.uniform(0.1, 0.3)
    return made


def _collage(noise: np.random.Generator, height: int, width: int) -> Pixels:
    """Many overlapping scraps, blurred."""
    image = Image.new("RGB", (width, height), tuple(int(v) for v in _any(noise)))
    pen = ImageDraw.Draw(image)
    for _ in range(noise.integers(12, 40)):
        x, y = noise.uniform(-0.1, 1.1) * width, noise.uniform(-0.1, 1.1) * height
        reach = noise.uniform(0.1, 0.5) * min(width, height)
        corners = noise.integers(3, 7)
        turns = np.sort(noise.uniform(0, 2 * math.pi, corners))
        radii = reach * noise.uniform(0.3, 1.0, corners)
        points = [(x + r * math.cos(t), y + r * math.sin(t)) for r, t in zip(radii, turns, strict=True)]
        pen.polygon(points, fill=tuple(int(v) for v in _any(noise)))
    blurred = image.filter(ImageFilter.GaussianBlur(noise.uniform(1.2, 6)))
    return np.asarray(blurred, np.float32)


def _static(noise: np.random.Generator, height: int, width: int) -> Pixels:
    """Noise of one grain, grey or coloured."""
    grain = int(noise.integers(1, 5))
    shape = (-(-height // grain), -(-width // grain), 3 if noise.random() < 0.6 else 1)
    small = noise.uniform(0, 255, shape).astype(np.float32)
    made = small.repeat(grain, 0).repeat(grain, 1)[:height, :width]
    return np.asarray(np.broadcast_to(made, (height, width, 3)), np.float32)


def _writing(noise: np.random.Generator, height: int, width: int) -> Pixels:
    """Lines of letters: a page, a screen, a sign."""
    paper, ink = noise.uniform(200, 255, 3), noise.uniform(0, 130, 3)
    if noise.random() < 0.35:
        paper, ink = noise.uniform(0, 60, 3), noise.uniform(150, 255, 3)
    image = Image.new("RGB", (width, height), tuple(int(v) for v in paper))
    pen = ImageDraw.Draw(image)
    size = int(noise.integers(7, max(8, min(height, width) // 3)))
    font = ImageFont.load_default(size)
    y = int(noise.integers(0, size))
    while y < height:
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ     0123456789.,"
        line = "".join(letters[i] for i in noise.integers(0, len(letters), max(2, 2 * width // size)))
        pen.text((int(noise.integers(0, size)), y), line, fill=tuple(int(v) for v in ink), font=font)
        y += int(size * noise.uniform(1.1, 2.2))
        if noise.random() < 0.05:
            break
    return np.asarray(image, np.float32)


def _pattern(noise: np.random.Generator, height: int, width: int) -> Pixels:
    """Stripes or checks from edge to edge."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    step, turn = noise.uniform(3, 16), noise.uniform(0, math.pi)
    along = x * math.cos(turn) + y * math.sin(turn)
    across = -x * math.sin(turn) + y * math.cos(turn)
    on = (along // step) % 2 == 0
    if noise.random() < 0.5:
        on = on ^ ((across // step) % 2 == 0)
    return np.where(on[..., None], _any(noise), _any(noise)).astype(np.float32)


def _scribble(noise: np.random.Generator, height: int, width: int) -> Pixels:
    """Loose lines that close no shape."""
    image = Image.new("RGB", (width, height), tuple(int(v) for v in _any(noise)))
    pen = ImageDraw.Draw(image)
    for _ in range(noise.integers(2, 9)):
        steps = noise.normal(0, 0.16, (int(noise.integers(4, 16)), 2)).cumsum(0) + noise.uniform(0.2, 0.8, 2)
        points = [(float(x * width), float(y * height)) for x, y in steps]
        pen.line(points, fill=tuple(int(v) for v in _any(noise)), width=int(noise.integers(1, 4)))
    return np.asarray(image, np.float32)


def _empty(noise: np.random.Generator, height: int, width: int) -> Pixels:
    """A ground on which nothing is drawn."""
    rng = random.Random(int(noise.integers(1 << 30)))
    kind = rng.choice(GROUNDS)
    return ground(kind, colour(rng), colour(rng), height, width, rng.getrandbits(30))


SHAPELESS: dict[str, Callable[[np.random.Generator, int, int], Pixels]] = {
    "clouds": _clouds,
    "landscape": _landscape,
    "collage": _collage,
    "static": _static,
    "writing": _writing,
    "pattern": _pattern,
    "scribble": _scribble,
    "empty": _empty,
}
"""Pictures in which no simple shape is to be seen."""
