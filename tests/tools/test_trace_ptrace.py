"""Traces by ptrace: any program, with what it starts, undisturbed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from amdxdna._native import lib
from amdxdna.cli import main
from amdxdna.trace import ptrace
from amdxdna.trace.recorder import Recorder
from tests.support.emulation import NODE, ROOT, ROOT_ONLY, as_nobody, c_program, device_programs, emulate, run
from tests.support.trace_sequence import calls_named, read_trace


def test_c_program_by_ptrace(tmp_path: Path) -> None:
    """Every call of a program on a node is seen and decoded by ptrace.

    There is no kernel's node here, so the one that `emulate` gives stands for it: its calls are answered by
    a seccomp filter, which goes before the tracer's own, hence --every-call.
    """
    blob, code = device_programs(tmp_path)
    path = tmp_path / "trace.jsonl"
    ended = run(
        "trace",
        "--every-call",
        "-o",
        str(path),
        "--",
        sys.executable,
        "-m",
        "amdxdna",
        "emulate",
        "-O",
        "threads=1,quiet",
        "--",
        str(c_program()),
        NODE,
        str(blob),
        str(code),
    )
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
    assert not any(
        line["in"].get("inherited")
        for line in calls
        if line["call"] == "open" and line["pid"] == first[0]["pid"]
    )


def test_inside_emulate(tmp_path: Path) -> None:
    """A program that is traced on an emulated node: `emulate` answers its calls first, and they are seen."""
    blob, code = device_programs(tmp_path)
    path = tmp_path / "trace.jsonl"
    ended = emulate(
        sys.executable,
        "-m",
        "amdxdna",
        "trace",
        "-o",
        str(path),
        "--",
        str(c_program()),
        NODE,
        str(blob),
        str(code),
    )
    assert "somebody else answers this program's calls (`emulate`)" in ended.stderr
    _, calls, summary = read_trace(path)
    assert summary["opens"] == len([line for line in calls if line["call"] == "open"]) == 3
    assert summary["states"]["COMPLETED"] == summary["submits"] > 30
    assert len(calls_named(calls, "EXEC_CMD")) > 30
    assert not any(line["in"].get("inherited") for line in calls if line["call"] == "open")


def test_the_device_in_process_is_no_node(tmp_path: Path) -> None:
    """A program on its own emulated device opens no node, and its memory is none; a line says how
    to record that device."""
    path = tmp_path / "trace.jsonl"
    ended = run(
        "trace",
        "-o",
        str(path),
        "--",
        sys.executable,
        "-c",
        """
from amdxdna import Device
with Device.open("emu:threads=1,quiet") as device:
    buffers = [device.alloc(4096), device.alloc(4 << 20)]
    print(len(buffers[0].view()) + len(buffers[1].view()))
    fd = buffers[0].export_fd()
""",
    )
    assert ended.stdout == f"{4096 + (4 << 20)}\n", ended.stderr
    _, calls, summary = read_trace(path)
    assert calls == []
    assert summary["calls"] == {}
    assert "set AMDXDNA_TRACE=FILE to record that" in ended.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file to be taken for a node: its ioctls fail, its mappings work."""
    path = tmp_path / "node"
    path.write_bytes(bytes(8192))
    return path


