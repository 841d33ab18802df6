"""`emulate`: programs that know nothing of it, on an emulated node, with real system calls."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from amdxdna.cli import main
from tests.conformance import kit, suite
from tests.support.emulation import (
    FILE_OPERATIONS,
    NODE,
    ROOT_ONLY,
    as_nobody,
    c_program,
    device_programs,
    emulate,
    emulate_python,
    run,
)
from tests.support.program import python

assert suite.MODULES

# -- the conformance suite, as processes on a kernel's node

NOT_EMULATED = {
    "contexts.task_limit_is_the_drivers": "the emulated device's slots are its task limit",
    "descriptor.reading": "a read fails with another errno",
    **{name: "runtime suspend is not emulated" for name in kit.CASES if name.startswith("power.")},
}
SLOW = {"timeouts"}
TDR = 0.5
KERNEL_OPTIONS = {"protocol"}


def _groups() -> Iterator[object]:
    """Cases of one device, one emulated device a group, in both address modes."""
    groups: dict[tuple[bool, tuple[tuple[str, object], ...]], list[str]] = {}
    for name, case in kit.CASES.items():
        if name in NOT_EMULATED or KERNEL_OPTIONS & set(case.options):
            continue
        slow = name.partition(".")[0] in SLOW or name in ("contexts.killed_process_with_a_hung_command",)
        groups.setdefault((slow, tuple(sorted(case.options.items()))), []).append(name)
    for (slow, options), names in groups.items():
        text = ",".join(f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in options)
        for address in ("pasid", "iova"):
            if slow and address == "iova":
                continue
            label = f"{address}{'-' + text if text else ''}{'-slow' if slow else ''}"
            yield pytest.param(
                names,
                f"address={address},{text}",
                id=label,
                marks=[pytest.mark.slow] if slow or not text else [],
            )


@pytest.mark.parametrize(("names", "options"), list(_groups()))
def test_conformance(names: list[str], options: str) -> None:
    """Every case in a program that opens the node as a kernel's, in several processes where it has them."""
    if os.geteuid() != 0:
        names = [
            name
            for name in names
            if name not in ("errnos.unprivileged", "queries.power_needs_root", "queries.permissions")
        ]
    slow = [f"tdr={TDR}"] if SLOW & {name.partition(".")[0] for name in names} else []
    ended = emulate(
        sys.executable,
        "-m",
        "tests.support.emulated_side",
        *slow,
        *names,
        options=",".join([options, *slow]),
        seconds=600,
    )
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [answer["name"] for answer in answers] == names, ended.stderr
    wrong = {
        answer["name"]: answer.get("error") or answer.get("skip")
        for answer in answers
        if answer["result"] != "ok"
    }
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items()) + ended.stderr
    assert ended.returncode == 0


# -- a C program that knows only the uAPI


@pytest.mark.parametrize("options", ["address=pasid", "address=iova", "slots=5", "minor=1"])
def test_c_program(tmp_path: Path, options: str) -> None:
    blob, code = device_programs(tmp_path)
    ended = emulate(str(c_program()), NODE, str(blob), str(code), options=options)
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(lines) == 13
    assert all(line.startswith("ok: ") for line in lines)
    assert lines[-1] == "ok: the end"


@ROOT_ONLY
def test_c_program_unprivileged() -> None:
    """The supervisor and the program without any privilege."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # pytest's own folders are for their owner alone
        program = Path(shutil.copy(c_program(), folder))
        program.chmod(0o755)
        words = ["emulate", "-O", "threads=1,quiet", "--", str(program), NODE]
        words += map(str, device_programs(folder))
        ended = as_nobody(words, words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("ok: ") == 2 * 13


@ROOT_ONLY
@pytest.mark.parametrize(
    ("mode", "words"),
    [(0o4755, "user 0's rights (setuid)"), (0o2755, "group 0's rights (setgid)"), (0o755, "")],
)
@pytest.mark.parametrize("command", ["emulate", "trace"])
def test_rights_that_are_not_gained_are_told(command: str, mode: int, words: str) -> None:
    """Once for each program, however it is started; a set-uid program of the user's own loses nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        program, own = folder / "program", folder / "own"
        for copy in (program, own):
            shutil.copy(os.path.realpath("/bin/true"), copy)
        program.chmod(mode)
        os.chown(own, 65534, 65534)
        own.chmod(0o6755)
        if os.statvfs(program).f_flag & os.ST_NOSUID:
            pytest.skip("set-uid programs gain nothing here anyway")
        more = {"emulate": ["-O", "quiet"], "trace": ["-q", "-o", "/dev/null"]}[command]
        words_of = [
            [command, *more, "--", str(program)],
            [command, *more, "--", "sh", "-c", f"{program}; cd {folder}; {program}; {own}; echo"],
        ]
        ended = as_nobody([command, *more, "--", "true"], *words_of, dumpable=True)
        assert ended.returncode == 0, ended.stderr
        assert [line for line in ended.stderr.splitlines() if line] == [
            f"amdxdna: {command}: {program} runs without {words}: no program gains any under {command}"
        ] * (2 if words else 0)


