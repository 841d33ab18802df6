"""Opening devices, sharing an open, queries and their gates on the driver's version."""

from __future__ import annotations

import errno
import os
import socket
import threading
from struct import pack, pack_into

import pytest

from amdxdna import device as device_module
from amdxdna import errors, query
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.device_info import AsyncError, PowerMode
from amdxdna.opening import open_node
from amdxdna.version import SINCE, DrmVersion
from tests.support.binding import ProxyNode, adder, copy_xclbin


def poke(address: int, data: bytes) -> None:
    ffi.memmove(ffi.cast("char *", address), data, len(data))


def test_open_and_close(open_emu):
    opened = open_emu()
    assert opened.path == "emu" and opened.emulated
    assert opened.version.name == "amdxdna_accel_driver" and str(opened.version) == "0.10"
    assert "emu" in repr(opened)
    opened.close()
    opened.close()
    for use in (
        opened.info,
        lambda: opened.alloc(1),
        lambda: opened.pool,
        lambda: opened.node,
        lambda: opened.heap,
    ):
        with pytest.raises(errors.Closed):
            use()


def test_a_context_manager_closes_its_node():
    node = ProxyNode(open_node("emu:quiet"))
    with Device.open(node) as opened:
        assert opened.node is node
        buffer = opened.alloc(64)
    assert node.closes == 1
    with pytest.raises(errors.Closed):
        buffer.view()


def test_the_emulators_open_fault_is_an_open_error(open_emu):
    with pytest.raises(errors.PermissionDenied, match="group"):
        open_emu("open=1:EACCES")


@pytest.fixture
def kernel_nodes(monkeypatch):
    """Device.open's kernel nodes are emulated here; returns the list of those opened."""
    opened = []

    def fake_open(where):
        opened.append(ProxyNode(open_node("emu:quiet")))
        opened[-1].path = where
        return opened[-1]

    monkeypatch.setattr(device_module, "open_node", fake_open)
    return opened


def test_a_kernel_node_is_opened_once_a_process(kernel_nodes, tmp_path):
    link = tmp_path / "link"
    (tmp_path / "accel0").touch()
    link.symlink_to(tmp_path / "accel0")
    first = Device.open(str(tmp_path / "accel0"))
    second = Device.open(str(link))
    assert len(kernel_nodes) == 1
    assert first.client is second.client and first.pool is second.pool
    buffer = first.alloc(64)
    first.close()
    assert kernel_nodes[0].closes == 0
    buffer.write(b"the other Device keeps the node open")
    second.close()
    assert kernel_nodes[0].closes == 1
    third = Device.open(str(tmp_path / "accel0"))
    assert len(kernel_nodes) == 2
    third.close()


def test_an_open_waits_for_the_close_of_the_last_device(kernel_nodes, tmp_path):
    """Drivers that let a process open a node once would refuse it."""
    (tmp_path / "accel0").touch()
    first = Device.open(str(tmp_path / "accel0"))
    closing, go = threading.Event(), threading.Event()
    close = kernel_nodes[0].close

    def slow_close():
        closing.set()
        assert go.wait(60)
        close()

    kernel_nodes[0].close = slow_close
    found = []
    closer = threading.Thread(target=first.close)
    closer.start()
    assert closing.wait(60)
    opener = threading.Thread(target=lambda: found.append(Device.open(str(tmp_path / "accel0"))))
    opener.start()
    opener.join(0.2)
    assert len(kernel_nodes) == 1
    go.set()
    closer.join(60)
    opener.join(60)
    assert kernel_nodes[0].closes == 1
    assert len(kernel_nodes) == 2
    found[0].close()


def test_paths_may_be_path_objects(kernel_nodes, tmp_path):
    (tmp_path / "accel0").touch()
    with Device.open(tmp_path / "accel0") as one, Device.open(str(tmp_path / "accel0")) as other:
        assert one.client is other.client


