"""Calls by number (arch/x86/entry/syscalls/syscall_64.tbl) on the emulated node and the files beside it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from amdxdna.emu.seccomp.files import stat_bytes, statx_bytes
from tests.support.emulation import emulate_python

COMMON = """
import ctypes, errno, fcntl, os, signal, stat, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
node, folder, link = b"/dev/accel/accel0", b"/sys/class/accel", b"/sys/class/accel/accel0"
vendor, here = b"/sys/class/accel/accel0/device/vendor", -100
buffer = ctypes.create_string_buffer(8192)
def call(nr, *arguments):
    value = libc.syscall(nr, *arguments)
    return value if value >= 0 else errno.errorcode[ctypes.get_errno()]
def check(*rows):
    for expected, *given in rows:
        found = call(*given)
        assert found == expected, (given, found, expected)
"""


def holds(code: str, before: str = "") -> None:
    ended = emulate_python(COMMON + code + "\nprint('fine')", before=before)
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr


def test_what_may_be_done_with_a_path() -> None:
    holds("""
check(
    (0, 21, node, 6), ("EACCES", 21, node, 1), (0, 269, here, node, 6), (0, 439, here, node, 6, 0),
    (0, 21, vendor, 4), ("EACCES", 21, vendor, 2), ("EACCES", 269, here, vendor, 1),
    (0, 21, folder, 5), ("EACCES", 21, folder, 2),
    (0, 439, here, link, 1, 0), ("EACCES", 439, here, link, 1, 0x100),  # the folder, the link itself
    ("ENODATA", 191, node, b"user.x", buffer, 9), ("ENODATA", 192, node, b"user.x", buffer, 9),
    (0, 194, node, buffer, 9), (0, 195, node, buffer, 9), ("ENODATA", 191, vendor, b"user.x", buffer, 9),
    ("EINVAL", 76, node, 0), ("EACCES", 76, vendor, 0), ("ENOTDIR", 80, node),
    ("EINVAL", 89, node, buffer, 99), ("EINVAL", 89, vendor, buffer, 99),
    (len(os.readlink(link)), 89, link, buffer, 99), (5, 267, here, link, buffer, 5),
    ("EPERM", 90, vendor, 0o600),
)
assert buffer.value.startswith(os.fsencode(os.readlink(link)))
at = os.open("/dev/accel", os.O_RDONLY)
check((0, 269, at, b"accel0", 4), ("ENOENT", 269, at, b"accel1", 4))
os.chdir(folder)
check((0, 21, b"accel0", 4), ("ERANGE", 79, buffer, 16), (17, 79, buffer, 17))
assert buffer.value == folder
if os.geteuid() == 0:
    for nr, *before in ((90,), (268, here)):
        for mode in (0o640, 0o666):
            check((0, nr, *before, node, 0o7000 | mode))
            assert stat.S_IMODE(os.stat(node).st_mode) == mode
    if not os.fork():
        os.setuid(65534)
        check(("EPERM", 90, node, 0o600))
        os._exit(0)
    assert os.wait()[1] == 0
""")


def test_what_stat_says() -> None:
    holds("""
def kind(nr, *given):
    check((0, nr, *given))
    mode, = struct.unpack_from("<H", buffer, 28) if nr == 332 else struct.unpack_from("<I", buffer, 24)
    return stat.S_IFMT(mode)
for path, followed, itself in ((node, stat.S_IFCHR, stat.S_IFCHR), (vendor, stat.S_IFREG, stat.S_IFREG),
                               (link, stat.S_IFDIR, stat.S_IFLNK)):
    assert kind(4, path, buffer) == kind(262, here, path, buffer, 0) == followed
    assert kind(332, here, path, 0, 0x7FF, buffer) == followed
    assert kind(6, path, buffer) == kind(262, here, path, buffer, 0x100) == itself
    assert kind(332, here, path, 0x100, 0x7FF, buffer) == itself
    known = os.stat(path)
    check((0, 332, here, path, 0, 0x7FF, buffer))
    mask, blksize = struct.unpack_from("<II", buffer)
    inode, size = struct.unpack_from("<QQ", buffer, 32)
    assert (mask, blksize, inode, size) == (0x7FF, known.st_blksize, known.st_ino, known.st_size)
    assert struct.unpack_from("<I", buffer, 16)[0] == known.st_nlink
    assert struct.unpack_from("<II", buffer, 128) == (os.major(known.st_rdev), os.minor(known.st_rdev))