# -- how a program finds it


def test_our_own_discovery_finds_it() -> None:
    ended = emulate_python("""
from amdxdna import Device, sysfs
from amdxdna.cli import main
found, = sysfs.find_nodes()
print(found.path, hex(found.vendor), hex(found.device), found.revision)
with Device.open() as device:
    print(device.node.path, device.node.emulated, device.version)
main(["info"])
""")
    lines = ended.stdout.splitlines()
    assert lines[:2] == ["/dev/accel/accel0 0x1022 0x17f0 16", "/dev/accel/accel0 False 0.10"]
    told = dict(line.split(None, 1) for line in lines[2:] if line[0] != " ")
    assert told["device"] == "/dev/accel/accel0 (the emulated NPU)" and "1022:17f0" in told["NPU"]
    assert told["driver"].endswith(" 0.10, Linux 7.3.4")


def test_main_job(tmp_path: Path) -> None:
    """A prompt through the kernel's node: the same answer as on the in-process device."""
    from qwen35.cli import main as qwen35

    bundle = tmp_path / "tiny"
    assert qwen35(["export", "--random", "tiny", "--out", str(bundle), "--quiet"]) == 0
    command = [
        sys.executable,
        "-m",
        "qwen35",
        str(bundle),
        "--prompt",
        "hi",
        "--greedy",
        "--max-new",
        "4",
        "--stats",
        "json",
    ]
    there = emulate(*command, "--device", NODE)
    here = run("emulate", "-O", "threads=1", "--", *command, "--device", "emu:threads=1")
    assert there.returncode == here.returncode == 0, there.stderr + here.stderr
    assert there.stdout == here.stdout
    assert there.stdout.strip()
    for ended, device in ((there, NODE), (here, "emu")):
        told = json.loads(ended.stderr.splitlines()[-1])
        assert (told["device"], told["emulated"]) == (device, True)
    assert f"on an emulated NPU, {NODE}" in there.stderr and NODE not in here.stderr


def test_files_of_the_node() -> None:
    """stat, access, readlink, open and listings of what is emulated, and nothing else is touched."""
    ended = emulate_python("""
import errno, os, stat
node = os.stat("/dev/accel/accel0")
assert stat.S_ISCHR(node.st_mode) and os.major(node.st_rdev) == 261 and os.minor(node.st_rdev) == 0
assert os.stat("/dev//accel/./accel0") == node == os.lstat("/dev/accel/../accel/accel0")
assert os.listdir("/dev/accel") == ["accel0"]
assert os.access("/dev/accel/accel0", os.R_OK | os.W_OK)
assert not os.access("/dev/accel/accel0", os.X_OK)
assert not os.path.exists("/dev/accel/accel1")
folder = os.open("/dev/accel", os.O_RDONLY | os.O_DIRECTORY)
assert stat.S_ISCHR(os.stat("accel0", dir_fd=folder).st_mode)
fd = os.open("accel0", os.O_RDWR, dir_fd=folder)
assert stat.S_ISCHR(os.fstat(fd).st_mode) and os.get_inheritable(fd) is False
for link in (f"/proc/self/fd/{fd}", f"/proc/{os.getpid()}/fd/{fd}"):
    assert os.readlink(link) == "/dev/accel/accel0" and os.stat(link) == node
    assert stat.S_ISLNK(os.lstat(link).st_mode)
assert os.readlink("/proc/self/fd/0") != "/dev/accel/accel0"
assert os.path.realpath("/sys/class/accel/accel0/device/driver").endswith("/drivers/amdxdna")
device = os.path.realpath("/sys/class/accel/accel0/device")
assert open(device + "/vendor").read() == "0x1022\\n"
assert os.readlink("/sys/dev/char/261:0").endswith("accel/accel0")
assert os.path.basename(device) == "0000:c5:00.1"  # a domain is a number to programs that read it
assert os.path.basename(device) in os.listdir("/sys/bus/pci/devices")
for path, flags, number in (("/dev/accel/accel0", os.O_RDWR | os.O_DIRECTORY, errno.ENOTDIR),
                            ("/dev/accel/accel0", os.O_CREAT | os.O_EXCL | os.O_RDWR, errno.EEXIST),
                            ("/dev/accel/accel7", os.O_RDWR, errno.ENOENT),
                            (device + "/vendor", os.O_WRONLY, errno.EACCES)):
    try:
        os.open(path, flags)
        raise SystemExit(f"{path} opened")
    except OSError as failed:
        assert failed.errno == number, (path, failed)
try:
    os.readlink("/dev/accel/accel0")
except OSError as failed:
    assert failed.errno == errno.EINVAL
print("fine")
""")
    assert ended.stdout == "fine\n", ended.stderr


