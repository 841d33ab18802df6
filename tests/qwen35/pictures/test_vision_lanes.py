"""Pictures in lanes: the rows of each alone in one lane, whatever is beside it and whoever comes first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amdxdna import Device
from amdxdna import buffer as buffer_module
from amdxdna._native import ffi, lib
from amdxdna.errors import CommandFailed, CommandTimeout
from qwen35 import vision
from qwen35.bundle import Bundle
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from qwen35.model.dispatch import Dispatch
from qwen35.model.projections import Projections
from qwen35.vision import tower as tower_module
from qwen35.vision.host import FullAttention
from qwen35.vision.lanes import Lane, advance
from qwen35.vision.tower import VisionTower
from tests.support.pixels import pixels
from tests.support.synthetic import SHAPES, write_checkpoint

EMULATED = "emu:threads=1,quiet,tdr=0.3"
GRIDS = [(18, 10), (2, 4), (16, 14), (8, 8), (18, 10)]
"""Chunks of 64 rows: 3, 1, 4, 1 and 3; those of several are two lanes."""


@pytest.fixture(scope="module")
def npu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projections]:
    folder = tmp_path_factory.mktemp("lanes")
    write_checkpoint(folder / "hf", SHAPES["vision"], 4)
    options = Options(chunk=64, max_prompt=128, vision="w8", vision_chunk=64, max_pixels=512 * 16)
    bundle = Bundle.open(export_checkpoint(Checkpoint(folder / "hf"), folder / "bundle", options, quiet=True))
    with Device.open(EMULATED) as device:
        made = Projections(bundle, device)
        yield made
        made.close()


@pytest.fixture(scope="module")
def tower(npu: Projections) -> Iterator[VisionTower]:
    config = npu.bundle.config.vision
    assert config is not None
    made = VisionTower(npu.bundle, npu, config)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pictures() -> list[tuple[np.ndarray, tuple[int, int]]]:
    rng = np.random.default_rng(11)
    return [(pixels(rng, grid, 4), grid) for grid in GRIDS]


@pytest.fixture(scope="module")
def alone(tower: VisionTower, pictures: list[tuple[np.ndarray, tuple[int, int]]]) -> list[np.ndarray]:
    """Each picture by itself, in one lane."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FullAttention, "ALIGN", 1 << 30)
        return [tower.encode(*picture) for picture in pictures]