def trace_python(
    code: str, file: Path, *more: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python code under `trace` with the default mechanism: a filter that only lets calls stop that may
    concern a node."""
    return run(
        "trace",
        "--node",
        str(file),
        "-o",
        str(file.with_name("trace.jsonl")),
        *more,
        "--",
        sys.executable,
        "-c",
        f"NODE = {str(file)!r}\n{code}",
        env=env,
    )


def test_calls_of_a_node(file: Path) -> None:
    ended = trace_python(
        """
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
""",
        file,
    )
    assert (ended.returncode, ended.stdout) == (0, "25\n2\n"), ended.stderr
    header, calls, summary = read_trace(file.with_name("trace.jsonl"))
    assert (header["source"], header["command"][0]) == ("ptrace", sys.executable)
    assert [(line["call"], line["open"], line.get("errno")) for line in calls] == [
        ("open", 1, None),
        ("CREATE_BO", 1, "ENOTTY"),
        ("mmap", 1, None),
        ("close", 1, None),
        ("open", 2, None),
        ("close", 2, None),
        ("open", None, "ENOENT"),
    ]
    created = calls[1]
    assert created["in"] == {"size": 4096, "type": "DEV"}
    assert "no amdxdna node" in created["meaning"]
    assert calls[2]["in"] == {"length": 4096, "offset": "0x0"}
    assert summary["errors"] == {"CREATE_BO ENOTTY": 1, "open ENOENT": 1}


def test_times_are_the_programs(file: Path) -> None:
    """By the clock that the program reads before and after each call: when it began, and how long it took."""
    ended = trace_python(
        """
import fcntl, os, time
fd = os.open(NODE, os.O_RDWR)
for _ in range(4):
    before = time.monotonic()
    try:
        fcntl.ioctl(fd, 0xC0306444, bytearray(48))
    except OSError:
        print(before, time.monotonic())
    time.sleep(0.3)
""",
        file,
    )
    clock = [[float(word) for word in line.split()] for line in ended.stdout.splitlines()]
    calls = [line for line in read_trace(file.with_name("trace.jsonl"))[1] if line["call"] == "GET_BO_INFO"]
    rounding = 2e-6
    for (before, after), call in zip(clock, calls, strict=True):
        assert 0 < call["us"] * 1e-6 <= after - before + rounding
        since = call["t"] - calls[0]["t"]
        assert before - clock[0][1] - rounding <= since <= after - clock[0][0] + rounding


def test_every_call_that_opens_is_seen(file: Path) -> None:
    """open, openat and openat2 (numbers of x86-64's table), with an errno each that fails."""
    ended = trace_python(
        """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
how = (ctypes.c_uint64 * 3)(os.O_RDWR)
for path in (NODE, "/dev/accel/accel0"):
    path = ctypes.c_char_p(path.encode())
    for call in ((2, path, os.O_RDWR), (257, -100, path, os.O_RDWR), (437, -100, path, how, 24)):
        fd = libc.syscall(*call)
        if fd >= 0:
            os.close(fd)
""",
        file,
    )
    assert ended.returncode == 0, ended.stderr
    _, calls, summary = read_trace(file.with_name("trace.jsonl"))
    assert [line["call"] for line in calls] == ["open", "close"] * 3 + ["open"] * 3
    opened = [line for line in calls if line["call"] == "open"]
    assert [line["in"]["path"] for line in opened] == [str(file)] * 3 + ["/dev/accel/accel0"] * 3
    assert [line.get("errno") for line in opened] == [None] * 3 + ["ENOENT"] * 3
    assert summary["opens"] == 3


def test_a_node_is_the_device_whatever_its_name(file: Path) -> None:
    """Not another file of the same name, nor one whose name begins alike; a link, a second name and an accel
    device in another folder are."""
    other = file.parent / "else"
    other.mkdir()
    for name in (other / "node", file.parent / "node2", other / "accel0"):
        name.write_bytes(b"")
    (other / "link").symlink_to(file)
    os.link(file, other / "second")
    device = other / "npu"
    with contextlib.suppress(OSError):
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(261, 77))  # to be opened in vain
    ended = trace_python(
        """
import os
folder = os.path.dirname(NODE)
for name in ("else/node", "node2", "else/accel0", "else/link", "else/second", "else/npu"):
    try:
        os.close(os.open(f"{folder}/{name}", os.O_RDONLY))
    except OSError:
        pass
os.chdir(f"{folder}/else")
os.close(os.open("../node", os.O_RDONLY))
""",
        file,
    )
    assert ended.returncode == 0, ended.stderr
    _, calls, _ = read_trace(file.with_name("trace.jsonl"))
    opened = [os.path.basename(line["in"]["path"]) for line in calls if line["call"] == "open"]
    assert opened == ["link", "second", *(["npu"] if device.exists() else []), "node"]


def test_duplicates_forks_and_execs_share_the_open(file: Path) -> None:
    ended = trace_python(
        """
import fcntl, mmap, os, sys
fd = os.open(NODE, os.O_RDWR)
def ask(fd):
    try:
        fcntl.ioctl(fd, 0xC0306444, bytearray(48))
    except OSError:
        pass
os.dup2(fd, 0)
os.close(fd)
mmap.mmap(0, 4096).close()
other = os.dup(0)
os.close(0)
ask(other)
if not os.fork():
    ask(other)
    os.set_inheritable(other, True)
    os.dup2(other, 40)
    os.execv(sys.executable, ["python", "-c", "import fcntl\\ntry: fcntl.ioctl(40, 0xC0306444, bytearray(48))"
                              "\\nexcept OSError: pass"])
os.wait()
ask(other)
""",
        file,
    )
    assert ended.returncode == 0, ended.stderr
    _, calls, summary = read_trace(file.with_name("trace.jsonl"))
    assert [(line["call"], line["open"]) for line in calls] == [
        ("open", 1),
        ("mmap", 1),
        ("GET_BO_INFO", 1),
        ("GET_BO_INFO", 1),
        ("GET_BO_INFO", 1),
        ("GET_BO_INFO", 1),
        ("close", 1),
    ]
    assert len({line["pid"] for line in calls}) == 2
    assert summary["opens"] == 1


@pytest.mark.parametrize("executes", [False, True])
def test_a_child_goes_on_with_what_its_parent_has_closed(file: Path, executes: bool) -> None:
    """It is the same open until the child, or the program that the child has become, ends."""
    ended = trace_python(
        """
import fcntl, os, sys
fd = os.open(NODE, os.O_RDWR)
os.set_inheritable(fd, True)
reader, writer = os.pipe()
os.set_inheritable(reader, True)
asks = f"import fcntl, os\\nos.read({reader}, 1)\\ntry: fcntl.ioctl({fd}, 0xC0306444, bytearray(48))"
asks += "\\nexcept OSError: pass"
if not os.fork():
    if EXECUTES:
        os.execv(sys.executable, ["python", "-c", asks])
    exec(asks)
    os._exit(0)
os.close(fd)
os.write(writer, b"x")
os.wait()
""".replace("EXECUTES", str(executes)),
        file,
    )
    assert ended.returncode == 0, ended.stderr
    _, calls, _ = read_trace(file.with_name("trace.jsonl"))
    assert [(line["call"], line["open"]) for line in calls] == [("open", 1), ("GET_BO_INFO", 1), ("close", 1)]


def test_a_duplicate_is_of_its_own_open(file: Path) -> None:
    """Of several that a process has; one that is closed takes no other's along."""
    ended = trace_python(
        """
import fcntl, os
first, second = os.open(NODE, os.O_RDWR), os.open(NODE, os.O_RDWR)
other = os.dup(second)
for fd in (other, first):
    try:
        fcntl.ioctl(fd, 0xC0306444, bytearray(48))
    except OSError:
        pass
for fd in (first, second, other):
    os.close(fd)
""",
        file,
    )
    assert ended.returncode == 0, ended.stderr
    _, calls, _ = read_trace(file.with_name("trace.jsonl"))
    assert [(line["call"], line["open"]) for line in calls] == [
        ("open", 1),
        ("open", 2),
        ("GET_BO_INFO", 2),
        ("GET_BO_INFO", 1),
        ("close", 1),
        ("close", 2),
    ]


def test_threads(file: Path) -> None:
    ended = trace_python(
        """
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
""",
        file,
    )
    assert ended.returncode == 0, ended.stderr
    _, calls, summary = read_trace(file.with_name("trace.jsonl"))
    assert summary["calls"]["GET_BO_INFO"]["count"] == 100
    assert (
        len(
            {
                line["tid"]
                for line in calls_named(calls, "open")
                + [line for line in calls if line["call"] == "GET_BO_INFO"]
            }
        )
        == 5
    )


DRIVER_PAGES = """
with open("/proc/self/maps") as maps:
    areas = [line.split("-")[0] for line in maps if "[vvar]" in line]
where = int(areas[0], 16) if areas else 0
"""


@pytest.mark.parametrize("more", [(), ("--every-call",)])
def test_pages_of_a_driver_are_read_by_the_program_itself(file: Path, more: tuple[str, ...]) -> None:
    """BO mappings of the kernel's driver cannot be read from outside, and neither can the kernel's own data
    page in every process, which stands for them here. The program does not notice, whatever else goes on."""
    ended = trace_python(
        DRIVER_PAGES
        + """
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
while not seen:
    signal.pause()
print(wrong, len(seen) > 0)
""",
        file,
        *more,
    )
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
    from amdxdna.trace.node import own_memory

    own = own_memory()
    assert len(own.read(namespace["where"], 64)) == 64
    with pytest.raises(OSError, match="Bad address"):
        own.read(8, 8)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "sleep 0.2 & exit 4"], 4),
    ],
)
@pytest.mark.parametrize("more", [(), ("--every-call",), ("--emulate",)])
def test_exit_status_is_the_programs(
    tmp_path: Path, command: list[str], status: int, more: tuple[str, ...]
) -> None:
    path = tmp_path / "t"
    ended = run("trace", "-o", str(path), *more, "--", *command)
    assert ended.returncode == status, ended.stderr
    assert ("killed by SIGTERM" in ended.stderr) == (status == 143)
    assert read_trace(path)[1] == []


