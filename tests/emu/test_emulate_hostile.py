"""What a program under `emulate` may try against the process that emulates the device for it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from amdxdna._native import ffi, lib
from amdxdna.emu.seccomp import folders
from amdxdna.emu.seccomp.call import Call, Stale
from amdxdna.emu.seccomp.client import TaskMemory
from amdxdna.emu.seccomp.tree import Outside, Tree
from tests.support.emulation import (
    NODE,
    ROOT,
    ROOT_ONLY,
    as_nobody,
    c_program,
    device_programs,
    emulate,
    emulate_python,
)
from tests.support.program import python

ANSWERS = {
    "larger": ["inside 4"] + ["refused"] * 13,
    "grown": ["inside 4"] * 2 + ["refused"] * 6,
    "moved": ["inside 4"] * 3 + ["refused", "works"],
    "forged": ["EBADF"] * 3 + ["EINVAL", "EBADF", "EINVAL", "EINVAL", "works", "destroyed 0"],
    "weaker": ["EINVAL", "EBADF", "imported"],
    "pointers": ["works"],
    "tables": ["EOPNOTSUPP EOPNOTSUPP EFAULT ENOMEM EINVAL", "EOPNOTSUPP ENOMEM", "sparse works"],
    "maps": ["works"],
    "wraps": ["works"],
    "descriptors": ["works"],
    "forks": ["works"],
}


@pytest.mark.parametrize("case", ANSWERS)
def test_c_program(tmp_path: Path, case: str) -> None:
    """Memory of the supervisor's stays its own, every answer is an errno, and the device goes on working."""
    blob, code = device_programs(tmp_path)
    ended = emulate(str(c_program(name="hostile")), NODE, str(blob), str(code), case)
    assert ended.stdout.splitlines() == ANSWERS[case], ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_program_without_a_free_descriptor() -> None:
    """It gets the errno that the kernel's own open has, for the node and for a file of the tree."""
    ended = emulate_python(
        """
import errno, os, resource
held = os.open("/", os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_NOFILE, (held + 1, held + 1))
for path in ("/dev/accel/accel0", "/sys/class/accel/accel0/device/vendor", "/etc/passwd"):
    try:
        os.close(os.open(path, os.O_RDONLY))
        print("opened")
    except OSError as failed:
        print(errno.errorcode[failed.errno])
os.close(held)
os.close(os.open("/dev/accel/accel0", os.O_RDWR))
print("fine")
"""
    )
    assert ended.stdout.splitlines() == ["EMFILE"] * 3 + ["fine"], ended.stderr


@ROOT_ONLY
def test_the_nodes_mode_is_what_others_may(tmp_path: Path) -> None:
    """By each access mode, for the node's group and for everybody else; user 0 may do all."""
    ended = emulate_python(
        """
import os
node, ways = "/dev/accel/accel0", (os.O_RDONLY, os.O_WRONLY, os.O_RDWR)
def tries():
    found = ""
    for way in ways:
        try:
            os.close(os.open(node, way))
            found += "y"
        except PermissionError:
            found += "n"
    return found
for mode in (0o666, 0o644, 0o622, 0o660, 0o600):
    os.chmod(node, mode)
    print(f"{mode:o} {tries()}", end=" ", flush=True)
    for group in (0, 65534):
        if not (child := os.fork()):
            os.setgroups([]); os.setgid(group); os.setuid(65534)
            print(tries(), end=" ", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    print(flush=True)
"""
    )
    assert [line.split() for line in ended.stdout.splitlines()] == [
        ["666", "yyy", "yyy", "yyy"],
        ["644", "yyy", "ynn", "ynn"],
        ["622", "yyy", "nyn", "nyn"],
        ["660", "yyy", "yyy", "nnn"],
        ["600", "yyy", "nnn", "nnn"],
    ], ended.stderr


