"""Greedy answers of a bundle on an NPU device, for the evaluation's comparison with float32."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35.api import Qwen35
from qwen35.engine import generate
from qwen35.prompt import assemble
from qwen35.sampling import GREEDY, Sampler
from qwen35.template import ImageSlot, Piece, Tokens
from qwen35.train.scenes import CELL

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
    prompt = assemble(_pieces(model.tokenizer.added[IMAGE], ids, shown), model.tokenizer, model.vision)
    run = generate(model.session, prompt, Sampler(GREEDY, ids), model.stop, max_new)
    return [int(token) for token in run if int(token) not in model.stop]


def _pieces(token: int, ids: list[int], shown: Sequence[NDArray[np.uint8]]) -> list[Piece]:
    """The ids, with the images at the places of their tokens."""
    pieces: list[Piece] = []
    behind = 0
    for image in shown:
        at = ids.index(token, behind)
        pieces += [Tokens(ids[behind:at]), ImageSlot(image)]
        behind = at + image.shape[0] * image.shape[1] // CELL**2
    return [*pieces, Tokens(ids[behind:])]
