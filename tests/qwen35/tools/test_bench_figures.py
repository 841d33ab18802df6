"""The benchmark's figures with clocks that tell stated times: each in its unit, of the right runs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.request
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amdxdna.device import Device
from amdxdna.opening import open_node
from qwen35 import host
from qwen35._host import lib
from qwen35.bench import draft, load, long, machine, null_node, text
from qwen35.bench.figures import Figure, Printer
from qwen35.bench.pairs import compare
from qwen35.bench.timed import timed_figures
from qwen35.bench.vision import vision_figures
from qwen35.bundle import Bundle
from qwen35.errors import ModelError
from qwen35.find import DEFAULT_BUNDLE
from qwen35.model.attention import Attention
from qwen35.vision.tower import VisionTower
from tests.support import model_bundle
from tests.support.descriptors import descriptors
from tests.support.mock_model import HashModel

DEVICE = "emu:threads=1,quiet"


class Clock:
    """`perf_counter` tells `tick` seconds more at each call."""

    def __init__(self, tick: float = 1.0) -> None:
        self.now, self.tick = 0.0, tick

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now


def printed() -> Printer:
    return Printer(True, io.StringIO())


def by_name(out: Printer) -> dict[str, Figure]:
    return {figure.name: figure for figure in out.figures}


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.open(model_bundle.bundle_path("tied"))


@pytest.fixture
def subject(bundle: Bundle) -> Any:
    with closing(text.Subject(bundle, DEVICE, 256)) as made:
        yield made


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1234567, "1,234,567"), (1, "1"), (12345.6, "12,346"), (1000.4, "1,000"), (999.94, "999.9"),
        (-2000.4, "-2,000"), (1.0, "1"), (1.23456, "1.235"), (0.99949, "0.999"), (-0.123456, "-0.123"),
    ],
)  # fmt: skip
def test_a_row_has_as_many_digits_as_matter(value: float, shown: str) -> None:
    assert Figure("x", value, "s").row().split()[1] == shown
    assert json.loads(Figure("x", value, "s").line())["bench"] == 1  # the shape that readers know


@pytest.mark.parametrize(
    ("figure", "kind", "size", "limit"),
    [
        ("prompt", "llama", 23, "at most x 1.0"),
        ("prompt", "llama", 778, "at most x 0.6"),
        ("prompt", "transformers", 778, "at most x 1.0"),
        ("decode", "llama", 512, "at least x 1.2, aim x 1.4"),
        ("decode", "llama", 1024, ""),
    ],
)
def test_what_a_ratio_should_reach(figure: str, kind: str, size: int, limit: str) -> None:
    out, peer = printed(), SimpleNamespace(kind=kind, name="peer")
    compare(out, figure, "s", size, "tokens", [peer], [[1, 2, 9]], [[4, 4, 4]])  # type: ignore[list-item]
    assert [(f.name, f.value, f.limit) for f in out.figures] == [
        (f"{figure}_peer", 4, ""),
        (f"{figure}_ratio", 0.5, limit),
    ]


def test_host_figures(subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "time", Clock())
    monkeypatch.setattr(text, "bare_seconds", lambda: 1e-4)
    out = printed()
    text.host_figures(subject, out, 64, 20, 3, 1)
    assert [(f.name, f.value, f.unit, f.limit) for f in out.figures[:4]] == [
        ("host_token", 1000, "ms", "at most 4 ms"),
        ("host_prompt", 1, "s", "at most 1 s"),
        ("host_token", 1000, "ms", ""),
        ("host_prompt", 1, "s", ""),
    ]
    found = by_name(out)
    assert found["dispatch"].value == pytest.approx(400)  # 2,000 in a second, less two bare ioctls
    assert found["dispatch"].where["bare"] == 100 and found["emulated_dispatch"].value == 1000


def test_chains_over_single_commands(subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slower(Clock):
        def perf_counter(self) -> float:
            self.tick = 2.0 if subject.model.npu.chains else 1.0
            return super().perf_counter()

    monkeypatch.setattr(text, "time", Slower())
    for before in (True, False):
        out = printed()
        subject.model.npu.chains = before
        text.chain_figures(subject, out, 64, 3, 2)
        assert [(f.value, f.where["singly_ms"], f.where["pairs"]) for f in out.figures] == [(2, 1000, 2)] * 2
        assert subject.model.npu.chains is before


def test_how_the_weights_came(subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(machine, "fresh_pages", lambda *given: asked.append(given) or 3e9)
    out, weights = printed(), subject.model.weights
    text.load_figures(subject, out, 10e9)
    loaded, model, pages = out.figures
    assert loaded.value == pytest.approx(weights.nbytes / weights.seconds / 1e9)
    assert loaded.limit == "half of memory bandwidth: 5.0"
    assert loaded.where["seconds"] == round(weights.seconds, 3)
    assert loaded.where["megabytes"] == round(weights.nbytes / 1e6)
    assert model.value == subject.seconds > 0 and pages.value == 3
    assert asked == [(1 << 30, subject.device, machine.cores())]


@pytest.mark.parametrize("device", [DEVICE, "npu"])
def test_memory_after_a_chat(bundle: Bundle, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak counts from before the model on; an emulated device has computed nothing."""
    told: list[Any] = []

    class Subject(text.Subject):
        def __init__(self, bundle: Bundle, spec: str, max_ctx: int) -> None:
            super().__init__(bundle, DEVICE, max_ctx)
            told.append(self)

    def memory() -> machine.Memory:
        model, npu = told[-1].model, told[-1].node.node.driver.npu
        told.append((model.length, npu.instant, model.weights.nbytes / 2**20, model.state_bytes / 2**20))
        return machine.Memory(3 << 20, 0, 5 << 20, 7 << 20)

    monkeypatch.setattr(text, "Subject", Subject)
    monkeypatch.setattr(machine, "reset_peak", lambda: told.append("from now on"))
    monkeypatch.setattr(machine, "memory", memory)
    out = printed()
    text.memory_figures(bundle, device, out, 128)
    before, _, (length, instant, weights, state) = told
    assert (before, length, instant) == ("from now on", 128, device == DEVICE)
    want = {"anonymous": 3, "resident": 5, "peak": 7, "weights": weights, "state": state}
    assert {f.name: f.value for f in out.figures} == {f"memory_{name}": v for name, v in want.items()}


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_rows_that_are_not_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look begins with the file out of the page cache, and every second one with a hint."""
    told: list[Any] = []
    monkeypatch.setattr(text, "dropped", lambda path: told.append(path.name))
    for what in ("hint", "rows"):
        monkeypatch.setattr(text.Embedding, what, lambda self, ids, what=what: told.append((what, len(ids))))
    monkeypatch.setattr(text, "time", Clock())
    opened, out = Bundle.open(model_bundle.bundle_path(name)), printed()
    text.cold_figures(opened, out, 10, 3)
    one = [opened.tensors.path.name, ("rows", 10)]
    assert told == [*one, one[0], ("hint", 10), one[1]] * 3
    assert [(f.where["hinted"], f.value, f.unit) for f in out.figures] == [
        ("no", 1000, "ms"),
        ("yes", 1000, "ms"),
    ]


def test_a_profiles_times(subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's over several runs behind a filled state, a prompt's over one."""
    subject.prompt(20)
    monkeypatch.setattr(text, "time", Clock())
    lines = text.profile_lines(subject, 20, 64, 4)
    token, prompt = (at for at, line in enumerate(lines) if line.startswith("a "))
    assert lines[token] == "a token at context 64: 250.0 ms"
    assert lines[prompt] == "a prompt of 20 tokens: 3,000.0 ms"  # which looks at the clock itself
    assert subject.model.length == 20
    layers = subject.model.config.layer_types
    row = next(line.split() for line in lines[:prompt] if "gemv.att" in line)
    assert row[4:6] == [str(layers.count("att")), "calls"]
    assert any(line.split()[0] == "gemm.att" for line in lines[prompt:])
    with subject.mode("timed"):
        share = text.profile_lines(subject, 20, 64, 4)[0]
    npu, waits = (float(words.split()[0]) for words in share.split(", ")[1:])
    assert 0 < npu < 250 and npu + waits == pytest.approx(250, abs=0.11)


