"""Large BOs on huge pages: memory like any other, given back, and done without where there are none."""

from __future__ import annotations

import errno
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest

from amdxdna.device import Device
from amdxdna.emu.driver import store
from amdxdna.emu.driver.huge import HUGE_PAGE, huge_file
from tests.support.descriptors import descriptors, opened

SIZE = 3 * HUGE_PAGE + 4096


@pytest.fixture(params=["huge", "plain"])
def device(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(store, "huge_file", lambda: None)
    elif not large_pages():
        pytest.skip("no file of huge pages for this user")
    with Device.open("emu:quiet,threads=1") as opened:
        yield opened


def large_pages() -> bool:
    file = huge_file()
    if file is None:
        return False
    os.close(file)
    return True


def words(nbytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, nbytes // 4, np.uint32)


def test_a_large_buffer_begins_as_zeros_and_keeps_what_is_written(device):
    a, b = device.alloc(SIZE), device.alloc(SIZE)
    assert not a.view().any()
    a.view("u4")[:] = words(SIZE, 1)
    b.view("u4")[:] = words(SIZE, 2)
    assert (a.view("u4") == words(SIZE, 1)).all()
    assert (b.view("u4") == words(SIZE, 2)).all()


def test_a_second_mapping_shows_the_same_bytes(device):
    buffer = device.alloc(SIZE)
    offset = device.node.client.handles[buffer.handle].map_offset
    other = device.node.mmap(SIZE, offset)
    assert other != buffer.host_address
    again = np.frombuffer(_at(other, SIZE), np.uint32)
    buffer.view("u4")[:] = words(SIZE, 3)
    assert (again == words(SIZE, 3)).all()
    device.node.munmap(other, SIZE)


def test_an_exported_large_buffer_keeps_its_bytes_and_shares_new_ones(device):
    buffer = device.alloc(SIZE)
    view = buffer.view("u4")
    view[:] = words(SIZE, 4)
    fd = buffer.export_fd()
    try:
        with mmap.mmap(fd, SIZE) as shared:
            theirs = np.frombuffer(shared, np.uint32)
            assert (theirs == words(SIZE, 4)).all()
            view[7] = 99
            assert theirs[7] == 99
            del theirs
    finally:
        os.close(fd)


def test_a_closed_buffer_gives_its_pages_back(device):
    keep = device.alloc(SIZE)
    keep.view()[:] = 1

    def blocks() -> int:
        """Of every file in memory that this process has open."""
        stats = [os.fstat(int(fd)) for fd, where in opened() if where.startswith("/memfd:")]
        return sum({each.st_ino: each.st_blocks for each in stats}.values())

    before = blocks()
    buffer = device.alloc(SIZE)
    buffer.view()[:] = 2
    assert blocks() - before >= SIZE // 512
    buffer.close()
    assert blocks() <= before + 2 * HUGE_PAGE // 512
    assert (keep.view() == 1).all()


def test_small_buffers_stay_in_the_file_that_can_be_handed_on(device):
    client = device.node.client
    small = client.handles[device.alloc(HUGE_PAGE - 4096).handle]
    assert small.backing.file is client.store.file
    assert small.backing.offset == small.map_offset


def test_large_buffers_really_are_on_huge_pages():
    if not large_pages():
        pytest.skip("no file of huge pages for this user")
    with Device.open("emu:quiet,threads=1") as device:
        buffer = device.alloc(4 * HUGE_PAGE)
        buffer.view()[:] = 1
        start = f"{buffer.host_address:x}-"
        blocks = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
        found = next(block for block in blocks if block.startswith(start))
        mapped = int(re.findall(r"ShmemPmdMapped: +(\d+)", found)[0])
        if not mapped:
            pytest.skip("no huge page was free")
        assert mapped <= 4 * HUGE_PAGE // 1024
        assert buffer.host_address % HUGE_PAGE == 0


def test_no_descriptor_is_left():
    with Device.open("emu:quiet,threads=1") as device:
        device.alloc(HUGE_PAGE)
    before = descriptors()
    with Device.open("emu:quiet,threads=1") as device:
        device.alloc(HUGE_PAGE)
        assert descriptors() - before
    assert descriptors() <= before


def _at(address: int, size: int):
    from amdxdna._native import ffi

    return ffi.buffer(ffi.cast("char *", address), size)


@pytest.mark.parametrize("step", ["ftruncate", "unlink"])
def test_a_file_of_huge_pages_that_cannot_be_had_leaves_no_descriptor(monkeypatch, step):
    """Buffers are on ordinary pages then."""

    def refuse(*_, **__):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        before = descriptors()
        patch.setattr(os, step, refuse)
        assert huge_file() is None
        patch.undo()
        assert descriptors() <= before
