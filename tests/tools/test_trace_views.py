"""Views of a trace for people: text and timeline, live and of a recorded file."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amdxdna.cli import main
from amdxdna.trace.text import call_lines, dump
from tests.support.program import python

PROGRAM = """
import sys
from amdxdna import Device, Xclbin
from amdxdna.emu import xclbins
from amdxdna.emu.kernels import stream
with Device.open("emu:threads=1,quiet" if len(sys.argv) < 2 else sys.argv[1]) as device:
    kernel = device.pool.kernel(Xclbin.read(xclbins.xclbin_bytes("copy")), stream.copy(4096, addend=1))
    a, b = device.alloc(4096), device.alloc(4096)
    a.view("i4")[:] = range(1024)
    kernel.run(a, b)
    device.pool.chain([(kernel, (a, b)), (kernel, (b, a))]).wait()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program does on the in-process emulated device, recorded by the binding."""
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    python("-c", PROGRAM, env={"AMDXDNA_TRACE": str(path)}, check=True)
    return path


def emulated(*options: str) -> subprocess.CompletedProcess[str]:
    """The program on an emulated node, traced."""
    program = [sys.executable, "-c", PROGRAM, "auto"]
    return python("-m", "amdxdna", "trace", *options, "--emulate", "--", *program)


def test_text_of_a_recorded_trace(recorded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--read", str(recorded), "--text", "--packets"]) == 0
    lines = capfd.readouterr().err.splitlines()
    calls = [json.loads(row)["call"] for row in recorded.read_text().splitlines()[1:-1]]
    shown = [row for row in lines if not row.startswith("             ")]
    assert len(shown) == len(calls)
    assert any("CREATE_BO(" in row and "type=DEV_HEAP" in row and "handle=1" in row for row in shown)
    assert any("packet START_CU: cu_mask 0x1; instructions" in row for row in lines)
    assert sum("packet CMD_CHAIN" in row for row in lines) == 1
    assert sum(" after " in row and "context 1 command" in row for row in lines) == 2


def test_only_the_calls_that_are_named(recorded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--read", str(recorded), "--text", "-e", "exec_cmd,open"]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert [row.split("(")[0].split()[-1] for row in lines] == ["open", "EXEC_CMD", "EXEC_CMD"]


def test_timeline_has_calls_commands_and_contexts(recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    assert main(["trace", "--read", str(recorded), "--timeline", str(target)]) == 0
    events: list[dict[str, Any]] = json.loads(target.read_text())["traceEvents"]
    named = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    by_thread: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        by_thread.setdefault(named[span["pid"], span["tid"]], []).append(span)
    context = next(name for name in by_thread if name.startswith("context"))
    assert [e["name"] for e in by_thread[context]] == [
        "context created",
        "START_CU",
        "chain of 2",
        "context destroyed",
    ]
    calls = {e["name"]: e for e in spans if named[e["pid"], e["tid"]].startswith("thread")}
    command = by_thread[context][1]
    submit = next(e for e in spans if e["name"] == "EXEC_CMD")
    assert abs(command["ts"] - submit["ts"]) < 1.0 and command["dur"] >= submit["dur"]
    assert calls["CREATE_HWCTX"]["args"]["out"]["handle"] == 1


def test_live_views_of_a_program(tmp_path: Path) -> None:
    target = tmp_path / "live.json"
    done = emulated(
        "--text", "-e", "EXEC_CMD", "--packets", "--buffers", "16", "--timeline", str(target), "-q"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert sum("EXEC_CMD(" in row for row in lines) == 2
    # The source begins with the words 0, 1, 2, 3.
    assert any("0x0000  00000000 01000000 02000000 03000000" in row for row in lines)
    assert not (tmp_path / "amdxdna-trace.jsonl").exists()
    names = [e["name"] for e in json.loads(target.read_text())["traceEvents"]]
    assert names.count("START_CU") == 1 and names.count("chain of 2") == 1


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ([], ["amdxdna-trace.jsonl"]),
        (["--text"], []),
        (["--text", "-o", "own.jsonl"], ["own.jsonl"]),
        (["-o", "own.jsonl"], ["own.jsonl"]),
    ],
)
def test_which_file_a_trace_goes_to(tmp_path: Path, options: list[str], written: list[str]) -> None:
    done = python("-m", "amdxdna", "trace", *options, "--emulate", "--", "/bin/true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == written
    for name in written:
        first, *_, last = (json.loads(row) for row in (tmp_path / name).read_text().splitlines())
        assert first["source"] == "seccomp" and last["summary"]["calls"] == {}


def test_a_hang_is_not_counted_as_completed(tmp_path: Path) -> None:
    program = PROGRAM.replace(
        "    kernel.run(a, b)\n    device",
        "    try:\n        kernel.run(a, b)\n"
        "    except Exception as e:\n        print(type(e).__name__)\n        sys.exit()\n"
        "    device",
    )
    path = tmp_path / "h.jsonl"
    device = "emu:threads=1,quiet,hang=1,tdr=0.5"
    python("-c", program, device, env={"AMDXDNA_TRACE": str(path)}, check=True)
    summary = json.loads(path.read_text().splitlines()[-1])["summary"]
    assert summary["states"] == {"TIMEOUT": 1} and summary["submit_to_complete_us"] is None
    target = tmp_path / "h.json"
    assert main(["trace", "--read", str(path), "--timeline", str(target)]) == 0
    assert "START_CU TIMEOUT" in [e["name"] for e in json.loads(target.read_text())["traceEvents"]]


def test_stages_of_the_model_stand_beside_the_calls(tmp_path: Path) -> None:
    path, target = tmp_path / "q.jsonl", tmp_path / "q.json"
    words = ["--device", "emu", "--prompt", "What is a dog?", "--max-new", "3"]
    python("-m", "qwen35", *words, env={"AMDXDNA_TRACE": str(path)}, check=True)
    assert main(["trace", "--read", str(path), "--timeline", str(target)]) == 0
    events = json.loads(target.read_text())["traceEvents"]
    stages = [e for e in events if e["ph"] == "X" and e["tid"] == 1 << 24]
    assert {"host.deltanet", "host.attention", "host.logits"} <= {e["name"] for e in stages}
    submits = [e for e in events if e["name"] == "EXEC_CMD"]
    assert min(e["ts"] for e in submits) < max(e["ts"] for e in stages)


def test_a_program_without_an_npu_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = python("-m", "amdxdna", "trace", "-o", tmp_path / "t", "--", "true")
    assert done.returncode == 0 and "set AMDXDNA_TRACE=FILE" in done.stderr


@contextlib.contextmanager
def bounded_memory(more: int) -> Iterator[None]:
    """This process may have that many bytes more of address space than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("words", "status", "what"),
    [
        (["--read", "none"], 2, "--text or --timeline"),
        (["--read", "none", "--text"], 1, "cannot be read"),
        (["--read", "bad", "--text"], 1, "line 1 is not of a trace"),
        (["--read", "half", "--text"], 1, "line 2 is not of a trace"),
        (["--read", "empty", "--text"], 1, "empty: no trace"),
        (["--read", "fifo", "--text"], 1, "fifo cannot be read: not a regular file"),
        (["--read", "zero", "--text"], 1, "zero cannot be read: not a regular file"),
        (["--read", "sparse", "--text"], 1, "sparse cannot be read: longer"),
        (["--read", "long", "--text"], 1, "long: line 1 is not of a trace: longer"),
        (["--read", "/proc/self/mem", "--text"], 1, "/proc/self/mem cannot be read: Input/output error"),
        (["--packets", "--", "true"], 2, "belong to --text"),
        (["-e", "X", "--", "true"], 2, "belong to --text"),
        (["--buffers", "-1", "--", "true"], 2, "--buffers -1"),
        (["--text", "-e", "open,EXEC", "--", "true"], 1, "no call has this name. Did you mean EXEC_CMD"),
        (["--text", "-e", "nonsense", "--", "true"], 1, "There are: open, close"),
        (["--read", "half", "--timeline", "/nowhere/x"], 1, "cannot be written"),
        (["--read", "half", "--timeline", "./half"], 2, "half is the trace"),
        (["-o", "new", "--timeline", "./new", "--", "true"], 2, "new is the trace"),
        (["-o", "half", "--timeline", "half", "--", "true"], 2, "half is the trace"),
        (["--text", "--read", "half", "--", "true"], 2, "without a COMMAND"),
        (["--read", "newer", "--text"], 1, "newer: a trace of format version 2, and this amdxdna reads"),
        (["--slots", "2", "--", "true"], 2, "--slots is of the emulated NPU's options. Add --emulate"),
        (["--device-path", "/dev/accel/accel1", "--", "true"], 2, "--device-path is of"),
        (["-o", "bad", "--", "true"], 1, "bad is there already and is no trace"),
        (["-o", "sparse", "--emulate", "--", "true"], 1, "sparse is there already and is no trace"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    status: int,
    what: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad").write_text("{}\n")
    Path("half").write_text('{"schema": "amdxdna.trace", "version": 1}\n{"call": "open"}\n')
    Path("newer").write_text('{"schema": "amdxdna.trace", "version": 2}\n')
    Path("empty").touch()
    os.mkfifo("fifo")
    Path("zero").symlink_to("/dev/zero")
    for name, size in ("sparse", 1 << 40), ("long", 1 << 30):
        with open(name, "wb") as file:
            file.truncate(size)
    with bounded_memory(512 << 20):
        assert main(["trace", *words]) == status
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and what in err
    assert Path("bad").read_text() == "{}\n"


def test_a_trace_takes_an_older_ones_place(tmp_path: Path) -> None:
    """So does it an empty file's."""
    path = tmp_path / "trace"
    path.touch()
    for word in ("first", "second"):
        assert main(["trace", "-q", "-o", str(path), "--", "true", word]) == 0
        assert json.loads(path.read_text().splitlines()[0])["command"] == ["true", word]


def test_a_trace_that_could_not_be_written_is_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "-q", "-o", "/dev/full", "--", "true"]) == 1
    assert "the trace ends here" in capfd.readouterr().err
    assert main(["trace", "-q", "-o", "/dev/null", "--", "true"]) == 0


def test_text_that_is_not_ours_is_quoted() -> None:
    line = {
        "t": 0.0,
        "us": 1.0,
        "pid": 1,
        "tid": 1,
        "open": 1,
        "call": "VERSION",
        "in": {},
        "out": {"name": "a\x1b[31m\nb"},
    }
    (row,) = call_lines(line)
    assert "\x1b" not in row and "\n" not in row


def test_dump_leaves_repeated_rows_out() -> None:
    assert dump(bytes(64) + b"A" * 5) == [
        "0x0000  00000000 00000000 00000000 00000000  ................",
        "*",
        "0x0040  41414141 41                          AAAAA",
    ]
