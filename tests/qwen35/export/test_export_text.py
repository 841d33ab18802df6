"""Every text tensor of an exported bundle, decoded, is the checkpoint's matrix rounded to bfp16, bit for bit.

Streams are unpacked by a decoder written here; what belongs in each is spelled out by Hugging Face names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amdxdna.emu.kernels import stream
from qwen35.bundle import Bundle
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from tests.support.synthetic import SHAPES, Shape, bf16_round, bfp16_round, smaller, write_checkpoint
from tests.support.synthetic_bundle import Habits, write_bundle
from tests.support.unpacking import Array, projections, unpack

OPTIONS = Options(chunk=16, max_prompt=64, vision="none")


def export(
    tmp_path: Path, shape: Shape, options: Options = OPTIONS, **how: Any
) -> tuple[dict[str, Array], Bundle]:
    """The checkpoint's tensors by name without prefix, and the opened bundle."""
    tensors = write_checkpoint(tmp_path / "hf", shape, seed=7, **how)
    export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", options, quiet=True)
    prefix = "model." if shape.vision is None else "model.language_model."
    named = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return named, Bundle.open(tmp_path / "out")


def host(t: dict[str, Array], i: int, kind: str) -> dict[str, Array]:
    """Layer i's host parameters."""
    at = f"layers.{i}."
    norms = {"ln1": t[at + "input_layernorm.weight"], "ln2": t[at + "post_attention_layernorm.weight"]}
    if kind == "att":
        return {**norms, **{name: t[f"{at}self_attn.{name}.weight"] for name in ("q_norm", "k_norm")}}
    la = at + "linear_attn."
    return {
        **norms,
        "ba": np.concatenate([t[la + "in_proj_b.weight"], t[la + "in_proj_a.weight"]]),
        "conv": t[la + "conv1d.weight"][:, 0, :],
        "A": (-np.exp(t[la + "A_log"].astype(np.float64))).astype(np.float32),
        "dt_bias": t[la + "dt_bias"],
        "norm": t[la + "norm.weight"],
    }


