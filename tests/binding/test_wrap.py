"""Buffers over memory that the caller has."""

from __future__ import annotations

import errno
import gc
import mmap
import threading
import time
import weakref

import numpy as np
import pytest

from amdxdna import errors, packet
from amdxdna._native import ffi
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.stream import Copy, Delay
from amdxdna.opening import open_node
from amdxdna.reaper import reap
from tests.support.binding import ProxyNode, adder, copy_xclbin


def test_wrapped_memory_is_used_in_place(device):
    block = mmap.mmap(-1, 8192)
    array = np.frombuffer(block, "u4")
    array[:] = np.arange(2048)
    wrapped = device.wrap(array)
    result = device.alloc(8192)
    adder(device, 8192, 3).run(wrapped, result, outputs=[result])
    np.testing.assert_array_equal(result.view("u4"), np.arange(2048) + 3)
    adder(device, 8192, 10).run(result, wrapped, outputs=[wrapped])
    np.testing.assert_array_equal(array, np.arange(2048) + 13)
    with pytest.raises(errors.Unsupported):
        wrapped.export_fd()


def test_wrapped_memory_outlives_buffer_and_views(device):
    block = mmap.mmap(-1, 8192)
    block[:4] = b"mine"
    buffer = device.wrap(block)
    view = buffer.view()
    buffer.close()
    view[0] = ord("M")
    del view
    gc.collect()
    reap()
    assert block[:4] == b"Mine"
    again = device.wrap(block)
    assert again.read(0, 4) == b"Mine"
    again.close()
    assert block[:4] == b"Mine"


@pytest.mark.parametrize("address", ["pasid", "iova"])
def test_drivers_that_do_not_map_user_memory(address):
    """Linux 7.3.4: mmap of a user-pointer BO is EINVAL. The caller's own mapping serves instead."""
    with Device.open(ProxyNode(open_node(f"emu:quiet,address={address}"))) as opened:
        block = mmap.mmap(-1, 4096)
        source = opened.alloc(4096)
        source.view("u4")[:] = np.arange(1024)
        kernel = adder(opened, 4096, 2)
        kernel.run(source, source)
        opened.node.refuse_maps = errno.EINVAL
        wrapped = opened.wrap(block)
        opened.node.refuse_maps = 0
        assert (wrapped.address == wrapped.host_address) == (address == "pasid")
        kernel.run(source, wrapped, outputs=[wrapped])
        np.testing.assert_array_equal(np.frombuffer(block, "u4"), np.arange(1024) + 4)
        assert wrapped.read(4, 4) == (5).to_bytes(4, "little")


def test_iova_mode_never_maps_user_memory():
    with Device.open(ProxyNode(open_node("emu:quiet,address=iova"))) as opened:
        before = opened.node.maps
        opened.wrap(mmap.mmap(-1, 4096)).close()
        assert opened.node.maps == before


def test_wrapped_read_only_memory_is_not_written(device):
    """As newer drivers allow it; views must not hand out what would fault."""
    from amdxdna.allocation import wrap

    block = mmap.mmap(-1, 4096)
    keep = ffi.from_buffer(block)
    buffer = wrap(device.client, int(ffi.cast("uintptr_t", keep)), 4096, keep, read_only=True)
    assert not buffer.view("u4").flags.writeable
    with pytest.raises(errors.BadArgument, match="read-only"):
        buffer.write(b"x")
    part = buffer.sub(64)
    assert not part.view().flags.writeable
    assert part.read(0, 4) == bytes(4)


