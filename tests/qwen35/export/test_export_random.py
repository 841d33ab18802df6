"""Random bundles: seeded, block-size free, of the published shapes, with the spread asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qwen35.bundle import Bundle
from qwen35.bundle.schema import TensorSpec, text_schema, vision_schema
from qwen35.bundle.sizes import SIZES
from qwen35.errors import UsageError
from qwen35.export import random as export_random_module
from qwen35.export.exporter import export_random
from qwen35.export.kernels import text_gemms, text_gemvs
from qwen35.export.plan import Options, plan_random
from qwen35.export.random import RandomText, RandomVision, random_stream
from qwen35.export.vision import plan_random_vision, vision_gemms, vision_problem
from qwen35.formats import by_name, from_bf16
from tests.support.unpacking import unpack

PUBLISHED = {  # hidden, MLP, layers, K slices, value heads, tied; tower: hidden, MLP, blocks
    "0.8b": (1024, 3584, 24, 4, 16, True, 768, 3072, 12),
    "2b": (2048, 6144, 24, 3, 16, True, 1024, 4096, 24),
    "4b": (2560, 9216, 32, 4, 32, True, 1024, 4096, 24),
    "9b": (4096, 12288, 32, 3, 32, False, 1152, 4304, 27),
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_shapes(size: str) -> None:
    hidden, mlp, layers, slices, values, tied, v_hidden, v_mlp, blocks = PUBLISHED[size]
    config = plan_random(size.upper(), Options())
    assert (
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.n_down,
        config.linear_num_value_heads,
        config.tie_word_embeddings,
    ) == (
        hidden,
        mlp,
        layers,
        slices,
        values,
        tied,
    )
    assert (config.vocab_size, config.head_rows, config.n_head) == (248320, 49664, 5)
    assert config.eos_token_id == (248044, 248046)
    assert (config.head_dim, config.rotary_dim, config.mrope_section) == (256, 64, (11, 11, 10))
    assert (config.linear_num_key_heads, config.linear_key_head_dim, config.linear_value_head_dim) == (
        16,
        128,
        128,
    )
    assert config.layer_types == ("lin", "lin", "lin", "att") * (layers // 4)
    gemms = {gemm.key: gemm for gemm in text_gemms(config)}
    assert gemms["gu"].c_stride == gemms["down"].lda == slices * hidden
    assert gemms["lin"].n == 2 * 2048 + 2 * values * 128
    assert {gemv.key for gemv in text_gemvs(config)} == {"lin", "att", "o", "gu", "down", "head"}
    v = plan_random_vision(size, Options(), config)
    assert v is not None and vision_problem(v) is None
    assert (v.hidden_size, v.intermediate_size, v.depth, v.out_hidden_size, v.n_fc2, v.n_merge) == (
        v_hidden,
        v_mlp,
        blocks,
        hidden,
        4,
        4,
    )
    assert (v.image_token_id, v.vision_start_token_id, v.vision_end_token_id, v.max_patches) == (
        248056,
        248053,
        248054,
        4096,
    )
    for gemm in vision_gemms(v, 256):
        assert gemm.k == v.hidden_size and gemm.n % 8 == 0 and gemm.lda >= gemm.k
    streams = sum(1 for item in vision_schema(v) if item.rows)
    assert streams == 1 + blocks * 7 + 8
    if size == "2b":
        total = sum(item.nbytes("bfp16") for item in text_schema(config))
        assert 2.0e9 < total < 2.2e9
        assert 1.4e9 < sum(item.nbytes("bfp6s") for item in text_schema(config)) < 1.6e9


@pytest.mark.parametrize("weights", ["bfp16", "bfp6s"])
@pytest.mark.parametrize("std", [0.02, 1.0, 7.3])
def test_spread(weights: str, std: float) -> None:
    stream = np.concatenate(list(random_stream(512, 256, std, weights, (1, 2))))
    values = by_name(weights).decode(stream, 512, 256).astype(np.float64)
    assert values.std() == pytest.approx(std, rel=0.02 if weights == "bfp16" else 0.12)
    assert abs(values.mean()) < 0.04 * std
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.2
    assert len(np.unique(values)) > 30


@pytest.mark.parametrize("weights", ["bfp16", "bfp6s"])
def test_blocks_and_seeds(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(random_stream(64, 128, 1.0, weights, (3, 4))))
    assert whole.size == by_name(weights).nbytes(64, 128)
    monkeypatch.setattr(export_random_module, "BLOCK_BYTES", 1)
    pieces = list(random_stream(64, 128, 1.0, weights, (3, 4)))
    assert len(pieces) == 8
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    for other in ((3, 5), (4, 4)):
        assert (np.concatenate(list(random_stream(64, 128, 1.0, weights, other))) != whole).mean() > 0.5


@pytest.mark.parametrize(("weights", "unit"), [("bfp16", 1), ("bfp6s", 8)])
@pytest.mark.parametrize("used", [0, 3, 8, 21, 40])
def test_rows_past_the_used_ones_are_zero(weights: str, unit: int, used: int) -> None:
    stream = np.concatenate(list(random_stream(40, 128, 1.0, weights, (1, 1), used)))
    values = by_name(weights).decode(stream, 40, 128)
    kept = -(-used // unit) * unit  # bfp6s blanks whole groups
    assert not values[kept:].any()
    assert (np.abs(values[:used]).max(axis=1, initial=0) > 0).all()


@pytest.mark.parametrize("weights", ["bfp16", "bfp6s"])
@pytest.mark.parametrize("vision", ["w8", "bfp16x2", "none"])
def test_a_tiny_bundle_of_every_kind_opens(tmp_path: Path, weights: str, vision: str) -> None:
    options = Options(
        chunk=32, max_prompt=64, gemv_format=weights, vision=vision, max_pixels=65536, vision_chunk=32
    )
    bundle = Bundle.open(export_random("tiny", tmp_path / "b", options, quiet=True))
    assert (bundle.config.vision is None) == (vision == "none")
    assert bundle.emulated and bundle.verify() > 10
    names = [item.name for item in text_schema(bundle.config)]
    if bundle.config.vision is not None:
        names += [item.name for item in vision_schema(bundle.config.vision)]
    assert list(bundle.tensors) == names


def test_the_seed_decides(tmp_path: Path) -> None:
    options = Options(chunk=32, max_prompt=64, vision="none")
    blobs = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        export_random("tiny", tmp_path / name, options, seed=seed, quiet=True)
        blobs.append((tmp_path / name / "tensors.bin").read_bytes())
    assert blobs[0] == blobs[1] != blobs[2]


def test_streams_of_a_layer_differ_and_hold_numbers(tmp_path: Path) -> None:
    bundle = Bundle.open(export_random("tiny", tmp_path / "b", Options(vision="none"), quiet=True))
    store, config = bundle.tensors, bundle.config
    q = unpack(np.array(store.bytes("l0.g.in")), config.n_lin, config.hidden_size)
    again = unpack(np.array(store.bytes("l1.g.in")), config.n_lin, config.hidden_size)
    assert (q != again).mean() > 0.9
    assert q.std() == pytest.approx(1 / 16, rel=0.02)
    assert (store.get("l0.h.A") < 0).all() and np.isfinite(store.get("l0.h.dt_bias")).all()
    assert store.get("l0.h.norm").mean() == pytest.approx(1, abs=0.1)


def test_unknown_size(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"known sizes are tiny, 0\.8b, 2b, 4b, 9b"):
        export_random("3b", tmp_path / "b", Options())
    assert set(PUBLISHED) < set(SIZES)


def _decoded(item: TensorSpec, data: np.ndarray) -> np.ndarray:
    return by_name("bfp16").decode(data[: by_name("bfp16").nbytes(item.rows, item.k)], item.rows, item.k)


def test_text_tensors_have_the_spread_that_keeps_logits_apart() -> None:
    """Normal with the fan-in's scale; gates and decays over the range that trained models have."""
    config = replace(plan_random("tiny", Options()), tie_word_embeddings=False)
    found: dict[str, list[np.ndarray]] = {}
    for item in text_schema(config):
        data = np.concatenate([piece.reshape(-1) for piece in RandomText(config, 5).pieces(item)])
        assert data.nbytes == item.nbytes("bfp16"), item.name
        found.setdefault(item.part, []).append(_decoded(item, data) if item.rows else data)
    d = config.hidden_size
    head = found.pop("head")[0][: config.vocab_size]
    spreads = {"lin": d, "att": d, "o": config.o_in, "gu": d, "down": config.intermediate_size}
    for part, inputs in spreads.items():
        for one in found.pop(part):
            assert one.std() == pytest.approx(inputs**-0.5, rel=0.03), part
    assert head.std() == pytest.approx(2 * d**-0.5, rel=0.03)
    embed = from_bf16(found.pop("embed")[0]).reshape(-1, d)
    assert embed.std() == pytest.approx(2 * d**-0.5, rel=0.03) and len(embed) == config.vocab_size > 1024
    assert not np.array_equal(embed[:512], embed[1024:1536])
    parts = {part: np.concatenate(values).astype(np.float64) for part, values in found.items()}
    decay, steps = -parts["A"], np.log1p(np.exp(parts["dt_bias"]))
    assert 0.5 <= decay.min() < 2 and 6 < decay.max() <= 8
    assert 0.00099 < steps.min() < 0.01 < steps.max() < 0.101
    taps = parts["conv"].reshape(-1, config.linear_conv_kernel_dim)
    assert np.abs(taps - [0, 0, 0, 0.6]).max() == pytest.approx(0.25, abs=0.01)
    assert np.abs(taps.mean(0) - [0, 0, 0, 0.6]).max() < 0.02
    assert parts["ba"].std() == pytest.approx(d**-0.5, rel=0.1)
    assert parts["norm"].mean() == pytest.approx(1, abs=0.05)
    for part in ("ln1", "ln2", "ln_f", "q_norm", "k_norm"):
        assert abs(parts[part].mean()) < 0.05, part
    for part in ("norm", "ln1", "ln2", "ln_f", "q_norm", "k_norm"):
        assert parts[part].std() == pytest.approx(0.1, rel=0.25), part


