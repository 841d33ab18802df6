"""Results that a command did not write: found by their marks, done again or told."""

from __future__ import annotations

import numpy as np
import pytest

from amdxdna._native import ffi
from amdxdna.errors import CommandFailed
from qwen35.model.text import TextModel
from tests.support.model_bundle import run
from tests.support.trial import IDS, answers, load, shut

pytestmark = pytest.mark.usefixtures("any_machine")


@pytest.mark.parametrize(
    "ways",
    [
        ("chain_skip=6-", "auto"),
        ("chain_skip=9", "auto"),
        ("chain_skip=1-", "on"),
        ("chain_skip=7-", "on"),
        ("driver=6.18.5,chain_skip=2-", "on"),
        ("driver=oot-2025-06,chain_skip=3-", "on"),
        ("driver=oot-legacy,chain_skip=8-", "auto"),
        ("driver=6.14,chain_skip=4", "on"),
    ],
    ids=" ".join,
)
def test_a_chain_that_lies_after_the_trial_is_done_again_singly(
    ways: tuple[str, str], wanted: np.ndarray
) -> None:
    notes: list[str] = []
    text = load(ways[0], notes, chains=ways[1])
    untrusted = [line for line in notes if "cannot be trusted" in line]
    assert len(untrusted) == (not text.device.profile.chains_trusted)
    assert text.npu.chains and notes == untrusted
    assert np.array_equal(run(text, IDS, 16), wanted)
    assert not text.npu.chains and "has not written its result" in text.ways[0]
    assert len(notes) == 1 + len(untrusted) and notes[-1].startswith("command chains are off, single command")
    assert text.npu.redone == 0
    shut(text)


def test_single_commands_that_lie_are_done_again_and_told_once(wanted: np.ndarray) -> None:
    notes: list[str] = []
    text = load("", notes, chains="off")
    faults = text.device.node.driver.npu.faults
    faults.next("skip")
    assert np.array_equal(run(text, IDS[:20], 16), wanted[:5])
    for token in IDS[20:]:
        faults.next("skip")
        text.decode(int(token))
    assert text.npu.redone > 2
    assert len(notes) == 1 and notes[0].startswith("done again, as every further time: EXEC_CMD: the driver")
    shut(text)


def test_a_command_that_never_runs_is_an_error_and_the_state_stays(wanted: np.ndarray) -> None:
    text = load("", chains="off")
    first = run(text, IDS[:20], 16)
    before = text.length
    faults = text.device.node.driver.npu.faults
    faults.next("skip", count=4)
    with pytest.raises(CommandFailed, match="completed that has not written its result"):
        text.decode(int(IDS[20]))
    faults.clear()
    assert text.length == before
    rows = [*first, *(text.decode(int(token)) for token in IDS[20:])]
    assert np.array_equal(rows, wanted)
    shut(text)


def _leaving_first_elements(text: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on GEMMs of gu leave the first element of their results as it is."""
    npu = text.device.node.driver.npu
    run = npu.run
    programs = {text.bundle.insts(stream.insts) for stream in text.npu.gemm_spec("gu").streams}

    def leave(context, slot, program, prepared):
        if program not in programs:
            return run(context, slot, program, prepared)
        element = ffi.cast("uint16_t *", npu.resolve(context, slot.buffers()[2], 2))
        before = element[0]
        status = run(context, slot, program, prepared)
        element[0] = before
        return status

    monkeypatch.setattr(npu, "run", leave)


def test_a_kernel_that_leaves_the_marked_element_is_told_once_and_not_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    text = load("", notes, chains="off")
    _leaving_first_elements(text, monkeypatch)
    first = run(text, IDS, 16)
    assert len(notes) == 1 and "does not write the first element of its result" in notes[0]
    assert np.isfinite(first).all()
    loads = text.device.pool.loads
    assert np.array_equal(run(text, IDS, 16), first)
    assert (text.npu.redone, text.device.pool.loads, len(notes)) == (0, loads, 1)
    # Where the host reads the results an unwritten mark is a fault still.
    text.device.node.driver.npu.faults.next("skip", count=4)
    with pytest.raises(CommandFailed, match="completed that has not written its result"):
        text.decode(1)
    text.device.node.driver.npu.faults.clear()
    shut(text)


def test_a_kernel_that_has_written_the_marked_element_stays_watched(
    monkeypatch: pytest.MonkeyPatch, wanted: np.ndarray
) -> None:
    notes: list[str] = []
    text = load("", notes, chains="off")
    assert np.array_equal(run(text, IDS, 16), wanted)
    with monkeypatch.context() as patch:
        _leaving_first_elements(text, patch)
        with pytest.raises(CommandFailed, match="completed that has not written its result"):
            run(text, IDS, 16)
    assert np.array_equal(answers(text), wanted)
    assert notes == []


@pytest.mark.parametrize("count", [2, 3])
def test_a_first_command_of_unread_results_that_does_not_run_is_no_kernel_that_leaves_them(
    count: int, wanted: np.ndarray
) -> None:
    """`count` times in a row the driver's word on the first GEMM of gu is wrong."""
    notes: list[str] = []
    text = load("", notes, chains="off")
    npu = text.device.node.driver.npu
    programs = {text.bundle.insts(stream.insts) for stream in text.npu.gemm_spec("gu").streams}
    execute, left = npu.execute, [count]

    def skip(context, slot, program, family):
        if left[0] and program in programs:
            left[0] -= 1
            return 0
        return execute(context, slot, program, family)

    npu.execute = skip
    npu.faults.active = True  # no waiter executes a command
    with pytest.raises(CommandFailed, match="completed that has not written its result"):
        run(text, IDS, 16)
    assert left == [0] and notes == []
    assert np.array_equal(answers(text), wanted)


@pytest.mark.parametrize("chains", ["on", "off"])
def test_a_result_that_is_equal_to_a_mark_is_right(
    monkeypatch: pytest.MonkeyPatch, wanted: np.ndarray, chains: str
) -> None:
    """Marks of 0 and of a value that results do hold, and an activation of zeros whose results are zeros."""
    notes: list[str] = []
    text = load("", notes, chains=chains)
    monkeypatch.setattr("amdxdna.marks.VALUES", (0, 0x7FD3))
    x, y = text.npu.alloc(text.npu.gemv_spec("down").k * 2), text.npu.alloc(text.npu.gemv_spec("down").m * 4)
    half = y.nbytes // 2
    weights = text.weights["l0.g.down0"]
    text.npu.dispatch("down", 0, [(x, weights, y.sub(0, half)), (x, weights, y.sub(half))]).run()
    assert not y.view(np.uint16).any()
    monkeypatch.setattr("amdxdna.marks.VALUES", (0x7FD3, 0))
    text.npu.dispatch("down", 0, [(x, weights, y.sub(0, half)), (x, weights, y.sub(half))]).run()
    assert not notes and text.npu.redone == 0 and text.npu.chains is (chains == "on")
    assert np.array_equal(answers(text), wanted)
