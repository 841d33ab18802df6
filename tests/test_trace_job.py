"""Traces of the main job and of others: in the own process, under `trace --emulate`, and by ptrace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from amdxdna.cli import main
from amdxdna.device import Device
from amdxdna.errors import BadArgument, PermissionDenied
from tests.emulation import NODE, ROOT, c_program, device_programs, run
from tests.trace_sequence import Sequence, calls_named, read_trace


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bundle with seeded weights."""
    from qwen35.cli import main as qwen35

    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    assert qwen35(["export", "--random", "tiny", "--out", str(folder), "--vision", "none", "--quiet"]) == 0
    return folder


def job(bundle: Path, device: str) -> list[str]:
    """The command of the main job."""
    return [sys.executable, "-m", "qwen35", str(bundle), "--prompt", "hi", "--greedy", "--max-new", "3",
            "--quiet", "--device", device]


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
    ended = subprocess.run(job(bundle, "emu:threads=1,quiet"), cwd=ROOT, capture_output=True, text=True,
                           env={**os.environ, "AMDXDNA_TRACE": str(path), "OMP_NUM_THREADS": "1"}, check=True)
    file, = tmp_path.iterdir()
    assert file.name.removeprefix("trace-").removesuffix(".jsonl").isdecimal()
    check_main_job(file, "binding")
    assert ended.stdout.strip()


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "own.jsonl"
    monkeypatch.setenv("AMDXDNA_TRACE", str(path))
    yield path
    from amdxdna.trace import node

    node._recorders.pop((os.getpid(), str(path))).finish()


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
    assert {"CREATE_BO", "GET_BO_INFO", "mmap", "munmap", "PRIME_HANDLE_TO_FD", "PRIME_FD_TO_HANDLE",
            "GEM_CLOSE", "close"} <= set(names)
    created, = (line for line in lines if line.get("call") == "CREATE_BO")
    assert created["in"] == {"size": 8192, "type": "SHARE"}


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
    from amdxdna.node import open_node
    from tests.conformance import kit, suite

    assert suite.MODULES
    modules = ("buffers", "commands", "packets", "timelines")
    cases = [name for name, case in kit.CASES.items()
             if not case.options and name.partition(".")[0] in modules]
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
    ended = run("trace", "--emulate", "-O", "threads=1,quiet", "-o", str(path), "--", *job(bundle, NODE))
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
    heap, = (line for line in calls_named(first, "CREATE_BO") if line["in"]["type"] == "DEV_HEAP")
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
    ended = run("trace", "--emulate", "-O", "threads=1,quiet", "--address", address, "-o", str(path),
                "--json", "--", str(c_program()), NODE, str(blob), str(code))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_c_program(path, "seccomp", 4)
    document = json.loads(ended.stderr.splitlines()[-1])
    assert (document["schema"], document["version"]) == ("amdxdna.trace-summary", 1)
    assert (document["status"], document["signal"], document["file"]) == (0, None, str(path))
    assert document["summary"] == read_trace(path)[2]
    closes = [line for line in read_trace(path)[1] if line["call"] == "close"]
    assert len(closes) == 4


# -- by ptrace