@pytest.mark.parametrize("weights", ["w8", "bfp16x2"])
def test_the_towers_tensors_have_the_spread_of_their_inputs(weights: str) -> None:
    text = plan_random("tiny", Options())
    made = plan_random_vision("tiny", Options(vision=weights), text)
    assert made is not None
    config = replace(made, intermediate_size=700)
    d, slices = config.hidden_size, {"fc2": config.n_fc2, "m1": config.n_merge, "m2": config.n_merge}
    for item in vision_schema(config):
        data = np.concatenate([np.ravel(piece).view(np.uint8) for piece in RandomVision(config).pieces(item)])
        assert data.nbytes == item.nbytes("bfp16"), item.name
        if not item.rows:
            values = data.view(np.float32)
            mean = float(item.part.endswith(("_w", ".f")))
            std = 0.0 if item.part.endswith(".f") else 0.5 if item.part == "pos" else 0.1
            assert values.mean() == pytest.approx(mean, abs=0.04), item.name
            assert values.std() == pytest.approx(std, rel=0.2), item.name
            continue
        used = 700 if item.part == "fc1" else item.rows
        inputs = config.patch_dim if item.part == "patch" else d
        wanted = (inputs * slices.get(item.part, 1)) ** -0.5
        high = _decoded(item, data)
        assert high[:used].std() == pytest.approx(wanted, rel=0.05) and not high[used:].any(), item.name
        if weights == "bfp16x2":
            low = _decoded(item, data[by_name("bfp16").nbytes(item.rows, item.k) :])
            assert low[:used].std() == pytest.approx(wanted / 512, rel=0.05), item.name
            assert abs(np.corrcoef(low[:used].ravel(), high[:used].ravel())[0, 1]) < 0.05
        bias = data[-4 * item.rows :].view(np.float32)
        assert bias[:used].std() == pytest.approx(0.0 if item.slice else 0.1, rel=0.2), item.name
        assert not bias[used:].any()
