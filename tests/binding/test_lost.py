"""Refusals, losses and odd answers of a driver: what still works goes on working."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest

from amdxdna import errors, losses
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.stream import Fail
from amdxdna.opening import open_node
from amdxdna.packet import State
from tests.support.binding import ProxyNode, adder, copy_xclbin, numbers

INVALID = lib.AMDXDNA_INVALID_ADDR


def failing(codes: dict[int, int]):
    """A hook that fails requests with an errno: {request: errno}, which a test may change."""

    def hook(request, address):
        if request in codes:
            raise OSError(codes[request], os.strerror(codes[request]))

    return hook


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ETIME, errno.EIO, errno.EPIPE, errno.ETIMEDOUT])
def test_a_lost_management_channel_leaves_good_contexts(code):
    codes: dict[int, int] = {}
    with Device.open(ProxyNode(open_node("emu:quiet,threads=1"), failing(codes))) as device:
        pair = numbers(device, 16), device.alloc(64)
        kernels = [adder(device, 64, n, variant=n) for n in range(4)]
        for kernel in kernels[:3]:
            kernel.run(*pair)
        codes[lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX] = code
        for _ in range(2):
            with pytest.raises(errors.DeviceLost) as caught:
                kernels[3].run(*pair)
            assert "other programs" not in str(caught.value) and caught.value.errno == code
        stats = device.pool.stats
        assert (stats.resident, stats.swaps) == (3, 0)
        for number, kernel in enumerate(kernels[:3]):
            kernel.run(*pair, outputs=[pair[1]])
            np.testing.assert_array_equal(pair[1].view("u4"), np.arange(16) + number)
        assert device.pool.loads == 3
        codes.clear()
        kernels[3].run(*pair)


def test_columns_that_others_hold():
    """Contexts of one width share a partition; those of another width are in the way, and only those go."""
    node = None
    wide = [0]

    def solver(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX:
            tiles = ffi.cast("struct amdxdna_drm_create_hwctx *", address).num_tiles
            if tiles == 8 * 4 and len(node.inner.client.contexts) > wide[0]:
                raise OSError(errno.ENODEV, "No such device")
            node.inner.ioctl(request, address)
            made = ffi.cast("struct amdxdna_drm_create_hwctx *", address).handle
            node.inner.client.contexts[made].num_col = tiles // 4
            wide[0] += tiles == 8 * 4
            return 0
        return None

    node = ProxyNode(open_node("emu:quiet,threads=1"), solver)
    with Device.open(node) as device:
        pair = numbers(device, 16), device.alloc(64)
        kernels = [
            device.pool.kernel(copy_xclbin(n, columns), stream.copy(64, n))
            for n, columns in enumerate((8, 4, 4, 8))
        ]
        for number in (0, 1, 2, 3):
            kernels[number].run(*pair, outputs=[pair[1]])
            np.testing.assert_array_equal(pair[1].view("u4"), np.arange(16) + number)
        assert device.pool.stats.swaps == 2
        assert kernels[0].shared.context is not None  # it shares with the new one
        device.pool.unload()
        wide[0] = 0
        with device.context(copy_xclbin(9, 4)), pytest.raises(errors.NoFreeContext) as caught:
            kernels[0].run(*pair)
        assert "8 columns" in str(caught.value) and "this process holds 1" in str(caught.value)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (lib.DRM_IOCTL_AMDXDNA_EXEC_CMD, errno.ETIME),
        (lib.DRM_IOCTL_AMDXDNA_EXEC_CMD, errno.ENOMEM),
        (lib.DRM_IOCTL_AMDXDNA_EXEC_CMD, errno.ENODEV),
        (lib.DRM_IOCTL_AMDXDNA_EXEC_CMD, errno.EIO),
        (lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, errno.EIO),
    ],
)
def test_one_failed_call_costs_no_context(request_, code):
    codes: dict[int, int] = {}
    with Device.open(ProxyNode(open_node("emu:quiet,threads=1"), failing(codes))) as device:
        pair = numbers(device, 16), device.alloc(64)
        kernel = adder(device, 64, 1)
        kernel.run(*pair)
        kernel.run(*pair)
        codes[request_] = code
        with pytest.raises(errors.XdnaError):
            kernel.run(*pair)
        codes.clear()
        kernel.run(*pair, outputs=[pair[1]])
        np.testing.assert_array_equal(pair[1].view("u4"), np.arange(16) + 1)
        assert device.pool.loads == 1


@pytest.mark.parametrize("flight", [0, 3])
def test_a_device_that_is_removed(open_emu, flight):
    """Its opens get ENODEV for everything but the close, whatever is in flight; the next open has it."""
    options = f"lose={5 + flight}"  # such a device stays, with its count, for all who name it so
    device, other = open_emu(options), open_emu(options)
    pair = numbers(device, 16), device.alloc(64)
    kernel = adder(device, 64, 1)
    for _ in range(4):
        kernel.run(*pair)
    runs = [kernel.start(*pair) for _ in range(flight)]
    with pytest.raises(errors.DeviceLost) as caught:
        kernel.run(*pair)
    assert caught.value.errno == errno.ENODEV
    for call in (
        lambda: device.alloc(64),
        lambda: other.alloc(64),
        lambda: kernel.run(*pair),
        lambda: device.contexts(),
        *(run.wait for run in runs),
    ):
        with pytest.raises(errors.DeviceLost):
            call()
    for each in (device, other):
        each.close()
    again = open_emu(options)
    pair = numbers(again, 16), again.alloc(64)
    for _ in range(5):
        adder(again, 64, 1).run(*pair, outputs=[pair[1]])
    np.testing.assert_array_equal(pair[1].view("u4"), np.arange(16) + 1)


def test_losses_in_a_row_are_waited_out_a_little_longer_each_time(monkeypatch):
    slept = []
    monkeypatch.setattr(losses, "time", SimpleNamespace(sleep=slept.append))
    for number in range(1, 32):
        losses.pause(number, "EXEC_CMD")
    assert slept == [*(pytest.approx(0.001 * 2**n) for n in range(7)), *[0.1] * 21]
    with pytest.raises(errors.ContextLost, match="32 times in a row"):
        losses.pause(32, "EXEC_CMD")


def test_sensors_of_a_lost_device():
    codes = {}
    with Device.open(ProxyNode(open_node("emu:quiet"), failing(codes))) as device:
        from amdxdna import query

        with pytest.raises(errors.Unsupported):
            query.sensors(device.client)
        codes[lib.DRM_IOCTL_AMDXDNA_GET_INFO] = errno.ENODEV
        with pytest.raises(errors.DeviceLost):
            query.sensors(device.client)
        with pytest.raises(errors.DeviceLost):
            query.clocks(device.client)


@pytest.mark.parametrize("first", [1, 2])
def test_a_refused_cu_configuration_costs_one_run(open_emu, first):
    """The driver does not tell that the firmware refused; the context then fails whatever runs in it."""
    device = open_emu(f"refuse_config={first}")
    pair = numbers(device, 16), device.alloc(64)
    kernels = [adder(device, 64, n, variant=n) for n in range(3)]
    for number, kernel in enumerate(kernels):
        if number == first - 1:
            with pytest.raises(errors.CommandFailed):
                kernel.run(*pair)
        for _ in range(3):
            kernel.run(*pair, outputs=[pair[1]])
            np.testing.assert_array_equal(pair[1].view("u4"), np.arange(16) + number)
    assert device.pool.stats.recoveries == 1 and device.pool.resident == 3


def test_a_context_that_fails_by_and_by_is_replaced(open_emu):
    """As after a resume whose configuration the firmware refuses: the second failure in a row tells."""
    device = open_emu()
    pair = numbers(device, 16), device.alloc(64)
    good = adder(device, 64, 1)
    bad = device.pool.kernel(copy_xclbin(), stream.program([Fail(0x3000002)]))
    for count, kernel in enumerate((good, bad, good, bad, good)):
        if kernel is bad:
            with pytest.raises(errors.CommandFailed):
                bad.run(*pair)
        else:
            good.run(*pair)
        assert device.pool.stats.recoveries == 0, count
    for _ in range(2):
        with pytest.raises(errors.CommandFailed) as caught:
            bad.run(*pair)
    assert caught.value.state == State.ERROR
    good.run(*pair)
    assert device.pool.stats.recoveries == 1


def test_a_heap_the_driver_cannot_make():
    def no_cma(request, address):
        if (
            request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO
            and ffi.cast("struct amdxdna_drm_create_bo *", address).type == lib.AMDXDNA_BO_DEV_HEAP
        ):
            raise OSError(errno.EINVAL, "no")

    with Device.open(ProxyNode(open_node("emu:quiet"), no_cma)) as device:
        with pytest.raises(errors.OutOfMemory, match="CMA"):
            device.alloc(64, "dev")
        with pytest.raises(errors.OutOfMemory, match="CMA"):
            device.context(copy_xclbin())


@pytest.mark.parametrize(
    ("zeros", "address"),
    [
        (1, "pasid"),
        (1, "iova"),
        (1 << 30, "pasid"),
        (1 << 30, "iova"),
    ],
)
def test_a_driver_that_answers_address_0(zeros, address):
    """Seen of BOs that are not mapped yet. A packet must never carry it."""
    asked: dict[int, int] = {}
    shown = [False]

    def look(request, where):
        if request != lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO:
            return None
        node.inner.ioctl(request, where)
        info = ffi.cast("struct amdxdna_drm_get_bo_info *", where)
        asked[info.handle] = asked.get(info.handle, 0) + 1
        if (
            info.map_offset != INVALID
            and not shown[0]
            and asked[info.handle] <= zeros
            and info.handle not in heaps
        ):
            info.xdna_addr = 0
        return 0

    node = ProxyNode(open_node(f"emu:quiet,threads=1,address={address}"), look)
    heaps: set[int] = set()
    with Device.open(node) as device:
        shown[0] = True
        device.alloc(64, "dev").close()
        shown[0] = False
        heaps.update(node.inner.client.handles)
        asked.clear()
        if zeros > 1:
            with pytest.raises(errors.Unsupported, match="address"):
                device.alloc(4096)
            if address == "iova":
                return
            shown[0] = True
            device.alloc(64).close()  # one that shows that packets carry host addresses
            shown[0] = False
            asked.clear()
        pair = numbers(device, 16), device.alloc(64)
        assert all(buffer.address for buffer in pair)
        if address == "pasid":
            assert pair[0].address == pair[0].host_address
        import mmap

        wrapped = device.wrap(mmap.mmap(-1, 4096))
        for target in (pair[1], wrapped):
            adder(device, 64, 5).run(pair[0], target, outputs=[target])
            np.testing.assert_array_equal(target.view("u4")[:16], np.arange(16) + 5)
