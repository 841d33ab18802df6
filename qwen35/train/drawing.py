"""Draws scenes with Pillow, as the tower sees them: at the size that the image processor gives them."""

from __future__ import annotations

import io
import math
import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from qwen35.train import grounds
from qwen35.train.grounds import Pixels, Rgb
from qwen35.train.scenes import Scene, Thing

Points = list[tuple[float, float]]
FINER = 3
"""Masks are drawn this many times larger and reduced, so that edges are smooth."""
TURN = 0.35
"""Largest rotation of a shape to either side, in radians."""


def outline(shape: str) -> Points:
    """The corners of a shape of half-size 1 around the origin, y down."""
    if shape == "square":
        return [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)]
    if shape == "triangle":
        return [(0.0, -1.0), (0.95, 0.8), (-0.95, 0.8)]
    if shape == "star":
        turns = [i * math.pi / 5 for i in range(10)]
        radii = [1.05 if i % 2 == 0 else 0.44 for i in range(10)]
        return [(r * math.sin(t), -r * math.cos(t)) for r, t in zip(radii, turns, strict=True)]
    if shape == "cross":
        t = 0.33
        quarter = [(-t, -1.0), (t, -1.0), (t, -t)]
        return [p for k in range(4) for p in (_quarter_turn(x, y, k) for x, y in quarter)]
    if shape == "heart":
        points = []
        for i in range(40):
            t = i * math.pi / 20
            x = 16 * math.sin(t) ** 3
            y = -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t))
            points.append((x / 16.5, y / 16.5))
        return points
    return [(math.cos(i * math.pi / 24), math.sin(i * math.pi / 24)) for i in range(48)]


def _quarter_turn(x: float, y: float, times: int) -> tuple[float, float]:
    for _ in range(times):
        x, y = -y, x
    return x, y


def _by_hand(rng: random.Random, points: Points, strength: float) -> Points:
    """An outline as an unsteady hand draws it."""
    dense: Points = []
    for i, (x, y) in enumerate(points):
        u, v = points[(i + 1) % len(points)]
        parts = max(1, round(math.hypot(u - x, v - y) / 0.2))
        dense += [(x + (u - x) * k / parts, y + (v - y) * k / parts) for k in range(parts)]
    waves = [(rng.randint(2, 7), rng.uniform(0, 6.28), rng.uniform(-strength, strength)) for _ in range(3)]
    found = []
    for x, y in dense:
        turn = math.atan2(y, x)
        grown = 1 + sum(a * math.sin(n * turn + p) for n, p, a in waves)
        found.append((x * grown, y * grown))
    return found


def _stroke(pen: ImageDraw.ImageDraw, points: Points, width: int) -> None:
    pen.line([*points, points[0], points[1]], fill=255, width=width, joint="curve")


def _put(
    image: Pixels, mask: Image.Image, at: tuple[int, int], fill: Rgb, rng: random.Random, flat: bool
) -> None:
    """Lays a colour over `images` where the mask says, its corner at (x, y) of the picture."""
    alpha = np.asarray(mask.reduce(FINER), np.float32)[..., None] / 255
    height, width = image.shape[:2]
    left, top = max(0, -at[0]), max(0, -at[1])
    right, bottom = min(alpha.shape[1], width - at[0]), min(alpha.shape[0], height - at[1])
    if right <= left or bottom <= top:
        return
    alpha = alpha[top:bottom, left:right]
    part = image[at[1] + top : at[1] + bottom, at[0] + left : at[0] + right]
    paint = np.array(fill, np.float32)
    if not flat:
        slope = np.linspace(-1, 1, alpha.shape[0], dtype=np.float32)[:, None, None] * rng.uniform(-22, 22)
        slope = slope + np.linspace(-1, 1, alpha.shape[1], dtype=np.float32)[None, :, None] * rng.uniform(
            -22, 22
        )
        paint = paint + slope
    part[:] = part * (1 - alpha) + paint * alpha


