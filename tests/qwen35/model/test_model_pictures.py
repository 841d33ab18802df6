"""Prompts with pictures from bytes to logits: processor, template, tower, positions, prefill and decode.

Reference: transformers in float32, its own processor, its own positions, on the weights as the bundle holds
them, so that only the rounding of activations to bf16 is between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35 import Qwen35
from qwen35.engine import Input
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from qwen35.stats import Stats
from qwen35.template import encode, render
from tests.support import model_reference, vision_reference
from tests.support.margins import margins
from tests.support.synthetic import SHAPES, write_checkpoint

pytestmark = pytest.mark.peer

SIZES = [(32, 48), (64, 64), (16, 16), (8, 120), (72, 24)]
"""Rows and columns of pixels that need no resizing: what the tower sees is then the same for both."""
WORDS = ["Look: ", " and at this, ", "\nor that one? ", " The third. ", " Fourth ", " What are they?"]
DECODED = 24


@dataclass
class Rig:
    checkpoint: Path
    model: Qwen35
    reference: Any


@pytest.fixture(scope="module", params=["bfp16x2", "w8"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp(request.param)
    tensors = write_checkpoint(folder / "hf", SHAPES["vision"], 8)
    options = Options(chunk=16, max_prompt=64, vision=request.param, vision_chunk=32)
    bundle = export_checkpoint(Checkpoint(folder / "hf"), folder / "bundle", options, quiet=True)
    reference = vision_reference.conditional(
        SHAPES["vision"], vision_reference.rounded(tensors, request.param)
    )
    with Qwen35.load(bundle, 1024, "emu:threads=1,quiet") as model:
        yield Rig(folder / "hf", model, reference)


def pictures(count: int) -> list[np.ndarray]:
    """Seeded pictures: a gradient and noise, each of its own shape."""
    found = []
    for seed, (rows, columns) in enumerate(SIZES[:count]):
        rng = np.random.default_rng(seed)
        slope = np.linspace(0, 160, columns)[None, :, None] + np.linspace(0, 40, rows)[:, None, None]
        found.append((slope + rng.integers(0, 55, (rows, columns, 3))).astype(np.uint8))
    return found


def prompt_of(model: Qwen35, images: list[np.ndarray]) -> Input:
    """A user turn with text before, between and after the images."""
    content: list[dict[str, Any]] = []
    for words, image in zip_longest([*WORDS[: len(images)], WORDS[-1]], images):
        content += [{"text": words}, *([{"image": image}] if image is not None else [])]
    assert model.vision is not None
    seen = [model.vision.read(image) for image in images]
    prompt = encode(
        render([{"role": "user", "content": content}]),
        model.tokenizer,
        image_tokens=[one.tokens for one in seen],
    )
    return Input(prompt.ids, part=model.vision.part(prompt.ids, prompt.images, seen, Stats()))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_logits_are_transformers(
    rig: Rig, count: int, record_property: Callable[[str, object], None]
) -> None:
    images = pictures(count)
    given = prompt_of(rig.model, images)
    prompt = len(given.ids)
    ids = [*given.ids, *np.random.default_rng(count).integers(0, 320, DECODED).tolist()]
    processed = vision_reference.processed(rig.checkpoint, images)
    want = vision_reference.logits(rig.reference, ids, processed)[prompt - 1 :]
    text, visual = rig.reference, rig.reference.model.visual
    with (
        model_reference.bf16_activations(text),
        model_reference.bf16_activations(visual, vision_reference.VISUAL),
    ):
        rough = vision_reference.logits(rig.reference, ids, processed)[prompt - 1 :]
    got = [rig.model.prefill(given).copy()]
    got += [rig.model.decode(token).copy() for token in ids[prompt:]]
    assert rig.model.model.length == len(ids)
    activation, error = np.abs(rough - want).max(), np.abs(np.stack(got) - want).max()
    record_property("largest logit error", float(error))
    record_property("bf16 activation error", float(activation))
    print(f"{count} pictures, {prompt} tokens: largest logit error {error:.3f}, bf16 alone {activation:.3f}")
    assert error < 1.5 * activation + 2.0**-8 * np.abs(want).max()
    sure = margins(want) > 2 * activation
    assert sure.any() and (np.stack(got).argmax(-1) == want.argmax(-1))[sure].all()
    # positions that count every image token would be told apart
    plain = np.broadcast_to(np.arange(len(ids)), (3, len(ids)))
    assert (
        np.abs(vision_reference.logits(rig.reference, ids, processed, plain)[prompt - 1 :] - want).max()
        > 2 * error
    )


def test_pictures_in_another_order_are_another_prompt(rig: Rig) -> None:
    images = [pictures(1)[0], pictures(1)[0][:, ::-1].copy()]
    one = rig.model.prefill(prompt_of(rig.model, images)).copy()
    other = rig.model.prefill(prompt_of(rig.model, images[::-1])).copy()
    processed = vision_reference.processed(rig.checkpoint, images[::-1])
    ids = prompt_of(rig.model, images).ids
    want = vision_reference.logits(rig.reference, ids, processed)[-1]
    assert np.abs(other - want).max() < 0.5 * np.abs(one - want).max()
