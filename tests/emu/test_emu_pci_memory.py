"""Guest memory: address sets against a plain set, and pieces of a memfd as one range."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
from collections.abc import Iterator

import pytest

from amdxdna.emu.npu import BadAddress
from amdxdna.emu.pci.guest_memory import AddressSet, GuestMemory

PAGE = 4096
IOVA = 0xFFFF_F800_0000


@pytest.mark.parametrize("seed", range(5))
def test_address_set_is_a_set(seed: int) -> None:
    """Random adds and removes give what a Python set gives, as merged, sorted ranges."""
    rng = random.Random(seed)
    ours, plain = AddressSet(), set[int]()
    for _ in range(300):
        start = rng.randrange(60)
        end = start + rng.randrange(1, 12)
        if rng.random() < 0.55:
            ours.add(start, end)
            plain |= set(range(start, end))
        else:
            ours.remove(start, end)
            plain -= set(range(start, end))
        ranges = list(ours)
        assert {n for low, high in ranges for n in range(low, high)} == plain
        assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges)), "not merged"
        low = rng.randrange(60)
        high = low + rng.randrange(1, 12)
        assert ours.covers(low, high) == (set(range(low, high)) <= plain)
        assert ours.overlaps(low, high) == bool(set(range(low, high)) & plain)


@pytest.fixture
def ram() -> Iterator[int]:
    """A memfd of eight pages; page n is filled with n."""
    fd = os.memfd_create("ram")
    os.write(fd, b"".join(bytes([n]) * PAGE for n in range(8)))
    yield fd
    os.close(fd)


@pytest.fixture
def memory() -> Iterator[GuestMemory]:
    memory = GuestMemory()
    yield memory
    memory.close()


def test_scattered_pages_become_one_range(memory: GuestMemory, ram: int) -> None:
    """Pages in any order in RAM are contiguous where their I/O addresses are."""
    for i, page in enumerate((5, 2, 7)):
        memory.map(IOVA + i * PAGE, PAGE, ram, page * PAGE)
    data = ctypes.string_at(memory.pointer(0, IOVA, 3 * PAGE), 3 * PAGE)
    assert data == b"".join(bytes([n]) * PAGE for n in (5, 2, 7))
    memory.write(IOVA + PAGE - 2, b"abcd")
    assert os.pread(ram, 4, 6 * PAGE - 2)[:2] == b"ab"
    assert os.pread(ram, 4, 2 * PAGE)[:2] == b"cd"


def test_unmapped_is_refused(memory: GuestMemory, ram: int) -> None:
    memory.map(IOVA, 2 * PAGE, ram, 0)
    for address, size in ((IOVA - 1, 2), (IOVA + 2 * PAGE - 1, 2), (0, 1), (IOVA + (1 << 42), 1)):
        with pytest.raises(BadAddress):
            memory.pointer(0, address, size)
        assert not memory.covers(address, size)
    assert memory.covers(IOVA, 2 * PAGE)


def test_late_access_goes_nowhere(memory: GuestMemory, ram: int) -> None:
    """A pointer handed out before an unmap still works, and no longer reaches the guest."""
    memory.map(IOVA, 2 * PAGE, ram, 0)
    pointer = memory.pointer(0, IOVA, 2 * PAGE)
    memory.unmap(IOVA + PAGE, PAGE)
    ctypes.memset(pointer, 0xEE, 2 * PAGE)
    assert os.pread(ram, 1, 0) == b"\xee"
    assert os.pread(ram, 1, PAGE) == b"\x01"
    with pytest.raises(BadAddress):
        memory.pointer(0, IOVA + PAGE, 1)


def test_a_pointer_does_not_outlive_what_was_there(memory: GuestMemory, ram: int) -> None:
    """When everything goes at once, as with its client."""
    memory.map(IOVA, PAGE, ram, 0)
    memory.map(IOVA + 2 * PAGE, PAGE, ram, PAGE)
    pointers = [memory.pointer(0, IOVA + at * PAGE, PAGE) for at in (0, 2)]
    memory.clear()
    assert (memory.ranges(), memory.windows) == ([], 1)
    for pointer in pointers:
        ctypes.memset(pointer, 0xEE, PAGE)
    assert os.pread(ram, 2 * PAGE, 0) == bytes(PAGE) + b"\x01" * PAGE
    memory.release(0)
    assert memory.windows == 0


def test_memory_on_both_sides_of_a_tib(memory: GuestMemory, ram: int) -> None:
    """Reached from either side; the end of the address space, too. No pointer leads across."""
    border = 5 << 40
    memory.map(border - 2 * PAGE, 4 * PAGE, ram, PAGE)
    assert memory.read(border - PAGE, PAGE) + memory.read(border, PAGE) == b"\x02" * PAGE + b"\x03" * PAGE
    assert (memory.ranges(), memory.windows) == ([(border - 2 * PAGE, border + 2 * PAGE)], 2)
    with pytest.raises(BadAddress):
        memory.pointer(0, border - 1, 2)
    memory.map((1 << 48) - PAGE, PAGE, ram, 0)
    assert memory.read((1 << 48) - 1, 1) == b"\0"


def test_an_unmap_takes_several_mappings(memory: GuestMemory, ram: int) -> None:
    for i in range(4):
        memory.map(IOVA + i * PAGE, PAGE, ram, i * PAGE)
    memory.unmap(IOVA, 3 * PAGE)
    assert not memory.covers(IOVA + 2 * PAGE, PAGE)
    assert memory.read(IOVA + 3 * PAGE, 1) == b"\x03"
    memory.clear()
    assert not memory.covers(IOVA + 3 * PAGE, PAGE)


def test_remapping_replaces(memory: GuestMemory, ram: int) -> None:
    memory.map(IOVA, PAGE, ram, 0)
    memory.map(IOVA, PAGE, ram, 4 * PAGE)
    assert memory.read(IOVA, 1) == b"\x04"


def test_a_file_that_cannot_be_mapped(memory: GuestMemory) -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError, match="cannot map"):
            memory.map(IOVA, PAGE, reader, 0)
        assert not memory.covers(IOVA, PAGE)
        assert memory.windows == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_a_window_stays_while_a_command_uses_it(memory: GuestMemory, ram: int) -> None:
    """What is unmapped under a running command is given back when that is over."""
    memory.map(IOVA, PAGE, ram, 0)
    memory.map(0, PAGE, ram, PAGE)
    pointer = memory.pointer(3, IOVA, PAGE)
    memory.unmap(IOVA, PAGE)
    assert memory.windows == 2
    ctypes.memset(pointer, 1, PAGE)
    memory.release(3)
    assert memory.windows == 1
    assert memory.read(0, 1) == b"\x01"