def _draw_thing(image: Pixels, scene: Scene, thing: Thing, rng: random.Random) -> None:
    height, width = image.shape[:2]
    sx, sy = width / scene.width * FINER, height / scene.height * FINER
    half = thing.size * min(scene.width, scene.height)
    points = outline(thing.shape)
    if not scene.plain and rng.random() < 0.4:
        points = _by_hand(rng, points, rng.uniform(0.0, 0.03))
    angle = rng.uniform(-0.12, 0.12) if scene.plain else rng.uniform(-TURN, TURN) * rng.choice((0.2, 0.6, 1))
    c, s = math.cos(angle) * half, math.sin(angle) * half
    cx, cy = thing.x * scene.width, thing.y * scene.height
    placed = [((cx + x * c - y * s) * sx, (cy + x * s + y * c) * sy) for x, y in points]
    pen_width = max(1.4 * FINER, rng.uniform(0.10, 0.30) * half * min(sx, sy))
    left = int(min(x for x, _ in placed) - pen_width) // FINER - 1
    top = int(min(y for _, y in placed) - pen_width) // FINER - 1
    right = int(max(x for x, _ in placed) + pen_width) // FINER + 2
    bottom = int(max(y for _, y in placed) + pen_width) // FINER + 2
    shifted = [(x - left * FINER, y - top * FINER) for x, y in placed]
    flat = scene.plain or rng.random() < 0.6
    edge = grounds.near(rng, (0, 0, 0), 40) if rng.random() < 0.5 else _darker(thing.rgb)
    for what in ("fill", "line"):
        if (thing.look == "outline" and what == "fill") or (thing.look == "filled" and what == "line"):
            continue
        mask = Image.new("L", ((right - left) * FINER, (bottom - top) * FINER))
        pen = ImageDraw.Draw(mask)
        if what == "fill":
            pen.polygon(shifted, fill=255)
        else:
            _stroke(
                pen, shifted, round(pen_width if thing.look == "outline" else min(pen_width, 2.0 * FINER))
            )
        colour = thing.rgb if what == "fill" or thing.look == "outline" else edge
        _put(image, mask, (left, top), colour, rng, flat)


def _darker(rgb: Rgb) -> Rgb:
    red, green, blue = (int(v * 0.55) for v in rgb)
    return (red, green, blue)


def _bytes(pixels: Pixels) -> NDArray[np.uint8]:
    return np.asarray(np.clip(pixels + 0.5, 0, 255), np.uint8)


def _worn(image: Image.Image, rng: random.Random) -> Image.Image:
    """What cameras and messengers do to a picture: light, noise, blur, JPEG."""
    if rng.random() < 0.35:
        pixels = np.asarray(image, np.float32)
        noise = np.random.default_rng(rng.getrandbits(30))
        gain, lift = rng.uniform(0.82, 1.12), rng.uniform(-12, 18)
        grain = noise.normal(0, rng.uniform(0, 12), pixels.shape).astype(np.float32)
        image = Image.fromarray(_bytes((pixels - 127.5) * gain + 127.5 + lift + grain))
    if rng.random() < 0.3:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 1.1)))
    if rng.random() < 0.2:
        packed = io.BytesIO()
        image.save(packed, "JPEG", quality=rng.randint(18, 80))
        image = Image.open(packed).convert("RGB")
    return image


def draw(scene: Scene) -> Image.Image:
    """The picture of a scene at the size that the processor gives it; the scene alone decides every pixel."""
    rng = random.Random(scene.seed)
    rows, columns = scene.fitted
    width, height = min(columns, scene.width), min(rows, scene.height)
    if scene.shapeless:
        make = grounds.SHAPELESS[scene.shapeless]
        pixels = make(np.random.default_rng(scene.seed), height, width)
    else:
        pixels = grounds.ground(scene.ground, scene.first, scene.second, height, width, scene.seed)
    pixels = np.array(pixels, np.float32)
    for thing in scene.things:
        _draw_thing(pixels, scene, thing, rng)
    image = Image.fromarray(_bytes(pixels))
    if not scene.plain:
        image = _worn(image, rng)
    if image.size != (columns, rows):
        image = image.resize((columns, rows), Image.Resampling.BICUBIC)
    return image