def test_tokens_on_a_timed_npu_are_those_of_its_model(subject: Any) -> None:
    out = printed()
    timed_figures(subject, out, (32,), (20,), (), 2, 1)
    with subject.mode("timed"):
        subject.fill(32)
        npu = [subject.timed(lambda: subject.model.decode(1))[1] for _ in range(5)][-1]
    assert by_name(out)["timed_token_npu"].value == pytest.approx(1e3 * npu, rel=1e-6)


def test_pictures_on_a_timed_npu() -> None:
    """Alone, and two of the second size together; the first run of each, which makes buffers, is left out."""
    opened, out = Bundle.open(model_bundle.bundle_path("vision")), printed()
    with closing(text.Subject(opened, DEVICE, 64)) as seeing:
        timed_figures(seeing, out, (), (), ((4, 4), (4, 6), (100, 100)), 1, 2)
    said = [(f.name, f.where["patches"], f.where["pictures"]) for f in out.figures]
    kinds = [f"timed_vision{what}" for what in ("", "_npu", "_ratio", "_bound")]
    assert said == [(kind, *of) for of in ((16, 1), (24, 1), (24, 2)) for kind in kinds]
    assert all(f.where["runs"] == 2 and f.limit == "at most x 1.15" for f in out.figures[2::4])
    assert all(f.value >= 1 for f in out.figures[3::4])
    npu = {f.where["pictures"]: f.value for f in out.figures if f.name == kinds[1]}
    assert npu[2] > 1.5 * npu[1] > 0