def test_a_forked_child_opens_its_own(kernel_nodes, tmp_path):
    (tmp_path / "accel0").touch()
    parent = Device.open(str(tmp_path / "accel0"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            mine = Device.open(str(tmp_path / "accel0"))
            if mine.client is not parent.client and len(kernel_nodes) == 2:
                parent.close()
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert kernel_nodes[0].closes == 0
    parent.close()
    assert kernel_nodes[0].closes == 1


def test_another_drivers_node_is_refused():
    def other(request, address):
        if request == lib.DRM_IOCTL_VERSION:
            version = ffi.cast("struct drm_version *", address)
            poke(version.name, b"intel_vpu\0")
            return 0
        return None

    node = ProxyNode(open_node("emu:quiet"), other)
    with pytest.raises(errors.NoDevice, match="intel_vpu"):
        Device.open(node)
    assert node.closes == 1


def test_a_file_that_is_no_device(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(errors.NoDevice, match="no DRM device"):
        Device.open(str(path))
    with pytest.raises(errors.NoDevice, match="is a directory"):
        Device.open(str(tmp_path))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        with pytest.raises(errors.NoDevice, match="no DRM device") as caught:
            Device.open(str(tmp_path / "socket"))
    assert "left over" not in str(caught.value)


def test_info(open_emu):
    info = open_emu("columns=4,slots=5").info()
    assert info.path == "emu" and info.emulated
    assert (info.metadata.cols, info.metadata.rows) == (4, 6)
    assert info.metadata.core.row_count == 4 and info.metadata.core.row_start == 2
    assert info.aie_version == info.metadata.version
    assert str(info.firmware).count(".") == 3
    assert [c.name for c in info.clocks] == ["MP-NPU Clock", "H Clock"] and info.clocks[1].mhz > 0
    assert info.resources is not None and info.resources.npu_task_max == 5
    assert info.power_mode is PowerMode.DEFAULT
    assert info.sensors is None and info.contexts == ()


def test_sensors(open_emu):
    power = open_emu("sensors").info().sensors
    assert power is not None and power[0].units and power[0].type == lib.AMDXDNA_SENSOR_TYPE_POWER
    with pytest.raises(errors.Unsupported, match="amd_pmf"):
        query.sensors(open_emu().client)


GATES = [
    (query.sensors, 7),
    (query.resource_info, 4),
    (query.preemption, 6),
    (query.telemetry, 5),
    (query.last_async_error, 2),
    (query.bo_usage, 8),
]


@pytest.mark.parametrize(("ask", "minor"), GATES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_queries_are_gated_on_the_drm_minor(open_emu, ask, minor):
    with pytest.raises(errors.Unsupported, match=f"0\\.{minor}") as caught:
        ask(open_emu(f"minor={minor - 1},sensors").client)
    assert caught.value.needed == minor
    ask(open_emu(f"minor={minor},sensors").client)


@pytest.mark.parametrize("minor", range(11))
def test_info_works_on_every_driver(open_emu, minor):
    opened = open_emu(f"minor={minor}")
    adder(opened, 64, 1).run(opened.alloc(64), opened.alloc(64))
    info = opened.info()
    assert info.version.minor == minor
    assert (info.resources is None) == (minor < 4)
    assert [(c.pid, c.num_col) for c in info.contexts] == [(os.getpid(), 8)]


def test_the_out_of_tree_driver_is_new_enough():
    version = DrmVersion(1, 0, 0, "amdxdna", "")
    assert all(version.has(feature) for feature in SINCE)
    assert not DrmVersion(0, 8, 0, "amdxdna_accel_driver", "").has("health reports")


def test_contexts_and_bo_usage(device):
    assert device.contexts() == ()
    before = device.bo_usage()
    keep = device.alloc(1 << 20)
    assert device.bo_usage().total == before.total + (1 << 20)
    assert device.bo_usage(1).total == 0
    instructions = device.alloc(1 << 15, "dev")
    after = device.bo_usage()
    assert after.heap == before.heap + (1 << 15)
    assert after.internal == before.internal + (64 << 20)  # the heap itself
    with device.context(copy_xclbin(columns=4)) as context:
        (found,) = device.contexts()
        assert found.pid == os.getpid() and found.active
        assert device.resources().npu_task_curr == 1
        assert context.handle == found.context_id
    assert device.contexts() == ()
    keep.close()
    instructions.close()


def entry(pid: int, size: int) -> bytes:
    """A context entry as a driver of some version would write it, `size` bytes long."""
    data = bytearray(size)
    pack_into("<IIIIqQQQQQ", data, 0, 7, 2, 4, 9, pid, 11, 10, 1, 2, 3)
    if size >= 144:
        pack_into("<QQQIIII", data, 64, 0x200, 4096, 5, 1, 3, 17, 18)
    data[144:] = b"\xff" * len(data[144:])
    return bytes(data)


@pytest.mark.parametrize("size", [64, 144, 160, 256])
def test_context_entries_of_any_size(size):
    """The element size travels both ways: what the driver has is what it writes, one behind the other."""

    def answer(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_GET_ARRAY:
            array = ffi.cast("struct amdxdna_drm_get_array *", address)
            assert array.element_size >= 160 and array.num_element >= 64
            poke(array.buffer, entry(100, size) + entry(200, size))
            array.element_size, array.num_element = size, 2
            return 0
        return None

    with Device.open(ProxyNode(open_node("emu:quiet"), answer)) as opened:
        first, second = opened.contexts()
    assert (first.pid, second.pid) == (100, 200)
    assert (second.context_id, second.start_col, second.num_col, second.hwctx_id) == (7, 2, 4, 9)
    assert (second.command_submissions, second.command_completions, second.errors) == (11, 10, 3)
    whole = size >= 144
    assert second.active == whole
    assert (second.priority, second.heap_usage, second.gops) == ((0x200, 4096, 17) if whole else (0, 0, 0))
    assert (second.health is not None) == whole
    with Device.open(ProxyNode(open_node("emu:quiet,minor=8"), answer)) as opened:
        assert [each.health for each in opened.contexts()] == [None, None]


def test_async_error_decoding():
    error = AsyncError(10 | 4 << 16 | 3 << 24 | 3 << 32 | 2 << 40, 123, 5 << 8 | 2)
    assert str(error) == "lock error in a core at row 5, column 2"
    assert "unknown" in AsyncError(0xFFFF, 0, 0).kind
    # As aie2_error.c numbers them.
    kinds = ["saturation", "floating point", "stream", "access", "bus", "instruction", "ECC", "lock", "DMA"]
    kinds += ["memory parity"]
    assert [AsyncError(n, 0, 0).kind for n in range(2, 14)] == ["unknown (2)", *kinds, "unknown (13)"]
    modules = ["unknown (2)", "core", "memory tile", "shim", "NoC", "PL", "unknown (8)"]
    assert [AsyncError(n << 32, 0, 0).module for n in range(2, 9)] == modules
    far = AsyncError(0, 0, 0xABFF)
    assert (far.row, far.column) == (0xAB, 0xFF)


def test_no_async_error_yet(device):
    assert device.last_async_error() is None


def test_power_mode(open_emu):
    opened = open_emu("privileged=1")
    opened.power_mode = PowerMode.HIGH
    assert opened.power_mode is PowerMode.HIGH
    with pytest.raises(errors.BadArgument, match="TURBO"):
        opened.power_mode = 9
    opened.power_mode = PowerMode.DEFAULT
    with opened.context(copy_xclbin()), pytest.raises(errors.BadArgument, match="turbo"):
        opened.power_mode = PowerMode.TURBO
    with pytest.raises(errors.PermissionDenied, match="root"):
        open_emu("privileged=0").power_mode = PowerMode.LOW


def test_telemetry(open_emu):
    block = open_emu("slots=6").telemetry()
    assert block.type == 0
    assert len(block.contexts) == 6 and len(block.data) == 64 << 10
    for nbytes in (1, (4 << 20) - 4096):  # with a page for the header, what the driver takes
        assert len(query.telemetry(open_emu().client, nbytes=nbytes).data) == nbytes
    for nbytes in (0, (4 << 20) - 4095):
        with pytest.raises(errors.BadArgument, match="bytes of telemetry"):
            query.telemetry(open_emu().client, nbytes=nbytes)


def test_telemetry_of_a_driver_that_answers_nonsense():
    def answer(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_GET_INFO:
            info = ffi.cast("struct amdxdna_drm_get_info *", address)
            if info.param == lib.DRM_AMDXDNA_QUERY_TELEMETRY:
                poke(info.buffer, pack("<IIII", 1, 0, 0, 0xFFFFFFFF))
                return 0
        return None

    with Device.open(ProxyNode(open_node("emu:quiet"), answer)) as opened, pytest.raises(errors.Unsupported):
        opened.telemetry()


def test_an_unknown_power_mode_is_said_so():
    def answer(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_GET_INFO:
            info = ffi.cast("struct amdxdna_drm_get_info *", address)
            if info.param == lib.DRM_AMDXDNA_GET_POWER_MODE:
                poke(info.buffer, b"\x09")
                return 0
        return None

    with (
        Device.open(ProxyNode(open_node("emu:quiet"), answer)) as opened,
        pytest.raises(errors.Unsupported, match="9"),
    ):
        _ = opened.power_mode


def test_a_query_the_driver_refuses_otherwise():
    def answer(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_GET_INFO:
            raise OSError(errno.EIO, "broken")

    with (
        Device.open(ProxyNode(open_node("emu:quiet"), answer)) as opened,
        pytest.raises(errors.DeviceLost) as caught,
    ):
        opened.metadata()
    assert caught.value.call == "GET_INFO QUERY_AIE_METADATA"
