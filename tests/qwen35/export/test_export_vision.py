"""The tower's export: every stream decoded gives the checkpoint's weights and biases, at each tower shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from amdxdna.emu.kernels import stream
from qwen35.bundle import Bundle
from qwen35.errors import ModelError
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.cli import export_main
from qwen35.export.errors import CheckpointError
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options, plan_random
from qwen35.export.vision import max_patches, plan_random_vision, quantise_w8, vision_problem, w8_stream
from tests.support.synthetic import (
    SHAPES,
    VisionShape,
    bfp16_round,
    smaller,
    write_checkpoint,
    write_safetensors,
)
from tests.support.unpacking import unpack

Array = NDArray[np.float32]
TOWERS = {
    # as the published towers: MLP 4 D in four slices, or 3.74 D in four with a remainder; and 2.5 D in three
    "four slices": VisionShape(hidden=48, mlp=192, heads=4),
    "three slices": VisionShape(hidden=64, mlp=160),
    "padded": VisionShape(hidden=72, mlp=269, depth=1, heads=2, patch=4, pos_side=4),
}


def export(tmp_path: Path, tower: VisionShape, weights: str) -> tuple[dict[str, Array], Bundle]:
    shape = smaller(SHAPES["tied"], layers=1, vision=tower)
    tensors = write_checkpoint(tmp_path / "hf", shape, seed=4)
    options = Options(chunk=16, max_prompt=16, vision=weights, vision_chunk=16)
    export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", options, quiet=True)
    visual = {name[13:]: value for name, value in tensors.items() if name.startswith("model.visual.")}
    return visual, Bundle.open(tmp_path / "out")


def linears(tower: VisionShape, t: dict[str, Array]) -> dict[str, tuple[str, Array, Array, int]]:
    """Tensor name -> (GEMM key, weight [outputs, inputs], bias, K slices; 0: one stream without a number)."""
    d, p = tower.hidden, tower.patch
    patch = np.zeros((d, d), np.float32)
    kernels = t["patch_embed.proj.weight"]
    patch[:, : 3 * p * p] = (kernels[:, :, 0] + kernels[:, :, 1]).reshape(d, -1)
    wide = -(-tower.mlp // d) * d
    merge = tower.merge**2
    found = {
        "patch": ("v_patch", patch, t["patch_embed.proj.bias"], 0),
        "m1": ("v_m1", t["merger.linear_fc1.weight"], t["merger.linear_fc1.bias"], merge),
        "m2": ("v_m2", t["merger.linear_fc2.weight"], t["merger.linear_fc2.bias"], merge),
    }
    for i in range(tower.depth):
        b = f"blocks.{i}."
        fc1, fc1_bias = np.zeros((wide, d), np.float32), np.zeros(wide, np.float32)
        fc1[: tower.mlp], fc1_bias[: tower.mlp] = t[b + "mlp.linear_fc1.weight"], t[b + "mlp.linear_fc1.bias"]
        fc2 = np.zeros((d, wide), np.float32)
        fc2[:, : tower.mlp] = t[b + "mlp.linear_fc2.weight"]
        found[f"b{i}.qkv"] = ("v_qkv", t[b + "attn.qkv.weight"], t[b + "attn.qkv.bias"], 0)
        found[f"b{i}.proj"] = ("v_proj", t[b + "attn.proj.weight"], t[b + "attn.proj.bias"], 0)
        found[f"b{i}.fc1"] = ("v_fc1", fc1, fc1_bias, 0)
        found[f"b{i}.fc2"] = ("v_fc2", fc2, t[b + "mlp.linear_fc2.bias"], wide // d)
    return found


def parts(name: str, weight: Array, bias: Array, slices: int, d: int) -> list[tuple[str, Array, Array]]:
    """The streams of a weight: name, [outputs, d], bias (the first slice has it)."""
    if not slices:
        return [(f"vis.{name}", weight, bias)]
    return [
        (f"vis.{name}.{j}", weight[:, j * d : (j + 1) * d], bias if j == 0 else np.zeros_like(bias))
        for j in range(slices)
    ]


@pytest.mark.parametrize("name", TOWERS)
def test_bfp16x2(tmp_path: Path, name: str) -> None:
    tower = TOWERS[name]
    tensors, bundle = export(tmp_path, tower, "bfp16x2")
    assert not any(tensor.endswith(".f") for tensor in bundle.tensors)
    for weight_name, (key, weight, bias, slices) in linears(tower, tensors).items():
        for tensor, matrix, offsets in parts(weight_name, weight, bias, slices, tower.hidden):
            packed = np.array(bundle.tensors.bytes(tensor))
            n, k = matrix.shape
            size = n * k // 8 * 9
            assert packed.size == 2 * size + 4 * n == bundle.gemms[key].b_bytes
            high, low = unpack(packed[:size], n, k), unpack(packed[size : 2 * size], n, k)
            np.testing.assert_array_equal(high, bfp16_round(matrix), tensor)
            np.testing.assert_array_equal(low, bfp16_round(matrix - high), tensor)
            np.testing.assert_array_equal(packed[2 * size :].view(np.float32), offsets, tensor)


@pytest.mark.parametrize("name", TOWERS)
def test_w8(tmp_path: Path, name: str) -> None:
    tower = TOWERS[name]
    tensors, bundle = export(tmp_path, tower, "w8")
    for weight_name, (key, weight, bias, slices) in linears(tower, tensors).items():
        factors = bundle.tensors.expect(f"vis.{weight_name}.f", "f32", len(weight))
        step = np.abs(weight).max(axis=1) / 127  # of one row, all slices together
        for tensor, matrix, offsets in parts(weight_name, weight, bias, slices, tower.hidden):
            packed = np.array(bundle.tensors.bytes(tensor))
            n, k = matrix.shape
            size = n * k // 8 * 9
            assert packed.size == size + 4 * n == bundle.gemms[key].b_bytes
            decoded = unpack(packed[:size], n, k) * factors[:, None]
            assert (np.abs(decoded - matrix) <= step[:, None] * 0.50001).all(), tensor
            np.testing.assert_allclose(packed[size:].view(np.float32) * factors, offsets, rtol=1e-6)


@pytest.mark.parametrize("weights", ["w8", "bfp16x2"])
@pytest.mark.parametrize("name", TOWERS)
def test_host_tensors_params_and_records(tmp_path: Path, name: str, weights: str) -> None:
    tower = TOWERS[name]
    tensors, bundle = export(tmp_path, tower, weights)
    v, d = bundle.config.vision, tower.hidden
    assert v is not None
    assert (v.hidden_size, v.intermediate_size, v.depth, v.num_heads, v.patch_size, v.spatial_merge_size) == (
        d,
        tower.mlp,
        tower.depth,
        tower.heads,
        tower.patch,
        tower.merge,
    )
    assert (v.out_hidden_size, v.pos_side, v.rope_theta, v.weights) == (64, tower.pos_side, 10000.0, weights)
    assert (v.image_token_id, v.vision_start_token_id, v.vision_end_token_id) == (325, 323, 324)
    assert (v.min_pixels, v.max_pixels, v.max_patches) == (4 * 64, 64 * 64, 256)
    store = bundle.tensors
    np.testing.assert_array_equal(store.get("vis.pos"), tensors["pos_embed.weight"])
    np.testing.assert_array_equal(store.get("vis.m_ln_w"), tensors["merger.norm.weight"])
    np.testing.assert_array_equal(store.get("vis.m_ln_b"), tensors["merger.norm.bias"])
    for i in range(tower.depth):
        for n in (1, 2):
            for kind in ("weight", "bias"):
                got = store.get(f"vis.b{i}.ln{n}_{kind[0]}")
                np.testing.assert_array_equal(got, tensors[f"blocks.{i}.norm{n}.{kind}"])
    wide, merged = -(-tower.mlp // d) * d, 4 * d
    pair = stream.PAIR if weights == "bfp16x2" else 0
    for key, (n, lda, chunks) in {
        "v_patch": (d, d, 16),
        "v_qkv": (3 * d, d, 16),
        "v_proj": (d, d, 16),
        "v_fc1": (wide, d, 16),
        "v_fc2": (d, wide, 16),
        "v_m1": (merged, merged, 4),
        "v_m2": (64, merged, 4),
    }.items():
        gemm = bundle.gemms[key]
        assert (gemm.m, gemm.k, gemm.n, gemm.lda, gemm.c_stride) == (16, d, n, lda, n), key
        assert gemm.max_chunks == chunks
        assert {one.ctx for one in gemm.streams} == {"vision"}
        (op,) = stream.parse(bundle.insts(gemm.stream(2).insts))
        assert isinstance(op, stream.Gemm)
        assert op.flags == stream.BIAS | pair | (stream.GELU if pair and key == "v_fc1" else 0)
    assert bundle.xclbins["vision"].file == "kernels/vision.xclbin"


def test_no_tower(tmp_path: Path) -> None:
    _, bundle = export(tmp_path, TOWERS["four slices"], "none")
    assert bundle.config.vision is None
    assert not any(name.startswith("vis.") for name in bundle.tensors)
    assert "vision" not in bundle.xclbins and not any(key.startswith("v_") for key in bundle.gemms)


def test_quantised_rows_of_every_scale() -> None:
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((16, 32)) * 10.0 ** np.arange(-24, 8, 2)[:, None]).astype(np.float32)
    weights[5] = 0
    q, e, f = quantise_w8(weights)
    assert q.dtype == np.int8 and np.abs(q.astype(int)).max(axis=1).tolist() == [127] * 5 + [0] + [127] * 10
    assert (f >= 1).all() and (f < 2).all()
    packed = w8_stream(q, e, np.arange(16, dtype=np.float32))
    decoded = unpack(packed[:-64], 16, 32).astype(np.float64) * f[:, None]
    np.testing.assert_array_equal(decoded[5], 0)
    steps = np.abs(weights).max(axis=1, keepdims=True) / 127
    assert (np.abs(decoded - weights) <= 0.50001 * steps).all()
    assert packed[-64:].view(np.float32).tolist() == list(range(16))


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("vision_config", "num_heads", 5, "vision_config: 5 heads of 64 / 5 dims"),
        ("vision_config", "hidden_act", "relu", "vision_config.hidden_act is 'relu'"),
        ("vision_config", "num_position_embeddings", 35, "is no square"),
        ("vision_config", "temporal_patch_size", 1, "vision_config.temporal_patch_size"),
        ("vision_config", "patch_size", [4, 4], "is [4, 4], not a positive whole number"),
        ("vision_config", "patch_size", 5, "a patch has 75 values, more than the hidden size 64"),
        ("vision_config", "patch_size", 1025, "patch_size is 1025, more than 1,024"),
        ("vision_config", "spatial_merge_size", 65, "spatial_merge_size is 65, more than 64"),
        ("vision_config", "depth", 4097, "depth is 4097, more than 4,096"),
        ("vision_config", "hidden_size", 1048577, "hidden_size is 1048577, more than 1,048,576"),
        ("vision_config", "intermediate_size", 1048577, "intermediate_size is 1048577, more than 1,048,576"),
        ("vision_config", "in_channels", 4, "and in_channels must be 2 and 3"),
        ("vision_config", "depth", 3, "tensor model.visual.blocks.2.norm1.weight is missing"),
        ("vision_config", "intermediate_size", 168, "config.json makes it [168, 64]"),
        ("", "image_token_id", None, "image_token_id is None"),
    ],
)
def test_towers_that_cannot_be_exported(
    tmp_path: Path, section: str, key: str, value: object, message: str
) -> None:
    write_checkpoint(tmp_path / "hf", smaller(SHAPES["vision"], layers=1))
    path = tmp_path / "hf/config.json"
    config = json.loads(path.read_text())
    (config[section] if section else config)[key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", Options(), quiet=True)
    assert message in caught.value.message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, None),
        ({"hidden_size": 1028}, "hidden size 1028 or output 2048 is no multiple of 8"),
        ({"out_hidden_size": 2050}, "hidden size 1024 or output 2050 is no multiple of 8"),
        ({"num_heads": 15}, "15 heads of 1024 / 15 dims"),
        ({"num_heads": 512}, "512 heads of 1024 / 512 dims"),
        ({"num_heads": 256}, None),
        ({"depth": 1 << 14}, None),
        ({"depth": (1 << 14) + 1}, "16385 blocks of an MLP 4,096 wide, 4 times the hidden size"),
        ({"patch_size": 18}, None),
        ({"patch_size": 19}, "a patch has 1083 values, more than the hidden size 1024"),
        ({"patch_size": 16, "hidden_size": 768}, None),
    ],
)
def test_shapes_that_the_kernels_cannot_hold(change: dict[str, int], found: str | None) -> None:
    made = plan_random_vision("2b", Options(), plan_random("2b", Options()))
    assert made is not None
    assert vision_problem(replace(made, **change)) == found


@pytest.mark.parametrize(
    ("pixels", "patch", "merge", "chunk", "patches"),
    [(1 << 20, 16, 2, 256, 4096), (1 << 20, 16, 2, 1000, 8000), (4095, 4, 2, 16, 256), (256, 4, 2, 16, 64)],
)
def test_the_largest_image_fills_whole_chunks_before_and_after_merging(
    pixels: int, patch: int, merge: int, chunk: int, patches: int
) -> None:
    assert max_patches(pixels, patch, merge, chunk) == patches


def renamed(directory: Path, names: dict[str, str]) -> None:
    """Rewrites a checkpoint of one file, tensors whose names begin with a key under its value instead."""
    shape = smaller(SHAPES["vision"], layers=1)
    tensors = write_checkpoint(directory, shape, shards=1)
    changed = {}
    for name, tensor in tensors.items():
        old = next((prefix for prefix in names if name.startswith(prefix)), "")
        if new := names.get(old, name):
            changed[new + name.removeprefix(old) if old else name] = tensor
    write_safetensors(directory / "model.safetensors", changed, dict.fromkeys(changed, "F32"))


def test_a_tower_under_another_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for directory, names in [
        ("usual", {}),
        ("short", {"model.visual.": "visual."}),
        ("other", {"model.visual.": "model.language_model.visual."}),
    ]:
        renamed(tmp_path / directory, names)
        out = str(tmp_path / f"{directory}.out")
        assert export_main([str(tmp_path / directory), "--out", out]) == 0
        note = "vision tower's tensors begin with model.language_model.visual., not model.visual."
        assert (note in capsys.readouterr().err) == (directory == "other")
        assert Bundle.open(out).config.vision is not None
    blobs = {(tmp_path / f"{name}.out/tensors.bin").read_bytes() for name in ("usual", "short", "other")}
    assert len(blobs) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"model.visual.": ""}, "tensor model.visual.patch_embed.proj.weight is missing"),
        ({"model.visual.": "model.tower."}, "tensor model.visual.patch_embed.proj.weight is missing"),
    ],
)
def test_a_tower_without_its_tensors(tmp_path: Path, names: dict[str, str], message: str) -> None:
    renamed(tmp_path / "hf", names)
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", Options(), quiet=True)
    assert message in str(caught.value) and "--vision none" in str(caught.value)
    export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", Options(vision="none"), quiet=True)
    assert Bundle.open(tmp_path / "out").config.vision is None


def test_two_towers(tmp_path: Path) -> None:
    tensors = write_checkpoint(tmp_path / "hf", smaller(SHAPES["vision"], layers=1), shards=1)
    tensors["visual.patch_embed.proj.weight"] = tensors["model.visual.patch_embed.proj.weight"]
    write_safetensors(tmp_path / "hf/model.safetensors", tensors, dict.fromkeys(tensors, "F32"))
    with pytest.raises(CheckpointError, match=r"more than one vision tower: model\.visual\.patch_embed"):
        export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", Options(), quiet=True)


@pytest.mark.parametrize(
    "name",
    [
        "pos_embed.weight",
        "blocks.0.norm1.weight",
        "blocks.1.norm2.bias",
        "merger.norm.weight",
        "patch_embed.proj.weight",
        "blocks.0.attn.qkv.bias",
        "merger.linear_fc2.weight",
    ],
)
def test_tensors_of_the_tower_that_are_no_numbers(tmp_path: Path, name: str) -> None:
    tensors = write_checkpoint(tmp_path / "hf", smaller(SHAPES["vision"], layers=1), shards=1)
    tensors["model.visual." + name].reshape(-1)[1] = np.nan
    write_safetensors(tmp_path / "hf/model.safetensors", tensors, dict.fromkeys(tensors, "BF16"))
    with pytest.raises(ModelError, match=f"tensor model.visual.{name} holds NaN or infinity"):
        export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", Options(), quiet=True)


def test_the_largest_image_is_the_lesser_of_checkpoint_and_option(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", smaller(SHAPES["vision"], layers=1))
    for limit, pixels, patches in ((1 << 20, 4096, 256), (2048, 2048, 128), (1, 256, 64)):
        options = Options(chunk=16, max_prompt=16, vision_chunk=16, max_pixels=limit)
        export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", options, quiet=True, force=True)
        v = Bundle.open(tmp_path / "out").config.vision
        assert v is not None and (v.max_pixels, v.max_patches) == (pixels, patches)
