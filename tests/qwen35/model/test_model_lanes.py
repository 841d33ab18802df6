"""Prompts in parts on two lanes: the answer is one lane's to the bit, and what fails on one leaves both."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amdxdna import buffer, marks
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.driver import teardown
from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import Slot
from amdxdna.errors import CommandFailed
from amdxdna.opening import open_node
from qwen35.bundle import Bundle
from qwen35.errors import UsageError
from qwen35.model.options import Options
from qwen35.model.text import TextModel
from tests.support import npu_watch, synthetic, synthetic_bundle
from tests.support.binding import ProxyNode
from tests.support.model_bundle import bundle_path, tokens

IDS = tokens("grouped", 512)


@contextmanager
def loaded(
    lanes: int = 2,
    emulated: str = "",
    name: str = "grouped",
    habit: str = "plain",
    chains: str = "on",
    **changes: int,
) -> Iterator[TextModel]:
    """A model on an emulated device whose options are `emulated`."""
    path = bundle_path(name, habit, tuple(sorted({"max_prompt": 256, **changes}.items())))
    options = Options(lanes=lanes, chains=chains)
    with (
        Device.open(f"emu:threads=1,quiet{emulated}") as device,
        TextModel(Bundle.open(path), device, 512, options=options) as text,
    ):
        yield text


def state(text: TextModel) -> list[np.ndarray]:
    """Copies of everything that the next tokens depend on."""
    now = text.snapshot()
    layers = zip(*(block.rows for block in now.blocks), strict=True)
    caches = [np.concatenate(rows) for layer in layers for rows in zip(*layer, strict=True)]
    return [now.conv, now.matrices, *caches]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def answers(text: TextModel, count: int, past: int, borders: list[int]) -> list[np.ndarray]:
    """Logits and states of a prompt of `count` tokens after `past`, at the marks and at its end."""
    text.reset()
    if past:
        text.prefill(IDS[:past])
    logits = text.prefill(IDS[past : past + count], borders=borders, marks=borders[::2])
    marked = [text.border_snapshot(mark) for mark in borders[::2]]
    return [logits, *state(text), *(part for mark in marked for part in (mark.conv, mark.matrices))]


@pytest.mark.parametrize(
    ("habit", "changes"),
    [("plain", {}), ("plain", {"max_prompt": 64}), ("strides", {"max_prompt": 96}), ("tight", {"chunk": 32})],
)
def test_two_lanes_are_as_good_as_one(habit: str, changes: dict[str, int]) -> None:
    """Chunks of 16 rows: parts end within, at, and behind the recurrence's chunks of 64, borders anywhere."""
    rng = random.Random(3)
    lengths = [1, 15, 16, 17, 33, 64, 65, 97, 130, 257, 300]
    cases = [(n, rng.choice((0, 0, 37)), sorted(rng.sample(range(1, n), min(n - 1, 3)))) for n in lengths]
    cases += [(n, 0, []) for n in (16, 48, 200, 256, 510)]
    with loaded(1, habit=habit, **changes) as text:
        want = [answers(text, *case) for case in cases]
    with loaded(2, habit=habit, **changes) as text:
        for case, expected in zip(cases, want, strict=True):
            assert same(answers(text, *case), expected), case


def test_no_other_number_of_lanes() -> None:
    with pytest.raises(UsageError, match="3 lanes"):
        Options(lanes=3)


@pytest.fixture(scope="module")
def wanted() -> list[np.ndarray]:
    with loaded(1) as text:
        text.prefill(IDS[:40])
        return [text.prefill(IDS[40:240]), *state(text)]


def submits(request: int) -> bool:
    return request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD


@pytest.mark.parametrize("driver", ["6.14", "6.18"])
def test_a_context_that_is_lost_with_two_lanes_in_flight(driver: str, wanted: list[np.ndarray]) -> None:
    """Before every submit of a prompt in turn, and before some waits, the driver drops all contexts."""
    rng, on, dropped = random.Random(driver), False, 0

    def drop(request: int, address: int) -> None:
        nonlocal dropped
        waits = request == lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT
        if on and (submits(request) or waits) and rng.random() < 0.12:
            dropped += 1
            teardown.flush(node.inner.client)

    node = ProxyNode(open_node(f"emu:threads=1,quiet,driver={driver}"), drop)
    path = bundle_path("grouped", "plain", (("max_prompt", 256),))
    with Device.open(node) as device, TextModel(Bundle.open(path), device, 512) as text:
        text.prefill(IDS[:40])
        on = True
        got = text.prefill(IDS[40:240])
        on = False
        assert dropped > 3
        assert same([got, *state(text)], wanted)


@pytest.mark.parametrize("chains", ["on", "off"])
def test_a_command_that_was_not_run_is_made_up_for(chains: str, wanted: list[np.ndarray]) -> None:
    """Any one of a prompt's: whatever was in flight behind it and read its result is run again, too."""
    with loaded(2, chains=chains) as text:
        faults = text.device.node.driver.npu.faults
        for number in range(14):
            text.reset()
            text.prefill(IDS[:40])
            faults.next("skip", after=number)
            assert same([text.prefill(IDS[40:240]), *state(text)], wanted), number
            # what reads a result that was late runs again without having to be found out
            ended = chains == "on" and not text.npu.chains
            assert text.npu.redone == number + (not ended)
            if ended:
                break


