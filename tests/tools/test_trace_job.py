"""Traces of the main job and of others, in the own process and under `trace --emulate`."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from amdxdna.device import Device
from amdxdna.errors import BadArgument, Closed, PermissionDenied
from tests.support.emulation import NODE, c_program, device_programs, run
from tests.support.program import python
from tests.support.trace_sequence import Sequence, calls_named, read_trace


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bundle with seeded weights."""
    from qwen35.cli import main as qwen35

    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    assert qwen35(["export", "--random", "tiny", "--out", str(folder), "--vision", "none", "--quiet"]) == 0
    return folder


def job(bundle: Path, device: str) -> list[str]:
    """The command of the main job."""
    words = ["--prompt", "hi", "--greedy", "--max-new", "3", "--quiet", "--device"]
    return ["-m", "qwen35", str(bundle), *words, device]


def check_main_job(path: Path, source: str) -> None:
    """The calls of the job are the sequence that runs on hardware, and the summary counts them."""
    header, calls, summary = read_trace(path)
    assert header["source"] == source
    sequence = Sequence()
    sequence.follow(calls)
    assert sequence.contexts >= 2  # prefill and decode kernels
    assert sequence.runs > 10
    assert sequence.waited > 5
    count = Counter(line["call"] for line in calls)
    assert {name: each["count"] for name, each in summary["calls"].items()} == count
    assert (summary["contexts"], summary["submits"]) == (sequence.contexts, sequence.runs)
    assert summary["states"].get("COMPLETED", 0) >= sequence.runs - 1
    assert set(summary["states"]) <= {"COMPLETED", "unobserved"}
    times = [line["t"] for line in calls_named(calls, "EXEC_CMD")]
    assert times == sorted(times)
    assert calls[0]["call"] == "open"
    assert count["close"] == 1


# -- the own process


