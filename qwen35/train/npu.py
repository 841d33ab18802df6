"""Greedy answers of a bundle on an NPU device, for the evaluation's comparison with float32."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35.api import Qwen35
from qwen35.engine import Input, generate
from qwen35.sampling import GREEDY, Sampler
from qwen35.stats import Stats
from qwen35.template import ImageSpan

from .scenes import CELL

IMAGE = "<|image_pad|>"


def run_bundle(
    bundle: Path,
    device: str,
    prompts: Sequence[list[int]],
    images: Sequence[Sequence[NDArray[np.uint8]]],
    max_new: int,
) -> list[list[int]]:
    """Token ids answered to each prompt, without the stop token."""
    found = []
    with Qwen35.load(bundle, max_ctx=1024, device=device) as model:
        for number, (ids, shown) in enumerate(zip(prompts, images, strict=True)):
            found.append(_answer(model, ids, shown, max_new))
            print(f"\r{number + 1}/{len(prompts)} answers of the bundle", end="", file=sys.stderr)
    print(file=sys.stderr)
    return found


def _answer(model: Any, ids: list[int], shown: Sequence[NDArray[np.uint8]], max_new: int) -> list[int]:
    prompt: Any = _with_images(model, ids, shown) if shown else Input(ids)
    chosen = Sampler(GREEDY, ids)
    run = generate(model.session, prompt, chosen, model.stop, max_new, stats=Stats())
    return [int(token) for token in run if int(token) not in model.stop]


def _with_images(model: Any, ids: list[int], shown: Sequence[NDArray[np.uint8]]) -> Input:
    token = model.tokenizer.added[IMAGE]
    seen = [model.vision.look(image) for image in shown]
    spans, at = [], 0
    keys = list(ids)
    for number, image in enumerate(shown):
        at = ids.index(token, at)
        count = image.shape[0] * image.shape[1] // CELL**2
        spans.append(ImageSpan(number, at, count))
        keys[at : at + count] = seen[number].keys()
        at += count
    return Input(ids, (), keys, model.vision.part(ids, tuple(spans), seen, Stats(), None))
