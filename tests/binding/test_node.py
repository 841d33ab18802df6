"""The seam: finding nodes in sysfs, opening, ioctl, mapping, closing, forks."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import fcntl
import mmap
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amdxdna import errors, ioctl, node, sysfs
from amdxdna._native import ffi, lib
from amdxdna.node import KernelNode
from amdxdna.opening import open_node, resolve
from tests.support.descriptors import descriptors, opened
from tests.support.fences import fenced
from tests.support.program import python


def make_sysfs(root, *accels, driver_loaded=True):
    """A sysfs tree; `accels`: (name, driver) pairs, a driver of None leaves the function unbound."""
    (root / "class" / "accel").mkdir(parents=True)
    (root / "bus" / "pci" / "devices").mkdir(parents=True)
    drivers = root / "bus" / "pci" / "drivers"
    drivers.mkdir(parents=True)
    if driver_loaded:
        (drivers / "amdxdna").mkdir()
    for number, (name, driver) in enumerate(accels):
        function = root / "devices" / f"0000:{0xC0 + number:02x}:00.1"
        function.mkdir(parents=True)
        for file, text in (("vendor", "0x1022"), ("device", "0x17f0"), ("revision", "0x10")):
            (function / file).write_text(text + "\n")
        (root / "bus" / "pci" / "devices" / function.name).symlink_to(function)
        if driver is not None:
            (drivers / driver).mkdir(exist_ok=True)
            (function / "driver").symlink_to(drivers / driver)
        if name is not None:
            entry = root / "class" / "accel" / name
            entry.mkdir()
            (entry / "device").symlink_to(function)
    return root


def test_a_request_through_a_closed_node_is_refused(open_emu):
    """In the binding's words, whatever the caller looked at before: another thread may have closed it."""
    device = open_emu()
    seam, request = device.node, ffi.new("struct amdxdna_drm_get_info *")
    device.close()
    with pytest.raises(errors.Closed):
        ioctl.call(seam, "GET_INFO", request)


def test_finds_only_amdxdna_nodes_in_number_order(tmp_path):
    root = make_sysfs(tmp_path, ("accel10", "amdxdna"), ("accel0", "intel_vpu"), ("accel2", "amdxdna"))
    found = sysfs.find_nodes(root, "/dev")
    assert [n.path for n in found] == ["/dev/accel/accel2", "/dev/accel/accel10"]
    assert found[0] == sysfs.FoundNode("/dev/accel/accel2", "0000:c2:00.1", 0x1022, 0x17F0, 0x10)


def test_resolve(tmp_path):
    root = make_sysfs(tmp_path, ("accel0", "intel_vpu"), ("accel1", "amdxdna"), ("accel3", "amdxdna"))
    assert resolve(None, root) == resolve("auto", root) == "/dev/accel/accel1"
    assert resolve(1, root) == resolve("1", root) == "/dev/accel/accel3"
    assert resolve("emu:slots=1", root) == "emu:slots=1"
    assert resolve("/dev/accel/accel7", root) == "/dev/accel/accel7"
    with pytest.raises(errors.NoDevice, match="there are 2"):
        resolve(2, root)
    with pytest.raises(errors.BadArgument):
        resolve(1.5, root)  # type: ignore[arg-type]


def test_auto_without_an_npu_is_the_emulated_device(tmp_path):
    assert resolve("auto", tmp_path / "nothing") == "emu"


@pytest.mark.parametrize(
    ("accels", "loaded", "cause"),
    [
        ((), True, "no NPU on the PCI bus"),
        (((None, None),), False, "not loaded"),
        (((None, None),), True, "did not take the NPU"),
        (((None, "amdxdna"),), True, "no accel node"),
    ],
    ids=["absent", "no module", "probe failed", "no node"],
)
def test_why_there_is_none(tmp_path, accels, loaded, cause):
    root = make_sysfs(tmp_path, *accels, driver_loaded=loaded)
    with pytest.raises(errors.NoDevice, match=cause) as caught:
        open_node(0, sys=root)
    assert caught.value.remedy and caught.value.errno == errno.ENOENT
    with pytest.raises(errors.NoDevice, match=cause):
        open_node(str(tmp_path / "accel0"), sys=root)


def test_every_npu_of_the_drivers_is_known(tmp_path):
    """Ids of amdxdna_pci_drv.c and of Linux 7.3.4's module, without a driver here."""
    root = make_sysfs(tmp_path, (None, None), driver_loaded=False)
    (function,) = (root / "devices").iterdir()
    known = (0x1502, 0x17F0, 0x17F1, 0x17F2, 0x17F3, 0x1B0A, 0x1B0B, 0x1B0C)
    for device in (*known, 0x1501, 0x17F4):
        (function / "device").write_text(f"{device:#x}\n")
        assert ("not loaded" in sysfs.why_none(root)[0]) == (device in known)


