"""Buffers: views, sub-buffers, lifetimes, sharing."""

from __future__ import annotations

import gc
import mmap
import os
import random
import signal
import threading

import numpy as np
import pytest

from amdxdna import errors
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.reaper import reap
from tests.support.binding import adder, flushes
from tests.support.threads import in_threads

MIB = 1 << 20


def test_views_are_the_buffers_own_memory(device):
    buffer = device.alloc(4096)
    first = buffer.view("u1")
    second = buffer.view(np.float32, (16, 64))
    assert np.shares_memory(first, second)
    assert first.__array_interface__["data"][0] == buffer.host_address
    second[1, 2] = 1.5
    assert bytes(first[4 * 66 : 4 * 67]) == np.float32(1.5).tobytes()
    assert buffer.read(4 * 66, 4) == np.float32(1.5).tobytes()


@pytest.mark.parametrize(
    ("nbytes", "dtype", "shape", "want"),
    [
        (1, "u1", None, (1,)),
        (10, "u1", None, (10,)),
        (10, "u4", None, (2,)),
        (4096, "f4", 3, (3,)),
        (4096, "u2", (2, 3, 4), (2, 3, 4)),
        (4096, "u1", 0, (0,)),
        (64, "u2", (4, 8), (4, 8)),
    ],
)
def test_view_shapes(device, nbytes, dtype, shape, want):
    assert device.alloc(nbytes).view(dtype, shape).shape == want


@pytest.mark.parametrize(
    ("dtype", "shape"), [("u1", 65), ("u4", 17), ("u2", (4, 9)), ("u1", (-1,)), ("u1", (-2, -2))]
)
def test_a_view_never_reaches_past_the_buffer(device, dtype, shape):
    with pytest.raises(errors.BadArgument, match="does not fit"):
        device.alloc(64).view(dtype, shape)


def test_read_only_views(device):
    buffer = device.alloc(64)
    view = buffer.view("u1", writable=False)
    assert buffer.clean
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_write_and_read(device):
    buffer = device.alloc(100)
    buffer.write(b"abc", 97)
    buffer.write(np.arange(3, dtype="u2"), 1)
    assert buffer.read(97) == b"abc"
    assert buffer.read(1, 6) == b"\0\0\x01\0\x02\0"
    for data, offset in ((b"abc", 98), (b"a", -1), (bytes(101), 0)):
        with pytest.raises(errors.BadArgument):
            buffer.write(data, offset)
    with pytest.raises(errors.BadArgument):
        buffer.read(50, 51)


@pytest.mark.parametrize(
    ("nbytes", "kind", "error"),
    [
        (0, "share", errors.BadArgument),
        (-5, "dev", errors.BadArgument),
        (1 << 50, "share", errors.BadArgument),
        (64, "heap", errors.BadArgument),
        (1 << 47, "share", errors.BadArgument),
        ((1 << 47) - 4096, "share", errors.OutOfMemory),
        (600 * MIB, "dev", errors.OutOfHeap),
    ],
)
def test_refused_sizes(open_emu, nbytes, kind, error):
    with pytest.raises(error):
        open_emu().alloc(nbytes, kind)


# Addresses


def test_packet_addresses_follow_the_mode(open_emu):
    pasid, iova = open_emu("address=pasid"), open_emu("address=iova")
    for kind in ("share", "cmd"):
        here = pasid.alloc(8192, kind)
        assert here.address == here.host_address
        there = iova.alloc(8192, kind)
        assert there.address != there.host_address
        info = ffi.new("struct amdxdna_drm_get_bo_info *", {"handle": there.handle})
        iova.node.ioctl(lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO, int(ffi.cast("uintptr_t", info)))
        assert there.address == info.xdna_addr


def test_device_buffers_live_in_the_heap(device):
    first, second = device.alloc(100, "dev"), device.alloc(5000, "dev")
    assert device.heap.host % (64 * MIB) == 0
    assert device.heap.device == 0x4000000
    assert first.address >= device.heap.device and second.address > first.address
    for buffer in (first, second):
        assert buffer.host_address - device.heap.host == buffer.address - device.heap.device
    second.view("u1")[:] = 7
    assert bytes(device.heap.memory[second.address - device.heap.device :][:5000]) == b"\x07" * 5000


