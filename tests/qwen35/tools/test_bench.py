"""The benchmark: the shape of its lines, the null node, and what it counts; never how long anything takes."""

from __future__ import annotations

import gc
import io
import json
import mmap
import os
from contextlib import closing

import numpy as np
import pytest

from amdxdna.device import Device
from amdxdna.emu.timing import MODELS
from amdxdna.opening import open_node
from amdxdna.run import State
from qwen35 import meminfo
from qwen35.bench import bench_main, machine
from qwen35.bench.draft import draft_figures
from qwen35.bench.figures import SHAPE, Figure, Printer, median, ratios
from qwen35.bench.load import command_figures, dropped
from qwen35.bench.long import long_figures
from qwen35.bench.null_node import NullNode, bare_seconds
from qwen35.bench.pairs import speed_figures
from qwen35.bench.peers import Peer, missing
from qwen35.bench.text import Subject, chain_figures, cold_figures, host_figures, profile_lines, warm
from qwen35.bench.timed import timed_figures
from qwen35.bundle import Bundle
from qwen35.errors import ModelError, UsageError
from qwen35.find import DEFAULT_BUNDLE
from tests.support import model_bundle
from tests.support.binding import adder
from tests.support.program import python

DEVICE = "emu:threads=1,quiet"


@pytest.fixture(scope="module")
def bundle():
    return Bundle.open(model_bundle.bundle_path("tied"))


@pytest.fixture
def subject(bundle):
    with closing(Subject(bundle, DEVICE, 256)) as made:
        yield made


def test_a_line_holds_shape_value_unit_conditions_and_limit():
    line = Figure("decode", 12.3456789, "tokens/s", {"context": 512}, "at least 9").line()
    assert json.loads(line) == {
        "bench": SHAPE,
        "figure": "decode",
        "value": 12.3457,
        "unit": "tokens/s",
        "context": 512,
        "limit": "at least 9",
    }


def test_whole_numbers_stay_exact_in_a_line():
    assert json.loads(Figure("n", 123456789, "ioctls").line())["value"] == 123456789


def test_a_row_names_figure_value_unit_and_conditions():
    row = Figure("prompt", 1.5, "s", {"tokens": 23}, "at most x 1").row()
    assert row.split() == ["prompt", "1.5", "s", "tokens", "23", "[at", "most", "x", "1]"]


@pytest.mark.parametrize("lines", [True, False])
def test_titles_and_prose_are_for_people_only(lines):
    stream = io.StringIO()
    out = Printer(lines, stream)
    out.title("Heading")
    out.text(["prose"])
    out.add("figure", 2, "s")
    text = stream.getvalue()
    assert ("Heading" in text) is not lines
    assert ("prose" in text) is not lines
    assert [f.value for f in out.figures] == [2]
    if lines:
        assert json.loads(text)["figure"] == "figure"


@pytest.mark.parametrize(("values", "middle"), [([3.0], 3), ([9, 1, 5], 5), ([4, 1, 3, 2], 2.5)])
def test_median(values, middle):
    assert median(values) == middle


def test_ratios_are_of_pairs_and_not_of_medians():
    # The machine was three times as slow in the second pair: that cancels out.
    assert ratios([1, 3, 1], [2, 6, 4]) == 0.5
    with pytest.raises(ValueError):
        ratios([1, 2], [1])


def test_nothing_has_no_median():
    with pytest.raises(ValueError, match="nothing"):
        median([])


def test_memory_follows_an_allocation():
    gc.collect()  # what other tests left goes before, not meanwhile
    before = machine.memory()
    with mmap.mmap(
        -1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    ) as block:  # fresh pages, which no allocator had before
        block[:] = bytes(64 << 20)
        after = machine.memory()
    assert after.anonymous - before.anonymous >= 48 << 20
    assert after.peak >= after.resident >= after.anonymous


def test_free_memory_and_cores_are_plausible():
    assert 0 < (meminfo.available() or 0) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.cores() == len(os.sched_getaffinity(0))


def null_device(mode: bool) -> tuple[NullNode, Device]:
    node = NullNode(open_node(DEVICE))
    device = Device.open(node)
    node.null = mode
    return node, device


