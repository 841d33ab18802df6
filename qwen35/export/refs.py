"""Reference runs of a checkpoint by transformers in float32, and putting them into a bundle.

A `ref` holds a prompt's ids, the tokens float32 answers greedily (the stop token included) and, for each of
them, the 16 largest logits. With an image also the picture, the patches the tower gets and what it makes of
them. Needs torch and transformers; nothing else of the export does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle import Bundle
from qwen35.bundle.writer import BundleWriter
from qwen35.export.vision import MAX_PIXELS, MIN_PIXELS
from qwen35.template import render, to_text

__all__ = ["TOP", "Reference", "Request", "attach", "record"]

TOP = 16
"""Logits kept of each step."""
_OFFLINE: dict[str, Any] = {"local_files_only": True}
"""Keeps transformers' readers off the network, where they look for a file that the directory lacks."""


@dataclass(frozen=True)
class Request:
    """One user turn to record; `picture` is uint8 [h, w, 3] or None.

    transformers' Pillow processor makes the patches; they equal those of the checkpoint's own processor
    where nothing is resized.
    """

    name: str
    prompt: str
    thinking: bool = False
    picture: NDArray[np.uint8] | None = None
    max_new: int = 96


@dataclass(frozen=True)
class Reference:
    """A recorded run; `arrays` are the `ref.NAME.*` tensors by the last part of their names."""

    request: Request
    arrays: dict[str, NDArray[Any]] = field(repr=False)


def record(checkpoint: Path, requests: Iterable[Request]) -> list[Reference]:
    """Runs the requests through transformers' float32 model of a checkpoint directory.

    Raises ImportError without torch and transformers, OSError for a directory that is no checkpoint.
    """
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoConfig, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text_only = AutoConfig.from_pretrained(checkpoint, **_OFFLINE).model_type == "qwen3_5_text"
    kind = Qwen3_5ForCausalLM if text_only else Qwen3_5ForConditionalGeneration
    model: Any = kind.from_pretrained(checkpoint, dtype=torch.float32, **_OFFLINE)
    stop = model.generation_config.eos_token_id
    found = []
    with torch.no_grad():
        for request in requests:
            arrays, inputs = _inputs(checkpoint, model, tokenizer, request)
            out = model.generate(
                **inputs,
                max_new_tokens=request.max_new,
                do_sample=False,
                eos_token_id=stop,
                output_logits=True,
                return_dict_in_generate=True,
            )
            whole = torch.stack([logits[0].float() for logits in out.logits])
            top = whole.topk(TOP)
            arrays["ids"] = inputs["input_ids"][0].numpy().astype(np.int32)
            arrays["tokens"] = out.sequences[0, len(arrays["ids"]) :].numpy().astype(np.int32)
            arrays["top_ids"] = top.indices.numpy().astype(np.int32)
            arrays["top_logits"] = top.values.numpy().astype(np.float32)
            arrays["spread"] = whole.std(dim=1, correction=0).numpy().astype(np.float32)
            found.append(Reference(request, arrays))
    return found


def _inputs(
    checkpoint: Path, model: Any, tokenizer: Any, request: Request
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays of a picture (none without one) and what `generate` is given."""
    import torch

    arrays: dict[str, NDArray[Any]] = {}
    extra: dict[str, Any] = {}
    content: Any = request.prompt
    count = 0
    if request.picture is not None:
        from PIL import Image

        processor = _processor(checkpoint, model.config.vision_config)
        made = processor(images=[Image.fromarray(request.picture)], return_tensors="pt")
        pixels, grid = made["pixel_values"].float(), made["image_grid_thw"]
        merge = model.config.vision_config.spatial_merge_size
        patch = model.config.vision_config.patch_size
        frames = pixels.view(len(pixels), 3, -1, patch, patch)
        arrays["rgb"] = np.ascontiguousarray(request.picture)
        arrays["patches"] = np.ascontiguousarray(frames[:, :, 0].reshape(len(pixels), -1).numpy())
        arrays["grid"] = grid[0, 1:].numpy().astype(np.int32)
        seen = model.model.visual(pixels, grid_thw=grid).pooler_output
        arrays["vision"] = np.ascontiguousarray(seen.numpy().astype(np.float32))
        count = int(grid[0].prod()) // merge**2
        extra = {"pixel_values": pixels, "image_grid_thw": grid}
        content = [{"image": None}, {"text": request.prompt}]
    text = to_text(render([{"role": "user", "content": content}], thinking=request.thinking))
    text = text.replace("<|image_pad|>", "<|image_pad|>" * count)
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
    if count:
        extra["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    return arrays, {"input_ids": ids, "attention_mask": torch.ones_like(ids), **extra}


def _processor(checkpoint: Path, vision: Any) -> Any:
    """The checkpoint's image processor, else one with export's defaults (plan_vision)."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    if (checkpoint / "preprocessor_config.json").is_file():
        return Qwen2VLImageProcessorPil.from_pretrained(checkpoint, **_OFFLINE)
    return Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size,
        merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    )


def attach(bundle: Path, references: Sequence[Reference], params: Mapping[str, object]) -> Path:
    """Rewrites `bundle` with reference runs and params added; earlier ones of the same name are replaced.

    Raises BundleError; the old bundle stays until the new one is whole.
    """
    old = Bundle.open(bundle)
    names = {reference.request.name for reference in references}
    with BundleWriter(bundle, force=True) as writer:
        for name, param in old.manifest.params.items():
            if name not in params:
                writer.param(name, param.text)
        for name, value in params.items():
            writer.param(name, value)
        files = [old.tokenizer_path, *(path for path in old.path.rglob("*") if path.parent != old.path)]
        for path in sorted(path for path in files if path.is_file()):
            writer.file(path.relative_to(old.path).as_posix(), path)
        for spec in old.manifest.xclbins.values():
            writer.record("xclbin", spec.key, spec.file, spec.kernel)
        for record_ in old.manifest.records:
            if record_.tag == "sum" or (record_.tag == "ref" and record_.fields[0] in names):
                continue
            writer.record(record_.tag, *record_.fields)
        for name in old.tensors:
            if not any(name.startswith(f"ref.{known}.") for known in names):
                info = old.tensors.info(name)
                with writer.tensor(name, info.dtype, *info.shape) as stream:
                    stream.write(old.tensors.bytes(name))
        for reference in references:
            _write(writer, reference)
        return writer.finish()


def _write(writer: BundleWriter, reference: Reference) -> None:
    request = reference.request
    keyed = {"image": 1} if request.picture is not None else {}
    text = request.prompt.encode().hex() or "-"
    writer.record("ref", request.name, prompt=text, thinking=int(request.thinking), **keyed)
    for name, value in reference.arrays.items():
        writer.array(f"ref.{request.name}.{name}", value)
