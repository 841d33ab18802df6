"""`bench`: which parts run, under which conditions and in which order; with nothing measured."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amdxdna.emu.kernels import isa, measure
from qwen35 import host
from qwen35.bench import bench_main, machine
from qwen35.bench.cli import memory_main
from qwen35.errors import ModelError, UsageError
from tests.support import model_bundle

MEASURES = {
    "start": ["start_figures"],
    "load": ["command_figures"],
    "serve": ["serve_figures"],
    "draft": ["draft_figures"],
    "long": ["long_figures"],
    "pairs": ["speed_figures"],
    "timed": ["timed_figures"],
    "vision": ["vision_figures"],
    "text": ["cold_figures", "load_figures", "host_figures", "chain_figures", "profile_lines"],
}


class Peer:
    """A peer that is never asked."""

    def __init__(self, kind: str, bundle: Path, threads: int, max_ctx: int, file: Path | None) -> None:
        self.says = kind, threads, max_ctx, file is not None and file.read_text()

    def __enter__(self) -> tuple[Any, ...]:
        return self.says

    def __exit__(self, *error: object) -> None:
        pass


class Bench:
    """Runs the command; `done` is what was measured with which numbers, `printed` the lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.done: list[Any] = []
        self.capsys, self.emulated, self.memory_status = capsys, True, 0

        def note(name: str) -> Any:
            def called(*given: Any) -> list[str]:
                files = [one.read_text() if isinstance(one, Path) and one.is_file() else one for one in given]
                kinds = int, float, str, tuple, list, type(None), Path
                self.done.append((name, *(one for one in files if isinstance(one, kinds))))
                return [f"{name} lines"]

            return called

        for module, names in MEASURES.items():
            for name in names:
                monkeypatch.setattr(f"qwen35.bench.{module}.{name}", note(name))
        bench = self

        class Subject:
            emulated = property(lambda self: bench.emulated)

            def __init__(self, bundle: Any, device: str, max_ctx: int) -> None:
                bench.done.append(("subject", device, max_ctx))

            @contextlib.contextmanager
            def mode(self, name: str) -> Iterator[None]:
                bench.done.append(("mode", name))
                yield

            def close(self) -> None:
                bench.done.append("closed")

        def run(words: list[str], *, check: bool, **options: Any) -> Any:
            assert not check
            self.done.append(("memory", *words[3:]))
            return subprocess.CompletedProcess(words, self.memory_status, "memory's lines\n")

        monkeypatch.setattr("qwen35.bench.text.Subject", Subject)
        monkeypatch.setattr("qwen35.bench.peers.Peer", Peer)
        monkeypatch.setattr("qwen35.bench.gguf_file.write_gguf", lambda config, file: file.write_text("gguf"))
        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(measure, "read_bandwidth", lambda threads: 8e9 * threads)
        monkeypatch.setattr(machine, "gemm_rate", lambda: 5e9)
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)

    def __call__(self, *words: str, bundle: str = "vision") -> str:
        self.done.clear()
        before = host.threads()
        path = str(model_bundle.bundle_path(bundle))
        try:
            assert bench_main([path, *words]) == 0
            self.threads = host.threads()
        finally:
            host.set_threads(before)
        self.done = [
            tuple("BUNDLE" if str(one) == path else one for one in each) if isinstance(each, tuple) else each
            for each in self.done
        ]
        return self.capsys.readouterr().out


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(monkeypatch, capsys)


LLAMA, TORCH, TOWER = ("llama", 3, 1290, "gguf"), ("transformers", 3, 1290, False), ("tower", 3, 1290, False)
LENGTHS, GRIDS = (4096, 8192), ((16, 16), (26, 40), (64, 64))


