"""Greedy answers of a bundle on an NPU device, for the evaluation's comparison with float32."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from qwen35.api import Qwen35
from qwen35.engine import Input, generate
from qwen35.sampling import GREEDY, Sampler
from qwen35.stats import Stats
from qwen35.template import ImageSpan

IMAGE = "<|image_pad|>"


def run_bundle(
    bundle: Path,
    device: str,
    prompts: Sequence[list[int]],
    images: Sequence[Image.Image | None],
    max_new: int,
) -> list[list[int]]:
    """Token ids answered to each prompt, without the stop token."""
    found = []
    with Qwen35.load(bundle, max_ctx=1024, device=device) as model:
        for number, (ids, image) in enumerate(zip(prompts, images, strict=True)):
            found.append(_answer(model, ids, image, max_new))
            print(f"\r{number + 1}/{len(prompts)} answers of the bundle", end="", file=sys.stderr)
    print(file=sys.stderr)
    return found


def _answer(model: Any, ids: list[int], image: Image.Image | None, max_new: int) -> list[int]:
    prompt: Any = Input(ids) if image is None else _with_image(model, ids, image)
    chosen = Sampler(GREEDY, ids)
    run = generate(model.session, prompt, chosen, model.stop, max_new, stats=Stats())
    return [int(token) for token in run if int(token) not in model.stop]


def _with_image(model: Any, ids: list[int], image: Image.Image) -> Input:
    token = model.tokenizer.added[IMAGE]
    seen = model.vision.look(image)
    spans = (ImageSpan(0, ids.index(token), ids.count(token)),)
    keys = list(ids)
    keys[spans[0].start : spans[0].start + spans[0].count] = seen.keys()
    return Input(ids, (), keys, model.vision.part(ids, spans, [seen], Stats(), None))