class Answering:
    """A peer that takes a second a picture."""

    kind, name = "tower", "echo"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, **request: Any) -> dict[str, float]:
        self.asked.append(request)
        return {"tower": 1.0}


@pytest.mark.parametrize("peer", [None, Answering()])
def test_pictures_and_whose_time_they_take(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the bundle's tower cannot see are left out."""
    opened, out = Bundle.open(model_bundle.bundle_path("vision")), printed()
    assert opened.config.vision is not None and opened.config.vision.max_patches < 10_000
    encode = VisionTower.encode

    def alone(self: VisionTower, *given: Any) -> Any:
        assert self.timing.seconds("vision.") == 0  # no other picture's
        return encode(self, *given)

    monkeypatch.setattr(VisionTower, "encode", alone)
    with closing(text.Subject(opened, DEVICE, 64)) as seeing:
        vision_figures(seeing, out, peer, 2, ((100, 100), (4, 6)))
    found = by_name(out)
    names = ["vision", "vision_npu", "vision_host", *(["vision_peer", "vision_ratio"] if peer else [])]
    assert list(found) == names and all(f.where["patches"] == 24 for f in out.figures)
    assert found["vision"].value == pytest.approx(found["vision_npu"].value + found["vision_host"].value)
    assert min(f.value for f in out.figures) > 0
    if peer:
        assert peer.asked == [{"patches": [4, 6]}] * 2 and found["vision_peer"].value == 1
        assert found["vision_ratio"].value == found["vision"].value
        assert found["vision_ratio"].where["pairs"] == 2


@pytest.mark.parametrize("length", [20, 2100])
def test_operations_of_a_long_prompts_layers(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted one by one: of attention each pair of a query and a key; of DeltaNet each token's products."""
    config = Bundle.open(model_bundle.bundle_path("grouped")).config
    monkeypatch.setattr(long, "time", Clock(1e-9))
    monkeypatch.setattr(machine, "fma_rate", lambda: 4e18)
    passes: list[tuple[int, int]] = []
    prefill = Attention.prefill

    def noted(self: Attention, y: Any, start: int, *rest: Any) -> None:
        passes.append((start, len(y)))
        prefill(self, y, start, *rest)

    monkeypatch.setattr(Attention, "prefill", noted)
    out = printed()
    long.kernel_figures(config, out, [length], 2)
    c, heads = config, config.linear_num_value_heads
    pairs = sum(range(1, length + 1))
    attention = pairs * config.num_attention_heads * (2 * c.head_dim + 2 * c.head_dim)
    dk, dv, chunk = c.linear_key_head_dim, c.linear_value_head_dim, lib.HOST_DELTA_CHUNK
    triangles = c.linear_num_key_heads * 2 * (2 * chunk * dk // 2) + heads * 2 * (2 * chunk * dv // 2)
    deltanet = length * (triangles + heads * 3 * (2 * dk * dv))
    for figure, share, kind, operations in (
        (*out.figures[:2], "att", attention),
        (*out.figures[2:], "lin", deltanet),
    ):
        assert figure.value == pytest.approx(c.layer_types.count(kind) * 1e-9)
        assert share.where["gflops"] == pytest.approx(operations, rel=1e-6)
        assert share.where["peak_float32"] == 4e9
        assert share.value == pytest.approx(operations * 1e9 / 4e18)
    assert passes == ([(0, 20)] if length == 20 else [(0, 2048), (2048, 52)]) * 3


def test_kinds_of_layers_that_a_model_lacks_have_no_figure() -> None:
    config, out = Bundle.open(model_bundle.bundle_path("tied")).config, printed()
    long.kernel_figures(replace(config, layer_types=("att",)), out, [16], 1)
    assert [f.name for f in out.figures] == ["host_attention", "host_attention_peak"]


class Scripted:
    """A timed device: a token takes 2 s, of which the NPU works 1; a pass 6 and 5. The first is cold."""

    emulated = True

    def __init__(self) -> None:
        self.model: Any = HashModel(400, 1 << 20)
        self.model.draft_limit = 20
        self.model.config = SimpleNamespace(vocab_size=400)
        self.cold, self.filled, self.modes = True, set[int](), [""]

    @contextmanager
    def mode(self, name: str) -> Any:
        self.modes.append(name)
        yield
        self.modes.append("")

    def fill(self, tokens: int) -> None:
        self.filled.add(tokens)
        self.cold = True
        self.model.reset()

    def timed(self, run: Any) -> tuple[float, float]:
        assert self.modes[-1] == "timed"
        before = len(self.model.calls)
        run()
        kinds = [n for _, n in self.model.calls[before:]]
        slow, self.cold = (100 if self.cold else 1), False
        return (slow * 6.0, slow * 5.0) if kinds[0] > 1 else (slow * 2.0, slow * 1.0)


def test_what_drafts_gain_and_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, out = Scripted(), printed()
    decoded: list[list[int]] = []
    order: list[bool] = []
    decode = subject.model.decode

    def noted(token: int, draft: Any = ()) -> Any:
        decoded.append([token, *draft])
        return decode(token, draft)

    def generated(session: Any, ids: Any, sampler: Any, **options: Any) -> Any:
        said = [sampler(None) for _ in range(options["max_new"])]
        assert len({*ids, *said}) == len(ids) + len(said) == 64 + 7  # nothing repeats
        order.append(options["draft"])
        options["stats"].decode_s = 3.0 if options["draft"] else 2.0
        return iter(said)

    subject.model.decode = noted
    monkeypatch.setattr(draft, "generate", generated)
    monkeypatch.setattr(draft, "time", Clock())
    draft.draft_figures(subject, out, 512, 7, 2)  # type: ignore[arg-type]
    each = {"0%": 1, "25%": 6, "50%": 11, "75%": 16, "100%": 21}
    for name, want in (
        ("token", {share: 6e3 / n for share, n in each.items()}),
        ("speed", {share: n * 2 / 6 for share, n in each.items()}),
        ("speed_npu", {share: n * 1 / 5 for share, n in each.items()}),
    ):
        got = {f.where["accepted"]: f.value for f in out.figures if f.name == f"timed_draft_{name}"}
        assert got == pytest.approx(want)
    assert subject.filled == {512}
    for accepted in [n - 1 for n in each.values() for _ in range(2)]:
        assert decoded[:6] == [[token] for token in range(6)]
        del decoded[:6]
        seen: set[int] = set()
        for _ in range(3):
            ids = decoded.pop(0)
            assert len(ids) == 21 == len({*ids} - seen)
            seen |= {*ids}
            assert decoded[:accepted] == [[token] for token in ids[1 : accepted + 1]]
            del decoded[:accepted]
    assert decoded == []
    costs = [f for f in out.figures if f.name == "draft_overhead"]
    assert [(f.value, f.where["device"]) for f in costs] == [(1.5, "timed"), (1.5, "real")]
    assert [f.where["pairs"] for f in costs] == [5, 5]
    assert order == [False, True, True, False, False, True, True, False, False, True] * 2
    looks = [f for f in out.figures if f.name == "draft_look"]
    assert [(f.where["context"], f.value) for f in looks] == [(n, 5000) for n in (1024, 8192, 32768)]


def test_a_device_that_is_not_emulated_has_no_timed_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, out = Scripted(), printed()
    subject.emulated = False
    monkeypatch.setattr(draft, "LOOKED_AT", ())
    draft.draft_figures(subject, out, 512, 7, 1)  # type: ignore[arg-type]
    assert [(f.name, f.where["device"]) for f in out.figures] == [("draft_overhead", "real")]


def test_rates_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(machine, "time", clock)
    monkeypatch.setattr(null_node, "time", clock)
    assert machine.gemm_rate(0) == 2 * 1536**3
    assert machine.fma_rate(1) == lib.host_fma(1_000_000) > 1e6 * host.threads()
    assert null_node.bare_seconds(50, 2) == 1 / 50
    asked: list[Any] = []
    with Device.open(open_node(DEVICE)) as device:
        alloc = device.alloc

        def noted(nbytes: int, **options: Any) -> Any:
            asked.append((nbytes, options, alloc(nbytes, **options)))
            return asked[-1][2]

        monkeypatch.setattr(device, "alloc", noted)
        assert machine.fresh_pages((33 << 20) + 5, device, 2) == 32 << 20
        assert machine.fresh_pages(5, device, 1) == 16 << 20
        assert [one[:2] for one in asked] == [(16 << 20, {"flush": False})] * 3
        assert not any(buffer.handle for _, _, buffer in asked)  # closed
    assert machine.cpu_name() in Path("/proc/cpuinfo").read_text() or machine.cpu_name() == "unknown"


def test_a_subject_and_its_null_node_leave_nothing_open() -> None:
    before = descriptors()
    null_node.bare_seconds(1, 1)
    with closing(text.Subject(Bundle.open(model_bundle.bundle_path("tied")), DEVICE, 64)):
        pass
    null_node.NullNode(open_node(DEVICE)).close()
    node = null_node.NullNode(open_node(DEVICE))
    with Device.open(node):
        pass
    node.close()
    assert descriptors() == before


LOADED = "load_command", "load_command_peer", "load_command_ratio"


@pytest.mark.parametrize("peer", [False, True])
@pytest.mark.parametrize("stays", [0.0, 0.02, 0.03])
def test_commands_in_turns_warm_and_cold(
    peer: bool,
    stays: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ours takes 2 s and 3 cold, the peer's 4; the first of each, which warms up, does not count."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "tensors").write_bytes(b"x")
    gguf = tmp_path / "folder" / "model.gguf"
    gguf.touch()
    clock, ran, out = Clock(0), list[str](), printed()

    def run(command: list[str], **options: Any) -> Any:
        ran.append("ours" if "qwen35" in command else "theirs")
        assert command[-3:] == (
            [str(gguf), "5", "24"] if ran[-1] == "theirs" else ["--quiet", "--device", "emu"]
        )
        warm = "model.gguf" not in ran and "tensors" not in ran
        seconds = 4.0 if ran[-1] == "theirs" else 2.0 if warm else 3.0
        clock.now += seconds if len(ran) > 1 + peer else 50.0
        return subprocess.CompletedProcess(command, 0)

    def dropped(path: Path) -> float:
        ran.append(path.name)
        return stays if path == gguf or not peer else 0.0

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(load, "time", clock)
    monkeypatch.setattr(load, "dropped", dropped)
    load.command_figures(tmp_path, "emu", out, 2, 5, gguf if peer else None)
    turn = ["ours", "theirs"] if peer else ["ours"]
    files = ["tensors", "model.gguf"] if peer else ["tensors"]
    cold = (files + turn) * 2 if stays <= 0.02 else files
    assert ran == turn * 3 + cold
    want = [("warm", 2.0, 4.0, 0.5), *([("cold", 3.0, 4.0, 0.75)] if stays <= 0.02 else [])]
    assert [(f.name, f.where["cache"], f.value) for f in out.figures] == [
        (name, cache, value)
        for cache, *values in want
        for name, value in zip(LOADED[: 3 if peer else 1], values, strict=False)
    ]
    assert all(f.where["pairs"] == 2 for f in out.figures if f.name == LOADED[2])
    told = f"without a cold page cache: 3% of {gguf if peer else tmp_path / 'tensors'} stay in it"
    assert (told in capsys.readouterr().err) is (stays > 0.02)


def test_the_server_over_the_same_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's answers are scripted, the first one, which warms up, slow; the server is a real one."""
    pytest.importorskip("uvicorn")
    from qwen35.bench import serve

    asked: list[Any] = []
    monkeypatch.setenv("QWEN35_API_KEY", "not the benchmark's")

    def client(words: list[str], **options: Any) -> Any:
        url, body = words[-2], json.loads(words[-1])
        asked.append((url, body))
        slow = 100 if len(asked) <= 2 else 1
        ours = {"first_token_ms": 250, "prompt_ms": 100, "predicted_ms": 1500, "predicted_n": 6}
        theirs = {"prompt_ms": 100, "predicted_ms": 500, "predicted_n": 6}
        timings = theirs if "prompt" in body else ours
        return subprocess.CompletedProcess(
            words, 0, json.dumps({"first": 0.5 * slow, "last": 3.0 * slow, "timings": timings})
        )

    monkeypatch.setattr(subprocess, "run", client)
    monkeypatch.setattr(serve, "time", Clock(0.125))
    talks: dict[str, list[list[str]]] = {}
    urlopen = urllib.request.urlopen

    def opened(request: Any, timeout: float) -> Any:
        body = json.loads(request.data)
        assert (body["max_tokens"], body["temperature"]) == (8, 0)
        name = body["messages"][0]["content"].rpartition(" of ")[2]
        talks.setdefault(name, []).append([message["role"] for message in body["messages"]])
        return urlopen(request, timeout=timeout)

    monkeypatch.setattr(urllib.request, "urlopen", opened)
    peer, out = SimpleNamespace(name="echo", url=lambda: "http://peer"), printed()
    serve.serve_figures(DEFAULT_BUNDLE, DEVICE, out, [peer], 6, 3)  # type: ignore[list-item]
    assert len(asked) == 2 * 4 and len({str(body["prompt"]) for _, body in asked[1::2]}) == 4
    for number, ((url, ours), (other, theirs)) in enumerate(zip(asked[::2], asked[1::2], strict=True)):
        assert url.endswith("/v1/chat/completions") and other == "http://peer/v1/completions"
        assert ours.pop("messages")[0]["content"].startswith(f"{number}: what is a river")
        assert ours == {"max_tokens": 6, "temperature": 0, "stream": True}
        assert len(theirs.pop("prompt")) == 24
        assert theirs == ours | {"ignore_eos": True}
    found = by_name(out)
    for name, seconds, own, other in (("first_token", 0.5, 0.25, 0.1), ("token", 0.5, 0.3, 0.1)):
        assert found[f"serve_{name}"].value == pytest.approx(seconds * 1e3)
        assert found[f"serve_{name}_ratio"].value == pytest.approx(seconds / 0.125)
        assert found[f"serve_{name}_overhead"].value == pytest.approx((seconds - own) * 1e6)
        assert found[f"serve_{name}_overhead_peer"].value == pytest.approx((seconds - other) * 1e6)
    assert list(talks.values()) == [[(["user", "assistant"] * 3)[:n] for n in (1, 3, 5)]] * 8
    cached = found["serve_cached"]
    assert 0.3 < cached.value < 1 and (cached.where["conversations"], cached.where["turns"]) == (8, 3)


@pytest.mark.parametrize("what", ["the client's request failed", "the server did not start"])
def test_a_client_or_a_server_that_fails_is_no_figure(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    from qwen35.bench import serve

    def failed(*given: Any, check: bool, **options: Any) -> Any:
        assert not check
        return subprocess.CompletedProcess([], 1, "")

    monkeypatch.setattr(subprocess, "run", failed)
    if "server" in what:
        monkeypatch.setattr(sys, "executable", "/bin/false")
    out = printed()
    with pytest.raises(ModelError, match=what):
        serve.serve_figures(DEFAULT_BUNDLE, DEVICE, out, [], 6, 1)
    assert out.figures == []
