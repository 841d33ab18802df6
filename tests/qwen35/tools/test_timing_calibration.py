"""The timing model against what it is calibrated with: Qwen3.5-2B on a Ryzen AI 9 HX 370.

Published (amdxdna/emu/timing.py says where): a token 66 ms in bfp16 and 55 in bfp6s, prompts of 23 and 778
tokens 0.2 and 1.3 s, the NPU's part of a picture of 1,040 patches 0.25 s; by a runtime that sends single
commands, host included in all but the last.
"""

from __future__ import annotations

from collections import Counter

import pytest

from amdxdna.emu.kernels import Family, demands, stream
from amdxdna.emu.timing import MODELS
from qwen35.bundle.config import ModelConfig
from qwen35.export.kernels import Gemm, text_gemms, text_gemvs
from qwen35.export.plan import Options, plan_random
from qwen35.export.vision import plan_random_vision, vision_gemms

MODEL = MODELS["hx370"]


def config(weights: str = "bfp16") -> ModelConfig:
    return plan_random("2b", Options(gemv_format=weights))


def runs(c: ModelConfig) -> Counter[str]:
    """How often each projection is sent for a token, or for a prompt of one pass."""
    layers = c.num_hidden_layers
    return Counter(c.layer_types) + Counter(o=layers, gu=layers, down=layers * c.n_down, head=c.n_head)


def token(weights: str = "bfp16") -> float:
    """The NPU's seconds of a token, by single commands."""
    c = config(weights)
    often, kind = runs(c), stream.FORMATS[weights]
    return sum(
        often[each.key]
        * (MODEL.dispatch + MODEL.kernels(demands(stream.gemv(each.m, each.k, format=kind), Family.GEMV)))
        for each in text_gemvs(c)
    )


def gemm(g: Gemm, chunks: int) -> float:
    """Seconds of one GEMM over so many chunks."""
    program = stream.gemm(
        g.m, g.k, g.n, chunks=chunks, lda=g.lda, c_stride=g.c_stride, swiglu=g.swiglu, bias=g.bias
    )
    return MODEL.dispatch + MODEL.kernels(demands(program, Family.GEMM))


def prompt(tokens: int) -> float:
    """The NPU's seconds of a prompt up to its first logits."""
    c = config()
    often, chunks = runs(c), -(-tokens // c.chunk)
    head = next(each for each in text_gemvs(c) if each.key == "head")
    logits = MODEL.dispatch + MODEL.kernels(demands(stream.gemv(head.m, head.k), Family.GEMV))
    return sum(often[each.key] * gemm(each, chunks) for each in text_gemms(c)) + c.n_head * logits


def picture(patches: int) -> float:
    """The NPU's seconds of a picture."""
    options = Options()
    v = plan_random_vision("2b", options, config())
    assert v is not None
    blocks = dict.fromkeys(("v_qkv", "v_proj", "v_fc1"), v.depth) | {"v_fc2": v.depth * v.n_fc2}
    often = {**blocks, "v_patch": 1, "v_m1": v.n_merge, "v_m2": v.n_merge}
    rows = {"v_m1": patches // v.n_merge, "v_m2": patches // v.n_merge}
    return sum(
        often[each.key] * gemm(each, -(-rows.get(each.key, patches) // each.m))
        for each in vision_gemms(v, options.vision_chunk)
    )


def test_a_token_reads_what_was_published() -> None:
    assert sum(runs(config()).values()) == 149
    nbytes = [
        sum(runs(config(each))[g.key] * stream.weight_bytes(g.m, g.k, kind) for g in text_gemvs(config(each)))
        for each, kind in stream.FORMATS.items()
    ]
    assert [round(each / 1e9, 1) for each in nbytes] == [2.1, 1.5]


def test_the_formats_differ_by_what_they_differ_on_hardware() -> None:
    assert token() - token("bfp6s") == pytest.approx(0.066 - 0.055, abs=0.0003)


def test_a_token_leaves_the_host_of_the_published_runtime_some_time() -> None:
    assert token() == pytest.approx(0.050, abs=0.0005)
    assert token() < 0.0655


def test_a_pictures_npu_part_is_the_published_one() -> None:
    assert picture(1040) == pytest.approx(0.25, abs=0.005)


def test_prompts_fit_into_their_published_times() -> None:
    assert prompt(23) < 0.25  # "0.2 s"
    assert prompt(778) < 1.35  # "1.3 s"
    assert prompt(23) > 0.2 * prompt(778)
