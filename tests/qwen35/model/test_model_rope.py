"""Rotary tables and M-RoPE positions, against the definition and against transformers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from qwen35.errors import ModelError
from qwen35.model.rope import Rope, prompt_positions, text_positions

REAL = SimpleNamespace(rotary_dim=64, rope_theta=1e7, mrope_section=(11, 11, 10))


def test_frequencies():
    rope = Rope(REAL)
    want = 1e7 ** (-2 * np.arange(32) / 64)
    assert rope.frequencies.dtype == np.float32
    assert np.abs(rope.frequencies / want - 1).max() < 3e-7


def test_axes_interleave_by_the_rule():
    rope = Rope(REAL)
    want = ["t", *"hwt" * 10, "h"]
    assert ["thw"[axis] for axis in rope.axes] == want
    small = SimpleNamespace(rotary_dim=8, rope_theta=1e4, mrope_section=(2, 1, 1))
    assert Rope(small).axes.tolist() == [0, 1, 2, 0]
    plain = SimpleNamespace(rotary_dim=64, rope_theta=1e4, mrope_section=None)
    assert not Rope(plain).axes.any()


def test_tables_by_axis():
    rope = Rope(REAL)
    positions = np.array([[5, 5, 5, 9], [5, 6, 7, 9], [5, 8, 2, 9]])
    cos, sin = rope.tables(positions)
    for row in range(4):
        for pair in range(32):
            angle = np.float32(positions[rope.axes[pair], row]) * rope.frequencies[pair]
            assert cos[row, pair] == pytest.approx(np.cos(np.float64(angle)), abs=2e-7)
            assert sin[row, pair] == pytest.approx(np.sin(np.float64(angle)), abs=2e-7)
    assert cos.flags.c_contiguous and sin.flags.c_contiguous


def test_text_positions_are_the_same_either_way():
    rope = Rope(REAL)
    for a, b in zip(rope.tables(np.arange(7000, 7020)), rope.tables(text_positions(20, 7000)), strict=True):
        assert np.array_equal(a, b)
    cos, sin = np.empty(32, np.float32), np.empty(32, np.float32)
    rope.row(7003, cos, sin)
    assert np.array_equal(cos, rope.tables(np.arange(7000, 7020))[0][3])
    assert np.array_equal(sin, rope.tables(np.arange(7000, 7020))[1][3])


@pytest.mark.peer
def test_tables_are_transformers_tables():
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers").models.qwen3_5
    config = qwen.Qwen3_5TextConfig(
        head_dim=256,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    )
    rotary = qwen.modeling_qwen3_5.Qwen3_5TextRotaryEmbedding(config)
    rng = np.random.default_rng(0)
    positions = np.concatenate([rng.integers(0, 40000, (3, 50)), text_positions(40, 8180)], axis=1)
    cos, sin = rotary(torch.zeros(1), torch.from_numpy(positions)[:, None])
    ours = Rope(REAL).tables(positions)
    # a float32 product of 40,000 is exact to 2e-3; the same product must be taken on both sides
    assert np.abs(ours[0] - cos[0, :, :32].numpy()).max() < 4e-3
    assert np.median(np.abs(ours[0] - cos[0, :, :32].numpy())) < 1e-7
    assert np.abs(ours[1] - sin[0, :, :32].numpy()).max() < 4e-3


IMAGE = 99


def test_positions_of_text():
    assert prompt_positions([1, 2, 3], IMAGE, [], 2, start=4).tolist() == [[4, 5, 6]] * 3


def test_positions_of_images_between_text():
    ids = [1, 2, *[IMAGE] * 6, 3, *[IMAGE] * 2, 4, 5]
    got = prompt_positions(ids, IMAGE, [(4, 6), (4, 2)], 2)
    assert got[0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8, 9]
    assert got[1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9]
    assert got[2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 8, 9]


def test_images_side_by_side():
    got = prompt_positions([IMAGE] * 8, IMAGE, [(4, 4), (4, 4)], 2, start=10)
    assert got[0].tolist() == [10] * 4 + [12] * 4
    assert got[1].tolist() == [10, 10, 11, 11, 12, 12, 13, 13]


@pytest.mark.parametrize(
    ("ids", "grids", "message"),
    [
        ([1, IMAGE], [(4, 4)], "needs 4 image tokens, 1 are left"),
        ([IMAGE, 1, IMAGE, IMAGE, IMAGE], [(4, 4)], "not in one run"),
        ([IMAGE] * 5, [(4, 4)], "more image tokens"),
    ],
)
def test_runs_and_grids_that_do_not_match(ids, grids, message):
    with pytest.raises(ModelError, match=message):
        prompt_positions(ids, IMAGE, grids, 2)


@pytest.mark.peer
def test_positions_are_transformers_positions():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.support import synthetic

    settings = synthetic.config(synthetic.SHAPES["vision"])
    config = transformers.models.qwen3_5.Qwen3_5Config(
        **{k: v for k, v in settings.items() if k not in ("architectures",)}
    )
    with torch.device("meta"):
        model = transformers.models.qwen3_5.Qwen3_5Model(config)
    image, start, end = config.image_token_id, config.vision_start_token_id, config.vision_end_token_id
    rng = np.random.default_rng(11)
    for case in range(50):
        grids = [(int(2 * rng.integers(1, 9)), int(2 * rng.integers(1, 9))) for _ in range(case % 6)]
        ids: list[int] = rng.integers(0, 320, rng.integers(1, 30)).tolist()
        for rows, columns in grids:
            ids += [start, *[image] * (rows * columns // 4), end]
            ids += rng.integers(0, 320, rng.integers(0, 12)).tolist()  # none: the next image is beside it
        tokens = torch.tensor([ids])
        want, delta = model.get_rope_index(
            tokens,
            mm_token_type_ids=(tokens == image).int(),
            attention_mask=torch.ones_like(tokens),
            image_grid_thw=torch.tensor([[1, *grid] for grid in grids]) if grids else None,
        )
        got = prompt_positions(ids, image, grids, 2)
        assert np.array_equal(got, want[-3:, 0].numpy())
        # where decoding goes on: transformers adds this to the count of cached tokens
        assert got.max() + 1 == len(ids) + int(delta)
