"""What a model that is not here would cost: download, bundle, memory and the time of its export.

Figures come from the published shapes (qwen35.export.plan.SIZES) and the options that `export` has by
default; the export's time from encoding and writing a few megabytes where the bundle would go.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qwen35.api import REAL_BUNDLE
from qwen35.bundle.hub import listing
from qwen35.errors import ModelError
from qwen35.extras import own_program

__all__ = ["cost", "cost_lines", "is_model"]

PUBLISHED = ("Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-2B", "Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-9B")
COMPILED = {"2b": (REAL_BUNDLE, 2_500_000_000)}
"""Size -> bundle whose kernels are compiled for NPU2, and its bytes (its repository lists 2.5 GB)."""
_SAMPLE_SECONDS, _SAMPLE_BYTES = 1.5, 96 << 20


def is_model(word: str) -> bool:
    """Whether a word names a published size or model, whose cost is known, rather than a file or folder."""
    named = {*_by_size(), *(name.lower() for name in PUBLISHED)}
    return not os.path.lexists(word) and word.lower() in named


def cost(word: str, max_ctx: int = 8192) -> dict[str, Any]:
    """Bytes and seconds of the size or model that `word` names, both ways, and what is free here.

    Of a model that is not one of the published ones the Hub is asked. Raises ModelError where
    it does not answer or the model's shape is none that is known.
    """
    from qwen35.bundle.info import memory
    from qwen35.export.plan import Options

    known = {**_by_size(), **{name.lower(): (size, name) for size, name in _by_size().values()}}
    if word.lower() in known:
        (size, name), listed = known[word.lower()], None
    else:
        size, listed = _ask(word)
        name = word
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
    if size in COMPILED and name in PUBLISHED:
        where, nbytes = COMPILED[size]
        rest = sum(value for key, value in needs.items() if key != "weights")
        compiled = {
            "model": where,
            "download": nbytes,
            "bundle": nbytes,
            "disk": nbytes,
            "memory": nbytes + rest,
        }
    free = {"disk": shutil.disk_usage(".").free, "memory": _available()}
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
        f"{_duration(emulated['export_seconds'])} and the reading of the download",
        f"         {hf} download {emulated['model']} --local-dir CHECKPOINT && "
        f"{python} -m qwen35 export CHECKPOINT --out DIR",
        f"here     {_size(free['disk'])} of disk free in this folder, {_size(free['memory'])} of memory free",
    ]
    return out


def _way(way: dict[str, Any]) -> str:
    return (
        f"download {_size(way['download'])}, bundle {_size(way['bundle'])}, memory about "
        f"{_size(way['memory'])}: {'fits' if way['fits'] else 'does not fit'} here"
    )


def _by_size() -> dict[str, tuple[str, str]]:
    names = {name.rpartition("-")[2].lower(): name for name in PUBLISHED}
    return {size: (size, name) for size, name in names.items()}


def _planned(size: str, options: Any) -> tuple[Any, list[Any], list[Any]]:
    """The shape, and the tensors of text model and tower that `export --random SIZE` writes."""
    from dataclasses import replace

    from qwen35.export.plan import layout, plan_random
    from qwen35.export.vision import plan_random_vision, vision_layout

    config = plan_random(size, options)
    vision = plan_random_vision(size, options, config)
    config = replace(config, vision=vision)
    return config, list(layout(config)), list(vision_layout(vision)) if vision is not None else []


def _spans(c: Any) -> dict[str, tuple[int, int, int]]:
    from qwen35.export.kernels import text_gemms
    from qwen35.export.vision import vision_gemms

    gemms = [*text_gemms(c), *(vision_gemms(c.vision, c.chunk) if c.vision else [])]
    return {g.key: (g.chunks * g.m * g.lda, g.chunks * g.m * g.c_stride, g.c_stride) for g in gemms}


def _checkpoint_bytes(size: str) -> int:
    """A checkpoint of bf16: every weight of model, embedding and tower two bytes, without the padding."""
    from qwen35.export.plan import SIZES, Options

    c, text, tower = _planned(size, Options())
    count: int = c.vocab_size * c.hidden_size * (1 if SIZES[size].tie_word_embeddings else 2)
    count += _elements(item for item in text if item.part not in ("head", "embed"))
    return 2 * (count + _elements(tower))


def _elements(items: Iterable[Any]) -> int:
    total = 0
    for item in items:
        count = item.rows * item.k if item.rows else 1
        for dim in () if item.rows else item.shape:
            count *= dim
        total += count
    return total


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
        while done < _SAMPLE_BYTES and time.perf_counter() - began < _SAMPLE_SECONDS:
            piece = encode(weights)
            digest.update(piece)
            file.write(piece)
            done += piece.nbytes
        file.flush()
        return done / (time.perf_counter() - began)


def _ask(model: str) -> tuple[str, int]:
    """(size of the same shape, bytes of its files) of a model of the Hub."""
    from qwen35.export.plan import SIZES

    config, nbytes = listing(model)
    text = config.get("text_config", config)
    shape = [
        text.get(key) if isinstance(text, dict) else None
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    ]
    for size, c in SIZES.items():
        if shape == [c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.vocab_size]:
            return size, nbytes
    raise ModelError(
        "its shape is none of Qwen3.5's published ones",
        model,
        f"known are {', '.join(_by_size())}; qwen35 export tries any Qwen3.5 checkpoint",
    )


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
