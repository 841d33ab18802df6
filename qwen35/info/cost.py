"""What a model that is not here would cost: download, bundle, memory and the time of its export.

Figures come from the published shapes (qwen35.bundle.sizes) and the options that `export` has by
default; the export's time from encoding and writing a few megabytes where the bundle would go.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import replace
from typing import Any

from amdxdna.programs import own_program
from qwen35 import meminfo
from qwen35.bundle.config import ModelConfig
from qwen35.bundle.hub import listing
from qwen35.bundle.schema import TensorSpec, text_schema, vision_schema
from qwen35.bundle.sizes import PUBLISHED, SIZES, size_of
from qwen35.errors import ModelError
from qwen35.export.kernels import text_gemms
from qwen35.export.plan import Options, plan_random
from qwen35.export.vision import plan_random_vision, vision_gemms
from qwen35.info.describe import memory, size_text

__all__ = ["cost", "cost_lines", "is_model"]

SAMPLE_SECONDS, _SAMPLE_BYTES = 1.5, 96 << 20
"""An export's time is told from the first of these that is over."""


def is_model(word: str) -> bool:
    """Whether a word names a published size or model, whose cost is known, rather than a file or folder."""
    return not os.path.lexists(word) and word.lower() in _known()


def cost(word: str, max_ctx: int = 8192) -> dict[str, Any]:
    """Bytes and seconds of the size or model that `word` names, both ways, and what is free here.

    Of a model that is not one of the published ones the Hub is asked. Raises ModelError where
    it does not answer or the model's shape is none that is known.
    """
    known, listed = _known().get(word.lower()), None
    size, name = (known, PUBLISHED[known].checkpoint) if known is not None else (None, word)
    if size is None:
        size, listed = _ask(word)
    c, text, tower = _planned(size, Options())
    sizes = {
        "text": sum(item.nbytes(c.gemv_format) for item in text if item.rows),
        "vision": sum(item.nbytes("bfp16") for item in tower),
        "host": sum(item.nbytes("") for item in text if not item.rows and item.name != "embed"),
    }
    embedding = sum(item.nbytes("") for item in text if item.name == "embed")
    spans = _spans(c)
    needs = memory(c, sizes, max_ctx, spans)
    bundle = sum(sizes.values()) + embedding
    checkpoint = listed or _checkpoint_bytes(size)
    rate = _export_rate(c.hidden_size)
    export: dict[str, Any] = {
        "model": name,
        "download": checkpoint,
        "download_is": "listed" if listed else "computed",
        "bundle": bundle,
        "disk": checkpoint + bundle,
        "memory": sum(needs.values()),
        "export_seconds": bundle / rate,
    }
    compiled: dict[str, Any] | None = None
    published = SIZES[size]
    if published.compiled is not None and name == published.checkpoint:
        where, nbytes = published.compiled.repository, published.compiled.nbytes
        rest = sum(value for key, value in needs.items() if key != "weights")
        compiled = {
            "model": where,
            "download": nbytes,
            "bundle": nbytes,
            "disk": nbytes,
            "memory": nbytes + rest,
        }
    free = {"disk": shutil.disk_usage(".").free, "memory": meminfo.available() or 0}
    ways: list[dict[str, Any] | None] = [export, compiled]
    for way in ways:
        if way is not None:
            way["fits"] = way["disk"] < free["disk"] and way["memory"] < free["memory"]
    return {"size": size, "name": name, "max_ctx": max_ctx, "npu": compiled, "emulated": export, "free": free}


def cost_lines(facts: dict[str, Any]) -> list[str]:
    """The facts for people."""
    free, hf, python = facts["free"], own_program("hf"), own_program("python")
    out = [f"model    {facts['name']}, which is not here; at {facts['max_ctx']:,} tokens of context"]
    npu, emulated = facts["npu"], facts["emulated"]
    if npu is None:
        out.append("NPU      no bundle of this model with compiled kernels is known")
    else:
        out += [f"NPU      {_way(npu)}", f"         {hf} download {npu['model']} --local-dir DIR"]
    about = "" if emulated["download_is"] == "listed" else "about "
    out += [
        f"emulated {about}{_way(emulated)}; the export takes about "
        f"{_duration(emulated['export_seconds'])} (measured just now, on this machine) and the reading of "
        "the download",
        f"         {hf} download {emulated['model']} --local-dir CHECKPOINT && "
        f"{python} -m qwen35 export CHECKPOINT --out DIR",
        f"here     {size_text(free['disk'])} of disk free in this folder, "
        f"{size_text(free['memory'])} of memory free",
    ]
    return out


def _way(way: dict[str, Any]) -> str:
    return (
        f"download {size_text(way['download'])}, bundle {size_text(way['bundle'])}, memory about "
        f"{size_text(way['memory'])}: {'fits' if way['fits'] else 'does not fit'} here"
    )


def _known() -> dict[str, str]:
    """Size by every name of the published models, in lower case."""
    return {name.lower(): size for size, known in PUBLISHED.items() for name in (size, known.checkpoint)}


def _planned(size: str, options: Options) -> tuple[ModelConfig, list[TensorSpec], list[TensorSpec]]:
    """The shape, and the tensors of text model and tower that `export --random SIZE` writes."""
    config = plan_random(size, options)
    vision = plan_random_vision(size, options, config)
    config = replace(config, vision=vision)
    return config, list(text_schema(config)), list(vision_schema(vision)) if vision is not None else []


def _spans(c: ModelConfig) -> dict[str, tuple[int, int, int]]:
    gemms = [*text_gemms(c), *(vision_gemms(c.vision, c.chunk) if c.vision else [])]
    return {g.key: (g.chunks * g.m * g.lda, g.chunks * g.m * g.c_stride, g.c_stride) for g in gemms}


def _checkpoint_bytes(size: str) -> int:
    """A checkpoint of bf16: every weight of model, embedding and tower two bytes, without the padding."""
    c, text, tower = _planned(size, Options())
    count: int = c.vocab_size * c.hidden_size * (1 if SIZES[size].text.tie_word_embeddings else 2)
    count += sum(spec.count for spec in text if spec.part not in ("head", "embed"))
    return 2 * (count + sum(spec.count for spec in tower))


def _export_rate(width: int) -> float:
    """Bytes of a bundle a second: random weights encoded, hashed and written to the current folder."""
    import numpy as np

    from qwen35.formats import by_name

    encode = by_name("bfp16").encode
    weights = np.random.default_rng(0).standard_normal((1024, width), np.float32) * 0.02
    digest, done = hashlib.sha256(), 0
    try:
        file: Any = tempfile.TemporaryFile(dir=".")  # noqa: SIM115
    except OSError:
        file = open(os.devnull, "wb")  # noqa: SIM115
    with file:
        began = time.perf_counter()
        # One piece at least: what else runs may take the processor for longer than that.
        while not done or (done < _SAMPLE_BYTES and time.perf_counter() - began < SAMPLE_SECONDS):
            piece = encode(weights)
            digest.update(piece.data)
            file.write(piece)
            done += piece.nbytes
        return done / (time.perf_counter() - began)


def _ask(model: str) -> tuple[str, int]:
    """(size of the same shape, bytes of its files) of a model of the Hub."""
    config, nbytes = listing(model)
    text = config.get("text_config", config)
    shape = [
        text.get(key) if isinstance(text, dict) else None
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    ]
    if (size := size_of(*shape)) is not None:
        return size, nbytes
    raise ModelError(
        "its shape is none of Qwen3.5's published ones",
        model,
        f"known are {', '.join(PUBLISHED)}; python -m qwen35 export tries any Qwen3.5 checkpoint",
    )


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
