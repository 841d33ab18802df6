"""The tower on the emulated NPU against transformers' float32 vision model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from amdxdna import Device
from qwen35.bundle import Bundle
from qwen35.errors import ImageError
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from qwen35.model.projections import Projections
from qwen35.vision.positions import block_order, resample, rotation
from qwen35.vision.tower import VisionTower
from tests.support.pixels import pixels
from tests.support.synthetic import SHAPES, Shape, VisionShape, smaller, write_checkpoint

WIDTHS = {  # hidden, heads and MLP of the published towers, at a depth a test can afford
    768: VisionShape(hidden=768, mlp=3072, depth=3, heads=12, patch=16, pos_side=48),
    1024: VisionShape(hidden=1024, mlp=4096, depth=3, heads=16, patch=16, pos_side=48),
    1152: VisionShape(hidden=1152, mlp=4304, depth=2, heads=16, patch=16, pos_side=48),
}
Reference = Callable[[np.ndarray, tuple[int, int]], np.ndarray]
COSINE = {"bfp16x2": 0.998, "w8": 0.99}


@dataclass
class Rig:
    tower: VisionTower
    reference: Reference


def reference_tower(folder: Path, tensors: dict[str, np.ndarray]) -> Reference:
    torch = pytest.importorskip("torch")
    config_module = pytest.importorskip("transformers.models.qwen3_5.configuration_qwen3_5")
    model_module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    settings = json.loads((folder / "config.json").read_text())["vision_config"]
    config = config_module.Qwen3_5VisionConfig(**settings)
    config._attn_implementation = "eager"
    model = model_module.Qwen3_5VisionModel(config).eval()
    at = "model.visual."
    state = {
        name[len(at) :]: torch.from_numpy(value) for name, value in tensors.items() if name.startswith(at)
    }
    model.load_state_dict(state, strict=True)

    def run(patches: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
        side = settings["patch_size"]
        frames = np.repeat(patches.reshape(len(patches), 3, 1, side * side), 2, axis=2)
        with torch.no_grad():
            out = model(torch.from_numpy(frames.reshape(len(patches), -1)), torch.tensor([[1, *grid]]))
        merged = out.pooler_output if hasattr(out, "pooler_output") else out
        rows = merged[0] if isinstance(merged, (tuple, list)) else merged
        return np.asarray(rows).reshape(-1, settings["out_hidden_size"])

    return run


def build(folder: Path, shape: Shape, weights: str, seed: int) -> Iterator[Rig]:
    tensors = write_checkpoint(folder / "hf", shape, seed)
    options = Options(chunk=64, max_prompt=128, vision=weights, vision_chunk=64)
    export_checkpoint(Checkpoint(folder / "hf"), folder / "bundle", options, quiet=True)
    bundle = Bundle.open(folder / "bundle")
    with Device.open("emu") as device:
        config = bundle.config.vision
        assert config is not None
        npu = Projections(bundle, device)
        tower = VisionTower(bundle, npu, config)
        yield Rig(tower, reference_tower(folder / "hf", tensors))
        tower.close()
        npu.close()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.fixture(scope="module", params=["w8", "bfp16x2"])
def small(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Rig]]:
    for rig in build(tmp_path_factory.mktemp(request.param), SHAPES["vision"], request.param, 3):
        yield request.param, rig


@pytest.mark.peer
@pytest.mark.parametrize("grid", [(2, 2), (4, 6), (2, 40), (18, 10)])
def test_small_tower(small: tuple[str, Rig], grid: tuple[int, int]) -> None:
    weights, rig = small
    patches = pixels(np.random.default_rng(grid), grid, 4)
    got, want = rig.tower.encode(patches, grid), rig.reference(patches, grid)
    assert got.shape == want.shape == (grid[0] * grid[1] // 4, 64)
    assert cosine(got, want) > COSINE[weights]


@pytest.mark.peer
def test_a_smaller_picture_after_a_larger_one_is_unchanged(small: tuple[str, Rig]) -> None:
    """Leftover rows of the buffers must not reach the next picture."""
    _, rig = small
    rng = np.random.default_rng(5)
    little, big = pixels(rng, (2, 4), 4), pixels(rng, (16, 16), 4)
    first = rig.tower.encode(little, (2, 4))
    rig.tower.encode(big, (16, 16))
    np.testing.assert_array_equal(rig.tower.encode(little, (2, 4)), first)
    rig.tower.release()
    np.testing.assert_array_equal(rig.tower.encode(little, (2, 4)), first)


@pytest.mark.peer
def test_refusals_leave_the_tower_usable(small: tuple[str, Rig]) -> None:
    _, rig = small
    patches = pixels(np.random.default_rng(6), (4, 4), 4)
    for grid in ((4, 5), (1, 16), (16, 1), (8, 8), (0, 0)):
        with pytest.raises(ImageError):
            rig.tower.encode(patches, grid)

    def stop(block: int, depth: int) -> None:
        raise KeyboardInterrupt

    first = rig.tower.encode(patches, (4, 4))
    with pytest.raises(KeyboardInterrupt):
        rig.tower.encode(patches, (4, 4), progress=stop)
    np.testing.assert_array_equal(rig.tower.encode(patches, (4, 4)), first)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("weights", ["w8", "bfp16x2"])
@pytest.mark.parametrize("width", WIDTHS)
def test_published_widths(
    width: int, weights: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    shape = smaller(SHAPES["tied"], layers=4, vision=WIDTHS[width])
    for rig in build(tmp_path, shape, weights, width):
        grid = (10, 8)
        patches = pixels(np.random.default_rng(width), grid, 16)
        got = cosine(rig.tower.encode(patches, grid), rig.reference(patches, grid))
        record_property("cosine", got)
        print(f"tower {width} {weights}: cosine {got:.5f}")
        assert got >= COSINE[weights]


def test_block_order() -> None:
    rows, columns = block_order((4, 4), 2)
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [
        *((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1)),
        *((2, 2), (2, 3), (3, 2), (3, 3)),
    ]


def test_resampled_corners_are_the_tables() -> None:
    table = np.random.default_rng(1).standard_normal((36, 5)).astype(np.float32)
    out = resample(table, 6, (4, 6), 2)
    rows, columns = block_order((4, 6), 2)
    for corner, index in (((0, 0), 0), ((0, 5), 5), ((3, 0), 30), ((3, 5), 35)):
        at = int(np.flatnonzero((rows == corner[0]) & (columns == corner[1]))[0])
        np.testing.assert_allclose(out[at], table[index], rtol=1e-6)


def test_rotation_turns_rows_and_columns_apart() -> None:
    cosines, sines = rotation((2, 2), 2, 8, 100.0)
    want = np.array([[0, 0, 0, 0], [0, 0, 1, 0.1], [1, 0.1, 0, 0], [1, 0.1, 1, 0.1]])
    np.testing.assert_allclose(np.arctan2(sines, cosines), want, atol=1e-6)