known = os.stat(node)
assert (known.st_rdev, known.st_nlink, known.st_size, known.st_dev) == (os.makedev(261, 0), 1, 0, 5)
assert (known.st_blksize, known.st_blocks, known.st_mtime_ns, known.st_atime_ns) == (4096, 0, 0, 0)
assert os.stat(vendor).st_size == 7 and os.stat(vendor).st_uid == os.stat(vendor).st_gid == 0
""")


def test_a_path_out_of_the_devices_folders_takes_no_memory() -> None:
    """Its thread makes the call again, with the path in a page that goes afterwards."""
    holds("""
def mapped():
    return int(open("/proc/self/statm").read().split()[0])
os.chdir("/dev/accel")
call(21, b"../null", 4)
before = mapped()
check(*[(0, 21, b"../null", 4)] * 5, *[("ENOENT", 21, b"../nothing", 4)] * 5)
assert mapped() == before
""")


def test_what_opens() -> None:
    """By each of the three calls; only what is asked to ends with an exec."""
    holds("""
def opens(path, flags):
    how = (ctypes.c_uint64 * 3)(flags)
    for given in ((2, path, flags), (257, here, path, flags), (437, here, path, how, 24)):
        fd = call(*given)
        if isinstance(fd, int):
            flag, fd = fcntl.fcntl(fd, fcntl.F_GETFD), os.close(fd)
            yield flag
        else:
            yield fd
for path in (node, vendor, b"/dev/kmsg"):
    for flags in (0, os.O_CLOEXEC):
        assert list(opens(path, os.O_RDONLY | flags)) == [bool(flags)] * 3, path
for path, flags, expected in (
    (node, os.O_RDWR | os.O_CREAT, 0), (node, os.O_RDWR | os.O_EXCL, 0), (node, os.O_WRONLY | os.O_TRUNC, 0),
    (node, os.O_RDWR | os.O_CREAT | os.O_EXCL, "EEXIST"), (node, os.O_RDWR | os.O_DIRECTORY, "ENOTDIR"),
    (vendor, os.O_WRONLY, "EACCES"), (vendor, os.O_RDWR, "EACCES"), (vendor, os.O_DIRECTORY, "ENOTDIR"),
    (folder, os.O_WRONLY, "EISDIR"), (folder, os.O_DIRECTORY, 0), (link, os.O_NOFOLLOW, "ELOOP"),
    (vendor, os.O_NOFOLLOW, 0), (node, os.O_PATH, 0), (node, os.O_PATH | os.O_CLOEXEC, 1),
    (folder, os.O_PATH | os.O_CLOEXEC, 1), (vendor, os.O_PATH | os.O_DIRECTORY, "ENOTDIR"),
):
    assert list(opens(path, flags)) == [expected] * 3, (path, flags, list(opens(path, flags)))
""")


def test_what_listings_say() -> None:
    """By both calls: the node is a device, the folders above list the device's, each once and as a folder."""
    holds("""
def listed(nr, path, size):
    found, fd = [], os.open(path, os.O_RDONLY)
    while (count := call(nr, fd, buffer, size)) > 0:
        at = 0
        while at < count:
            inode, _, length = struct.unpack_from("<QqH", buffer, at)
            assert length % 8 == 0
            entry = buffer.raw[at : at + length]
            name = entry[19 if nr == 217 else 18 :].split(b"\\0")[0]
            found.append((name, inode, entry[18 if nr == 217 else -1]))
            at += length
    assert count == 0, count
    os.close(fd)
    return found
for nr in (78, 217):
    assert (b"accel0", os.stat(node).st_ino, 2) in listed(nr, "/dev/accel", 8192)
    assert {name for name, _, _ in listed(nr, "/dev/accel", 64)} == {b".", b"..", b"accel0"}
    for above, name in (("/dev", b"accel"), ("/sys/class", b"accel"), ("/sys/module", b"amdxdna")):
        if os.path.isdir(above):
            inode = os.lstat(os.path.join(os.fsencode(above), name)).st_ino
            assert [each for each in listed(nr, above, 8192) if each[0] == name] == [(name, inode, 4)], nr
""")


FEW = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))"


