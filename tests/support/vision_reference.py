"""transformers' Qwen3.5 with its tower in float32 over a synthetic checkpoint: prompts with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import synthetic
from tests.support.synthetic import Shape

VISUAL = ("attn.qkv", "attn.proj", "linear_fc1", "linear_fc2")
"""Linears of the tower that the NPU runs, by the ends of their names."""


def rounded(tensors: dict[str, np.ndarray], weights: str) -> dict[str, np.ndarray]:
    """The tensors as a bundle with a `weights` tower holds them.

    w8: a row's step is its largest magnitude over 127, the two temporal kernels of a patch summed first;
    bfp16x2 keeps 15 bits of a block's largest weight or more, which counts as exact here.
    """
    out = synthetic.round_matrices(tensors)
    if weights != "w8":
        return out
    at = "model.visual."
    for name, value in tensors.items():
        if not name.startswith(at) or value.ndim < 2 or name == at + "pos_embed.weight":
            continue
        matrix = value.sum(axis=2) if value.ndim == 5 else value
        rows = matrix.reshape(len(matrix), -1).astype(np.float64)
        step = np.abs(rows).max(axis=1, keepdims=True) / 127
        quantised = (np.rint(rows / step) * step).astype(np.float32).reshape(matrix.shape)
        if value.ndim == 5:
            quantised = np.stack([quantised, np.zeros_like(quantised)], axis=2)
        out[name] = quantised
    return out


def conditional(shape: Shape, tensors: dict[str, np.ndarray]) -> Any:
    """Qwen3_5ForConditionalGeneration in eval mode with `tensors` as its float32 weights."""
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers").models.qwen3_5
    torch.set_num_threads(1)
    settings = synthetic.config(shape)
    settings.pop("architectures")
    model = qwen.Qwen3_5ForConditionalGeneration(qwen.Qwen3_5Config(**settings)).float().eval()
    state = {
        name: torch.from_numpy(np.ascontiguousarray(value, np.float32)) for name, value in tensors.items()
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


def processed(checkpoint: Path, pictures: Sequence[np.ndarray]) -> dict[str, Any]:
    """What transformers' own processor makes of the pictures: pixel_values and image_grid_thw."""
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil.from_pretrained(checkpoint)
    made = processor(images=[Image.fromarray(picture) for picture in pictures], return_tensors="pt")
    return {"pixel_values": made["pixel_values"].float(), "image_grid_thw": made["image_grid_thw"]}


def logits(model: Any, ids: Sequence[int], pictures: dict[str, Any], positions: Any = None) -> np.ndarray:
    """Logits float32 [n, vocab] of one forward over the whole; positions are the model's own unless given."""
    import torch

    tokens = torch.tensor([list(ids)])
    kinds = (tokens == model.config.image_token_id).int()
    where = None if positions is None else torch.from_numpy(np.array(positions))[:, None]
    with torch.no_grad():
        out = model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=kinds,
            position_ids=where,
            use_cache=False,
            **pictures,
        )
    found: np.ndarray = out.logits[0].numpy()
    return found
