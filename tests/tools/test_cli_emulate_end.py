"""How programs under `emulate` end: status, signals, what they started and left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import kit
from tests.support.emulation import (
    NODE,
    ROOT,
    emulate,
    emulate_python,
    run,
)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "sh -c 'exit 5'; exit $?"], 5),
    ],
)
def test_exit_status_is_the_programs(command: list[str], status: int) -> None:
    ended = run("emulate", "--", *command)
    assert ended.returncode == status
    assert ("killed by SIGKILL" in ended.stderr) == (status == 137)


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("/no/such/program", 127, "/no/such/program cannot be started: No such file"),
        ("no-such-program", 127, "no-such-program cannot be started: No such file"),
        (f"{ROOT / 'README.md'}/program", 127, "cannot be started: No"),
        (str(ROOT / "README.md"), 126, "cannot be started: Permission denied"),
    ],
)
def test_program_that_cannot_start(command: str, status: int, said: str) -> None:
    """The exit status is a shell's: 127 for no such program, 126 for one that cannot be run."""
    ended = run("emulate", "--json", "--", command)
    assert ended.returncode == status
    assert said in ended.stderr
    assert json.loads(ended.stdout)["schema"] == "amdxdna.error"


def test_emulate_in_emulate_is_refused() -> None:
    ended = emulate(sys.executable, "-m", "amdxdna", "emulate", "--", "true")
    assert ended.returncode == 1
    assert "the kernel refuses the seccomp filter" in ended.stderr


@pytest.mark.parametrize("outer", ["trace", "emulate"])
def test_trace_and_emulate_in_each_other(outer: str, tmp_path: Path) -> None:
    """Inside `emulate` a trace has the calls; around it it has none of its ioctls and says what to do."""
    record = str(tmp_path / "record.jsonl")
    own = [sys.executable, "-m", "amdxdna"]
    trace, emulated = ["trace", "-o", record, "--"], ["emulate", "-O", "threads=1,quiet", "--"]
    first, second = (trace, emulated) if outer == "trace" else (emulated, trace)
    ended = run(*first, *own, *second, *own, "info", "--device", "npu")
    assert ended.returncode == 0, ended.stderr
    calls = [row.get("call") for row in map(json.loads, Path(record).read_text().splitlines())]
    if outer == "emulate":
        assert "GET_INFO" in calls and "no ioctl" not in ended.stderr
    else:
        assert "GET_INFO" not in calls
        assert "no ioctl came by here" in ended.stderr and "trace --emulate" in ended.stderr


def test_json() -> None:
    ended = emulate_python(
        "import os; os.close(os.open('/dev/accel/accel0', os.O_RDWR))", options="slots=9", more=("--json",)
    )
    said = json.loads(ended.stderr.splitlines()[-1])
    assert (said["schema"], said["version"]) == ("amdxdna.emulate", 1)
    assert (said["status"], said["signal"]) == (0, None)
    assert (said["node"], said["options"]["slots"], said["opens"], said["ioctls"]) == (NODE, 9, 1, 0)
    assert 1 < said["calls_seen"] < 10_000


def test_orphans_keep_their_device() -> None:
    """A process whose parent has ended still has the device; emulate ends with the last of them."""
    ended = emulate_python("""
import os, sys, time
parent = os.getpid()
if os.fork():
    os._exit(3)
while os.getppid() == parent:
    time.sleep(0.01)
from tests.conformance import kit
from amdxdna.node import KernelNode
print(kit.Ready(KernelNode("/dev/accel/accel0")).copy(), flush=True)
""")
    assert (ended.returncode, ended.stdout) == (3, "4\n"), ended.stderr


def test_signals_are_passed_on() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "amdxdna",
            "emulate",
            "--",
            sys.executable,
            "-c",
            "import signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(23))\n"
            "print('ready', flush=True)\n"
            "time.sleep(900)",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 23
        finally:
            process.kill()


def test_a_signal_right_after_the_programs_end_goes_to_what_it_started() -> None:
    """The emulator does not get the processor between the end of the first process and the signal."""
    code = """
import os, signal
if os.fork():
    os.read(0, 1)  # and no call that the emulator, which is stopped, would have to answer
    os._exit(3)
print(os.getppid(), flush=True)
signal.pause()
"""
    with subprocess.Popen(
        [sys.executable, "-m", "amdxdna", "emulate", "-O", "quiet", "--", sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            first = int(process.stdout.readline())
            process.send_signal(signal.SIGSTOP)
            process.stdin.close()
            stat = Path(f"/proc/{first}/stat")
            kit.until(
                lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 60, "the first one's end"
            )
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            assert process.wait(60) == 3
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_no_temporary_files_are_left(tmp_path: Path) -> None:
    ended = emulate_python("import os; print(os.listdir('/dev/accel'))", env={"TMPDIR": str(tmp_path)})
    assert ended.stdout == "['accel0']\n"
    assert list(tmp_path.iterdir()) == []