def test_device_path() -> None:
    """The node elsewhere: only there, and under that number in sysfs."""
    code = """
import os
from amdxdna import sysfs
print([node.path for node in sysfs.find_nodes()], os.path.exists("/dev/accel/accel0"))
from amdxdna.node import KernelNode
KernelNode({!r}).close()
"""
    third = emulate_python(code.format("/dev/accel/accel3"), more=("--device-path", "/dev/accel/accel3"))
    assert (third.returncode, third.stdout) == (0, "['/dev/accel/accel3'] False\n"), third.stderr
    other = emulate_python(code.format("/tmp/my-npu"), more=("--device-path", "/tmp/my-npu"))
    assert (other.returncode, other.stdout) == (0, "[] False\n"), other.stderr


def test_what_is_beside_the_device() -> None:
    """Listings of the folders above, in sysfs too, and paths that lead out of the device's folders: what find
    and os.walk see is what the kernel's tree would show."""
    ended = emulate_python("""
import glob, os
for above, name in (("/dev", "accel"), ("/sys/class", "accel"), ("/sys/module", "amdxdna"),
                    ("/sys/dev/char", "261:0"), ("/sys/bus/pci/drivers", "amdxdna")):
    if os.path.isdir(above):
        found = [entry for entry in os.scandir(above) if entry.name == name]
        assert [entry.inode() for entry in found] == [os.lstat(f"{above}/{name}").st_ino], (above, found)
        assert found[0].is_dir()
assert [path for path, _, names in os.walk("/dev") if "accel0" in names] == ["/dev/accel"]
assert glob.glob("/dev/ac*/acc*") == ["/dev/accel/accel0"]
assert os.stat("/sys/class/accel/..").st_ino == os.stat("/sys/class").st_ino
before = os.listdir("/dev")
os.chdir("/dev/accel")
assert os.path.exists("../null") and not os.path.exists("../nothing")
os.chdir("..")
assert (os.getcwd(), os.listdir(".")) == ("/dev", before)
fd = os.open("/dev/accel/../null", os.O_WRONLY)
assert os.write(fd, b"x") == 1
print("fine")
""")
    assert ended.stdout == "fine\n", ended.stderr
    other = emulate(
        "sh",
        "-c",
        "ls /dev | grep -c '^my-npu$'; ls /dev | grep -c '^accel$'",
        more=("--device-path", "/dev/my-npu"),
    )
    assert other.stdout == f"1\n{int(os.path.exists('/dev/accel'))}\n", other.stderr


@pytest.mark.parametrize("options", ["address=pasid", "address=iova"])
def test_file_operations(options: str) -> None:
    """What tests/c/files.c prints is what it prints on the driver's node (tests/vm/test_uapi_program.py)."""
    ended = emulate(str(c_program(name="files")), NODE, options=options)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == FILE_OPERATIONS.read_text()


# -- options


def test_the_kernel_log_is_the_emulated_drivers() -> None:
    """/dev/kmsg tells of the emulated device and nothing of the host's kernel, a record a read; doctor and
    dmesg read it so."""
    ended = emulate_python(
        """
import os, subprocess, sys
from amdxdna.cli import main
def records(flags=0):
    fd, found = os.open("/dev/kmsg", os.O_RDONLY | flags), []
    while data := os.read(fd, 8192):
        found.append(data.decode())
    os.close(fd)
    return found
first = records(os.O_NONBLOCK)
print(len(first), first[0].split(",")[:2], first[0].partition(";")[2].strip())
print(main(["selftest", "--device", "0", "--json"]))
for record in records()[1:]:
    head, _, text = record.partition(";")
    print(head.split(",")[:2], text.strip())
os.chdir("/dev")
print(len(os.read(os.open("kmsg", os.O_RDONLY), 9000)) == len(first[0]))
sys.stdout.flush()
main(["doctor", "--device", "0", "--json"])
""",
        options="tdr=0.3,driver=6.18.5,hang=1",
    )
    first, told, status, *rest = ended.stdout.splitlines()
    begins = "[drm] Initialized amdxdna_accel_driver 0.1.0 for 0000:c5:00.1 on minor 0"
    assert first == f"1 ['6', '0'] {begins}", ended.stderr
    assert status == "1" and '"ok": false' in told
    assert rest[:3] == [
        "['3', '1'] amdxdna 0000:c5:00.1: injected fault: context 0 hangs",
        "['3', '2'] amdxdna 0000:c5:00.1: TDR timeout detected",
        "True",
    ]
    checks = {check["check"]: check for check in json.loads(rest[3])["checks"]}
    assert (checks["log"]["status"], checks["log"]["facts"]["left_out"]) == ("warn", False)
    assert [event["line"] for event in checks["log"]["facts"]["events"]] == [
        "amdxdna 0000:c5:00.1: TDR timeout detected",
        "amdxdna 0000:c5:00.1: injected fault: context 0 hangs",
    ]