@pytest.mark.parametrize("length", [0, 1, 99, 100, 4095, 5000])
@pytest.mark.parametrize("at", [0, 4000, 4095])
def test_no_path_is_longer_than_its_room(length: int, at: int) -> None:
    """A string of another process, from any place in a page, with room for 100 bytes: none behind them."""
    theirs = mmap.mmap(-1, 4 << 12)
    theirs[at : at + length] = b"x" * length
    text = ffi.new("char[8192]", b"#" * 8191)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(theirs)))
    found = lib.xdna_read_string(os.getpid(), address + at, text, 100)
    assert found == (length if length < 100 else -errno.ENAMETOOLONG)
    assert ffi.buffer(text)[100:8191] == b"#" * 8091
    assert ffi.buffer(text)[: min(length, 100)] == b"x" * min(length, 100)


def test_a_string_ends_with_its_memory() -> None:
    """One without an end, in the last page that is there."""
    theirs = mmap.mmap(-1, 2 << 12)
    theirs[:] = b"x" * len(theirs)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(theirs)))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + 4096), 4096, 0)
    text = ffi.new("char[4096]")
    assert lib.xdna_read_string(os.getpid(), address + 4090, text, 4096) == -errno.EFAULT
    theirs[4090:4096] = b"/dev/x"[:5] + b"\0"
    assert lib.xdna_read_string(os.getpid(), address + 4090, text, 4096) == 5
    assert ffi.string(text) == b"/dev/"


def test_memory_that_nobody_fills_holds_up_its_own_calls_alone() -> None:
    """A path and an ioctl's struct in such memory; another process of the program is answered meanwhile."""
    ended = emulate(str(c_program(name="held")), NODE)
    if ended.stdout == "none\n":
        pytest.skip("userfaultfd gives this process no faults of the kernel's")
    assert ended.stdout.splitlines() == ["path goes on", "struct goes on"], ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")


# -- rights


@ROOT_ONLY
def test_a_link_in_the_tree_gives_no_rights(tmp_path: Path) -> None:
    """A program that became nobody reads nothing through the device's folders that it may not read itself."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ended = emulate_python(
        f"""
import os
names = ["absolute", "relative", "folder", "pipe"]
assert os.readlink(f"/proc/self/fd/{{os.open('/sys/class/accel', os.O_RDONLY)}}") == "/sys/class/accel"
folder, = os.listdir({str(temporary)!r})
tree = f"{temporary}/{{folder}}/sys/class/accel"
os.symlink({str(secret)!r}, f"{{tree}}/absolute")
os.symlink("../" * 20 + {str(secret)!r}, f"{{tree}}/relative")
os.symlink({str(tmp_path)!r}, f"{{tree}}/folder")
os.mkfifo(f"{{tree}}/pipe")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def attempt(action):
    try:
        return action()
    except OSError as refused:
        return type(refused).__name__
for name in ("absolute", "relative", "folder/secret", "pipe"):
    path = f"/sys/class/accel/{{name}}"
    print(name, attempt(lambda: open(path).read()), attempt(lambda: os.stat(path).st_size),
          attempt(lambda: os.access(path, os.R_OK)),
          attempt(lambda: os.open(path, os.O_PATH)))
print(os.readlink("/sys/class/accel/absolute") == {str(secret)!r})
print(open("/sys/class/accel/accel0/device/vendor").read().strip())
os.close(os.open("{NODE}", os.O_RDWR))
""",
        env={"TMPDIR": str(temporary)},
    )
    refused, none = (f"{name} {name} False {name}" for name in ("PermissionError", "FileNotFoundError"))
    assert ended.stdout.splitlines() == [
        *(f"{name} {refused}" for name in ("absolute", "relative", "folder/secret")),
        f"pipe {none}",
        "True",
        "0x1022",
    ], ended.stderr
    assert ended.stderr == ""


@ROOT_ONLY
def test_a_process_that_cannot_be_read_finds_no_device() -> None:
    """Which is told once. The last call on its parent's device is no business of its."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = folder / "unreadable"
        program.write_bytes(c_program(name="unreadable").read_bytes())
        program.chmod(0o755)
        words = ["emulate", "-O", "threads=1,quiet", "--", str(program), NODE]
        ended = as_nobody([*words[:4], "true"], words)
    assert (ended.returncode, ended.stdout) == (0, "0 0\n"), ended.stderr
    assert ended.stderr.count("cannot be read") == 1 and "it finds no device" in ended.stderr, ended.stderr