def test_a_chain_that_fails_and_has_another_behind_it(wanted: list[np.ndarray]) -> None:
    """The first `gu` of either lane, which is several runs here; the `down` behind it gets its old result."""
    for number in (3, 6):
        with loaded(2, habit="tight") as text:
            text.prefill(IDS[:40])
            text.npu.blind = True
            text.device.node.driver.npu.faults.next("chain_fail", after=number)
            assert same([text.prefill(IDS[40:240]), *state(text)], wanted)
            assert not text.npu.chains


@pytest.mark.parametrize("fault", ["hang", "fail"])
@pytest.mark.parametrize("chains", ["on", "off"])
def test_a_command_that_fails_leaves_the_state_before_it(
    fault: str, chains: str, wanted: list[np.ndarray]
) -> None:
    with loaded(2, ",tdr=0.3", chains=chains) as text:
        text.prefill(IDS[:40])
        before = state(text)
        for number in (1, 4, 6, 13):
            text.device.node.driver.npu.faults.next(fault, after=number)
            try:
                text.prefill(IDS[40:240])
            except CommandFailed:
                assert same(state(text), before)
                assert all(context.drain() for context in text.device.pool.contexts())
            else:
                assert not text.npu.chains and chains == "on"
                text.reset()
                text.prefill(IDS[:40])
        assert same([text.prefill(IDS[40:240]), *state(text)], wanted)


def test_a_model_of_one_layer(tmp_path: Path) -> None:
    """Its parts are mixed in their order, beyond a pass too."""
    shape = replace(synthetic.SHAPES["tied"], layers=1)
    habits = replace(synthetic_bundle.HABITS["plain"], max_prompt=96)
    path = synthetic_bundle.write_bundle(tmp_path / "one", shape, synthetic.weights(shape), habits)
    found = []
    for lanes in (1, 2):
        with (
            Device.open("emu:threads=1,quiet") as device,
            TextModel(Bundle.open(path), device, 512, options=Options(lanes=lanes)) as text,
        ):
            found.append([text.prefill(IDS[:400]), *state(text)])
    assert same(*found)


class Flushed:
    """In place of the binding's C functions: what memory held when its lines were last flushed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: dict[int, bytes] = {}
        self.results: list[tuple[int, int]] = []
        """(address, bytes) of results that were made readable."""
        for module in (buffer, marks):
            monkeypatch.setattr(module, "lib", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def xdna_flush(self, address: int, length: int) -> None:
        for line in range(address & -64, address + length, 64):
            self.lines[line] = bytes(ffi.buffer(ffi.cast("char *", line), 64))

    def xdna_marked(self, places: Any, count: int, value: int, ranges: Any, pairs: int) -> int:
        self.results += [(ranges[2 * at], ranges[2 * at + 1]) for at in range(pairs)]
        return lib.xdna_marked(places, count, value, ranges, pairs)


@pytest.mark.parametrize("habit", ["plain", "strides"])
def test_a_prompts_rows_reach_the_device_and_only_they_come_back(
    habit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in use are flushed after each write, and the padding behind them, whatever was there before."""
    with loaded(1, habit=habit) as text:
        flushed, strides, inner, looked = Flushed(monkeypatch), set[tuple[int, int]](), set[int](), [0]

        def saw(context: Any, slot: Slot) -> None:
            gemm = npu_watch.op(text.device, context, slot)
            if not isinstance(gemm, stream.Gemm):
                return
            spans, npu = gemm.spans(), text.device.node.driver.npu  # type: ignore[attr-defined]
            a, _, c = (npu.resolve(context, *each) for each in zip(slot.buffers()[:3], spans, strict=True))
            strides.add((c, gemm.c_stride))
            if gemm.flags & stream.SWIGLU:
                inner.update(range(c, c + spans[2]))
            if a in inner:
                return
            stride = 2 * gemm.lda
            rows = np.frombuffer(ffi.buffer(ffi.cast("char *", a), gemm.rows * stride - stride + 2 * gemm.k))
            for line in range(a & -64, a + rows.nbytes, 64):
                assert flushed.lines[line] == bytes(ffi.buffer(ffi.cast("char *", line), 64))
            bits = rows.view(np.uint16)
            assert all((bits[row * gemm.lda :][: gemm.k] == padding).all() for row in range(count, gemm.rows))
            looked[0] += 1

        for count, padding in ((9, 0), (14, 7), (5, 7), (9, 7), (30, 7), (3, 7), (3, 0)):
            text.reset()
            text._prefill.padding = padding
            flushed.results.clear()
            looked[0] = 0
            inner.clear()
            with npu_watch.submits(text.device, saw):
                text.prefill(IDS[:count])
            assert looked[0] >= 3 * len(text.config.layer_types) - 2
            gemms = {at for at, _ in strides}
            found = {(at, nbytes / (2 * count)) for at, nbytes in flushed.results if at in gemms}
            assert found and found <= strides