def test_main_job_by_environment(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace-%p.jsonl"
    words = job(bundle, "emu:threads=1,quiet")
    ended = python(*words, env={"AMDXDNA_TRACE": str(path)}, check=True)
    (file,) = tmp_path.iterdir()
    assert file.name.removeprefix("trace-").removesuffix(".jsonl").isdecimal()
    check_main_job(file, "binding")
    assert ended.stdout.strip()


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "own.jsonl"
    monkeypatch.setenv("AMDXDNA_TRACE", str(path))
    yield path
    from amdxdna.trace import node

    node.recorder(str(path)).finish()


def test_nodes_are_recorded_and_behave_as_before(traced: Path) -> None:
    with Device.open("emu:threads=1,quiet,address=iova") as device:
        buffer = device.alloc(8192)
        buffer.view()[:] = 7
        fd = buffer.export_fd()
        imported = device.import_fd(fd)
        os.close(fd)
        imported.close()
        buffer.close()
        assert device.node.path == "emu"
        assert device.node.emulated is True
        assert device.node.options.address == "iova"  # type: ignore[attr-defined]
    lines = [json.loads(line) for line in traced.read_text().splitlines()]
    names = [line.get("call") for line in lines]
    assert names[1] == "open"
    assert {
        "CREATE_BO",
        "GET_BO_INFO",
        "mmap",
        "munmap",
        "PRIME_HANDLE_TO_FD",
        "PRIME_FD_TO_HANDLE",
        "GEM_CLOSE",
        "close",
    } <= set(names)
    (created,) = (line for line in lines if line.get("call") == "CREATE_BO")
    assert created["in"] == {"size": 8192, "type": "SHARE"}


def test_a_forked_child_writes_nothing(traced: Path) -> None:
    with Device.open("emu:threads=1,quiet") as device:
        address = device.alloc(4096).host_address
        node = device.node
        before = traced.read_text()
        child = os.fork()
        if not child:
            status = 1
            try:
                node.munmap(address, 4096)
                for use in (lambda: node.ioctl(0xC0406400, 0), lambda: node.mmap(4096, 0)):
                    with pytest.raises(Closed, match="parent"):
                        use()
                node.close()
                device.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert traced.read_text() == before
    assert traced.read_text().count('"call": "close"') == 1


def test_failures_are_recorded_and_raised(traced: Path) -> None:
    with pytest.raises(PermissionDenied):
        Device.open("emu:quiet,open=1:EACCES")
    line = json.loads(traced.read_text().splitlines()[-1])
    assert (line["call"], line["errno"], line["open"]) == ("open", "EACCES", None)
    assert "node's group" in line["remedy"]


def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMDXDNA_TRACE", str(tmp_path / "none" / "t"))
    with pytest.raises(BadArgument, match=r"AMDXDNA_TRACE=.* cannot be written: No such file"):
        Device.open("emu:quiet")


def test_without_the_variable_nothing_is_wrapped(open_emu: object) -> None:
    device = open_emu()  # type: ignore[operator]
    assert type(device.node).__name__ == "EmuNode"


def test_conformance_under_the_recorder(traced: Path) -> None:
    """Cases behave the same through a recorded node, and every line of theirs is decoded."""
    from amdxdna.opening import open_node
    from tests.conformance import kit, suite

    assert suite.MODULES
    modules = ("buffers", "commands", "packets", "timelines")
    cases = [
        name for name, case in kit.CASES.items() if not case.options and name.partition(".")[0] in modules
    ]
    done = 0
    for name in cases:
        target = kit.Target(lambda: open_node("emu:threads=1,quiet,privileged"), kernel=False)
        try:
            kit.run_case(name, target)
            done += 1
        except kit.Skip:
            continue
    assert done > 30
    text = traced.read_text()
    for line in text.splitlines():
        found = json.loads(line)
        if "undecoded" in line:
            assert "errno" in found, line


# -- under the supervisor


def test_main_job_on_the_emulated_node(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    words = [sys.executable, *job(bundle, NODE)]
    ended = run("trace", "--emulate", "-O", "threads=1,quiet", "-o", str(path), "--", *words)
    assert ended.returncode == 0, ended.stderr
    check_main_job(path, "seccomp")
    assert ended.stdout.strip()
    assert f"amdxdna: trace of {sys.executable} -> {path}" in ended.stderr
    assert "submit to complete: p50" in ended.stderr


def check_c_program(path: Path, source: str, opens: int) -> None:
    """What the C program is known to do, in its trace."""
    header, calls, summary = read_trace(path)
    assert header["source"] == source
    first = [line for line in calls if line["open"] == 1]
    assert [line["call"] for line in first[:4]] == ["open", "CREATE_BO", "GET_BO_INFO", "mmap"]
    assert first[0]["in"]["path"] == NODE
    (heap,) = (line for line in calls_named(first, "CREATE_BO") if line["in"]["type"] == "DEV_HEAP")
    mapped = next(line for line in calls_named(first, "mmap"))
    assert mapped["out"]["bo"] == heap["out"]["handle"]
    assert int(mapped["out"]["address"], 16) % (64 << 20) == 0
    assert mapped["in"]["address"] == mapped["out"]["address"]
    # One command after the other, then eight in a queue of four, then threads.
    runs = calls_named(first, "EXEC_CMD")
    assert [line["out"]["seq"] for line in runs[:1]] == [0]
    assert all(line["packet"]["instructions"]["bytes"] == 24 for line in runs)
    assert all(len(line["packet"]["buffers"]) == 2 for line in runs)
    assert all("bo" in buffer for line in runs for buffer in line["packet"]["buffers"])
    failed = Counter((line["call"], line["errno"]) for line in calls if "errno" in line)
    assert failed[("EXEC_CMD", "EALREADY")] == 1
    assert failed[("EXEC_CMD", "ENOENT")] == 1
    assert failed[("SYNCOBJ_TIMELINE_WAIT", "ETIME")] == 1
    assert failed[("GET_INFO", "EOPNOTSUPP")] == failed[("GET_INFO", "EFAULT")] == 1
    assert failed[("mmap", "EINVAL")] == 2
    assert all(line["meaning"] and line["remedy"] for line in calls if "errno" in line)
    assert summary["opens"] == opens
    assert len({line["pid"] for line in calls}) >= 3
    assert len({line["tid"] for line in calls}) >= 6
    states = Counter(command["state"] for line in calls for command in line.get("completed", ()))
    assert set(states) == {"COMPLETED"}
    assert states["COMPLETED"] == summary["states"]["COMPLETED"]
    assert "undecoded" not in json.dumps([line for line in calls if "errno" not in line])


@pytest.mark.parametrize("address", ["pasid", "iova"])
def test_c_program_on_the_emulated_node(tmp_path: Path, address: str) -> None:
    blob, code = device_programs(tmp_path)
    path = tmp_path / "trace.jsonl"
    ended = run(
        "trace",
        "--emulate",
        "-O",
        "threads=1,quiet",
        "--address",
        address,
        "-o",
        str(path),
        "--json",
        "--",
        str(c_program()),
        NODE,
        str(blob),
        str(code),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_c_program(path, "seccomp", 4)
    document = json.loads(ended.stderr.splitlines()[-1])
    assert (document["schema"], document["version"]) == ("amdxdna.trace-summary", 1)
    assert (document["status"], document["signal"], document["file"]) == (0, None, str(path))
    assert document["summary"] == read_trace(path)[2]
    closes = [line for line in read_trace(path)[1] if line["call"] == "close"]
    assert len(closes) == 4