def check(shape: Shape, t: dict[str, Array], bundle: Bundle) -> None:
    store, seen = bundle.tensors, set()

    def same(name: str, wanted: Array) -> None:
        seen.add(name)
        np.testing.assert_array_equal(unpack(store.bytes(name), *wanted.shape), bfp16_round(wanted), name)

    for i, kind in enumerate(shape.layer_types):
        for part, matrix in projections(shape, t, i, kind).items():
            same(f"l{i}.g.{part}", matrix)
        for part, value in host(t, i, kind).items():
            seen.add(f"l{i}.h.{part}")
            assert store.info(f"l{i}.h.{part}").dtype == "f32"
            np.testing.assert_array_equal(store.get(f"l{i}.h.{part}"), value, part)
    np.testing.assert_array_equal(store.get("ln_f"), t["norm.weight"])
    head_rows, n_head = bundle.config.head_rows, bundle.config.n_head
    head = np.zeros((head_rows * n_head, shape.hidden), np.float32)
    head[: shape.vocab] = t["embed_tokens.weight" if shape.tied else "lm_head.weight"]
    for j in range(n_head):
        same(f"head{j}", head[j * head_rows : (j + 1) * head_rows])
    seen.add("ln_f")
    if not shape.tied:
        seen.add("embed")
        table = (store.get("embed").astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(table, bf16_round(t["embed_tokens.weight"]))
    assert set(store) == seen


VARIANTS = {
    **SHAPES,
    "mlp to pad": smaller(SHAPES["tied"], mlp=144, layers=2, interval=2),
    "all linear": smaller(SHAPES["grouped"], layers=1),
    "all attention": smaller(SHAPES["tied"], layers=2, interval=1),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_tensor(tmp_path: Path, name: str) -> None:
    shape = VARIANTS[name]
    tensors, bundle = export(tmp_path, shape)
    check(shape, tensors, bundle)
    assert bundle.emulated
    assert bundle.verify() == len(bundle.sums) > 10


@pytest.mark.parametrize("head_rows", [8, 64, 168, 340, 400])
def test_head_rows_that_do_not_divide_the_vocabulary(tmp_path: Path, head_rows: int) -> None:
    rows = -(-head_rows // 8) * 8
    shape = smaller(SHAPES["tied"], layers=1)
    tensors, bundle = export(tmp_path, shape, Options(chunk=16, max_prompt=16, head_rows=rows, vision="none"))
    assert (bundle.config.head_rows, bundle.config.n_head) == (rows, -(-shape.vocab // rows))
    check(shape, tensors, bundle)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 5])
def test_stored_dtypes_and_shards(tmp_path: Path, dtype: str, shards: int) -> None:
    shape = smaller(SHAPES["untied"], layers=4)
    tensors, bundle = export(tmp_path, shape, dtype=dtype, shards=shards)
    if dtype != "F32":
        narrow = {"BF16": bf16_round, "F16": lambda value: value.astype(np.float16).astype(np.float32)}[dtype]
        tensors = {name: narrow(value) for name, value in tensors.items()}
    check(shape, tensors, bundle)


def test_blocks_of_rows_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen35.export.text.BLOCK_BYTES", 1)
    tensors, bundle = export(tmp_path, SHAPES["grouped"])
    check(SHAPES["grouped"], tensors, bundle)


@pytest.mark.parametrize("name", ["tied", "grouped", "untied"])
def test_tensors_equal_those_of_a_writer_that_shares_no_code(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    tensors = write_checkpoint(tmp_path / "hf", shape, seed=2)
    other = Bundle.open(write_bundle(tmp_path / "other", shape, tensors, Habits()))
    options = Options(chunk=16, max_prompt=64, head_rows=other.config.head_rows)
    export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", options, quiet=True)
    bundle = Bundle.open(tmp_path / "out")
    assert bundle.config == other.config
    assert set(bundle.tensors) == set(other.tensors)
    for tensor in other.tensors:
        assert bundle.tensors.bytes(tensor).tobytes() == other.tensors.bytes(tensor).tobytes(), tensor
        assert bundle.tensors.info(tensor).offset % 64 == 0
    for key, gemm in other.gemms.items():
        mine = bundle.gemms[key]
        assert (mine.m, mine.k, mine.n, mine.lda, mine.c_stride, mine.b_bytes) == (
            gemm.m,
            gemm.k,
            gemm.n,
            gemm.lda,
            gemm.c_stride,
            gemm.b_bytes,
        )
        assert [(s.a_elems, s.c_elems, s.ctx) for s in mine.streams] == [
            (s.a_elems, s.c_elems, s.ctx) for s in gemm.streams
        ]
        for a, b in zip(mine.streams, gemm.streams, strict=True):
            assert bundle.insts(a.insts) == other.insts(b.insts), key
    for key, gemv in other.gemvs.items():
        one = bundle.gemvs[key]
        assert (one.m, one.k, one.w_words, one.ctx) == (gemv.m, gemv.k, gemv.w_words, gemv.ctx)
        assert bundle.insts(one.insts) == other.insts(gemv.insts), key


def test_a_shuffled_checkpoint_gives_another_bundle(tmp_path: Path) -> None:
    """The comparison above is one that exchanged names would fail."""
    tensors, bundle = export(tmp_path, SHAPES["tied"])
    pairs = [
        ("k_proj", "v_proj"),
        ("gate_proj", "up_proj"),
        ("in_proj_a", "in_proj_b"),
        ("q_norm", "k_norm"),
        ("layers.0.", "layers.1."),
        ("input_layernorm", "post_attention_layernorm"),
    ]
    for one, other in pairs:

        def swap(name: str, one: str = one, other: str = other) -> str:
            return name.replace(one, "\0").replace(other, one).replace("\0", other)

        with pytest.raises(AssertionError):
            check(SHAPES["tied"], {swap(name): value for name, value in tensors.items()}, bundle)


@pytest.mark.parametrize(
    ("chunk", "prompt", "chunks"),
    [(256, 2048, 8), (16, 16, 1), (32, 96, 3)],
)
def test_streams_for_every_number_of_chunks(tmp_path: Path, chunk: int, prompt: int, chunks: int) -> None:
    _, bundle = export(tmp_path, SHAPES["tied"], Options(chunk=chunk, max_prompt=prompt, vision="none"))
    for key, gemm in bundle.gemms.items():
        assert gemm.max_chunks == chunks
        for n, one in enumerate(gemm.streams, 1):
            (op,) = stream.parse(bundle.insts(one.insts))
            assert isinstance(op, stream.Gemm)
            assert (op.m, op.chunks, op.k, op.n) == (chunk, n, gemm.k, gemm.n)
            assert (op.lda, op.c_stride, op.b_bytes) == (gemm.lda, gemm.c_stride, gemm.b_bytes)
            assert op.flags == (stream.SWIGLU if key == "gu" else 0)
            assert one.a_elems == n * chunk * gemm.lda and one.c_elems == n * chunk * gemm.c_stride
            assert op.a_bytes <= 2 * one.a_elems and op.c_bytes <= 2 * one.c_elems


def test_bfp6s_streams(tmp_path: Path) -> None:
    """Sizes, records and a close decode; the format's own tests prove the encoding."""
    from qwen35.formats import bfp6s

    shape = smaller(SHAPES["untied"], layers=4)
    tensors, bundle = export(tmp_path, shape, Options(chunk=16, max_prompt=32, gemv_format="bfp6s"))
    assert bundle.config.gemv_format == "bfp6s"
    assert bundle.manifest.param("gemv_format").text == "bfp6s"
    for key in ("lin", "o", "head"):
        (op,) = stream.parse(bundle.insts(bundle.gemvs[key].insts))
        assert isinstance(op, stream.Gemv) and op.format == stream.BFP6S
    for i, kind in enumerate(shape.layer_types):
        for part, matrix in projections(shape, tensors, i, kind).items():
            decoded = bfp6s.decode(np.array(bundle.tensors.bytes(f"l{i}.g.{part}")), *matrix.shape)
            error = np.linalg.norm(decoded - matrix) / np.linalg.norm(matrix)
            assert error < 0.035, (i, part, error)
