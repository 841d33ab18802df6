"""The tower on bundles of every habit that the format allows: the very rows that our own export gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amdxdna import Device
from qwen35 import GREEDY, Qwen35
from qwen35.bundle import Bundle
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from qwen35.model.projections import Projections
from qwen35.vision.tower import VisionTower
from tests.support.pixels import pixels
from tests.support.synthetic import SHAPES, write_checkpoint
from tests.support.synthetic_bundle import HABITS, Habits, write_bundle

SHAPE = SHAPES["vision"]
GRIDS = [(2, 2), (4, 6), (16, 8), (2, 6)]
CASES = {
    **HABITS,
    "strides and pairs": Habits(spare=40, vision="bfp16x2", chunks=2),
    "large chunks": Habits(chunk=64, least=True),
    "one row more": Habits(spare=8, least=True, chunks=1),
}


@contextmanager
def tower(path: Path) -> Iterator[VisionTower]:
    bundle = Bundle.open(path)
    config = bundle.config.vision
    assert config is not None
    with Device.open("emu:threads=1,quiet") as device:
        npu = Projections(bundle, device)
        made = VisionTower(bundle, npu, config)
        yield made
        made.close()
        npu.close()


def rows(path: Path) -> list[np.ndarray]:
    """What the tower makes of seeded pictures, a smaller one after a larger one too."""
    rng = np.random.default_rng(1)
    with tower(path) as made:
        return [made.encode(pixels(rng, grid, 4), grid) for grid in GRIDS]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exported")
    write_checkpoint(folder / "hf", SHAPE, 7)
    paths = {}
    for weights in ("w8", "bfp16x2"):
        options = Options(chunk=16, max_prompt=64, vision=weights, vision_chunk=16, max_pixels=2048)
        paths[weights] = export_checkpoint(Checkpoint(folder / "hf"), folder / weights, options, quiet=True)
    return paths


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), SHAPE, 7)


@pytest.mark.parametrize("name", CASES)
def test_the_tower_depends_on_no_habit(
    exported: dict[str, Path], tensors: dict[str, np.ndarray], tmp_path: Path, name: str
) -> None:
    habits = CASES[name]
    path = write_bundle(tmp_path / "b", SHAPE, tensors, habits)
    for got, want in zip(rows(path), rows(exported[habits.vision]), strict=True):
        assert np.isfinite(want).all() and want.std() > 0.1
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("weights", ["w8", "bfp16x2"])
def test_streams_are_those_of_our_export(
    exported: dict[str, Path], tensors: dict[str, np.ndarray], tmp_path: Path, weights: str
) -> None:
    """Two encoders from one page: every tensor of the tower has the same bytes."""
    mine = Bundle.open(exported[weights])
    habits = replace(HABITS["plain"], vision=weights)
    theirs = Bundle.open(write_bundle(tmp_path / "b", SHAPE, tensors, habits))
    names, others = ([n for n in bundle.tensors if n.startswith("vis.")] for bundle in (mine, theirs))
    assert sorted(names) == sorted(others) and len(names) > 30
    for name in names:
        got, want = (bundle.tensors.bytes(name).tobytes() for bundle in (mine, theirs))
        assert got == want, name


@pytest.mark.parametrize("name", ["strides", "tight", "odd", "strides and pairs"])
def test_a_conversation_about_pictures(
    exported: dict[str, Path], tensors: dict[str, np.ndarray], tmp_path: Path, name: str
) -> None:
    picture = np.random.default_rng(3).integers(0, 256, (24, 40, 3), np.uint8)
    answers = []
    for path in (exported[CASES[name].vision], write_bundle(tmp_path / "b", SHAPE, tensors, CASES[name])):
        with Qwen35.load(path, 512, "emu:threads=1,quiet") as model:
            talk = model.conversation()
            answers.append(
                [
                    talk.ask(text, images=images, max_new=8, sampling=GREEDY).result().tokens
                    for text, images in (("What is this?", [picture]), ("And its colour?", []))
                ]
            )
    assert answers[0] == answers[1]