def test_a_wrong_path_names_the_right_one(tmp_path):
    root = make_sysfs(tmp_path, ("accel1", "amdxdna"))
    with pytest.raises(errors.NoDevice, match="/dev/accel/accel1"):
        open_node(str(tmp_path / "accel0"), sys=root)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda p: p.mkdir() or p, errors.XdnaError),
        (lambda p: p / "x", errors.NoDevice),
    ],
    ids=["folder", "missing"],
)
def test_open_failures(tmp_path, make, error):
    with pytest.raises(error) as caught:
        KernelNode(make(tmp_path / "n"))
    assert caught.value.call == "open" and str(tmp_path) in str(caught.value)


def test_open_without_permission():
    """As somebody else where the tests are root's, who may open everything."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # pytest's own folders are for their owner alone
        path = os.path.join(name, "node")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0))
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                KernelNode(path)
            except Exception as failed:
                os.write(writer, f"{type(failed).__name__}: {failed}".encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader) as said:
            text = said.read()
        assert os.waitpid(child, 0)[1] == 0
        assert text.startswith("PermissionDenied: ") and "group" in text and path in text, text


@pytest.fixture
def file_node(tmp_path):
    path = tmp_path / "node"
    path.write_bytes(bytes(range(256)) * 64)
    opened = KernelNode(path)
    yield opened
    opened.close()


def number_of(file_node):
    """The node's descriptor: the only one of this process on its file."""
    (found,) = (number for number, target in opened() if target == file_node.path)
    return found


def test_flags(file_node):
    fd = number_of(file_node)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    assert flags & os.O_ACCMODE == os.O_RDWR
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert not file_node.emulated


def test_mapping_is_shared_and_lands_where_asked(file_node):
    address = file_node.mmap(4096, 8192)
    view = ffi.buffer(ffi.cast("char *", address), 4096)
    assert view[:4] == bytes(range(4))
    view[0:2] = b"\xaa\xbb"
    with open(file_node.path, "rb") as file:
        file.seek(8192)
        assert file.read(2) == b"\xaa\xbb"
    again = file_node.mmap(4096, 0, address=address)
    assert again == address and view[:2] == b"\0\x01"
    file_node.munmap(address, 4096)
    with pytest.raises(OSError) as caught:
        file_node.mmap(4096, 3)
    assert caught.value.errno == errno.EINVAL


def test_ioctl_returns_the_drivers_errno(file_node):
    with pytest.raises(OSError) as caught:
        file_node.ioctl(lib.DRM_IOCTL_VERSION, 0)
    assert caught.value.errno == errno.ENOTTY


def test_close_is_idempotent_and_final(file_node):
    address = file_node.mmap(4096, 0)
    file_node.close()
    file_node.close()
    for use in (lambda: file_node.ioctl(1, 0), lambda: file_node.mmap(4096, 0)):
        with pytest.raises(errors.Closed):
            use()
    file_node.munmap(address, 4096)


class Interrupting:
    """Stands in for the extension: every ioctl is interrupted `times` times before it succeeds."""

    def __init__(self, times, before=lambda: None):
        self.times = times
        self.calls = 0
        self.before = before

    def xdna_ioctl(self, fd, request, arg):
        self.calls += 1
        if self.calls <= self.times:
            self.before()
            return -errno.EINTR
        return 7


def test_eintr_is_retried(file_node, monkeypatch):
    fake = Interrupting(3)
    monkeypatch.setattr(node, "lib", fake)
    assert file_node.ioctl(1, 0) == 7
    assert fake.calls == 4