def test_sub_buffers(device):
    whole = device.alloc(4096)
    part = whole.sub(100, 200)
    rest = part.sub(50)
    assert (part.nbytes, rest.nbytes) == (200, 150)
    assert rest.address == whole.address + 150 and rest.host_address == whole.host_address + 150
    rest.view()[0] = 9
    assert whole.view()[150] == 9
    assert part.sub(199, 1).nbytes == 1
    for offset, size in ((-1, 4), (0, 201), (201, None), (200, None), (5, 0)):
        with pytest.raises(errors.BadArgument):
            part.sub(offset, size)


def test_a_part_takes_nothing_of_the_heap(device):
    whole, used = device.alloc(4096, "dev"), device.client.device_bytes
    whole.sub(1024).close()
    assert device.client.device_bytes == used == 32 << 10
    whole.close()
    assert device.client.device_bytes == 0


def test_the_bo_stays_until_whole_and_parts_are_closed(device):
    whole = device.alloc(4096)
    handle, part = whole.handle, whole.sub(1024, 1024)
    whole.close()
    with pytest.raises(errors.Closed):
        whole.view()
    part.write(b"still here")
    assert part.export_fd() > 0
    assert part.handle == handle
    part.close()
    info = ffi.new("struct amdxdna_drm_get_bo_info *", {"handle": handle})
    with pytest.raises(OSError, match="No such"):
        device.node.ioctl(lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO, int(ffi.cast("uintptr_t", info)))


# Flushing


def test_the_clean_flag(device):
    buffer = device.alloc(4096)
    assert buffer.clean  # its first flush
    assert not device.alloc(4096, flush=False).clean
    buffer.view()
    assert not buffer.clean
    buffer.to_device(0, 100)
    assert not buffer.clean  # only a part
    assert not buffer.sub(0, 64).clean
    buffer.to_device()
    assert buffer.clean and buffer.sub(0, 64).clean
    buffer.from_device(4096, 0)  # nothing, at the end
    buffer.memory()
    assert not buffer.clean
    for offset, size in ((0, 4097), (-1, 1), (4097, None)):
        with pytest.raises(errors.BadArgument):
            buffer.to_device(offset, size)
        with pytest.raises(errors.BadArgument):
            buffer.from_device(offset, size)


def test_a_new_buffer_is_flushed_once_whole(device, monkeypatch):
    seen = flushes(monkeypatch)
    for kind in ("share", "dev", "cmd"):
        buffer = device.alloc(5000, kind)
        assert seen == [(buffer.host_address, 5000)]
        seen.clear()
    buffer.to_device(64, 100)
    buffer.from_device(4000)
    assert seen == [(buffer.host_address + 64, 100), (buffer.host_address + 4000, 1000)]


# Lifetime


def test_a_closed_buffer_refuses_and_its_views_stay_valid(device):
    buffer = device.alloc(1 << 16)
    view = buffer.view("u4")
    view[:] = 0x5A5A5A5A
    buffer.close()
    buffer.close()
    view[1:] += 1
    assert int(view[0]) + int(view[-1]) == 2 * 0x5A5A5A5A + 1
    for use in (
        buffer.view,
        buffer.memory,
        buffer.to_device,
        buffer.read,
        buffer.export_fd,
        lambda: buffer.sub(0, 1),
        lambda: buffer.write(b"x"),
        lambda: buffer.host_address,
    ):
        with pytest.raises(errors.Closed):
            use()
    assert "closed" in repr(buffer)


def test_views_outlive_the_device(open_emu):
    opened = open_emu()
    views = [opened.alloc(1 << 16, kind).view("u1") for kind in ("share", "dev")]
    opened.close()
    gc.collect()
    reap()
    for view in views:
        view[:] = 3
        assert int(view.sum()) == 3 << 16


def test_a_dropped_buffer_is_given_back_at_the_next_allocation(device):
    before = device.bo_usage().total
    for _ in range(20):
        device.alloc(1 << 16)
    gc.collect()
    keep = device.alloc(1 << 16)
    assert device.bo_usage().total == before + (1 << 16)
    view = keep.view()
    keep.close()
    assert device.bo_usage().total == before
    view[0] = 1


