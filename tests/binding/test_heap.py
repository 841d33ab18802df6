"""The device heap: growth, limits, mappings that fail."""

from __future__ import annotations

import errno
import gc
import os

import pytest

from amdxdna import errors, heap
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.opening import open_node
from amdxdna.reaper import reap
from tests.support.binding import ProxyNode, adder

MIB = 1 << 20


def test_the_heap_grows_behind_itself(device):
    device.alloc(100, "dev")
    assert device.heap.size == 64 * MIB
    big = device.alloc(63 * MIB, "dev")
    more = device.alloc(4 * MIB, "dev")
    assert device.heap.size == 128 * MIB
    assert more.host_address - device.heap.host == more.address - device.heap.device
    more.view()[-1] = 9
    assert more.read(4 * MIB - 1) == b"\x09"
    big.close()
    again = device.alloc(60 * MIB, "dev")
    assert device.heap.size == 128 * MIB
    again.close()


def test_a_context_reaches_what_the_heap_grew_by_before_it(device):
    """Its instructions lie in the second part of the heap."""
    keep = device.alloc(64 * MIB, "dev", flush=False)
    kernel = adder(device, 64, 5)
    assert device.heap.size == 128 * MIB
    source, target = device.alloc(64), device.alloc(64)
    kernel.run(source, target, outputs=[target])
    assert target.view("u4").tolist() == [5] * 16
    keep.close()


def test_a_heap_is_filled_to_its_last_byte(device):
    device.heap.limit = 128 * MIB
    halves = [device.alloc(64 * MIB, "dev", flush=False) for _ in range(2)]
    assert device.heap.size == 128 * MIB
    halves.pop().close()
    halves.pop().close()
    device.alloc(128 * MIB, "dev", flush=False).close()


def test_only_what_the_heap_may_have_is_reserved(monkeypatch, open_emu):
    """What an aligned beginning costs is given back at once, what it did not grow to with its last view."""
    maps, unmaps = [], []

    class Recorder:
        def __getattr__(self, name):
            return getattr(lib, name)

        def xdna_mmap(self, *arguments):
            maps.append((lib.xdna_mmap(*arguments), arguments[1]))
            return maps[-1][0]

        def xdna_munmap(self, address, length):
            unmaps.append((address, length))
            return lib.xdna_munmap(address, length)

    monkeypatch.setattr(heap, "lib", Recorder())
    opened = open_emu()
    host, limit = opened.heap.host, opened.heap.limit
    ((start, length),) = maps
    at = start
    for address, size in sorted([*unmaps, (host, limit)]):
        assert address == at and size > 0
        at += size
    assert at == start + length
    unmaps.clear()
    opened.close()
    gc.collect()
    reap()
    assert unmaps == [(host + 64 * MIB, limit - 64 * MIB)]


@pytest.mark.parametrize("outside", [-1, 1])
def test_a_buffer_that_the_driver_puts_beside_the_heap_is_refused(outside):
    def shift(request, address):
        if request != lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO or not shifted:
            return None
        node.inner.ioctl(request, address)
        info = ffi.cast("struct amdxdna_drm_get_bo_info *", address)
        info.xdna_addr = opened.heap.device + (outside if outside < 0 else 64 * MIB - 4096 + 1)
        return 0

    shifted: list[bool] = []
    node = ProxyNode(open_node("emu:quiet,threads=1"), shift)
    with Device.open(node) as opened:
        before = (opened.heap.size, opened.bo_usage())
        shifted.append(True)
        with pytest.raises(errors.Unsupported, match="outside the heap"):
            opened.alloc(4096, "dev")
        assert (opened.heap.size, opened.bo_usage(), opened.client.device_bytes) == (*before, 0)


def test_a_full_heap_says_so_with_numbers(device):
    device.heap.limit = 64 * MIB
    keep = device.alloc(40 * MIB, "dev")
    with pytest.raises(errors.OutOfHeap) as caught:
        device.alloc(30 * MIB, "dev")
    assert (caught.value.requested, caught.value.used) == (30 * MIB, 40 * MIB)
    assert (caught.value.size, caught.value.limit) == (64 * MIB, 64 * MIB)
    assert str(30 * MIB) in str(caught.value) and caught.value.remedy
    keep.close()
    device.alloc(30 * MIB, "dev")