def test_ctrl_c_gets_out_of_a_blocking_ioctl(file_node, monkeypatch):
    fake = Interrupting(100, lambda: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(node, "lib", fake)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            file_node.ioctl(1, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert fake.calls < 100


class Blocking:
    """Stands in for the extension: a call enters, waits, and then the kernel does not know it."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()
        self.fds = []

    def xdna_ioctl(self, fd, request, arg):
        self.fds.append(fd)
        self.entered.set()
        assert self.go.wait(60)
        return -errno.ENOTTY

    def xdna_mmap(self, address, length, protection, flags, fd, offset):
        return self.xdna_ioctl(fd, length, address)


@pytest.mark.parametrize("use", ["ioctl", "mmap"])
def test_closing_under_a_call_gives_its_descriptor_to_nobody_else(file_node, tmp_path, monkeypatch, use):
    fake = Blocking()
    monkeypatch.setattr(node, "lib", fake)
    caught = []

    def call():
        try:
            getattr(file_node, use)(4096, 0)
        except OSError as error:
            caught.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert fake.entered.wait(60)
    fd = number_of(file_node)
    file_node.close()
    assert os.readlink(f"/proc/self/fd/{fd}") == os.devnull  # the node itself is closed at once
    assert not os.get_inheritable(fd)
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(8)]
    assert fd not in others
    file_node.close()
    fake.go.set()
    caller.join(60)
    assert fake.fds == [fd]
    assert [type(error) for error in caught] == [errors.Closed]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    for other in others:
        os.close(other)


def test_a_closed_node_keeps_no_descriptor(tmp_path):
    path = tmp_path / "node"
    path.touch()
    before = descriptors()
    for _ in range(3):
        opened = KernelNode(path)
        with pytest.raises(OSError):
            opened.ioctl(1, 0)
        opened.close()
        with pytest.raises(errors.Closed):
            opened.ioctl(1, 0)
    assert descriptors() <= before


def test_a_node_may_have_the_number_of_a_closed_stdin(file_node):
    code = (
        "import os, sys; from amdxdna.node import KernelNode; os.close(0); node = KernelNode(sys.argv[1]);"
        "link = os.readlink('/proc/self/fd/0'); node.munmap(node.mmap(4096, 0), 4096); node.close();"
        "sys.exit(link != sys.argv[1] or os.path.lexists('/proc/self/fd/0'))"
    )
    assert python("-c", code, file_node.path).returncode == 0


def test_a_forked_child_is_refused_and_closes_nothing(file_node):
    child = os.fork()
    if child == 0:
        status = 0
        for use in (lambda: file_node.ioctl(1, 0), lambda: file_node.mmap(4096, 0)):
            try:
                use()
            except errors.Closed as error:
                status |= 0 if "parent" in str(error) else 1
            else:
                status |= 2
        fd = number_of(file_node)
        file_node.close()
        try:
            os.fstat(fd)
        except OSError:
            status |= 4
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    address = file_node.mmap(4096, 0)
    file_node.munmap(address, 4096)


def test_vm_read_and_write_check_the_other_address():
    block = mmap.mmap(-1, 4096)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(block)))
    here = ffi.new("char[]", b"12345678")
    assert lib.xdna_vm_write(os.getpid(), address + 8, here, 8) == 0
    assert block[8:16] == b"12345678"
    back = ffi.new("char[]", 8)
    assert lib.xdna_vm_read(os.getpid(), address + 10, back, 6) == 0
    assert ffi.buffer(back)[:6] == b"345678"
    assert lib.xdna_vm_read(os.getpid(), 8, back, 8) == -errno.EFAULT
    assert lib.xdna_vm_read(os.getpid(), 8, back, 0) == 0


@pytest.mark.parametrize("size", [1, 4, 7, 8, 9, 64, 4096, 4097, 8192])
@pytest.mark.parametrize("back", [0, 1, 5, 8, 9])
def test_vm_copies_of_this_process_near_the_end_of_a_mapping(size: int, back: int) -> None:
    """The mapping ends in a page that nobody may touch: up to it everything works, past it nothing."""
    pages = mmap.mmap(-1, 4 * 4096)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(pages)))
    end = address + 3 * 4096
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(end), 4096, 0) == 0
    try:
        data = bytes(index % 251 for index in range(size))
        at = end - size - back
        local = ffi.new("char[]", data)
        assert lib.xdna_vm_write(os.getpid(), at, local, size) == 0
        assert pages[at - address : at - address + size] == data
        assert not any(pages[at - address - 8 : at - address])  # and nothing around it
        assert not any(pages[at - address + size : at - address + size + back])
        found = ffi.new("char[]", size)
        assert lib.xdna_vm_read(os.getpid(), at, found, size) == 0
        assert bytes(ffi.buffer(found, size)) == data
        over = end - size + 1
        assert lib.xdna_vm_read(os.getpid(), over, found, size) == -errno.EFAULT
        assert lib.xdna_vm_write(os.getpid(), over, local, size) == -errno.EFAULT
        assert libc.mprotect(ctypes.c_void_p(end - 4096), 4096, mmap.PROT_READ) == 0
        assert lib.xdna_vm_read(os.getpid(), end - 8, found, min(size, 8)) == 0
        assert lib.xdna_vm_write(os.getpid(), end - 8, local, min(size, 8)) == -errno.EFAULT
    finally:
        libc.mprotect(ctypes.c_void_p(address), 4 * 4096, mmap.PROT_READ | mmap.PROT_WRITE)


def test_vm_copies_leave_the_signal_mask_alone() -> None:
    """The probe is a call that could change it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        word = ffi.new("uint64_t *", 0xFFFFFFFFFFFFFFFF)
        out = ffi.new("uint64_t *")
        at = int(ffi.cast("uintptr_t", word))
        assert lib.xdna_vm_read(os.getpid(), at, out, 8) == 0
        assert lib.xdna_vm_write(os.getpid(), at, out, 8) == 0
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_flush_touches_no_neighbour_and_takes_any_alignment():
    """clflush has no visible effect; it must not fault at either end of a mapping."""
    block = mmap.mmap(-1, 8192)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(block)))
    block[:] = b"\x5a" * 8192
    for offset, size in ((0, 8192), (0, 1), (8191, 1), (4095, 2), (63, 66), (100, 0)):
        lib.xdna_flush(address + offset, size)
    assert block[:] == b"\x5a" * 8192


