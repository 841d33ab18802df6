"""`python -m qwen35 info`: what a bundle holds and needs, and whether every byte is as exported."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amdxdna.text import printable
from qwen35.bundle.bundle import Bundle
from qwen35.bundle.config import ModelConfig
from qwen35.bundle.errors import BundleError
from qwen35.bundle.validate import text_tensors
from qwen35.cli.args import Parser

__all__ = ["describe", "info_main", "lines", "memory"]

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
    text = sum(store.info(name).nbytes for name in text_tensors(config))
    sizes = {"text": text, "vision": 0, "host": 0, "embedding": 0, "references": 0}
    streams = set(text_tensors(config))
    for name in store:
        if name not in streams:
            sizes[_group(name)] += store.info(name).nbytes
    v = config.vision
    return {
        "shape": SHAPE,
        "bundle": str(bundle.path),
        "version": bundle.manifest.version,
        "name": model_name(bundle),
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


def model_name(bundle: Bundle) -> str:
    """The param `name`, or the published size of this shape, or just Qwen3.5."""
    from qwen35.export.plan import SIZES

    if "name" in bundle.manifest.params:
        return bundle.manifest.params["name"].text
    config = bundle.config
    for size, known in SIZES.items():
        shapes = [
            (c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.vocab_size) for c in (config, known)
        ]
        if shapes[0] == shapes[1] and size != "tiny":
            return f"Qwen3.5-{size.upper()}"
    return "Qwen3.5"


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
    told = ", ".join(f"{key} {_size(size[key])}{note}" for key, note in parts.items() if size[key])
    out += [
        f"weights  {_size(size['blob'])}: {told}",
        f"kernels  {len(facts['contexts'])} contexts ({', '.join(facts['contexts'])}), {facts['streams']} "
        f"instruction streams, chunks of {facts['chunk']} rows, {facts['max_prompt']:,} rows a pass",
        f"device   {_EMULATED if facts['device'] == 'emulated' else _COMPILED}",
        f"memory   about {_size(sum(memory.values()))} at {facts['max_ctx']:,} tokens: "
        + ", ".join(f"{key.replace('_', ' ')} {_size(value)}" for key, value in memory.items() if value),
        f"checks   {facts['tokenizer_cases']} tokenizer cases, {len(facts['references'])} reference runs, "
        f"{facts['checksums']} checksums",
    ]
    out += [f"unusual  {text}" for text in facts["warnings"]]
    return out


def info_main(argv: Sequence[str]) -> int:
    """Runs `info`; returns 0. Raises UsageError, and BundleError where a byte differs or none is recorded."""
    parser = Parser(prog="qwen35 info", description="Tells what a bundle holds and what it needs to run.")
    add = parser.add_argument
    add(
        "bundle",
        nargs="?",
        metavar="BUNDLE",
        help="directory, or Hugging Face id (default: as for a "
        "prompt); or what an export would start from: 0.8b, 2b, 4b, 9b, a checkpoint's id",
    )
    add("--verify", action="store_true", help="read every byte and compare with the recorded checksums")
    add("--max-ctx", type=int, default=8192, metavar="N", help="tokens of context (default 8192)")
    add("--json", action="store_true", help="one JSON object on stdout")
    add("--quiet", "-q", action="store_true", help="no progress")
    options = parser.parse_args(list(argv))
    from qwen35.bundle.cost import cost, cost_lines, is_model
    from qwen35.bundle.hub import NoBundle
    from qwen35.find import find_bundle

    found = None
    if options.bundle is None or not is_model(options.bundle):
        try:
            found = find_bundle(options.bundle)
        except NoBundle:  # a checkpoint of the Hub
            if options.bundle is None:
                raise
    if found is None:
        costs = cost(options.bundle, max(1, options.max_ctx))
        print(json.dumps(costs) if options.json else "\n".join(map(printable, cost_lines(costs))))
        return 0
    bundle = Bundle.open(found)
    facts = describe(bundle, max(1, options.max_ctx))
    from qwen35.model.options import Options

    facts["options"] = vars(Options.of())
    if options.verify:
        facts["verified"] = _verify(bundle, options.quiet)
    if options.json:
        json.dump(facts, sys.stdout)
        print()
    else:
        print("\n".join(printable(line) for line in lines(facts)))
        print(
            f"options  {Options.of().line()} (QWEN35_CHAINS, QWEN35_WEIGHTS, QWEN35_WAIT; --timing tells "
            "what came of them)"
        )
        if options.verify:
            print(f"verified {facts['verified']} files, every byte as exported" + printable(_unsummed(facts)))
    return 0


def _unsummed(facts: dict[str, Any]) -> str:
    """Which files nothing is recorded of, to go on with; or ""."""
    files = facts["unsummed"]
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    return f"; not verified, since no checksum is recorded: {', '.join(files[:5])}{more}" if files else ""


def _verify(bundle: Bundle, quiet: bool) -> int:
    from qwen35.export.progress import Progress

    if not bundle.sums:
        raise BundleError(
            bundle.manifest.path,
            0,
            "no checksums are recorded: nothing to verify",
            "only bundles of our exporter have them",
        )
    total = sum(Path(bundle.file(entry.file)).stat().st_size for entry in bundle.sums.values())
    with Progress("verify", total, quiet=quiet) as progress:
        return bundle.verify(lambda done, _: progress.add(done - progress.done))


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


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