def test_buffers_from_many_threads(device):
    before = device.bo_usage()

    def work(number):
        rng = random.Random(number)
        held = []
        for turn in range(60):
            kind = rng.choice(("share", "dev", "cmd"))
            buffer = device.alloc(rng.randrange(1, 20000), kind)
            buffer.view()[:] = number * 60 + turn & 0xFF
            held.append((buffer, number * 60 + turn & 0xFF))
            if len(held) > 5:
                old, value = held.pop(rng.randrange(len(held)))
                assert set(old.read()) == {value}, turn
                if rng.random() < 0.7:
                    old.close()

    in_threads(4, work)
    gc.collect()
    reap()
    after = device.bo_usage()
    assert (after.total - (64 << 20), after.heap) == (before.total, before.heap)


def test_mappings_end_with_the_last_view(device):
    buffer = device.alloc(32 * MIB)
    address = buffer.host_address
    view = buffer.view()
    buffer.close()

    def mapped():
        with open("/proc/self/maps") as maps:
            return any(
                int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
                for line in maps
            )

    assert mapped()
    del view
    gc.collect()
    reap()
    assert not mapped()


def test_use_after_the_device_closed(open_emu):
    opened = open_emu()
    buffer = opened.alloc(64)
    opened.close()
    for use in (buffer.view, buffer.to_device, buffer.export_fd):
        with pytest.raises(errors.Closed):
            use()
    buffer.close()


def test_a_forked_child_cannot_use_the_parents_buffers(device):
    buffer = device.alloc(64)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            buffer.export_fd()
        except errors.Closed:
            buffer.close()
            device.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    buffer.write(b"parent")
    assert buffer.read(0, 6) == b"parent"


def test_a_forked_child_waits_for_none_of_the_parents_locks(device):
    """A lock that another thread of the parent held stays locked in the child for good."""
    dropped, kept = device.alloc(64), device.alloc(64)
    held, over = threading.Event(), threading.Event()

    def hold():
        with device.client.lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    del dropped  # queued, for the next allocation
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        status = 1
        try:
            with Device.open("emu:quiet,threads=1,slots=5") as own:
                own.alloc(64)
                kept.close()
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    over.set()
    thread.join()
    assert kept.read(0, 1) == b"\0"


# dma-buf


def test_export_and_import(device):
    buffer = device.alloc(8192)
    buffer.write(b"shared")
    fd = buffer.export_fd()
    try:
        assert os.lseek(fd, 0, os.SEEK_END) == 8192
        outside = mmap.mmap(fd, 8192)
        assert outside[:6] == b"shared"
        with device.import_fd(fd, 1) as first:
            assert first.read() == b"s"
        with device.import_fd(fd) as other:
            assert other.nbytes == 8192 and other.read(0, 6) == b"shared"
            outside[6:9] = b"!!!"
            assert other.read(6, 3) == b"!!!"
        # The import had the exporter's own handle: closing it must not take the buffer away.
        assert buffer.read(0, 9) == b"shared!!!"
        kernel = adder(device, 4096, 0)
        kernel.run(buffer, device.alloc(4096))
    finally:
        os.close(fd)


def test_import_into_another_device(open_emu):
    one, other = open_emu("slots=3"), open_emu("slots=4")
    source = one.alloc(4096)
    source.view("u4")[:] = np.arange(1024)
    fd = source.export_fd()
    imported = other.import_fd(fd)
    os.close(fd)
    result = other.alloc(4096)
    adder(other, 4096, 5).run(imported, result, outputs=[result])
    np.testing.assert_array_equal(result.view("u4"), np.arange(1024) + 5)


@pytest.mark.parametrize(("fd", "nbytes"), [(-1, None), (1 << 31, None), (0, 0), (0, -4096), (0, 1 << 47)])
def test_impossible_imports(device, fd, nbytes):
    with pytest.raises(errors.BadArgument, match=f"bytes of descriptor {fd}"):
        device.import_fd(fd, nbytes)


def test_what_cannot_be_shared(device):
    with pytest.raises(errors.Unsupported):
        device.alloc(64, "dev").export_fd()
    read_end, write_end = os.pipe()
    for fd in (read_end, 999):
        with pytest.raises(errors.BadArgument):
            device.import_fd(fd)
    os.close(read_end)
    os.close(write_end)