def test_small_buffers_count_as_what_they_take(device):
    """The driver places DEV BOs 32 KiB apart: 1,300 of them fill more than half of 64 MiB."""
    device.heap.limit = 64 * MIB
    keep = [device.alloc(100, "dev", flush=False) for _ in range(1300)]
    with pytest.raises(errors.OutOfHeap, match="32 KiB") as caught:
        device.alloc(30 * MIB, "dev")
    assert caught.value.used == 1300 * (32 << 10)
    for each in keep:
        each.close()
    assert device.client.device_bytes == 0


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EOPNOTSUPP, errno.ENOSPC, errno.EINVAL])
def test_drivers_with_one_heap(code):
    heaps = []

    def one_heap(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO:
            bo = ffi.cast("struct amdxdna_drm_create_bo *", address)
            if bo.type == lib.AMDXDNA_BO_DEV_HEAP:
                heaps.append(bo.size)
                if len(heaps) > 1:
                    raise OSError(code, os.strerror(code))

    with Device.open(ProxyNode(open_node("emu:quiet"), one_heap)) as opened:
        keep = opened.alloc(40 * MIB, "dev")
        with pytest.raises(errors.OutOfHeap) as caught:
            opened.alloc(30 * MIB, "dev")
        assert caught.value.size == 64 * MIB and caught.value.used == 40 * MIB
        assert len(heaps) > 1 and set(heaps) == {64 * MIB}
        opened.alloc(20 * MIB, "dev").close()
        keep.close()


def test_a_heap_that_could_not_be_mapped_is_mapped_at_the_next_try():
    node = ProxyNode(open_node("emu:quiet"))
    with Device.open(node) as opened:
        for _ in range(2):
            node.refuse_maps = errno.ENOMEM
            with pytest.raises(errors.OutOfMemory):
                opened.alloc(64, "dev")
        node.refuse_maps = 0
        keep = opened.alloc(60 * MIB, "dev")
        assert opened.bo_usage().total == 64 * MIB
        node.refuse_maps = errno.ENOMEM
        with pytest.raises(errors.OutOfMemory):
            opened.alloc(30 * MIB, "dev")
        node.refuse_maps = 0
        more = opened.alloc(100 * MIB, "dev")  # takes the chunk of 64 MiB and one more
        assert opened.heap.size == opened.bo_usage().total == 192 * MIB
        for buffer in (keep, more):
            assert buffer.host_address - opened.heap.host == buffer.address - opened.heap.device
        pair = opened.alloc(64), opened.alloc(64)
        adder(opened, 64, 1).run(*pair)


def test_the_heap_does_without_room_to_grow(monkeypatch, open_emu):
    """With little address space there is one chunk, still aligned."""

    class NoRoom:
        def __getattr__(self, name):
            return getattr(lib, name)

        def xdna_mmap(self, address, length, prot, flags, fd, offset):
            if length > 256 * MIB:
                return -errno.ENOMEM
            return lib.xdna_mmap(address, length, prot, flags, fd, offset)

    monkeypatch.setattr(heap, "lib", NoRoom())
    opened = open_emu()
    assert opened.heap.limit == 64 * MIB and opened.heap.host % (64 * MIB) == 0
    with pytest.raises(errors.OutOfHeap):
        opened.alloc(65 * MIB, "dev")


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EACCES])
def test_the_heap_grows_for_want_of_room_alone(code):
    """Another refusal of a device buffer is told, and neither asked again nor met with 64 MiB more."""
    refuse = []

    def hook(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO and refuse:
            raise OSError(refuse.pop(), "refused")

    with Device.open(ProxyNode(open_node("emu:quiet,threads=1"), hook)) as device:
        keep = device.alloc(64, "dev")
        before = device.bo_usage()
        refuse.append(code)
        with pytest.raises(errors.XdnaError) as caught:
            device.alloc(64, "dev")
        assert caught.value.errno == code and device.bo_usage() == before
        assert keep.read() == device.alloc(64, "dev").read() == bytes(64)