def test_children_that_the_tracer_had_already_are_not_waited_for(tmp_path: Path) -> None:
    """As a shell's background job that `exec amdxdna trace` inherits."""
    script = 'sleep 100 >/dev/null 2>&1 & echo $!; exec "$0" -m amdxdna trace -q -o "$1" -- sh -c "exit 3"'
    ended = subprocess.run(
        ["sh", "-c", script, sys.executable, str(tmp_path / "t")], capture_output=True, text=True, timeout=60
    )
    os.kill(int(ended.stdout), signal.SIGKILL)
    assert ended.returncode == 3, ended.stderr


def test_signals_stop_and_continue(file: Path) -> None:
    """A program that is stopped, continued and handles signals is not disturbed by the tracer."""
    ended = trace_python(
        """
import os, signal, subprocess, sys, time
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
code = "import sys; sys.stdin.read(); print('child', flush=True)"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
os.kill(child.pid, signal.SIGSTOP)
_, status = os.waitpid(child.pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status), flush=True)
os.kill(child.pid, signal.SIGCONT)
for _ in range(20):
    os.kill(os.getpid(), signal.SIGUSR1)
child.stdin.close()
child.wait()
print(len(seen), child.returncode, flush=True)
""",
        file,
    )
    assert ended.stdout.splitlines() == ["stopped True", "child", "20 0"], ended.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "trace: no command"),
        (["--emulate", "--every-call", "--", "true"], 2, "--emulate goes without"),
        (["-o", "/no/such/folder/t", "--", "true"], 1, "/no/such/folder/t cannot be written"),
        (["--emulate", "--slots", "x", "--", "true"], 2, "'x' is not a number"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", *words]) == status
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--emulate",)])
def test_a_program_starts_with_the_signals_of_any_other(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Python ignores those of closed pipes and full files; the program does not."""
    ended = run("trace", "-q", "-o", str(tmp_path / "t"), *more, "--", "grep", "SigIgn", "/proc/self/status")
    assert int(ended.stdout.split()[1], 16) & (1 << 12 | 1 << 24) == 0, ended.stderr


def test_a_program_that_may_not_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with the kernel's errno, and has ended then."""

    class Refusing:
        """What a kernel does that lets nobody trace."""

        def __getattr__(self, name: str) -> object:
            return getattr(lib, name)

        def xdna_tracer_seize(self, tracer: object, child: int) -> int:
            children.append(child)
            return -errno.EPERM

    children: list[int] = []
    monkeypatch.setattr(ptrace, "lib", Refusing())
    with pytest.raises(ptrace.CannotTrace) as caught:
        ptrace.Tracer(Recorder(None, "ptrace")).run(["sleep", "600"], os.environ)
    assert caught.value.errno == errno.EPERM
    with pytest.raises(ChildProcessError):
        os.waitpid(children[0], os.WNOHANG)


@pytest.mark.parametrize("more", [(), ("--emulate",)])
def test_program_that_cannot_start(tmp_path: Path, more: tuple[str, ...]) -> None:
    ended = run("trace", "--json", "-o", str(tmp_path / "t"), *more, "--", "/no/such/program")
    assert ended.returncode == 127
    assert "/no/such/program cannot be started: No such file" in ended.stderr
    assert json.loads(ended.stdout)["schema"] == "amdxdna.error"


def test_trace_to_stderr(tmp_path: Path) -> None:
    ended = run("trace", "-q", "-o", "-", "--", "true")
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [set(line) >= keys for line, keys in zip(lines, ({"schema"}, {"summary"}), strict=True)]


def test_a_tracer_that_ends_takes_its_program_along(file: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "amdxdna",
            "trace",
            "-o",
            str(file.with_name("t")),
            "--",
            sys.executable,
            "-c",
            "import os, time; print(os.getpid(), flush=True); time.sleep(900)",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
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

    until(gone, 60, "the program's end")


@ROOT_ONLY
def test_unprivileged() -> None:
    """A user without any privilege traces a program of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)  # pytest's own folders are for their owner alone
        node = folder / "node"
        node.write_bytes(bytes(4096))
        node.chmod(0o666)
        program = ["--node", str(node), "--", "sh", "-c", f"exec 3<>{node}; id -u; exec 3>&-"]
        first, second = (["trace", "-q", "-o", f"{name}/{n}.jsonl", *program] for n in ("first", "trace"))
        ended = as_nobody(first, second, dumpable=True)
        assert (ended.returncode, ended.stdout) == (0, "0\n65534\n"), ended.stderr
        _, calls, _ = read_trace(folder / "trace.jsonl")
        assert [line["call"] for line in calls] == ["open", "close"]


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
int prctl(int option, ...)
{
    va_list list;
    va_start(list, option);
    unsigned long a = va_arg(list, unsigned long), b = va_arg(list, unsigned long);
    unsigned long c = va_arg(list, unsigned long), d = va_arg(list, unsigned long);
    va_end(list);
    if (option == 0x59616d61) { /* PR_SET_PTRACER */
        FILE *file = fopen(getenv("PTRACERS"), "a");
        fprintf(file, "%ld\n", (long)a);
        fclose(file);
    }
    return ((int (*)(int, ...))dlsym(RTLD_NEXT, "prctl"))(option, a, b, c, d);
}
"""


def test_the_tracer_lets_in_the_traced_process_alone(file: Path, tmp_path: Path) -> None:
    """A program is let write to its tracer (under Yama) while it hands memory over, nobody else is."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "shim.c").write_text(SHIM)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tmp_path / "shim.so", tmp_path / "shim.c", "-ldl"], check=True
    )
    log = tmp_path / "ptracers"
    ended = trace_python(
        DRIVER_PAGES
        + """
import ctypes, os, sys
if not where:
    sys.exit(77)
libc = ctypes.CDLL(None, use_errno=True)
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong]
fd = os.open(NODE, os.O_RDWR)
for _ in range(3):
    libc.ioctl(fd, 0xC0206443, where)
print(os.getpid())
""",
        file,
        env={"LD_PRELOAD": str(tmp_path / "shim.so"), "PTRACERS": str(log)},
    )
    if ended.returncode == 77:
        pytest.skip("this kernel maps no such page")
    named = log.read_text().split()
    assert named, ended.stderr
    assert set(named[::2]) == {ended.stdout.strip()}
    assert set(named[1::2]) == {"0"}
    assert len(named) % 2 == 0