def test_a_null_node_passes_everything_on_until_it_is_switched():
    node, device = null_device(False)
    with device:
        source, target = device.alloc(64), device.alloc(64)
        source.view("u4")[:] = range(16)
        adder(device, 64, 5).run(source, target)
        assert target.view("u4").tolist() == list(range(5, 21))
        node.null = True
        source.view("u4")[:] = 100
        assert adder(device, 64, 7).run(source, target).state is State.COMPLETED
        assert target.view("u4").tolist() == list(range(5, 21))  # nothing ran
        node.null = False
        adder(device, 64, 7).run(source, target)
        assert target.view("u4").tolist() == [107] * 16


def test_a_null_node_completes_what_would_hang():
    from tests.support.binding import hanging

    _, device = null_device(True)
    with device:
        assert hanging(device).run(timeout=5).state is State.COMPLETED


def test_a_null_node_completes_chains_and_several_in_flight():
    _, device = null_device(True)
    with device:
        a, b = device.alloc(64), device.alloc(64)
        kernel = adder(device, 64, 1)
        assert device.pool.chain([(kernel, (a, b))] * 3).wait().state is State.COMPLETED
        assert [run.wait().state for run in [kernel.start(a, b) for _ in range(6)]] == [State.COMPLETED] * 6


def test_a_dispatch_is_two_ioctls():
    node, device = null_device(True)
    with device:
        a, b = device.alloc(64), device.alloc(64)
        kernel = adder(device, 64, 1)
        kernel.run(a, b)
        before = node.calls
        kernel.run(a, b)
        assert node.calls - before == 2


def test_the_bare_loop_runs():
    assert 0 < bare_seconds(count=10, repeats=2) < 1


def test_modes_leave_the_device_as_it_was(subject):
    npu = subject.node.node.driver.npu
    for mode in ("null", "instant", "timed", "real"):
        with subject.mode(mode):
            assert (subject.node.null, npu.instant) == (mode == "null", mode in ("instant", "timed"))
            assert (npu.schedule is not None) is (mode == "timed")
        assert (subject.node.null, npu.instant, npu.schedule) == (False, False, None)


def test_a_filled_state_has_its_length_and_decodes(subject):
    subject.fill(100)
    assert subject.model.length == 100
    assert subject.model.position == 100
    assert np.isfinite(subject.model.decode(1)).all()
    assert len(subject.tokens(64, 2)) == 2
    assert subject.model.length == 64 + 5


def test_prompts_start_from_an_empty_state(subject):
    subject.prompt(20)
    subject.prompt(7)
    assert subject.model.length == 7


def test_a_token_costs_two_ioctls_a_dispatch(subject):
    calls, dispatches = subject.ioctls()
    assert dispatches == 4 * subject.model.config.num_hidden_layers + 1
    assert calls == 2 * dispatches


def test_host_figures_have_both_devices(subject):
    out = Printer(True, io.StringIO())
    host_figures(subject, out, 64, 20, 1, 1)
    names = [(f.name, f.where.get("device")) for f in out.figures]
    assert names == [
        ("host_token", "null"),
        ("host_prompt", "null"),
        ("host_token", "instant"),
        ("host_prompt", "instant"),
        ("dispatch", None),
        ("emulated_dispatch", None),
        ("ioctls_token", None),
    ]


def test_what_the_host_adds_is_measured_on_a_timed_npu(subject):
    out = Printer(True, io.StringIO())
    timed_figures(subject, out, (32, 64), (20,), (), 2, 1)
    token = [f"timed_token{what}" for what in ("", "_npu", "_ratio", "_host", "_bound")]
    prompt = [f"timed_prompt{what}" for what in ("", "_npu", "_ratio")]
    assert [f.name for f in out.figures] == [*token, *token, *prompt]
    assert [f.where.get("context") for f in out.figures] == [32] * 5 + [64] * 5 + [None] * 3
    found = {f.name: f.value for f in out.figures}
    assert found["timed_token_host"] == pytest.approx(found["timed_token"] - found["timed_token_npu"])
    shares = [f for f in out.figures if f.name == "timed_token_host"]
    assert shares[1].limit == f"at most {1.3 * shares[0].value:.2f} ms"
    model, dispatches = MODELS["hx370"], subject.ioctls()[1]
    # Tiny weights: little but each dispatch's fixed time.
    assert dispatches * model.dispatch <= found["timed_token_npu"] / 1e3 < 2 * dispatches * model.dispatch
    for of in ("token", "prompt"):  # where lateness is made up for, wall time may be the shorter one
        assert found[f"timed_{of}_ratio"] > 0
        assert found[f"timed_{of}"] / found[f"timed_{of}_npu"] == pytest.approx(found[f"timed_{of}_ratio"])