def test_a_descriptor_is_not_opened_anew() -> None:
    """What a program holds with O_PATH or for reading is not taken with more than that."""
    ended = emulate_python("""
import ctypes, errno, fcntl, os, struct
fd = os.open("/dev/accel/accel0", os.O_RDWR)
memory = os.memfd_create("amdxdna-dmabuf", os.MFD_ALLOW_SEALING)
os.ftruncate(memory, 4096)
fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
for mode in (os.O_PATH, os.O_RDONLY, os.O_WRONLY):
    weaker = os.open(f"/proc/self/fd/{memory}", mode)
    try:
        fcntl.ioctl(fd, 0xC00C642E, struct.pack("<IIi", 0, 0, weaker))
        print("imported")
    except OSError as refused:
        print(errno.errorcode[refused.errno])
""")
    assert ended.stdout.split() == ["EBADF", "EINVAL", "EINVAL"], ended.stderr


def test_the_tree_stays_in_itself(tmp_path: Path) -> None:
    tree = Tree(NODE)
    try:
        with tree.opened(NODE) as entry:
            assert tree.is_node(entry)
        with tree.opened("/sys/class/accel/accel0/device/driver/module/initstate") as entry:
            assert not tree.is_node(entry)
        for path in ("/../../etc/passwd", "/sys/class/accel/../../../../../etc/passwd"):
            with pytest.raises(Outside), tree.opened(path):
                pass
        os.symlink("/proc/self/root/etc/passwd", f"{tree.root}/sys/class/accel/magic")
        with pytest.raises(Outside), tree.opened("/sys/class/accel/magic"):
            pass
        with pytest.raises(FileNotFoundError), tree.opened("/sys/class/accel/none"):
            pass
    finally:
        tree.close()
    assert not os.path.exists(tree.root)


@ROOT_ONLY
def test_another_file_with_the_nodes_inode_number(tmp_path: Path) -> None:
    """A file of another file system whose inode number is that of the node's memory is not the node."""
    ended = emulate_python(f"""
import ctypes, os, re, sys
fd = os.open("{NODE}", os.O_RDWR)
import mmap, struct, fcntl
args = bytearray(struct.pack("<QQQII", 0, 0, 4096, 1, 0))
fcntl.ioctl(fd, 0xC0206443, args)
info = bytearray(48)
struct.pack_into("<QQI", info, 0, 0, 0, struct.unpack_from("<I", args, 28)[0])
fcntl.ioctl(fd, 0xC0306444, info)
view = mmap.mmap(fd, 4096, offset=struct.unpack_from("<Q", info, 24)[0])
wanted = int(re.search(r" (\\d+) +/memfd:amdxdna-node", open("/proc/self/maps").read())[1])
libc = ctypes.CDLL(None, use_errno=True)
if wanted > 200_000 or libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(
        b"none", {str(tmp_path).encode()!r}, b"tmpfs", 0, b"inode32,nr_inodes=0"):
    sys.exit(77)
for number in range(200_000):
    path = f"{tmp_path}/x"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    if os.fstat(file).st_ino == wanted:
        break
    if os.fstat(file).st_ino > wanted:
        sys.exit(77)
    os.close(file)
    os.unlink(path)
else:
    sys.exit(77)
print(os.readlink(f"/proc/self/fd/{{file}}"), os.path.exists("{NODE}"))
print(os.readlink(f"/proc/self/fd/{{fd}}"))
""")
    if ended.returncode == 77:
        pytest.skip("no file system with such inode numbers")
    assert ended.stdout.split() == [f"{tmp_path}/x", "True", NODE], ended.stderr


# -- callers that are gone


def test_nothing_is_written_once_the_caller_is_gone() -> None:
    """The number of a thread that ended may be another's: neither is it written to, nor believed."""
    notice = ffi.new("struct xdna_notice *", {"pid": os.getpid()})
    memory = TaskMemory(os.getpid())
    memory.call = Call(-1, notice)  # no listener knows it
    words = ffi.new("uint32_t[]", [1, 2])
    here = ffi.new("uint32_t[]", [3, 4])
    address = int(ffi.cast("uintptr_t", words))
    with pytest.raises(Stale):
        memory.write_from(address, here, 8)
    assert list(words) == [1, 2]
    with pytest.raises(Stale):
        memory.read(address, 8)
    memory.call = None
    memory.write_from(address, here, 8)
    assert list(words) == [3, 4]
    with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        memory.read((1 << 64) + 8, 8)


