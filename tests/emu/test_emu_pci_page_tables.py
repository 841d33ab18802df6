"""A process's memory as the model finds it by PASID: page tables in a file, walked."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

import pytest

from amdxdna.emu.npu import BadAddress
from amdxdna.emu.pci.guest_memory import GuestMemory
from amdxdna.emu.pci.page_tables import PageTables

PAGE = 4096
RAM = 16 << 20
LARGE = 2 << 20
PRESENT, WRITE, USER, HUGE = 1, 2, 4, 0x80
ALL = PRESENT | WRITE | USER
ADDRESS = 0x7F12_3456_7000


class Process:
    """Page tables in RAM, built by hand; frames are taken from `free` on."""

    def __init__(self, ram: int, free: int) -> None:
        self.ram = ram
        self.free = free
        self.root = self._new()

    def _new(self) -> int:
        self.free += 1
        os.pwrite(self.ram, bytes(PAGE), (self.free - 1) * PAGE)
        return (self.free - 1) * PAGE

    def map(self, address: int, frame: int, flags: int = ALL, level: int = 12, middle: int = ALL) -> None:
        """Makes `frame` the page (level 12) or large page (21) at `address`."""
        table = self.root
        for shift in (39, 30, 21, 12):
            at = table + 8 * (address >> shift & 511)
            if shift == level:
                os.pwrite(self.ram, struct.pack("<Q", frame * PAGE | flags), at)
                return
            (entry,) = struct.unpack("<Q", os.pread(self.ram, 8, at))
            if not entry:
                entry = self._new() | middle
                os.pwrite(self.ram, struct.pack("<Q", entry), at)
            table = entry & ~0xFFF


@pytest.fixture
def ram() -> Iterator[int]:
    fd = os.memfd_create("ram")
    os.ftruncate(fd, RAM)
    yield fd
    os.close(fd)


@pytest.fixture
def roots() -> dict[int, int]:
    return {}


@pytest.fixture
def tables(ram: int, roots: dict[int, int]) -> Iterator[PageTables]:
    tables = PageTables(ram, lambda pasid: roots.get(pasid, 0))
    yield tables
    tables.close()


@pytest.fixture
def process(ram: int, roots: dict[int, int]) -> Process:
    """PASID 7; CR3's low bits say something else."""
    process = Process(ram, 16)
    roots[7] = process.root | 0x18
    return process


def test_scattered_pages(tables: PageTables, process: Process, ram: int) -> None:
    """Pages anywhere in RAM are contiguous here, and what is written reaches them."""
    for i, frame in enumerate((1, 3, 4)):
        process.map(ADDRESS + i * PAGE, frame)
        os.pwrite(ram, bytes([frame]) * PAGE, frame * PAGE)
    pointer = tables.pointer(0, 7, ADDRESS + 100, 2 * PAGE)
    assert ctypes.string_at(pointer, 2 * PAGE) == b"\x01" * (PAGE - 100) + b"\x03" * PAGE + b"\x04" * 100
    ctypes.memmove(pointer, b"new", 3)
    assert os.pread(ram, 3, PAGE + 100) == b"new"


def test_large_pages(tables: PageTables, process: Process, ram: int) -> None:
    """An entry for 2 MiB, entered in the middle, followed by a small page."""
    base = 0x7F12_3460_0000
    process.map(base, 2 * 512, ALL | HUGE | 1 << 12, level=21)
    process.map(base + LARGE, 5)
    os.pwrite(ram, b"end", 2 * LARGE + LARGE - 3)
    os.pwrite(ram, b"next", 5 * PAGE)
    assert ctypes.string_at(tables.pointer(0, 7, base + LARGE - 3, 7), 7) == b"endnext"


