"""Synthetic bundles and models on the emulated NPU, for the tests of qwen35.model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from amdxdna.device import Device
from qwen35.bundle import Bundle
from qwen35.model.text import TextModel
from tests.support import synthetic
from tests.support.numpy_model import Forward
from tests.support.synthetic_bundle import HABITS, write_bundle

_folder = TemporaryDirectory(prefix="model-bundles-")


@cache
def tensors(name: str) -> dict[str, np.ndarray]:
    """The checkpoint's tensors before rounding: what an exporter packs."""
    return synthetic.weights(synthetic.SHAPES[name])


@cache
def rounded(name: str) -> dict[str, np.ndarray]:
    """The tensors as a bundle of `tensors(name)` holds them: what a reference computes with."""
    return synthetic.round_matrices(tensors(name))


@cache
def bundle_path(name: str, habit: str = "plain", changes: tuple[tuple[str, Any], ...] = ()) -> Path:
    """A bundle of a synthetic shape in an exporter's habit, some of its fields changed."""
    habits = replace(HABITS[habit], **dict(changes))
    path = Path(_folder.name) / f"{name}-{habit}-{'-'.join(f'{k}{v}' for k, v in changes)}"
    return write_bundle(path, synthetic.SHAPES[name], tensors(name), habits)


@contextmanager
def model(
    name: str, habit: str = "plain", device: str = "threads=1,quiet", max_ctx: int = 512, **changes: Any
) -> Iterator[TextModel]:
    """A TextModel over bundle_path(name, habit, changes) on an emulated device."""
    bundle = Bundle.open(bundle_path(name, habit, tuple(sorted(changes.items()))))
    with Device.open(f"emu:{device}") as opened, TextModel(bundle, opened, max_ctx) as text:
        yield text


def tokens(name: str, count: int, seed: int = 0) -> list[int]:
    """Random ordinary token ids."""
    return np.random.default_rng(seed).integers(0, synthetic.BASE_TOKENS, count).tolist()


def run(text: TextModel, ids: list[int], prompt: int) -> np.ndarray:
    """Logits [len(ids) - prompt + 1, vocab]: after a prompt of `prompt` ids, then after each decoded id."""
    text.reset()
    rows = [text.prefill(ids[:prompt])]
    rows += [text.decode(token) for token in ids[prompt:]]
    return np.stack(rows)


@cache
def forward(name: str, npu: bool) -> Callable[..., np.ndarray]:
    """The numpy model's `logits`."""
    return Forward(synthetic.SHAPES[name], rounded(name), npu=npu).logits