def test_drafts_gain_with_what_comes_true(subject):
    out = Printer(False, io.StringIO())
    draft_figures(subject, out, 64, 4, 1)
    speeds = [figure for figure in out.figures if figure.name == "timed_draft_speed_npu"]
    assert [figure.where["accepted"] for figure in speeds] == ["0%", "20%", "47%", "73%", "100%"]
    values = [figure.value for figure in speeds]
    assert values == sorted(values) and values[0] < 1 < values[-1]
    assert len([figure for figure in out.figures if figure.name == "draft_overhead"]) == 2


def test_long_prompts_have_figures_of_every_kind(subject, monkeypatch):
    monkeypatch.setattr("qwen35.bench.long.QUADRATIC", 20)
    out, peers = Printer(True, io.StringIO()), [Echo(), Echo()]
    peers[1].kind = "transformers"
    long_figures(subject, out, peers, [20, 40], 1)
    found = {(f.name, f.where["tokens"]): f for f in out.figures}
    assert [peer.asked for peer in peers] == [
        [{"prompt": 20, "new": 0}, {"prompt": 40, "new": 0}],
        [{"prompt": 20, "new": 0}],
    ]
    for name in ("long_prompt", "long_prompt_ratio", "timed_long_prompt", "timed_long_prompt_ratio"):
        assert found[name, 40].value > 0
    for kind in ("attention", "deltanet"):
        share = found[f"host_{kind}_peak", 40]
        assert share.value > 0
        assert min(share.where["gflops"], share.where["peak_float32"]) > 0
        assert found[f"host_{kind}", 40].value > 0


def test_a_device_may_be_timed_from_the_start(bundle):
    with closing(Subject(bundle, "emu:quiet,timed,instant", 256)) as subject:
        for _ in range(2):  # before and after a mode
            wall, npu = subject.timed(lambda: subject.tokens(16, 1))
            assert npu > 0 and wall > 0
            with subject.mode("null"):
                subject.token(16, 1)


def test_chains_are_held_against_single_commands(subject):
    out = Printer(True, io.StringIO())
    chain_figures(subject, out, 64, 1, 2)
    assert [(f.name, f.where["device"]) for f in out.figures] == [("chains", "null"), ("chains", "real")]
    assert all(f.value > 0 and f.where["singly_ms"] > 0 for f in out.figures)
    assert subject.model.npu.chains  # as before


def test_a_profile_names_every_stage_of_a_token_and_a_prompt(subject):
    text = "\n".join(profile_lines(subject, 20, 64, 2))
    for stage in ("gemv.lin", "gemv.att", "gemv.head", "gemm.gu", "host.deltanet", "host.attention"):
        assert stage in text
    assert "waits for the host" not in text
    with subject.mode("timed"):
        assert "it waits for the host" in profile_lines(subject, 20, 64, 2)[0]


def test_cold_rows_are_measured_both_ways(bundle):
    warm(bundle)
    dropped(bundle.tensors.path)
    out = Printer(True, io.StringIO())
    cold_figures(bundle, out, 10, 1)
    assert [f.where["hinted"] for f in out.figures] == ["no", "yes"]


class Echo:
    """A peer that takes twice our rate."""

    kind, name = "llama", "echo"

    def __init__(self):
        self.asked = []

    def ask(self, **request):
        self.asked.append(request)
        return {"prompt": 1e-9, "token": 1e9}


def test_the_server_is_measured_beside_the_same_in_process(monkeypatch):
    pytest.importorskip("uvicorn")
    from qwen35.bench import serve
    from qwen35.bench.serve import CONVERSATIONS, serve_figures

    in_process = serve._in_process
    monkeypatch.setattr(serve, "_in_process", lambda *given: tuple(s / 1e6 for s in in_process(*given)))
    out = Printer(True, io.StringIO())
    serve_figures(DEFAULT_BUNDLE, DEVICE, out, [], 6, 1)
    found = {f.name: f for f in out.figures}
    for name in ("serve_first_token", "serve_token"):
        assert found[name].value > 0 and f"{name}_overhead" in found
        assert found[f"{name}_ratio"].value > 1000  # ours over that in process
    assert 0.3 < found["serve_cached"].value < 1
    assert found["serve_cached"].where["conversations"] == CONVERSATIONS