# -- folders


def _left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(folders.PREFIX)]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """A killed emulator leaves its folder; the next one removes it, and nobody else's."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "amdxdna", "emulate", "-O", "threads=1,quiet", "--"]
    sleeper = "import os, time; print(os.path.exists('/dev/accel/accel0'), flush=True); time.sleep(900)"
    alive, killed = (
        subprocess.Popen(
            [*command, sys.executable, "-c", sleeper],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    )
    try:
        for each in (alive, killed):
            assert each.stdout is not None
            assert each.stdout.readline() == "True\n"
        both = set(_left(tmp_path))
        assert len(both) == 2
        killed.kill()
        killed.wait(60)
        assert set(_left(tmp_path)) == both
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "file").write_text("mine")
        (tmp_path / f"{folders.PREFIX}link").symlink_to(elsewhere)
        ended = subprocess.run([*command, "/bin/true"], cwd=ROOT, env=environment, timeout=300, check=False)
        assert ended.returncode == 0
        left = set(_left(tmp_path)) - {f"{folders.PREFIX}link"}
        assert len(left) == 1
        assert left < both
        assert (elsewhere / "file").read_text() == "mine"
    finally:
        for each in (alive, killed):
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(each.pid, number)
                except ProcessLookupError:
                    break
                time.sleep(0.2)
            each.wait(60)
            each.stdout.close()  # type: ignore[union-attr]


_CLOSED = """
import os, sys, time
from amdxdna.emu.seccomp import folders
if os.geteuid() == 0:  # whom no mode keeps out
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
folders.tempfile.tempdir = sys.argv[1]
os.mkdir("elsewhere")
os.mkdir("elsewhere/in", 0o500)
for end in ("removed", "left"):
    path, fd = folders.make()
    os.makedirs(f"{path}/a/b/c")
    open(f"{path}/a/b/c/file", "w").close()
    os.symlink(os.path.abspath("elsewhere"), f"{path}/a/link")
    here = os.open(f"{path}/a/b", os.O_RDONLY)
    for _ in range(200):
        os.mkdir("deep", 0o700, dir_fd=here)
        here = os.open("deep", os.O_RDONLY, dir_fd=here)
    for name in ("/a/b/c/file", "/a/b/c", "/a/b/deep", "/a/b", "/a", ""):
        os.chmod(path + name, 0)
    if end == "removed":
        folders.remove(path, fd)
    else:
        os.close(fd)  # as its process's end does
        folders.remove(*folders.make())
    print(end, sorted(os.listdir()), sorted(os.listdir("elsewhere")), oct(os.stat("elsewhere/in").st_mode))
"""


def test_folders_that_a_program_closed_are_removed() -> None:
    """Whatever modes it gave them, and however deep they are; what a link in them leads to stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        ended = python("-c", _CLOSED, folder, cwd=folder)
    expected = "['elsewhere'] ['in'] 0o40500"
    assert (ended.stdout, ended.stderr) == (f"removed {expected}\nleft {expected}\n", "")


def test_a_tree_that_cannot_be_filled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(link: Path, to: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(OSError, match="full"):
        Tree(NODE)
    assert not _left(tmp_path)


_MAKING = """
import sys
from amdxdna.emu.seccomp import folders
folders.tempfile.tempdir = sys.argv[1]
for _ in range(1500):
    folders.remove(*folders.make())
"""


def test_programs_that_start_at_once_leave_each_other_their_folders(tmp_path: Path) -> None:
    """One that has been made and not yet locked looks like a dead process's to the other."""
    making = [
        subprocess.Popen(
            [sys.executable, "-c", _MAKING, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    assert [(each.communicate(timeout=300)[1], each.returncode) for each in making] == [("", 0)] * 4
    assert not _left(tmp_path)