def test_no_call_costs_the_emulator_a_descriptor() -> None:
    """It has a hundred. Each kind of call is made more often than that, also where it fails."""
    holds(
        """
fd = os.open(node, os.O_RDWR)
reader, writer = os.pipe()
def opened(path, flags):
    try:
        os.close(os.open(path, flags))
    except OSError:
        pass
def poll():
    buffer.raw = struct.pack("<ihhihh", fd, 1, 0, reader, 1, 0).ljust(8192, b"\\0")
    check((0, 7, buffer, 2, 0))
def buffers():
    given = struct.pack("<QQQII", 0, 0, 4096, 1, 0)
    handle, = struct.unpack_from("<I", fcntl.ioctl(fd, 0xC0206443, given), 28)
    exported = fcntl.ioctl(fd, 0xC00C642D, struct.pack("<IIi", handle, os.O_CLOEXEC | os.O_RDWR, -1))
    shared, = struct.unpack_from("<i", exported, 8)
    fcntl.ioctl(fd, 0xC00C642E, struct.pack("<IIi", 0, 0, shared))
    os.close(shared)
    fcntl.ioctl(fd, 0x40086409, struct.pack("<II", handle, 0))
for again in (
    lambda: os.listdir("/dev/accel"), lambda: os.listdir("/sys/class"), poll, buffers,
    lambda: opened(node, os.O_RDWR), lambda: opened(node, os.O_PATH), lambda: opened(node, os.O_DIRECTORY),
    lambda: opened(vendor, os.O_RDONLY), lambda: opened(vendor, os.O_WRONLY),
    lambda: opened(folder, os.O_PATH), lambda: opened("/dev/kmsg", os.O_RDONLY), lambda: os.chdir(folder),
    lambda: os.stat("/dev/accel/../null"),
    lambda: opened(link, os.O_NOFOLLOW), lambda: call(262, here, vendor, buffer, 0),
):
    for _ in range(110):
        again()
assert os.listdir("/dev/accel") == ["accel0"] and open(vendor).read() == "0x1022\\n"
""",
        FEW,
    )


def test_a_programs_limit_is_each_processes_own() -> None:
    """Several open more of the device together than the emulator was started with, up to the hard limit."""
    holds(
        """
reader, writer = os.pipe()
children = []
for _ in range(3):
    if not (child := os.fork()):
        held = [os.open(node, os.O_RDWR) for _ in range(50)]
        os.write(writer, b"x" if len(held) == 50 else b"")
        os.close(writer)
        __import__("signal").pause()
    children.append(child)
os.close(writer)
for _ in children:
    assert os.read(reader, 1) == b"x"
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
""",
        "import resource as r; r.setrlimit(7, (80, r.getrlimit(7)[1]))",
    )