def test_peers_are_asked_in_turns_and_compared(subject, monkeypatch):
    monkeypatch.setattr("qwen35.bench.pairs.read_bandwidth", lambda **_: 1e10)  # a machine that has it always
    out, peer = Printer(True, io.StringIO()), Echo()
    speed_figures(subject, out, [peer], [9], [16, 32], 16, 2, 3)
    assert peer.asked == [{"prompt": 9, "new": 0}] * 6 + [{"prompt": 16, "new": 2}] * 3
    found = {(f.name, f.where.get("context")): f for f in out.figures}
    assert found["prompt_ratio", None].value > 1
    assert found["prompt_ratio", None].where["pairs"] == 3
    assert found["prompt_filled_ratio", None].value > 1
    assert found["decode_ratio", 16].value > 1  # tokens a second: ours over theirs
    assert found["decode_peer", 16].value == pytest.approx(1e-9)
    assert ("decode_ratio", 32) not in found
    share = found["decode_bandwidth", 16].value
    limit = found["decode_ratio_limit", 16].value
    assert limit == pytest.approx(found["decode_ratio", 16].value / share)
    assert limit > found["decode_ratio", 16].value
    assert found["context_growth", "32 over 16"].value > 0


def test_without_a_peer_there_are_only_our_own_figures(subject):
    out = Printer(True, io.StringIO())
    speed_figures(subject, out, [], [9], [16], 16, 1, 1)
    assert [f.name for f in out.figures] == ["prompt", "prompt_filled", "decode", "decode_bandwidth"]
    assert 0 < out.figures[-1].value < 2


def test_a_peer_that_fails_says_why(bundle, tmp_path):
    with pytest.raises(ModelError, match="llama"):
        Peer("llama", bundle.path, 1, 64, tmp_path / "missing.gguf")


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["llama", "transformers"])
def test_peers_run_the_bundles_shape(bundle, tmp_path, kind):
    if missing(kind):
        pytest.skip(f"{missing(kind)} not installed")
    from qwen35.bench.gguf_file import write_gguf

    file = tmp_path / "model.gguf"
    if kind == "llama":
        assert write_gguf(bundle.config, file) == file.stat().st_size
    with Peer(kind, bundle.path, 1, 128, file) as peer:
        found = peer.ask(prompt=5, new=2)
    assert found["prompt"] > 0
    assert found["token"] > 0
    assert peer.resident > 1 << 20


def test_a_file_is_dropped_from_the_page_cache_unless_somebody_maps_it(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(64 * mmap.PAGESIZE + 1))
    if dropped(file) > 0:
        pytest.skip("this file system keeps its pages")
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert sum(pages[:: mmap.PAGESIZE]) == 0
        assert dropped(file) > 0.9
    file.write_bytes(b"")
    assert dropped(file) == 0


def test_whole_commands_warm_and_cold():
    out = Printer(lines=True, stream=io.StringIO())
    command_figures(DEFAULT_BUNDLE, DEVICE, out, 1, 1)
    found = {figure.where["cache"]: figure.value for figure in out.figures}
    assert "warm" in found and all(value > 0 for value in found.values())
    assert {figure.name for figure in out.figures} == {"load_command"}


def test_a_command_that_fails_is_no_figure(tmp_path):
    out = Printer(lines=True, stream=io.StringIO())
    with pytest.raises(ModelError, match=r"ended with status 1.*manifest"):
        command_figures(tmp_path, DEVICE, out, 1, 1)
    assert out.figures == []


def test_the_command_prints_one_json_line_a_figure():
    words = ["--json", "--only", "load", "--only", "memory", "--only", "start", "--quick", "--threads", "1"]
    path = str(model_bundle.bundle_path("tied"))
    done = python("-m", "qwen35", "bench", path, *words, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(record["bench"] == SHAPE and record["unit"] for record in records)
    names = {record["figure"] for record in records}
    assert {"bandwidth", "import_amdxdna", "load", "memory_anonymous", "memory_peak"} <= names
    assert next(r for r in records if r["figure"] == "load")["way"] in ("copy", "map")
    whole = next(r["value"] for r in records if r["figure"] == "first_token")
    parts = [r["value"] for r in records if r["figure"].startswith("first_token_")]
    assert len(parts) == 3
    assert all(part > 0 for part in parts)
    assert sum(parts) < 200 * whole  # of the same command, only later, on a machine that others use: no ms


@pytest.mark.parametrize(
    "words",
    [
        ["x", "--random", "tiny"],
        ["--threads", "-1"],
        ["--threads", "65"],
        ["--only", "nothing"],
        ["--tokens", "0"],
        ["--tokens", "9"],
    ],
)
def test_wrong_options_are_usage_errors(words):
    with pytest.raises(UsageError):
        bench_main(words)