@pytest.mark.parametrize("peers", [False, True])
@pytest.mark.parametrize("quick", [False, True])
def test_what_is_measured_without_further_options(
    bench: Bench, quick: bool, peers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen35.bench.peers.missing", lambda kind: [])
    words = ["--quick"] * quick + ["--peers"] * peers
    out = bench("--threads", "3", "--profile", "--cold", *words)
    contexts = (512, 1024) if quick else (512, 1024, 8192)
    tokens, repeats = (8, 1) if quick else (24, 3)

    def asked(*those: Any) -> list[Any]:
        return list(those) if peers else []

    assert bench.done == [
        ("command_figures", "BUNDLE", "emu:quiet", 1 if quick else 5, 3, "gguf" if peers else None),
        ("start_figures", "emu:quiet", 3 if quick else 7),
        ("memory", "BUNDLE", "emu:quiet", "4096", ""),
        ("serve_figures", "BUNDLE", "emu:quiet", asked(LLAMA), 8 if quick else 48, 1 if quick else 7),
        ("cold_figures", 778, 2 if quick else 5),
        ("subject", "emu:quiet", contexts[-1] + 64),
        ("load_figures", 24e9),
        ("host_figures", 1024, 778, tokens, repeats),
        ("chain_figures", 512, tokens, 3 if quick else 7),
        ("speed_figures", asked(LLAMA, TORCH), (23, 778), contexts, 512, tokens, repeats, 3),
        ("timed_figures", contexts[1:], (23, 778), GRIDS[:1] if quick else GRIDS[:2], tokens, repeats),
        ("draft_figures", 1024, tokens, repeats),
        ("profile_lines", 778, 512, tokens),
        ("mode", "timed"),
        ("profile_lines", 778, 512, tokens),
        ("vision_figures", TOWER if peers else None, repeats, GRIDS[:2] if quick else GRIDS),
        "closed",
    ]
    assert bench.threads == 3 and out.splitlines()[0] == "Device: an emulated NPU"
    titles = [
        line for before, line in zip(out.splitlines(), out.splitlines()[1:], strict=False) if not before
    ]
    assert titles[0].startswith("Machine: ") and titles[1:] == [
        "From the command to the first token",
        "Start",
        "Memory",
        "Server",
        "Cold page cache",
        "Load",
        "Host: commands complete at once",
        "Prompts and tokens",
        "On an NPU that takes a Ryzen AI 9 HX 370's time",
        "Drafts from the prompt",
        "Profile",
        "Profile on an NPU that takes a Ryzen AI 9 HX 370's time",
        "Pictures",
    ]
    assert "memory's lines\n" in out and out.count("profile_lines lines\n") == 2


def test_the_machine_beside_the_figures(bench: Bench) -> None:
    records = [json.loads(line) for line in bench("--only", "machine", "--json").splitlines()]
    cores = machine.cores()
    for record in records:
        assert record.pop("bench") == 1
    assert records == [
        {
            "figure": "threads", "value": cores, "unit": "threads", "cores": cores, "host_isa": host.isa(),
            "emulated_isa": isa.variants()[isa.chosen() - 1],
        },
        {"figure": "bandwidth", "value": 8 * cores, "unit": "GB/s", "threads": cores},
        {"figure": "bandwidth", "value": 8, "unit": "GB/s", "threads": 1},
        {"figure": "gemm_float32", "value": 5, "unit": "GFLOP/s", "threads": cores},
    ]  # fmt: skip
    assert bench.done == [] and bench.threads == cores


@pytest.mark.parametrize(
    ("part", "done"),
    [
        ("start", ["start_figures"]),
        ("load", ["command_figures", "subject", "load_figures"]),
        ("host", ["subject", "host_figures", "chain_figures"]),
        ("text", ["subject", "speed_figures"]),
        ("timed", ["subject", "timed_figures"]),
        ("draft", ["subject", "draft_figures"]),
        ("memory", ["memory"]),
        ("serve", ["serve_figures"]),
        ("vision", ["subject"]),  # a bundle without a tower
        ("long", ["subject", "long_figures"]),
    ],
)
def test_one_part_alone(bench: Bench, part: str, done: list[str]) -> None:
    bench("--only", part, "--quick", "--json", "--device", "emu:threads=1,quiet", bundle="tied")
    assert [each[0] for each in bench.done if each != "closed"] == done
    if part == "memory":
        assert bench.done == [("memory", "BUNDLE", "emu:threads=1,quiet", "4096", "json")]
    if part == "load":
        assert bench.done[2] == ("load_figures", 8e9 * machine.cores())


def test_without_an_emulated_device_nothing_is_timed(bench: Bench) -> None:
    bench.emulated = False
    bench("--only", "timed", "--profile", bundle="tied")
    assert [each[0] for each in bench.done if each != "closed"] == ["subject", "profile_lines"]


@pytest.mark.parametrize("tokens", [(), ("100", "20000", "30")])
def test_lengths_of_long_prompts(
    bench: Bench, tokens: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context of ours and the peers has room for the longest."""
    monkeypatch.setattr("qwen35.bench.peers.missing", lambda kind: [])
    words = [word for length in tokens for word in ("--tokens", length)]
    bench("--only", "long", "--threads", "3", "--peers", *words, bundle="tied")
    longest, lengths = (20_064, [100, 20_000, 30]) if tokens else (8256, LENGTHS)
    peers = [("llama", 3, longest, "gguf"), ("transformers", 3, longest, False)]
    assert bench.done == [
        ("subject", "emu:quiet", longest),
        ("long_figures", peers, lengths, 3),
        "closed",
    ]


def test_a_peer_or_a_server_that_is_not_installed_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util
    import sys
    from io import StringIO

    find, hidden = importlib.util.find_spec, {"xllamacpp", "torch", "starlette"}
    for place in ("qwen35.bench.peers.find_spec", "importlib.util.find_spec"):
        monkeypatch.setattr(place, lambda name, *a: None if name in hidden else find(name, *a))
    told = StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    bench("--only", "load", "--only", "text", "--only", "serve", "--peers", "--quick", bundle="tied")
    lines = [line for line in told.getvalue().splitlines() if "without" in line]
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        "without llama",
        "without the server",
        "without llama",
        "without transformers",
    ]
    assert all(" -m pip install " in line for line in lines)
    assert "starlette not installed" in lines[1] and "not installed (torch)" in lines[3]
    done = {each[0]: each[1:] for each in bench.done if each != "closed"}
    assert "serve_figures" not in done and done["speed_figures"][0] == []


def test_memory_is_that_of_a_process_of_its_own(bench: Bench) -> None:
    bench.memory_status = 3
    with pytest.raises(ModelError, match="the process whose memory is measured failed"):
        bench("--only", "memory", bundle="tied")


@pytest.mark.parametrize("form", ["json", ""])
def test_memory_after_a_chat(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    memory_main([str(model_bundle.bundle_path("tied")), "emu:threads=1,quiet", "128", form])
    out = capsys.readouterr().out
    assert out.startswith("{" if form else "memory_anonymous") and out.count("\n") == 5


@pytest.mark.parametrize(
    ("status", "raised"), [(0, None), (1, ModelError), (2, UsageError), (130, KeyboardInterrupt)]
)
def test_a_random_bundle_is_there_while_it_is_measured(
    bench: Bench, status: int, raised: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gone afterwards; what making it says is left out beside JSON."""
    made: list[Any] = []

    def export_main(words: list[str]) -> int:
        made.append(words)
        Path(words[3]).symlink_to(model_bundle.bundle_path("tied"))
        return status

    monkeypatch.setattr("qwen35.export.export_main", export_main)
    for more in ([], ["--json"]):
        with pytest.raises(raised) if raised else contextlib.nullcontext():
            assert bench_main(["--random", "2b", "--only", "start", *more]) == 0
        assert made[-1][:3] == ["--random", "2b", "--out"] and made[-1][4:] == ["--quiet"] * bool(more)
        assert not Path(made[-1][3]).parent.exists()
    assert len(bench.done) == (0 if status else 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_random_bundle_goes_when_the_command_is_told_to_end(
    bench: Bench, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def export_main(words: list[str]) -> int:
        folders.append(Path(words[3]).parent)
        Path(words[3]).symlink_to(model_bundle.bundle_path("tied"))
        return 0

    monkeypatch.setattr("qwen35.export.export_main", export_main)
    monkeypatch.setattr("qwen35.bench.start.start_figures", lambda *_: signal.raise_signal(number))
    before = signal.signal(number, lambda *_: None)  # the tests go on where nobody takes it
    try:
        with pytest.raises(KeyboardInterrupt):
            bench_main(["--random", "2b", "--only", "start"])
    finally:
        signal.signal(number, before)
    assert not folders[0].exists()


def test_more_processors_than_the_hosts_pool_takes_are_no_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 192)
    bench("--only", "machine", "--json")
    assert bench.threads == host.MOST