def test_the_last_of_a_process_and_of_ram(tables: PageTables, ram: int, roots: dict[int, int]) -> None:
    """Its last address, by the last entry of a table at RAM's end; a GiB of which RAM holds the beginning."""
    process = Process(ram, RAM // PAGE - 5)
    roots[9] = process.root
    process.map(1 << 30, 0, ALL | HUGE, level=30)
    process.map((1 << 47) - PAGE, 5)
    assert process.free == RAM // PAGE
    os.pwrite(ram, b"five", 6 * PAGE - 4)
    for address in ((1 << 47) - 4, (1 << 30) + 6 * PAGE - 4):
        assert ctypes.string_at(tables.pointer(0, 9, address, 4), 4) == b"five"
    with pytest.raises(BadAddress):
        tables.pointer(0, 9, 1 << 30, RAM + 1)


def test_pages_that_move(tables: PageTables, process: Process, ram: int) -> None:
    """The tables are read again for each pointer, also where a large page becomes small ones and back."""
    base = 0x7F12_3460_0000

    def look(page: int) -> bytes:
        return ctypes.string_at(tables.pointer(0, 7, base + page * PAGE, 4), 4)

    for frame in (600, 700, 1024, 1025):
        os.pwrite(ram, struct.pack("<I", frame), frame * PAGE)
    process.map(base, 600)
    process.map(base + PAGE, 700)
    small = [look(0), look(1)]
    (inner,) = struct.unpack("<Q", os.pread(ram, 8, _entry(ram, process, base)))
    os.pwrite(ram, struct.pack("<Q", 1024 * PAGE | ALL | HUGE), _entry(ram, process, base))
    large = [look(0), look(1)]
    os.pwrite(ram, struct.pack("<Q", inner), _entry(ram, process, base))
    seen = [*small, *large, look(0), look(1)]
    assert [struct.unpack("<I", word)[0] for word in seen] == [600, 700, 1024, 1025, 600, 700]


def _entry(ram: int, process: Process, address: int) -> int:
    """Where the entry of a 2 MiB page is."""
    table = process.root
    for shift in (39, 30):
        table = struct.unpack("<Q", os.pread(ram, 8, table + 8 * (address >> shift & 511)))[0] & ~0xFFF
    return table + 8 * (address >> 21 & 511)


@pytest.mark.parametrize(
    ("flags", "middle", "frame"),
    [
        (WRITE | USER, ALL, 5),
        (PRESENT | WRITE, ALL, 5),
        (ALL, PRESENT | WRITE, 5),
        (ALL, ALL, RAM // PAGE),
        (ALL, ALL, 1 << 39),
    ],
)
def test_out_of_reach(flags: int, middle: int, frame: int, tables: PageTables, process: Process) -> None:
    """Not present, the kernel's (in the page's entry, or above it), and memory that is not RAM."""
    process.map(ADDRESS, frame, flags, middle=middle)
    with pytest.raises(BadAddress):
        tables.pointer(0, 7, ADDRESS, 4)


def test_no_such_process(tables: PageTables, process: Process, roots: dict[int, int]) -> None:
    """A PASID without tables or with some outside RAM, an address beyond a process's, a hole in a range."""
    process.map(ADDRESS, 5)
    roots[5] = RAM
    for pasid, address, size in (
        (5, ADDRESS, 4),
        (6, ADDRESS, 4),
        (7, ADDRESS, 0),
        (7, ADDRESS, PAGE + 1),
        (7, ADDRESS - 1, 2),
        (7, 1 << 47, 4),
        (7, (1 << 64) - 4, 4),
        (7, ADDRESS, 1 << 62),
    ):
        with pytest.raises(BadAddress):
            tables.pointer(0, pasid, address, size)


def test_large_page_that_ends_outside(tables: PageTables, process: Process) -> None:
    """The last one that lies in RAM, and the one behind it: an access there would end this process."""
    base = 0x7F12_3460_0000
    process.map(base, (RAM - LARGE) // PAGE, ALL | HUGE, level=21)
    process.map(base + LARGE, RAM // PAGE, ALL | HUGE, level=21)
    assert tables.pointer(0, 7, base, LARGE)
    with pytest.raises(BadAddress):
        tables.pointer(0, 7, base, LARGE + 1)


def test_processes_are_given_up(
    tables: PageTables, process: Process, ram: int, roots: dict[int, int]
) -> None:
    """A process's windows stay while a context of it exists or computes; each process has its own memory."""
    other = Process(ram, 64)
    roots[8] = other.root
    process.map(ADDRESS, 5)
    other.map(ADDRESS, 6)
    os.pwrite(ram, b"five", 5 * PAGE)
    os.pwrite(ram, b"six!", 6 * PAGE)
    here, there = tables.pointer(0, 7, ADDRESS, 4), tables.pointer(1, 8, ADDRESS, 4)
    assert (ctypes.string_at(here, 4), ctypes.string_at(there, 4)) == (b"five", b"six!")
    tables.forget(0)
    assert len(tables) == 2, "it still computes"
    tables.release(0)
    assert len(tables) == 1
    tables.release(1)
    assert len(tables) == 1, "its context is still there"
    tables.forget(1)
    assert len(tables) == 0


def test_contexts_by_pasid(ram: int, roots: dict[int, int], process: Process) -> None:
    """A context with a PASID reaches its process and nothing of the function's; one without, the reverse."""
    memory = GuestMemory()
    memory.spaces = PageTables(ram, lambda pasid: roots.get(pasid, 0))
    process.map(ADDRESS, 5)
    os.pwrite(ram, b"five", 5 * PAGE)
    memory.map(0x1000, PAGE, ram, 6 * PAGE)
    memory.bind(0, 7)
    memory.bind(1, 0)
    assert ctypes.string_at(memory.pointer(0, ADDRESS, 4), 4) == b"five"
    assert memory.pointer(1, 0x1000, 4)
    for context, address in ((0, 0x1000), (1, ADDRESS)):
        with pytest.raises(BadAddress):
            memory.pointer(context, address, 4)
    assert (memory.reaches(0, ADDRESS, 4), memory.reaches(1, ADDRESS, 4)) == (True, False)
    for context in (0, 1):
        memory.release(context)
        memory.unbind(context)
    assert len(memory.spaces) == 0
    memory.close()
