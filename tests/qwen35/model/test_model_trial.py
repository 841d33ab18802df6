"""Chains and user-pointer weights: used where a trial at load proves them, given up where they fail later."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.driver import teardown
from amdxdna.emu.npu import Slot
from amdxdna.errors import CommandFailed, CommandTimeout, DeviceBusy
from amdxdna.opening import open_node
from qwen35.bundle import Bundle
from qwen35.errors import ModelError, UsageError
from qwen35.model.options import Options
from qwen35.model.probe import probe_chains, probe_mapped
from qwen35.model.text import TextModel
from tests.support.binding import ProxyNode
from tests.support.model_bundle import bundle_path, run
from tests.support.npu_watch import submits
from tests.support.trial import IDS, QUIET, answers, load, results, shut

pytestmark = pytest.mark.usefixtures("any_machine")


@pytest.mark.parametrize(
    "fault",
    [
        "fail=1",
        "hang=1",
        "refuse_config=1",
        "driver=6.18.5,fail=1",
        "driver=oot-2025-06,fail=1",
        "driver=6.14,hang=1",
    ],
)
def test_a_first_command_that_fails_runs_again_without_chains(fault: str, wanted: np.ndarray) -> None:
    notes: list[str] = []
    text = load(fault, notes, chains="auto" if "driver" in fault else "off")
    assert not text.npu.chains
    assert [line.partition(":")[0] for line in notes] == ["the model's first commands run again"]
    assert np.array_equal(answers(text), wanted)


@pytest.mark.parametrize("driver", ["6.14", "6.18"])
def test_children_that_end_at_any_call_cost_nothing(driver: str, wanted: np.ndarray) -> None:
    """Before every few calls that concern a context, of load and answer, all contexts are dropped."""
    calls = {
        lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX: 0.3,
        lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX: 0.3,
        lib.DRM_IOCTL_AMDXDNA_EXEC_CMD: 0.1,
        lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT: 0.1,
    }
    rng, dropped = random.Random(14), set()

    def drop(request: int, address: int) -> None:
        if rng.random() < calls.get(request, 0):
            dropped.add(request)
            teardown.flush(node.inner.client)

    node = ProxyNode(open_node(f"{QUIET},driver={driver}"), drop)
    text = TextModel(Bundle.open(bundle_path("tied")), Device.open(node), 128, options=Options())
    assert np.array_equal(answers(text), wanted)
    assert dropped == set(calls)


@pytest.mark.parametrize("driver", ["6.14", "6.18"])
def test_commands_that_a_lost_context_ends_are_run_again(driver: str, wanted: np.ndarray) -> None:
    """The driver waits two seconds for commands in flight, then ends them: NEW, no word of a time-out."""
    hung = [*range(40, 200, 9)]
    submits = 0

    def drop(request: int, address: int) -> int | None:
        nonlocal submits
        if request != lib.DRM_IOCTL_AMDXDNA_EXEC_CMD:
            return None
        node.inner.ioctl(request, address)
        submits += 1
        if submits in hung:
            teardown.flush(node.inner.client)
        return 0

    options = f"{QUIET},driver={driver}," + ",".join(f"hang={number}" for number in hung)
    node = ProxyNode(open_node(options), drop)
    node.inner.driver.idle_wait = 0.0
    text = TextModel(Bundle.open(bundle_path("tied")), Device.open(node), 128, options=Options(chains="off"))
    assert submits < hung[0]
    assert np.array_equal(answers(text), wanted)
    assert submits > hung[-1]


@pytest.mark.parametrize(("tdr", "helps"), [("0", True), ("0.3", False)])
def test_a_hang_names_the_option_that_waits_longer_where_that_could_help(tdr: str, helps: bool) -> None:
    text = load(f"tdr={tdr}", chains="off")
    text.reset()
    text.prefill(IDS[:16])
    if helps:
        text.device.wait_seconds = 0.2
    text.device.node.driver.npu.faults.next("hang")
    with pytest.raises(CommandTimeout) as caught:
        text.decode(1)
    assert (caught.value.in_flight, "--wait SECONDS" in str(caught.value)) == (helps, helps)
    assert "AMDXDNA_WAIT" not in str(caught.value)
    shut(text)


@pytest.mark.parametrize("driver", ["7.3", "6.18.5"])
@pytest.mark.parametrize("chains", ["auto", "off"])
def test_the_first_answer_makes_no_context_and_no_kernel(
    driver: str, chains: str, wanted: np.ndarray
) -> None:
    """The load has made them: the first user does not wait for it."""
    made: list[int] = []

    def look(request: int, address: int) -> None:
        if request in (lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX) or (
            request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO
            and ffi.cast("struct amdxdna_drm_create_bo *", address).type == lib.AMDXDNA_BO_DEV
        ):
            made.append(request)

    node = ProxyNode(open_node(f"{QUIET},driver={driver}"), look)
    options = Options(chains=chains)
    text = TextModel(Bundle.open(bundle_path("tied")), Device.open(node), 128, options=options)
    assert made
    made.clear()
    assert np.array_equal(run(text, IDS, 16), wanted)
    assert made == []
    shut(text)


def test_waits_without_a_limit_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMDXDNA_WAIT", "0")
    text = load(chains="off")
    assert text.ways[2] == "waits are without a limit"
    shut(text)


def test_chains_are_used_where_the_trial_finds_nothing(wanted: np.ndarray) -> None:
    notes: list[str] = []
    text = load(notes=notes)
    assert text.npu.chains and not notes
    assert text.ways[0].startswith("chains on: 3 groups gave the results of single commands")
    assert np.array_equal(answers(text), wanted)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("chain_corrupt=1", "a chain's result differs from single commands' (gemv down, member 3 of 3)"),
        (
            "chain_corrupt=1:99999999",
            "a chain's result differs from single commands' (gemv down, member 3 of 3)",
        ),
        ("chain_corrupt=4:3", "a chain's result differs from single commands' (gemv head, member 2 of 2)"),
        ("chain_skip=5", "a chain's result differs from single commands' (gemm down, member 2 of 3)"),
        ("chain_fail=2", "gemv down as a chain: EXEC_CMD: the firmware refused the command"),
        ("chain_hang=1", "gemv down as a chain: EXEC_CMD: the command made no progress"),
        ("chain_hang=5", "gemm down as a chain: EXEC_CMD: the command made no progress"),
    ],
)
def test_what_the_trial_finds_is_off_and_told_in_one_line(fault: str, words: str, wanted: np.ndarray) -> None:
    notes: list[str] = []
    text = load(fault, notes)
    assert not text.npu.chains and words in text.ways[0]
    assert len(notes) == 1 and notes[0].startswith("command chains are off: ") and words in notes[0]
    assert np.array_equal(answers(text), wanted)


def test_a_chain_that_takes_too_long_is_off(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr("qwen35.model.probe.GRACE", -10.0)
    text = load()
    assert not text.npu.chains and "a chain took" in text.npu.chains_why
    shut(text)


def test_single_commands_that_give_two_results_end_the_load() -> None:
    """Where the first is wrong the chain beside it is blamed; where a later one is, nothing holds."""
    text = load("corrupt=1")
    assert not text.npu.chains and "a chain's result differs from single commands' (gemv down" in text.ways[0]
    shut(text)
    with pytest.raises(ModelError, match="single commands of gemv down gave two results for the same input"):
        load("corrupt=7")


def test_single_commands_that_fail_end_the_load() -> None:
    with pytest.raises(CommandFailed):
        load("fail=1-")


def test_no_trial_where_a_chains_end_cannot_be_trusted(wanted: np.ndarray) -> None:
    notes: list[str] = []
    text = load("driver=6.18.5", notes)
    assert not text.device.profile.chains_trusted
    assert not text.npu.chains and "cannot be trusted" in text.ways[0] and not notes
    assert np.array_equal(answers(text), wanted)


@pytest.mark.parametrize("fault", ["chain_fail=1", "chain_hang=1", "chain_fail=5", "chain_hang=6"])
def test_a_chain_that_fails_later_runs_again_singly(fault: str, wanted: np.ndarray) -> None:
    notes: list[str] = []
    text = load(fault, notes, chains="on")
    loads = text.device.pool.loads
    assert text.npu.chains and not notes
    got = run(text, IDS, 16)
    assert np.array_equal(got, wanted)
    assert not text.npu.chains and text.ways[0].startswith("chains off: failed: ")
    assert [line.partition(":")[0] for line in notes] == ["command chains are off, single commands go on"]
    assert text.device.pool.loads > loads  # the context is a fresh one
    shut(text)


def test_a_hang_that_no_driver_ends_is_waited_for_no_longer_than_asked(
    monkeypatch: pytest.MonkeyPatch, wanted: np.ndarray
) -> None:
    monkeypatch.setattr("amdxdna.hwctx.DRAIN_SECONDS", 0.1)
    notes: list[str] = []
    text = load("tdr=0,chain_hang=1", notes, chains="on")
    text.device.wait_seconds = 0.3
    assert np.array_equal(run(text, IDS, 16), wanted)
    assert len(notes) == 1 and "no progress for" in notes[0]
    shut(text)


def test_buffers_of_a_command_that_never_ended_are_not_used_again(
    monkeypatch: pytest.MonkeyPatch, wanted: np.ndarray
) -> None:
    """A driver that cannot even destroy the context: new buffers, the user is told, the model goes on."""
    from amdxdna.shared import SharedContext

    notes: list[str] = []
    text = load("hang=40", notes, chains="off")

    def stuck(shared: SharedContext) -> bool:
        return settle(shared) and False

    settle = SharedContext.settle
    before: set[int] = set()
    after: set[int] = set()
    with monkeypatch.context() as patch, submits(text.device, results(before)):
        patch.setattr(SharedContext, "settle", stuck)
        with pytest.raises(CommandTimeout):
            for _ in range(40):
                text.reset()
                run(text, IDS, 16)
    assert len(notes) == 1 and notes[0].startswith("a command never ended")
    text.reset()
    with submits(text.device, results(after)):
        assert np.array_equal(run(text, IDS, 16), wanted)
    assert before and after and not before & after
    shut(text)


def test_a_towers_buffers_are_left_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from amdxdna.shared import SharedContext
    from qwen35.model.projections import Projections
    from qwen35.vision.tower import VisionTower

    bundle = Bundle.open(bundle_path("vision"))
    config = bundle.config.vision
    assert config is not None
    patches = np.random.default_rng(0).standard_normal((16, config.patch_dim), np.float32)
    with Device.open(QUIET) as device:
        tower = VisionTower(bundle, Projections(bundle, device), config)
        want = tower.encode(patches, (4, 4))
        before: set[int] = set()
        after: set[int] = set()
        with monkeypatch.context() as patch, submits(device, results(before)), pytest.raises(CommandFailed):
            patch.setattr(SharedContext, "settle", lambda shared: False)
            device.node.driver.npu.faults.next("fail")
            tower.encode(patches, (4, 4))
        with submits(device, results(after)):
            assert np.array_equal(tower.encode(patches, (4, 4)), want)
        assert before and after and not before & after
        tower.close()


def test_a_context_that_cannot_be_destroyed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = load("tdr=0", chains="off")
    text.device.node.driver.npu.faults.next("hang", count=None)
    kernel = text.npu.kernel("o", 0)
    monkeypatch.setattr("amdxdna.hwctx.DRAIN_SECONDS", 0.1)
    context = kernel.shared.ready()

    def busy() -> None:
        raise DeviceBusy("busy", call="DESTROY_HWCTX")

    spec = text.npu.gemv_spec("o")
    x, y = text.npu.alloc(2 * spec.k), text.npu.alloc(2 * spec.m)
    kernel.start(x, text.weights["l0.g.o"], y)
    with monkeypatch.context() as patch:
        patch.setattr(context, "close", busy)
        assert text.npu.drain() is False
    context.close()
    assert text.npu.drain() is True
    shut(text)


# -- weights


def test_weights_are_copied_where_the_driver_is_not_known_to_keep_them() -> None:
    text = load()
    assert text.weights.way == "copy" and "is not known to keep" in text.ways[1]
    shut(text)


@pytest.mark.parametrize(
    ("lie", "way", "words"),
    [
        ("", "map", "results are those over copies"),
        ("other", "copy", "results over user memory differ from those over a copy (l"),
        ("end", "copy", "results over user memory differ from those over a copy (head"),
    ],
)
def test_user_memory_is_used_where_the_trial_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, wanted: np.ndarray, lie: str, way: str, words: str
) -> None:
    """A driver that takes read-only memory: here a wrap is a BO filled with what the file holds, or not."""
    from dataclasses import replace

    device = Device.open(QUIET)
    bundle = Bundle.open(bundle_path("tied"))
    profile = replace(device.profile, user_pointers="ro")
    monkeypatch.setattr(type(device), "profile", property(lambda self: profile))

    def wrap(address: int, nbytes: int):
        buffer = device.alloc(nbytes)
        data = np.zeros(nbytes, np.uint8)
        with open(bundle.tensors.path, "rb") as file:
            read = file.readinto(data.data)
        assert read == bundle.tensors.nbytes
        if lie == "other":
            data[:] = np.roll(data, 4096)
        if lie == "end":  # the last page of the last stream is another
            last = max(
                (bundle.tensors.info(f"head{j}") for j in range(bundle.config.n_head)),
                key=lambda info: info.offset,
            )
            data[last.offset + last.nbytes - 100 : last.offset + last.nbytes] ^= 0x55
        buffer.write(data)
        return buffer

    monkeypatch.setattr(device, "wrap", wrap)
    notes: list[str] = []
    text = TextModel(bundle, device, 128, options=Options(), note=notes.append)
    assert text.weights.way == way and words in text.ways[1]
    assert len(notes) == (way == "copy")
    assert np.array_equal(answers(text), wanted)


def test_a_trial_that_finds_nothing_runs_no_more_often_than_it_needs() -> None:
    """Over user memory each tensor twice, and as often over a copy; of chains each group its rounds."""
    text, commands = load(chains="off"), list[Slot]()
    names = {"l0.g.in": "lin", "l0.g.o": "o", "l1.g.gu": "gu", "head0": "head"}
    mapped, held = {name: text.weights[name] for name in names}, text.device.bo_usage()
    with submits(text.device, lambda context, slot: commands.append(slot)):
        assert probe_mapped(text.npu, names, mapped) == ""
        order = [sorted(mapped, key=key) for key in (lambda n: mapped[n].nbytes, lambda n: mapped[n].address)]
        assert len(commands) == 4 * len({each[end] for each in order for end in (0, -1)})
        used = text.device.bo_usage()
        assert used.total - used.internal == held.total - held.internal
    groups = text.probe_groups()
    inputs = [buffer for group in groups for buffer in group.inputs]
    noise: list[bool] = []
    with submits(text.device, lambda context, slot: noise.append(any(any(x.read()) for x in inputs))):
        assert probe_chains(text.npu, groups) == ""
    assert noise == [True] * 2 * sum(group.rounds * group.dispatch.runs for group in groups)
    for buffer in (*inputs, *(each for group in groups for each in group.results)):
        assert not any(buffer.read()), "zeros, as they were"
    shut(text)


# -- options


def test_options_and_their_environment() -> None:
    environ = {"QWEN35_CHAINS": "off", "QWEN35_WEIGHTS": "copy", "QWEN35_WAIT": "20"}
    assert Options.of(environ={}) == Options("auto", "auto", None)
    assert Options.of(environ=environ) == Options("off", "copy", 20.0)
    assert Options.of("on", None, 30, environ=environ) == Options("on", "copy", 30)


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({"QWEN35_CHAINS": "perhaps"}, "QWEN35_CHAINS"),
        ({"QWEN35_WEIGHTS": "user-pointer"}, "QWEN35_WEIGHTS"),
        ({"QWEN35_WAIT": "9"}, "QWEN35_WAIT"),
        ({"QWEN35_WAIT": "inf"}, "QWEN35_WAIT"),
        ({"QWEN35_WAIT": "soon"}, "QWEN35_WAIT"),
    ],
)
def test_options_that_are_none(environ: dict[str, str], where: str) -> None:
    with pytest.raises(UsageError, match=where):
        Options.of(environ=environ)


def test_the_command_line_shows_what_is_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from qwen35.cli import main

    words = ["--prompt", "hi", "--max-new", "1", "--timing", "--device", QUIET, "--chains", "off"]
    assert main([str(bundle_path("tied")), *words, "--wait", "11"]) == 0
    err = capsys.readouterr().err
    assert "timing: chains off: as asked" in err and "timing: weights copy: " in err
    assert "waits end after 11 s" in err


@pytest.mark.parametrize("fault", ["refuse_config=1", "fail=1", "fail=2", "hang=1"])
def test_a_load_survives_one_failure(fault: str) -> None:
    """A context that is refused its compute units, a command that fails or hangs: each once."""
    bundle, told = Bundle.open(bundle_path("tied")), []
    with Device.open("emu:quiet,threads=1") as device, TextModel(bundle, device, 64) as model:
        wanted = model.prefill([3, 50, 7])
    with (
        Device.open(f"emu:quiet,threads=1,tdr=0.3,{fault}") as device,
        TextModel(bundle, device, 64, note=told.append) as model,
    ):
        assert np.array_equal(model.prefill([3, 50, 7]), wanted)
    assert sum("run again" in line for line in told) == 1


def test_a_load_that_fails_again_says_so() -> None:
    bundle = Bundle.open(bundle_path("tied"))
    with (
        Device.open("emu:quiet,threads=1,refuse_config=*") as device,
        pytest.raises(CommandFailed, match="refused the compute units"),
    ):
        TextModel(bundle, device, 64)