def same(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for one, other in zip(got, want, strict=True):
        assert np.isfinite(other).all() and other.std() > 0.1
        np.testing.assert_array_equal(one, other)


def test_lanes_and_neighbours_change_no_bit(
    tower: VisionTower, pictures: list[Any], alone: list[np.ndarray]
) -> None:
    same([tower.encode(*picture) for picture in pictures], alone)
    done: list[tuple[int, int]] = []
    same(tower.encode_all(pictures, lambda *at: done.append(at)), alone)
    total = len(pictures) * tower.config.depth
    assert done == [(number, total) for number in range(1, total + 1)]
    assert tower.encode_all([]) == []


@pytest.mark.parametrize("seed", range(4))
def test_nor_does_who_comes_first(
    tower: VisionTower,
    pictures: list[Any],
    alone: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Whether a group is over is found at once, much later or in between; attention is in small pieces."""
    rng = np.random.default_rng(seed)
    over = Dispatch.over.__get__
    patience = (1.0, 0.0, 0.5, 0.1)[seed]

    def found(self: Dispatch) -> bool:
        end = time.monotonic() + 10
        if rng.random() >= patience:
            return False
        while not over(self) and time.monotonic() < end:
            time.sleep(1e-4)
        return True

    monkeypatch.setattr(Dispatch, "over", property(found))
    monkeypatch.setattr(vision.tower, "PIECE", 1)
    same(tower.encode_all(pictures), alone)


@pytest.mark.parametrize("command", [2, 7, 30])
def test_an_interrupt_with_lanes_in_flight(
    tower: VisionTower,
    pictures: list[Any],
    alone: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    command: int,
) -> None:
    started, start = 0, Dispatch.start

    def stopped(self: Dispatch) -> None:
        nonlocal started
        start(self)
        started += 1
        if started == command:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Dispatch, "start", stopped)
        with pytest.raises(KeyboardInterrupt):
            tower.encode_all(pictures)
    same(tower.encode_all(pictures), alone)


@pytest.mark.parametrize("command", [3, 12])
def test_a_hang_with_lanes_in_flight(
    tower: VisionTower, npu: Projections, pictures: list[Any], alone: list[np.ndarray], command: int
) -> None:
    node: Any = npu.device.node
    npu.chains = False
    node.driver.faults.next("hang", command)
    with pytest.raises(CommandFailed) as caught:
        tower.encode_all(pictures[:2])
    assert isinstance(caught.value, CommandTimeout)
    same(tower.encode_all(pictures), alone)


def test_lanes_that_wait_for_each_other_are_told() -> None:
    lane = Lane()
    lane.begin(iter([lambda: False]))  # type: ignore[arg-type]
    advance([lane])
    with pytest.raises(RuntimeError, match="no lane"):
        advance([lane])


def test_laps_are_taken_in_the_order_of_the_work(
    tower: VisionTower, pictures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a picture of one lane, from the call's beginning on without a gap."""

    def product(key: str) -> list[str]:
        return ["vision.submit", f"vision.npu.{key}"]

    block = ["vision.host", *product("qkv"), *["vision.attention"] * 2, *product("proj"), "vision.host"]
    block += [*product("fc1"), "vision.host", *product("fc2")]
    merger = ["vision.host", "vision.host", *product("m1"), "vision.host", *product("m2"), "vision.host"]
    laps: list[tuple[str, float, float]] = []
    monkeypatch.setattr(tower.timing, "observer", lambda *lap: laps.append(lap))
    began = time.perf_counter()
    tower.encode(*pictures[3])
    wanted = ["vision.host", *product("patch"), *block * tower.config.depth, *merger]
    assert [name for name, *_ in laps] == wanted
    assert began <= laps[0][1] and all(before[2] == after[1] for before, after in pairwise(laps))


def test_a_picture_again_takes_no_new_buffers(tower: VisionTower, pictures: list[Any]) -> None:
    """Whichever lane ended first: an even number of chunks gives lanes of one size."""
    tower.release()
    held = []
    with Device.open(EMULATED) as device:  # the process's buffers, whoever asks
        for _ in range(4):
            tower.encode(*pictures[2])
            usage = device.bo_usage()
            held.append(usage.total - usage.internal)  # without the command buffers that contexts keep
    assert max(held) == held[0] > 100_000


def test_the_npu_sees_what_the_host_wrote(
    tower: VisionTower,
    npu: Projections,
    pictures: list[Any],
    alone: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every operand as memory has it by the flushes so far: the NPU does not snoop."""
    tower.release()
    seen: list[tuple[int, bytes]] = []
    looked = 0

    def flush(address: int, size: int) -> None:
        lib.xdna_flush(address, size)
        line = address // 64 * 64
        seen.append((line, bytes(ffi.buffer(ffi.cast("char *", line), address + size - line))))

    def look(calls: Any, chained: bool) -> None:
        nonlocal looked
        for _, (a, _, c) in calls:
            memory, first = bytearray(a.nbytes), a.host_address
            for address, content in seen:
                start, end = max(address, first), min(address + len(content), first + a.nbytes)
                if start < end:
                    memory[start - first : end - first] = content[start - address : end - address]
            assert memory == bytes(a.view(writable=False))
            looked += 1
            seen.append((c.host_address, bytes(c.view(writable=False))))

    monkeypatch.setattr(buffer_module, "lib", SimpleNamespace(xdna_flush=flush))
    monkeypatch.setattr(npu, "watcher", look)
    same(tower.encode_all(pictures[:3]), alone[:3])
    assert looked > 50


def test_what_an_interrupted_picture_wrote_leaves_the_caches_before_the_next(
    tower: VisionTower,
    npu: Projections,
    pictures: list[Any],
    alone: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line left dirty would be written over what the NPU puts there."""
    tower.release()
    same([tower.encode(*pictures[2])], [alone[2]])

    def interrupted(*given: Any) -> None:
        activate(*given)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        activate = tower_module.activate
        patch.setattr(tower_module, "activate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tower.encode(*pictures[2])
    clean: set[int] = set()
    looked = 0

    def flush(address: int, size: int) -> None:
        lib.xdna_flush(address, size)
        clean.update(range(address // 64, -(-(address + size) // 64)))

    def look(calls: Any, chained: bool) -> None:
        nonlocal looked
        for _, (_, _, c) in calls:
            assert clean.issuperset(range(c.host_address // 64, -(-(c.host_address + c.nbytes) // 64)))
            looked += 1

    monkeypatch.setattr(buffer_module, "lib", SimpleNamespace(xdna_flush=flush))
    monkeypatch.setattr(npu, "watcher", look)
    same([tower.encode(*pictures[2])], [alone[2]])
    assert looked > 10


def test_a_picture_of_the_same_shape_makes_no_new_groups(
    tower: VisionTower, pictures: list[Any], alone: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower.release()
    made = 0
    dispatch = Projections.dispatch

    def counted(self: Projections, *args: Any, **options: Any) -> Dispatch:
        nonlocal made
        made += 1
        return dispatch(self, *args, **options)

    monkeypatch.setattr(Projections, "dispatch", counted)
    same([tower.encode(*pictures[2])], [alone[2]])
    first = made
    same([tower.encode(*pictures[2])], [alone[2]])
    assert made == first > 10
    same([tower.encode(*pictures[1]), tower.encode(*pictures[2])], [alone[1], alone[2]])
    assert made > first