def test_wrap_takes_addresses_and_mmaps_and_keeps_them_alive(device):
    block = mmap.mmap(-1, 8192)
    block[:4] = b"left"
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(block)))
    by_address = device.wrap(address + 4096, 4096)
    by_address.write(b"right")
    assert block[4096:4101] == b"right"
    by_address.close()
    by_object = device.wrap(block)
    with pytest.raises(BufferError):
        block.close()
    assert by_object.read(0, 4) == b"left"
    by_object.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda block: (np.frombuffer(block, "u1")[1:4097],),
        lambda block: (np.frombuffer(block, "u1")[:4000],),
        lambda block: (block, 8193),
        lambda block: (block, 0),
        lambda block: (4096,),
        lambda block: (4096 + 1, 4096),
        lambda block: (np.frombuffer(block, "u1")[::2],),
        lambda block: ("text",),
        lambda block: (-4096, 4096),
        lambda block: (1 << 64, 4096),
        lambda block: (4096, 1 << 64),
        lambda block: (1 << 56, 4096),
        lambda block: (4096, 1 << 47),
    ],
    ids=[
        *("unaligned", "odd size", "too long", "empty", "no size", "odd address", "strided", "no buffer"),
        *("negative", "past the end", "too large", "past the last address", "too large for any"),
    ],
)
def test_what_cannot_be_wrapped(device, make):
    """The driver is not asked."""
    block = mmap.mmap(-1, 8192)
    with pytest.raises(errors.BadArgument) as caught:
        device.wrap(*make(block))
    assert caught.value.call == "wrap" and caught.value.errno is None


def test_memory_the_driver_refuses(open_emu, tmp_path):
    opened = open_emu()
    with pytest.raises(errors.BadArgument, match="unmapped, read-only") as caught:
        opened.wrap(1 << 20, 4096)
    assert caught.value.errno == errno.EFAULT
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with open(path, "rb") as file:
        read_only = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
    with pytest.raises(errors.BadArgument):
        opened.wrap(read_only)
    with pytest.raises(errors.OutOfMemory, match="locked-memory"):
        open_emu("privileged=0,memlock=0").wrap(mmap.mmap(-1, 4096))


def test_nothing_is_written_to_wrapped_memory_once_its_buffer_is_closed(device, gate):
    block = mmap.mmap(-1, 4096)
    source, target = device.alloc(4096), device.wrap(block)
    run = gate.kernel(device, 4096).start(source, target)
    gate.open(after=0.2)
    target.close()
    left = block[:]
    run.wait()
    assert block[:] == left
    block.close()


def test_nothing_is_written_to_wrapped_memory_once_the_device_is_closed(open_emu, monkeypatch):
    """Though the kernel computes longer than destroying its context waits for it."""
    from amdxdna.emu.kernels import runner

    compute, started, over = runner.compute, threading.Event(), threading.Event()

    def slow(*arguments):
        started.set()
        time.sleep(0.3)
        try:
            return compute(*arguments)
        finally:
            over.set()

    device = open_emu("address=iova,tdr=0.05")
    monkeypatch.setattr(runner, "compute", slow)
    block = mmap.mmap(-1, 4096)
    source, target = device.alloc(4096), device.wrap(block)
    run = adder(device, 4096, 1).start(source, target)
    assert started.wait(60)
    device.client.pools.clear()
    device.close()
    assert over.is_set()
    del run


class Page(mmap.mmap):
    """Memory that can be watched."""


def raw_context(device):
    context = device.context(copy_xclbin())
    insts = stream.program([Delay(1), Copy(4096, 1)])
    code = device.alloc(len(insts), "dev")
    code.write(insts)
    return context, code


def test_the_memory_of_a_command_in_flight_outlives_its_dropped_context(device, gate):
    block = Page(-1, 4096)
    context, code = raw_context(device)
    source, target = device.alloc(4096), device.wrap(block)
    context.run(
        packet.start_cu(0, code.address, code.nbytes, [source.address, target.address]),
        [code, source, target],
    )
    alive = weakref.ref(block)
    del context, code, source, target, block
    gc.collect()
    reap()
    assert alive() is not None
    gate.open()
    device.close()
    gc.collect()
    assert alive() is None


def test_a_chain_keeps_its_buffers_though_the_callers_list_changes(device, gate):
    block = Page(-1, 4096)
    kernel = gate.kernel(device, 4096)
    buffers = [device.alloc(4096), device.wrap(block)]
    run = device.pool.chain([(kernel, buffers)])
    alive = weakref.ref(block)
    del block
    buffers.clear()
    gc.collect()
    reap()
    assert alive() is not None
    gate.open()
    run.wait()
    device.alloc(64)
    gc.collect()
    assert alive() is None