def test_options_reach_the_device() -> None:
    ended = emulate_python(
        """
from amdxdna.node import KernelNode
from tests.conformance.kit import Client
from amdxdna._native import lib
client = Client(KernelNode("/dev/accel/accel0"))
client.heap()
contexts = []
try:
    while True:
        contexts.append(client.context()[0])
except OSError as failed:
    print(len(contexts), failed.errno)
from amdxdna._native import ffi
args = ffi.new("struct drm_version *")
client.ioctl(lib.DRM_IOCTL_VERSION, args)
print(args.version_minor, client.info(client.create_bo(1, 4096)).xdna_addr == lib.AMDXDNA_INVALID_ADDR)
""",
        more=("--slots", "3", "--minor", "4", "--address", "iova"),
    )
    assert ended.stdout.splitlines() == ["3 22", "4 False"], ended.stderr


def test_faults(tmp_path: Path) -> None:
    """A failing open, a refused context, a failing command; each where it was asked for."""
    code = """
import os
for _ in range(2):
    try:
        fd = os.open("/dev/accel/accel0", os.O_RDWR)
        break
    except OSError as failed:
        print("open", failed.errno)
from tests.conformance import kit
from amdxdna.node import KernelNode
try:
    kit.Ready(KernelNode("/dev/accel/accel0"))
except OSError as failed:
    print("context", failed.errno)
ready = kit.Ready(KernelNode("/dev/accel/accel0"))
print([ready.copy() for _ in range(3)])
"""
    ended = emulate_python(
        code, more=("--fault", "open=1:EACCES", "--fault", "refuse=1", "--fault", "fail=2:0x3000002")
    )
    assert ended.stdout.splitlines() == ["open 13", "context 22", "[4, 5, 4]"], ended.stderr


def test_slow_commands() -> None:
    ended = emulate_python(
        """
import time
from tests.conformance import kit
from amdxdna.node import KernelNode
ready = kit.Ready(KernelNode("/dev/accel/accel0"))
began = time.monotonic()
print(ready.copy(), time.monotonic() - began > 0.2)
""",
        more=("--slow", "200000"),
    )
    assert ended.stdout == "4 True\n", ended.stderr


def test_four_programs_at_once(tmp_path: Path) -> None:
    blob, code = device_programs(tmp_path)
    one = f"{c_program()} {NODE} {blob} {code} | tail -1"
    ended = emulate("sh", "-c", f"for i in 1 2 3 4; do {one} & done; wait", options="slots=24")
    assert ended.stdout == "ok: the end\n" * 4, ended.stdout + ended.stderr


def test_everything_after_the_dashes_is_the_programs() -> None:
    ended = run("emulate", "--slots", "2", "--", "echo", "--slots", "--", "--json", "-O")
    assert ended.stdout == "--slots -- --json -O\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "emulate: no command"),
        (["--"], 2, "emulate: no command"),
        (["--slots", "many", "--", "true"], 2, "'many' is not a number"),
        (["--fault", "explode=1", "--", "true"], 2, "explode=1"),
        (["--device-path", "accel0", "--", "true"], 2, "not a plain absolute path"),
        (["--device-path", "/dev/../x", "--", "true"], 2, "not a plain absolute path"),
        (["--nonsense", "--", "true"], 2, "--nonsense"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *words]) == status
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


# -- the command itself


def test_vfio_user_prints_its_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["emulate", "--vfio-user", str(tmp_path / "npu.sock"), "--print-qemu-args"]) == 0
    out = capsys.readouterr().out
    assert str(tmp_path / "npu.sock") in out
    assert "vfio-user-pci" in out


def test_import_stays_light() -> None:
    """Neither the package nor the command line imports numpy before something needs it."""
    ended = python(
        "-c",
        "import sys, amdxdna, amdxdna.cli, amdxdna.__main__, "
        "amdxdna.cli.emulate, amdxdna.cli.trace, amdxdna.cli.insts, amdxdna.cli.xclbin\n"
        "print([name for name in ('numpy', 'tokenizers') if name in sys.modules])",
        check=True,
    )
    assert ended.stdout == "[]\n"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in ("emulate", "trace", "xclbin", "insts"))
    assert main([]) == 2
    assert main(["nonsense"]) == 2