def test_flushes_take_the_lines_they_are_given_and_no_other() -> None:
    """They have no visible effect, but fault where nothing is: here before and behind three pages."""
    pages = mmap.mmap(-1, 5 * 4096)
    begin = int(ffi.cast("uintptr_t", ffi.from_buffer(pages))) + 4096
    end = begin + 3 * 4096
    for fence in (begin - 4096, end):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), 4096, 0) == 0

    def works(call: Callable[..., Any], *arguments: Any) -> bool:
        child = os.fork()
        if not child:
            faulthandler.disable()
            call(*arguments)
            os._exit(0)
        return os.waitpid(child, 0)[1] == 0

    def words(*values: int) -> Any:
        return ffi.from_buffer("uintptr_t[]", fenced(values, np.uint64))

    def ranges(*pairs: tuple[int, int]) -> bool:
        flat = [value for pair in pairs for value in pair]
        return works(lib.xdna_marked, words(begin), 1, 7, words(*flat), len(pairs))

    good = begin, 64
    for inside in ((begin, 1), (end - 1, 1), (end - 64, 64), (begin, end - begin), (end, 0)):
        assert works(lib.xdna_flush, *inside) and ranges(good, inside, good)
    for outside in ((begin - 1, 2), (end - 1, 2), (end - 64, 65)):
        assert not works(lib.xdna_flush, *outside)
        assert not any((ranges(outside), ranges(good, outside), ranges(good, good, outside, good)))
    assert works(lib.xdna_mark, words(begin, end - 2), 2, 7)
    assert not works(lib.xdna_mark, words(begin, end), 2, 7)


def test_flushopt_is_chosen_as_the_cpu_says():
    with open("/proc/cpuinfo") as file:
        flags = next((line for line in file if line.startswith("flags")), "")
    assert bool(lib.xdna_has_clflushopt()) == ("clflushopt" in flags.split())


def test_importing_the_package_is_light():
    code = (
        "import sys, amdxdna; amdxdna.Device, amdxdna.Buffer, amdxdna.ContextPool, amdxdna.Xclbin;"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'amdxdna.emu.node')))"
    )
    assert python("-c", code).returncode == 0


def test_unknown_names_are_attribute_errors():
    import amdxdna

    with pytest.raises(AttributeError, match="nonsense"):
        _ = amdxdna.nonsense
    assert set(amdxdna.__all__) <= set(dir(amdxdna))
    assert all(getattr(amdxdna, name) is not None for name in amdxdna.__all__)


def test_call_turns_errno_into_the_tables_error():
    from amdxdna import ioctl

    def fail(request, address):
        raise OSError(errno.EAGAIN, "again")

    fake = SimpleNamespace(ioctl=fail)
    with pytest.raises(errors.OutOfHeap, match="12 bytes") as caught:
        ioctl.call(fake, "CREATE_BO", ffi.new("struct amdxdna_drm_create_bo *"), "DEV", "12 bytes")
    assert caught.value.call == "CREATE_BO DEV" and caught.value.errno == errno.EAGAIN


def test_call_passes_the_structs_address():
    from amdxdna import ioctl

    seen = []
    fake = SimpleNamespace(ioctl=lambda request, address: seen.append((request, address)) or 3)
    request = ffi.new("struct drm_gem_close *", {"handle": 9})
    assert ioctl.call(fake, "GEM_CLOSE", request) == 3
    assert ioctl.call(fake, "GEM_CLOSE", ioctl.address_of(request)) == 3
    assert seen == [(0x40086409, ioctl.address_of(request))] * 2
    assert ffi.cast("struct drm_gem_close *", seen[0][1]).handle == 9