@pytest.mark.parametrize("path", ["/dev/null", "file", "."])
def test_stat_is_written_as_the_kernel_writes_it(path: str, tmp_path: Path) -> None:
    """But for the owner, which is root, and what statx tells beside the basic fields."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = os.fsencode(tmp_path / path)
    (tmp_path / "file").write_bytes(b"x" * 5000)
    os.link(tmp_path / "file", tmp_path / "again")
    os.utime(tmp_path / "file", ns=(1_234_567_890_123_456_789, 2_345_678_901_234_567_890))
    buffer = ctypes.create_string_buffer(256)
    status = os.stat(at)
    assert libc.syscall(4, at, buffer) == 0
    made = stat_bytes(status)
    assert len(made) == 144
    assert made[:28] + made[36:] == buffer.raw[:28] + buffer.raw[36:144]
    assert libc.syscall(332, -100, at, 0, 0x7FF, buffer) == 0
    made = statx_bytes(status)
    assert len(made) == 256
    for first, last in ((4, 8), (16, 20), (28, 30), (32, 56), (64, 76), (96, 108), (112, 124), (128, 144)):
        assert made[first:last] == buffer.raw[first:last], first


def test_waiting_for_the_node_and_others() -> None:
    """poll, ppoll, select and pselect6: the node has no event, ever; the others' are told, a wait that is no
    time or has no such descriptor is refused, and Linux's select says what was left."""
    holds("""
fd = os.open(node, os.O_RDWR)
reader, writer = os.pipe()
broken, gone = os.pipe()
os.close(broken)  # POLLERR at its other end
ended, other = os.pipe()
os.close(other)  # POLLHUP
high = fcntl.fcntl(reader, fcntl.F_DUPFD, 70)
def poll(*fds, nr=7, timeout=0):
    packed = b"".join(struct.pack("<ihh", each, 7, 0x55) for each in fds)
    ctypes.memmove(buffer, packed, len(packed))
    count = call(nr, buffer, len(fds), timeout, *((0, 8) if nr == 271 else ()))
    return count, *(struct.unpack_from("<ihh", buffer, 8 * i)[2] for i in range(len(fds)))
def pair(seconds, part):
    made = ctypes.create_string_buffer(struct.pack("<qq", seconds, part), 16)
    return made
assert poll(fd, reader, writer, gone, ended, 999, -1) == (4, 0, 0, 4, 12, 16, 32, 0)
assert poll(fd, reader) == poll(fd, reader, timeout=25) == (0, 0, 0)
began = time.monotonic()
assert poll(fd, reader, nr=271, timeout=pair(0, 30_000_000)) == (0, 0, 0) and time.monotonic() - began >= 0.03
os.write(writer, b"x")
assert poll(fd, reader, timeout=-1) == poll(fd, reader, nr=271, timeout=None) == (1, 0, 1)
assert poll(fd, reader, nr=271, timeout=pair(0, 999_999_999)) == (1, 0, 1)
for wrong in (pair(-1, 0), pair(0, -1), pair(0, 1_000_000_000)):
    assert poll(fd, reader, nr=271, timeout=wrong)[0] == "EINVAL"
def select(*fds, nr=23, timeout=None, sets=("in", "out", "except")):
    size = (max(fds) + 64) // 64 * 8
    given = [ctypes.create_string_buffer(sum(1 << each for each in fds).to_bytes(size, "little") + b"#" * 8)
             if name in sets else None for name in ("in", "out", "except")]
    count = call(nr, max(fds) + 1, *given, timeout, *((None,) if nr == 270 else ()))
    assert all(each is None or each.raw[size : size + 8] == b"#" * 8 for each in given)
    bits = [int.from_bytes(each.raw[:size], "little") if each else 0 for each in given]
    return count, *({n for n in range(8 * size) if each >> n & 1} for each in bits)
none = pair(0, 0)
edge = os.dup2(reader, 63)  # the last one of a set's first word
for nr in (23, 270):
    assert select(fd, reader, writer, edge, nr=nr, timeout=none) == (3, {reader, edge}, {writer}, set())
    assert select(fd, reader, high, nr=nr) == (2, {reader, high}, set(), set())
    assert select(fd, gone, ended, nr=nr) == (3, {gone, ended}, {gone}, set())
    assert select(fd, writer, nr=nr, sets=("out",)) == (1, set(), {writer}, set())
    assert select(fd, reader, nr=nr, sets=("except",), timeout=none) == (0, set(), set(), set())
    assert select(fd, 900, nr=nr)[0] == "EBADF"
    assert select(fd, nr=nr, timeout=pair(-1, 0))[0] == select(fd, nr=nr, timeout=pair(0, -1))[0] == "EINVAL"
left = pair(1000, 500_000)
assert select(fd, reader, timeout=left)[0] == 1
assert 900e6 < struct.unpack("<qq", left)[0] * 1e6 + struct.unpack("<qq", left)[1] <= 1000.5e6
assert 0 <= struct.unpack("<qq", left)[1] < 1_000_000
left = pair(0, 20_000)
assert select(fd, timeout=left)[0] == 0 and struct.unpack("<qq", left) == (0, 0)
left = pair(0, 20_000_000)
assert select(fd, nr=270, timeout=left)[0] == 0 and struct.unpack("<qq", left) == (0, 20_000_000)
""")


def test_a_signal_ends_a_wait_for_the_node() -> None:
    """One of the process or of the thread, but none that is blocked."""
    holds("""
fd = os.open(node, os.O_RDWR)
polled = struct.pack("<ihh", fd, 1, 0)
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
main = threading.main_thread().ident
def waits():
    return open(f"/proc/self/task/{os.getpid()}/syscall").read().split()[0] == "7"
def later(send):
    while not waits():
        time.sleep(0.001)
    time.sleep(0.05)
    send()
for send in (lambda: os.kill(os.getpid(), signal.SIGUSR1), lambda: signal.pthread_kill(main, signal.SIGUSR1)):
    # Blocked here, or the kernel gives a process's signal to this thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    thread = threading.Thread(target=later, args=(send,))
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ctypes.memmove(buffer, polled, 8)
    check(("EINTR", 7, buffer, 1, -1))
    thread.join()
assert len(seen) == 2
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
check((0, 7, buffer, 1, 60))
""")
