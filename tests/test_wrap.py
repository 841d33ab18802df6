"""Buffers over memory that the caller has."""

from __future__ import annotations

import errno
import gc
import mmap

import numpy as np
import pytest

from amdxdna import errors
from amdxdna._native import ffi
from amdxdna.client import reap
from amdxdna.device import Device
from amdxdna.node import open_node
from tests.binding import ProxyNode, adder


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
    from amdxdna.buffer import wrap

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


@pytest.mark.parametrize("make", [
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
], ids=["unaligned", "odd size", "too long", "empty", "no size", "odd address", "strided", "no buffer",
        "negative", "past the end", "too large"])
def test_what_cannot_be_wrapped(device, make):
    block = mmap.mmap(-1, 8192)
    with pytest.raises(errors.BadArgument):
        device.wrap(*make(block))


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
