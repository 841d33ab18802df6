"""What a bundle holds, and the memory that a run of it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen35.bundle.bundle import Bundle
from qwen35.bundle.config import ModelConfig
from qwen35.bundle.schema import packed_kernels

__all__ = ["SHAPE", "describe", "lines", "memory", "size_text"]

SHAPE = 1
"""Version of what `describe` returns and `--json` prints."""

_EMULATED = "the emulated NPU; these kernels do not run on hardware"
_COMPILED = "an AMD NPU that these compiled kernels were built for; the emulator does not interpret them"


def describe(bundle: Bundle, max_ctx: int = 8192) -> dict[str, Any]:
    """Everything `info` tells, as JSON values; bytes unless the key says otherwise.

    `memory` is what a run with `max_ctx` tokens of context takes: the packed weights once, the state, and
    the device buffers of a whole prefill pass and of the largest image.
    """
    config, store = bundle.config, bundle.tensors
    text = sum(store.info(name).nbytes for name in packed_kernels(config))
    sizes = {"text": text, "vision": 0, "host": 0, "embedding": 0, "references": 0}
    streams = set(packed_kernels(config))
    for name in store:
        if name not in streams:
            sizes[_group(name)] += store.info(name).nbytes
    v = config.vision
    return {
        "shape": SHAPE,
        "bundle": str(bundle.path),
        "version": bundle.manifest.version,
        "name": bundle.name,
        "model": {
            "hidden": config.hidden_size,
            "mlp": config.intermediate_size,
            "layers": config.num_hidden_layers,
            "linear_layers": config.layer_types.count("lin"),
            "vocab": config.vocab_size,
            "tied": config.tie_word_embeddings,
            "heads": config.num_attention_heads,
            "kv_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "linear_heads": config.linear_num_value_heads,
            "linear_key_heads": config.linear_num_key_heads,
        },
        "vision": None
        if v is None
        else {
            "hidden": v.hidden_size,
            "mlp": v.intermediate_size,
            "blocks": v.depth,
            "heads": v.num_heads,
            "weights": v.weights,
            "max_pixels": v.max_pixels,
            "max_patches": v.max_patches,
        },
        "format": config.gemv_format,
        "bytes": {**sizes, "blob": store.nbytes},
        "contexts": {key: xclbin.file for key, xclbin in bundle.xclbins.items()},
        "streams": sum(gemm.max_chunks for gemm in bundle.gemms.values()) + len(bundle.gemvs),
        "chunk": config.chunk,
        "max_prompt": config.max_prompt,
        "device": "emulated" if bundle.emulated else "compiled",
        "memory": memory(
            config,
            sizes,
            max_ctx,
            {
                key: (spec.streams[-1].a_elems, spec.streams[-1].c_elems, spec.c_stride)
                for key, spec in bundle.gemms.items()
            },
        ),
        "max_ctx": max_ctx,
        "tokenizer_cases": len(bundle.tokcases),
        "references": [one.name for one in bundle.references],
        "checksums": len(bundle.sums),
        "unsummed": list(bundle.unsummed),
        "warnings": bundle.unusual_lines,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """The facts for people, one line a subject."""
    m, v, size, memory = facts["model"], facts["vision"], facts["bytes"], facts["memory"]
    head = "tied head" if m["tied"] else "untied head"
    out = [
        f"bundle   {facts['bundle']}",
        f"model    {facts['name']}: {m['layers']} layers ({m['linear_layers']} linear), hidden "
        f"{m['hidden']:,}, MLP {m['mlp']:,}, vocabulary {m['vocab']:,}, {head}",
    ]
    if v is not None:
        out.append(
            f"vision   {v['blocks']} blocks of {v['hidden']:,}, weights {v['weights']}, images up to "
            f"{v['max_pixels']:,} pixels ({v['max_patches']:,} patches)"
        )
    parts = {"text": f" ({facts['format']})", "vision": "", "host": "", "embedding": "", "references": ""}
    told = ", ".join(f"{key} {size_text(size[key])}{note}" for key, note in parts.items() if size[key])
    out += [
        f"weights  {size_text(size['blob'])}: {told}",
        f"kernels  {len(facts['contexts'])} contexts ({', '.join(facts['contexts'])}), {facts['streams']} "
        f"instruction streams, chunks of {facts['chunk']} rows, {facts['max_prompt']:,} rows a pass",
        f"device   {_EMULATED if facts['device'] == 'emulated' else _COMPILED}",
        f"memory   about {size_text(sum(memory.values()))} at {facts['max_ctx']:,} tokens: "
        + ", ".join(f"{key.replace('_', ' ')} {size_text(value)}" for key, value in memory.items() if value),
        f"checks   {facts['tokenizer_cases']} tokenizer cases, {len(facts['references'])} reference runs, "
        f"{facts['checksums']} checksums",
    ]
    out += [f"unusual  {text}" for text in facts["warnings"]]
    return out


def _group(name: str) -> str:
    if name.startswith("vis."):
        return "vision"
    if name.startswith("ref."):
        return "references"
    return "embedding" if name == "embed" else "host"


def memory(
    c: ModelConfig, sizes: Mapping[str, int], max_ctx: int, spans: Mapping[str, tuple[int, int, int]]
) -> dict[str, int]:
    """Bytes that a run with `max_ctx` tokens takes, by use.

    `sizes` are those of the weights, `spans` of each GEMM the elements of A and C over its longest pass and
    C's row stride.
    """
    linear = c.layer_types.count("lin")
    attention = c.num_hidden_layers - linear
    text = [key for key in ("lin", "att", "o", "gu", "down") if key in spans]
    reads = max(spans[key][0] for key in text if key != "down")
    writes = max(spans[key][1] * (c.n_down if key == "down" else 1) for key in text if key != "gu")
    inner = spans["gu"][1] + spans["gu"][2]
    image = 0
    if c.vision is not None:
        v, merged = c.vision, c.vision.max_patches // c.vision.n_merge
        rows = v.hidden_size * (5 + v.n_fc2) + spans["v_fc1"][2]
        image = v.max_patches * rows + merged * (
            v.n_merge * v.hidden_size * (1 + v.n_merge) + v.out_hidden_size * v.n_merge
        )
    return {
        "weights": sizes["text"] + sizes["vision"] + sizes["host"],
        "kv_cache": attention * max_ctx * 2 * c.num_key_value_heads * c.head_dim * 2,
        # two sides of the state: a call that is cut short leaves the first
        "states": 2
        * linear
        * (
            4 * c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim
            + 2 * (c.linear_conv_kernel_dim - 1) * c.conv_dim
        ),
        "prompt_buffers": 2 * (reads + writes + inner),
        "image_buffers": 2 * image,
    }


def size_text(nbytes: int) -> str:
    """Bytes for people."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