def test_c_program_by_ptrace(tmp_path: Path) -> None:
    """Every call of a program on a node is seen and decoded by ptrace.

    There is no kernel's node here, so the one that `emulate` gives stands for it: its calls are answered by
    a seccomp filter, which goes before the tracer's own, hence --every-call.
    """
    blob, code = device_programs(tmp_path)
    path = tmp_path / "trace.jsonl"
    ended = run("trace", "--every-call", "-o", str(path), "--", sys.executable, "-m", "amdxdna", "emulate",
                "-O", "threads=1,quiet", "--", str(c_program()), NODE, str(blob), str(code))
    # Only one process can trace another: what needs the supervisor to do that is refused here.
    assert ended.stdout.splitlines()[-1].startswith("not ok: ")
    assert "errno 95" in ended.stdout
    header, calls, summary = read_trace(path)
    assert header["source"] == "ptrace"
    # The supervisor maps the same memory itself.
    program = [line for line in calls if line["call"] == "open" and line["in"]["path"] == NODE]
    numbers = {line["open"] for line in program}
    assert len(numbers) == 3
    first = [line for line in calls if line["open"] == min(numbers)]
    assert [line["call"] for line in first[:4]] == ["open", "CREATE_BO", "GET_BO_INFO", "mmap"]
    assert int(first[3]["out"]["address"], 16) % (64 << 20) == 0
    runs = calls_named(first, "EXEC_CMD")
    assert len(runs) > 30
    assert all(line["packet"]["instructions"]["bytes"] == 24 for line in runs)
    assert all("bo" in buffer for line in runs for buffer in line["packet"]["buffers"])
    failed = Counter((line["call"], line["errno"]) for line in first if "errno" in line)
    assert failed[("EXEC_CMD", "EALREADY")] == 1
    assert failed[("PRIME_HANDLE_TO_FD", "EOPNOTSUPP")] == 1
    assert summary["states"]["COMPLETED"] == summary["submits"]
    # A dup of the descriptor is the same open.
    assert not any(line["in"].get("inherited") for line in calls
                   if line["call"] == "open" and line["pid"] == first[0]["pid"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file to be taken for a node: its ioctls fail, its mappings work."""
    path = tmp_path / "node"
    path.write_bytes(bytes(8192))
    return path


def trace_python(code: str, file: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code under `trace` with the default mechanism: a filter that only lets calls stop that may
    concern a node."""
    return run("trace", "--node", str(file), "-o", str(file.with_name("trace.jsonl")), *more, "--",
               sys.executable, "-c", f"NODE = {str(file)!r}\n{code}")


def test_calls_of_a_node(file: Path) -> None:
    ended = trace_python("""
import fcntl, mmap, os, struct
fd = os.open(NODE, os.O_RDWR)
args = bytearray(struct.pack("<QQQII", 0, 0, 4096, 3, 0))
try:
    fcntl.ioctl(fd, 0xC0206443, args)
except OSError as failed:
    print(failed.errno)
mapping = mmap.mmap(fd, 4096)
mapping.close()
os.close(fd)
os.close(os.open(NODE, os.O_RDONLY))
try:
    os.open("/dev/accel/accel0", os.O_RDWR)
except OSError as failed:
    print(failed.errno)
""", file)
    assert (ended.returncode, ended.stdout) == (0, "25\n2\n"), ended.stderr
    header, calls, summary = read_trace(file.with_name("trace.jsonl"))
    assert (header["source"], header["command"][0]) == ("ptrace", sys.executable)
    assert [(line["call"], line["open"], line.get("errno")) for line in calls] == [
        ("open", 1, None), ("CREATE_BO", 1, "ENOTTY"), ("mmap", 1, None), ("close", 1, None),
        ("open", 2, None), ("close", 2, None), ("open", None, "ENOENT")]
    created = calls[1]
    assert created["in"] == {"size": 4096, "type": "DEV"}
    assert "no amdxdna node" in created["meaning"]
    assert calls[2]["in"] == {"length": 4096, "offset": "0x0"}
    assert summary["errors"] == {"CREATE_BO ENOTTY": 1, "open ENOENT": 1}


def test_duplicates_forks_and_execs_share_the_open(file: Path) -> None:
    ended = trace_python("""
import fcntl, os, sys
fd = os.open(NODE, os.O_RDWR)
def ask(fd):
    try:
        fcntl.ioctl(fd, 0xC0306444, bytearray(48))
    except OSError:
        pass
other = os.dup(fd)
os.close(fd)
ask(other)
if not os.fork():
    ask(other)
    os.set_inheritable(other, True)
    os.dup2(other, 40)
    os.execv(sys.executable, ["python", "-c", "import fcntl\\ntry: fcntl.ioctl(40, 0xC0306444, bytearray(48))"
                              "\\nexcept OSError: pass"])
os.wait()
ask(other)
""", file)
    assert ended.returncode == 0, ended.stderr
    _, calls, summary = read_trace(file.with_name("trace.jsonl"))
    assert [(line["call"], line["open"]) for line in calls] == [
        ("open", 1), ("GET_BO_INFO", 1), ("GET_BO_INFO", 1), ("GET_BO_INFO", 1), ("GET_BO_INFO", 1),
        ("close", 1)]
    assert len({line["pid"] for line in calls}) == 2
    assert summary["opens"] == 1


def test_threads(file: Path) -> None:
    ended = trace_python("""
import fcntl, os, threading
fd = os.open(NODE, os.O_RDWR)
def work():
    for _ in range(25):
        try:
            fcntl.ioctl(fd, 0xC0306444, bytearray(48))
        except OSError:
            pass
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
""", file)
    assert ended.returncode == 0, ended.stderr
    _, calls, summary = read_trace(file.with_name("trace.jsonl"))
    assert summary["calls"]["GET_BO_INFO"]["count"] == 100
    assert len({line["tid"] for line in calls_named(calls, "open") + [
        line for line in calls if line["call"] == "GET_BO_INFO"]}) == 5


DRIVER_PAGES = """
with open("/proc/self/maps") as maps:
    areas = [line.split("-")[0] for line in maps if "[vvar]" in line]
where = int(areas[0], 16) if areas else 0
"""


@pytest.mark.parametrize("more", [(), ("--every-call",)])
def test_pages_of_a_driver_are_read_by_the_program_itself(file: Path, more: tuple[str, ...]) -> None:
    """BO mappings of the kernel's driver cannot be read from outside, and neither can the kernel's own data
    page in every process, which stands for them here. The program does not notice, whatever else goes on."""
    ended = trace_python(DRIVER_PAGES + """
import ctypes, os, signal, sys, threading
if not where:
    sys.exit(77)
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
libc = ctypes.CDLL(None, use_errno=True)
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong]
fd = os.open(NODE, os.O_RDWR)
wrong = []
def work():
    for _ in range(40):
        if libc.ioctl(fd, 0xC0206443, where) != -1 or ctypes.get_errno() != 25:
            wrong.append(ctypes.get_errno())
threads = [threading.Thread(target=work) for _ in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
print(wrong, len(seen) > 0)
""", file, *more)
    if ended.returncode == 77:
        pytest.skip("this kernel maps no such page")
    assert ended.stdout == "[] True\n", ended.stderr
    _, calls, _ = read_trace(file.with_name("trace.jsonl"))
    created = [line for line in calls if line["call"] == "CREATE_BO"]
    assert len(created) == 120
    assert all("type" in line["in"] and line["errno"] == "ENOTTY" for line in created)


def test_own_pages_of_a_driver() -> None:
    namespace: dict[str, int] = {}
    exec(DRIVER_PAGES, namespace)
    if not namespace["where"]:
        pytest.skip("this kernel maps no such page")
    from amdxdna.trace.node import OWN

    assert len(OWN.read(namespace["where"], 64)) == 64
    with pytest.raises(OSError, match="Bad address"):
        OWN.read(8, 8)


@pytest.mark.parametrize(("command", "status"), [
    (["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -TERM $$"], 143),
    (["sh", "-c", "sleep 0.2 & exit 4"], 4)])
@pytest.mark.parametrize("more", [(), ("--every-call",), ("--emulate",)])
def test_exit_status_is_the_programs(tmp_path: Path, command: list[str], status: int,
                                     more: tuple[str, ...]) -> None:
    path = tmp_path / "t"
    ended = run("trace", "-o", str(path), *more, "--", *command)
    assert ended.returncode == status, ended.stderr
    assert ("killed by SIGTERM" in ended.stderr) == (status == 143)
    assert read_trace(path)[1] == []


def test_signals_stop_and_continue(file: Path) -> None:
    """A program that is stopped, continued and handles signals is not disturbed by the tracer."""
    ended = trace_python("""
import os, signal, subprocess, sys, time
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3); print('child', flush=True)"])
os.kill(child.pid, signal.SIGSTOP)
_, status = os.waitpid(child.pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status), flush=True)
os.kill(child.pid, signal.SIGCONT)
for _ in range(20):
    os.kill(os.getpid(), signal.SIGUSR1)
child.wait()
print(len(seen), child.returncode, flush=True)
""", file)
    assert ended.stdout.splitlines() == ["stopped True", "child", "20 0"], ended.stderr


@pytest.mark.parametrize(("words", "status", "said"), [
    ([], 2, "trace: no command"),
    (["--emulate", "--every-call", "--", "true"], 2, "--emulate goes without"),
    (["-o", "/no/such/folder/t", "--", "true"], 1, "/no/such/folder/t cannot be written"),
    (["--emulate", "--slots", "x", "--", "true"], 1, "'x' is not a number"),
])
def test_bad_usage_is_one_line(words: list[str], status: int, said: str,
                               capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *words]) == status
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--emulate",)])
def test_program_that_cannot_start(tmp_path: Path, more: tuple[str, ...]) -> None:
    ended = run("trace", "--json", "-o", str(tmp_path / "t"), *more, "--", "/no/such/program")
    assert ended.returncode == 1
    assert "/no/such/program cannot be started: No such file" in ended.stderr
    assert json.loads(ended.stdout)["schema"] == "amdxdna.error"


def test_trace_to_stderr(tmp_path: Path) -> None:
    ended = run("trace", "-q", "-o", "-", "--", "true")
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [set(line) >= keys for line, keys in zip(lines, ({"schema"}, {"summary"}), strict=True)]


def test_a_tracer_that_ends_takes_its_program_along(file: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "amdxdna", "trace", "-o", str(file.with_name("t")), "--", sys.executable, "-c",
         "import os, time; print(os.getpid(), flush=True); time.sleep(60)"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    from tests.conformance.kit import until

    def gone() -> bool:
        try:
            with open(f"/proc/{child}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(gone, 10, "the program's end")
