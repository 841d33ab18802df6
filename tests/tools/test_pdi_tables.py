"""PDIs word for word: what each damaged word is told as, where memories and tables end, where streams go.

Registers are offsets of AMD's AM025 here, not this package's tables.
"""

from __future__ import annotations

import struct

import pytest

from amdxdna import pdi
from amdxdna.pdi import summary
from amdxdna.pdi.routes import Packet
from tests.support.pdi_builder import B, Item, W, at, build

BODY = 0x164
"""Where the commands begin."""


def applied(data: bytes) -> pdi.Array:
    """The array as an image's commands leave it."""
    return pdi.Array().apply(pdi.commands(pdi.read(data)))


def u32(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def patched(data: bytes, offset: int, *words: int) -> bytes:
    return data[:offset] + u32(*words) + data[offset + 4 * len(words) :]


GOOD = build([W(at(0, 2, 0x1F000), 9)], nops=False)


@pytest.mark.parametrize(
    ("offset", "word", "said"),
    [
        (
            0x00,
            0xDC,
            f"at byte 0: no PDI image: {len(GOOD)} bytes that do not begin with the bus width words",
        ),
        (0x0C, 0, f"at byte 0: no PDI image: {len(GOOD)} bytes that do not begin with the bus width words"),
        (0x14, 2, "at byte 20: 2 images and 1 partitions; one of each is expected"),
        (0x1C, 3, "at byte 20: 1 images and 3 partitions; one of each is expected"),
        (0x18, 0x25, "at byte 24: the image header lies at byte 148, expected at 144"),
        (0x20, 0x35, "at byte 24: the partition header lies at byte 212, expected at 208"),
        (0x38, 0x50504448, "at byte 56: no partial PDI: identification 0x50504448"),
        (0xF0, 0x55, "at byte 240: the partition's data lies at byte 340"),
        (0x150, 5, "at byte 336: the partition holds no configuration (CDO)"),
        (0x154, 0x004F4444, "at byte 336: the partition holds no configuration (CDO)"),
    ],
)
def test_a_header_that_is_no_pdis(offset: int, word: int, said: str) -> None:
    with pytest.raises(pdi.BadPdi) as error:
        pdi.read(patched(GOOD, offset, word))
    assert str(error.value) == said and error.value.offset == int(said.split(":")[0].split()[-1])


@pytest.mark.parametrize(
    ("offset", "what"),
    [
        (0x10, "image header table's"),  # version
        (0x88, "image header table's"),  # the last word before the checksum
        (0x8C, "image header table's"),
        (0x90, "image header's"),
        (0xCC, "image header's"),
        (0xD0, "partition header's"),
        (0x140, "partition header's"),  # what only a transformed image has: kind, zone, check word
        (0x144, "partition header's"),
        (0x148, "partition header's"),
        (0x14C, "partition header's"),
        (0x158, "CDO header's"),
        (0x160, "CDO header's"),
    ],
)
def test_a_wrong_checksum_is_told_and_the_commands_are_read(offset: int, what: str) -> None:
    image = pdi.read(patched(GOOD, offset, 1 + struct.unpack_from("<I", GOOD, offset)[0]))
    assert image.problems == (f"the {what} checksum is wrong",)
    assert [(c.offset, c.address, c.value) for c in pdi.commands(image)] == [(BODY, at(0, 2, 0x1F000), 9)]


def test_a_transformed_images_words_are_taken_as_nothing_by_its_checksum() -> None:
    apart = build([W(at(0, 2, 0x1F000), 9)], transformed=True)
    assert pdi.read(apart).transformed and not pdi.read(apart).problems
    for offset in (0x13C, 0x14C):
        assert pdi.read(patched(apart, offset, 5)).problems == ("the partition header's checksum is wrong",)
    # Type 2 is not this form, whatever its check word says: both are a partition header's own then.
    other = patched(apart, 0x140, 2, 20, 0x8866 | 0x0200 | 20 << 16)
    assert not pdi.read(other).transformed


@pytest.mark.parametrize("length", [0, BODY - 1, BODY, BODY + 7])
def test_the_shortest_image(length: int) -> None:
    """Cut inside its one command of 12 bytes, or before it."""
    if length < BODY:
        with pytest.raises(pdi.BadPdi, match=rf"no PDI image: {length} bytes, less than its headers \(356\)"):
            pdi.read(GOOD[:length])
        return
    image = pdi.read(GOOD[:length])
    left = length - BODY
    assert image.problems == (f"the CDO header promises 12 bytes of commands, the image holds {left}",)
    assert image.commands == left // 4 * 4


@pytest.mark.parametrize("zone", [6, 1 << 20])
def test_commands_that_do_not_fit_a_transformed_image(zone: int) -> None:
    apart = patched(build([W(at(0, 2, 0), 9)], transformed=True), 0x144, zone)
    check = 0x8866 | 0x0100 | (zone & 0xFFFF) << 16 | zone >> 16
    with pytest.raises(pdi.BadPdi, match=f"at byte 324: {zone} bytes of commands do not fit the image"):
        pdi.read(patched(apart, 0x148, check))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((0x01020103, 0, 0), "no command: word 0x01020103"),
        ((0x00FF0105,), "the commands end inside this one"),
        ((0x00FF0105, 3, 0, 0), "BLOCK_WRITE of 3 words does not fit: 2 are left"),
        ((0x00020103, 7), "WRITE of 2 words does not fit: 1 are left"),
        ((0x000301FE,), "0x1fe of 3 words does not fit: 0 are left"),
        ((0x00010103, 7), "WRITE of 1 words"),
        ((0x00020102, 7, 7), "MASK_WRITE of 2 words"),
        ((0x00030107, 7, 7, 7), "MASK_WRITE_64 of 3 words"),
        ((0x00020108, 7, 7), "WRITE_64 of 2 words"),
        ((0x0003010C, 7, 7, 7), "BLOCK_SET of 3 words"),
        ((0x00010105, 7), "BLOCK_WRITE of 1 words"),
        ((0x0001010D, 7), "KEYHOLE_WRITE of 1 words"),
    ],
)
def test_a_plain_command_that_cannot_be_read(words: tuple[int, ...], said: str) -> None:
    """What stands before it is given, and a summary says how far it got."""
    image = pdi.read(build([], raw=u32(0x00010111, 0, *words)))
    found = pdi.commands(image)
    assert next(found).name == "NOP"
    with pytest.raises(pdi.BadPdi) as error:
        next(found)
    assert (error.value.offset, str(error.value)) == (BODY + 8, f"at byte {BODY + 8}: {said}")
    told = summary.summarise(image)
    assert told.problems == (f"at byte {BODY + 8}: {said}; what follows is not decoded",)
    assert told.array.commands == 1


@pytest.mark.parametrize(
    ("zone", "data", "offset", "said"),
    [
        ((3,), (), BODY, "the commands end inside a group"),
        ((4, 1, 0, 0), (), BODY, "a group of commands 0x4, which this form does not have"),
        ((0x103, 1, 0, 0), (), BODY, "a group of commands 0x103, which this form does not have"),
        ((3, 2, 0, 0, 0), (), BODY, "a group of 2 WRITE does not fit the commands"),
        ((7, 1, 0, 0, 0), (), BODY, "a group of 1 MASK_WRITE_64 does not fit the commands"),
        ((5, 1, 0, 0x400, 2, 1), (7, 7), BODY + 8, "data at 2, 0x1 words: not behind what was read before"),
        ((5, 1, 0, 0x400, 12, 1), (7, 7), BODY + 8, "data at 12, 0x1 words: not behind what was read before"),
        (
            (5, 1, 0, 0x400, 0, 1 << 17 | 1),
            (7, 7),
            BODY + 8,
            "data at 0, 0x20001 words: not behind what was read before",
        ),
        (
            (5, 2, 0, 0x400, 0, 2, 0, 0x400, 4, 1),
            (7, 7),
            BODY + 24,
            "data at 4, 0x1 words: not behind what was read before",
        ),
        (
            (5, 2, 0, 0x400, 0, 3, 0, 0x400, 8, 0),
            (7, 7),
            BODY + 24,
            "a block write after the end of the data",
        ),
    ],
)
def test_a_transformed_group_that_cannot_be_read(
    zone: tuple[int, ...], data: tuple[int, ...], offset: int, said: str
) -> None:
    image = pdi.read(build([], transformed=True, apart=(u32(*zone), u32(*data))))
    with pytest.raises(pdi.BadPdi) as error:
        list(pdi.commands(image))
    assert (error.value.offset, str(error.value)) == (offset, f"at byte {offset}: {said}")


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0x100, "END_MARK"),
        (0x101, "MASK_POLL"),
        (0x102, "MASK_WRITE"),
        (0x103, "WRITE"),
        (0x104, "DELAY"),
        (0x105, "BLOCK_WRITE"),
        (0x106, "MASK_POLL_64"),
        (0x107, "MASK_WRITE_64"),
        (0x108, "WRITE_64"),
        (0x109, "DMA_TRANSFER"),
        (0x10C, "BLOCK_SET"),
        (0x10D, "KEYHOLE_WRITE"),
        (0x111, "NOP"),
        (0x119, "MARKER"),
        (0x11B, "BEGIN"),
        (0x11C, "END"),
        (0x11D, "BREAK"),
        (0x10A, "COMMAND_0x10a"),
        (0x203, "COMMAND_0x203"),
    ],
)
def test_commands_by_number(number: int, name: str) -> None:
    """As in bootgen's cdo-binary.c: 1 << 8 for the platform's module, then the command."""
    (found,) = pdi.commands(pdi.read(build([], raw=u32(number | 4 << 16, 0, 0x400, 1, 1))))
    assert (found.name, found.known) == (name, not name.startswith("COMMAND"))


def test_a_block_write_may_hold_no_words_at_the_end_of_the_data() -> None:
    zone = u32(5, 2, 0, 0x400, 0, 2, 0, 0x500, 8, 0)
    found = list(pdi.commands(pdi.read(build([], transformed=True, apart=(zone, u32(7, 8))))))
    assert [(c.address, c.data, c.missing) for c in found] == [(0x400, (7, 8), 0), (0x500, (), 0)]


# -- the array


@pytest.mark.parametrize(
    ("row", "offset", "words", "program", "data", "unknown"),
    [
        *((2, 0x00000, 1, 0, 4, 0), (2, 0x0FFFC, 1, 0, 4, 0), (2, 0x0FFF8, 3, 0, 8, 1)),
        *((2, 0x10000, 1, 0, 0, 1), (2, 0x1FFFC, 2, 4, 0, 1), (2, 0x20000, 3, 12, 0, 0)),
        *((2, 0x23FFC, 1, 0x4000, 0, 0), (2, 0x23FFC, 2, 0x4000, 0, 1), (2, 0x24000, 1, 0, 0, 1)),
        *((1, 0x7FFFC, 1, 0, 4, 0), (1, 0x7FFFC, 2, 0, 4, 1), (1, 0x20000, 1, 0, 4, 0)),
        *((0, 0x00000, 1, 0, 0, 1), (0, 0x20000, 1, 0, 0, 1)),
    ],
)
def test_where_memories_end(row: int, offset: int, words: int, program: int, data: int, unknown: int) -> None:
    """64 KiB of data and 16 KiB of program (from 0x20000 on) in a core, 512 KiB in a memory tile, none in a
    shim; written in one block and word by word."""
    block: list[Item] = [B(at(3, row, offset), [5] * words)]
    single: list[Item] = [W(at(3, row, offset + 4 * n), 5) for n in range(words)]
    for items in (block, single):
        array = applied(build(items, nops=False))
        tile = array.tiles[3, row]
        assert (len(tile.program), tile.data_bytes, array.unknown_words) == (program, data, unknown)
        assert (array.words, array.columns, array.problems) == (words, 4, [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((0x00020103, at(1, 6, 0), 1), "WRITE at byte 356: (1,6) 0x0, 4 bytes: outside the array"),
        ((0x00020103, at(1, 2, 0x402), 1), "WRITE at byte 356: address 0x2200402"),
        ((0x00030108, 1, 0x400, 1), "WRITE_64 at byte 356: address 0x100000400"),
        (
            (0x00040105, 0, at(0, 2, 0xFFFFC), 1, 1),
            "BLOCK_WRITE at byte 356: (0,2) 0xffffc, 8 bytes: outside the array",
        ),
        (
            (0x0004010C, 0, at(0, 2, 0), 0x40001, 1),
            "BLOCK_SET at byte 356: sets 262145 words, more than a tile has",
        ),
        ((0x0003010D, 0, 0x400, 1), "KEYHOLE_WRITE at byte 356: a keyhole write: its words are not followed"),
        ((0x000101FE, 1), "COMMAND_0x1fe at byte 356: unknown command 0x1fe"),
    ],
)
def test_what_writes_nowhere_is_a_problem(words: tuple[int, ...], said: str) -> None:
    array = applied(build([], raw=u32(*words)))
    assert (array.problems, array.words, array.tiles) == ([said], 0, {})


def test_a_block_may_set_a_whole_tile() -> None:
    array = applied(build([], raw=u32(0x0004010C, 0, at(0, 1, 0), 0x40000, 1)))
    assert (array.words, array.tiles[0, 1].data_bytes, array.problems) == (0x40000, 0x80000, [])


def test_of_many_problems_a_hundred_are_told() -> None:
    array = applied(build([W(at(0, 6, 0), 1)] * 101))
    assert len(array.problems) == 100 and array.commands == 101


@pytest.mark.parametrize(
    ("row", "offset", "value", "start"),
    [
        (2, 0x1DE04, 0x0000001F, ("s2mm", 0, 15, 1, False)),
        (2, 0x1DE1C, 0x80FF0003, ("mm2s", 1, 3, 256, True)),
        (1, 0xA0604, 0x0000007F, ("s2mm", 0, 63, 1, False)),
        (1, 0xA062C, 0x0001002F, ("s2mm", 5, 47, 2, False)),
        (1, 0xA065C, 0xC0020018, ("mm2s", 5, 24, 3, True)),
        (0, 0x1D214, 0x0000000F, ("mm2s", 0, 15, 1, False)),
        (0, 0x1D20C, 0x80000001, ("s2mm", 1, 1, 1, True)),
        (2, 0x1DE00, 0x00000001, None),  # the channel's control
        (1, 0xA0658, 0x00000001, None),
        (1, 0xA0660, 0x00000001, None),  # behind the last channel: a status
    ],
)
def test_a_write_to_a_task_queue_starts_a_channel(
    row: int, offset: int, value: int, start: tuple[str, int, int, int, bool] | None
) -> None:
    """BD in bits 0-3 (memory tile 0-5), runs less one in 16-23, token in 31 (DMA_*_Start_Queue of AM025)."""
    array = applied(build([W(at(0, row, offset), value)]))
    found = [(s.direction, s.channel, s.bd, s.repeat, s.token) for s in array.tiles[0, row].starts]
    assert found == ([] if start is None else [start])


@pytest.mark.parametrize(
    ("row", "first", "words", "last"),
    [(0, 0x1D000, 8, 0x1D1E0), (1, 0xA0000, 8, 0xA05E0), (2, 0x1D000, 6, 0x1D1E0)],
)
def test_descriptors_that_are_whole(row: int, first: int, words: int, last: int) -> None:
    count = (last - first) // 0x20
    items: list[Item] = [B(at(0, row, first), range(1, words)), B(at(0, row, last), range(words))]
    tile = applied(build(items)).tiles[0, row]
    assert tile.descriptors() == {count: tuple(range(words))}  # the first lacks a word


@pytest.mark.parametrize(
    ("row", "offset", "number"),
    [(0, 0x14000, 0), (0, 0x140F0, 15), (1, 0xC0010, 1), (1, 0xC03F0, 63), (2, 0x1F020, 2), (2, 0x1F0F0, 15)],
)
def test_locks(row: int, offset: int, number: int) -> None:
    tile = applied(build([W(at(0, row, offset), 5)])).tiles[0, row]
    assert tile.locks() == {number: 5}
    beside = applied(build([W(at(0, row, offset + 4), 5)])).tiles[0, row]
    assert beside.locks() == {}


@pytest.mark.parametrize(
    ("control", "running"),
    [([1], True), ([0], False), ([3], False), ([2], False), ([2, 1], True), ([5], True)],
)
def test_a_core_runs_enabled_and_out_of_reset(control: list[int], running: bool) -> None:
    array = applied(build([W(at(0, row, 0x32000), word) for word in control for row in (1, 2)]))
    assert (array.tiles[0, 2].running, array.tiles[0, 1].running) == (running, False)


# -- streams


@pytest.mark.parametrize(
    ("packet", "slot", "met", "said"),
    [
        ((0, 0), (3, 0x1F), (3, 0x1F), "packet 3"),
        ((0, 0), (4, 0x1C), (4, 0x1C), "packet 4 mask 0x1c"),
        ((4, 0x1C), (6, 0x1F), (6, 0x1F), "packet 6"),
        ((6, 0x1F), (4, 0x1C), (6, 0x1F), "packet 6"),
        ((6, 0x1F), (2, 0x1C), None, ""),
        ((1, 0x01), (2, 0x02), (3, 0x03), "packet 3 mask 0x3"),
        ((1, 0x01), (0, 0x03), None, ""),
        ((5, 0x1F), (0, 0), (5, 0x1F), "packet 5"),
        ((0, 0), (0, 0), (0, 0), ""),
    ],
)
def test_packets_that_a_slot_takes_too(
    packet: tuple[int, int], slot: tuple[int, int], met: tuple[int, int] | None, said: str
) -> None:
    """Those whose id has both patterns' bits."""
    found = Packet(*packet).meet(*slot)
    assert (found and tuple(found)) == met
    assert met is None or str(found) == said


def ends(items: list[Item], columns: int) -> list[tuple[str, list[tuple[str, str]]]]:
    array = applied(build(items))
    return [
        (str(r.source), [(str(e.port), e.fault or str(e.packet)) for e in r.ends])
        for r in pdi.routes(array, columns)
    ]


ON = 1 << 31


@pytest.mark.parametrize(
    ("writes", "found"),
    [
        # Through the FIFO of its own switch: core -> fifo; fifo -> DMA.
        (
            [(0, 2, 0x3F100, ON), (0, 2, 0x3F010, ON), (0, 2, 0x3F110, ON), (0, 2, 0x3F004, ON | 4)],
            [("(0,2) core", [("(0,2) s2mm 0", "")])],
        ),
        # The shim's DMA is where the multiplexers put it: other values are the PL's ports.
        (
            [(0, 0, 0x1F000, 2 << 10), (0, 0, 0x3F114, ON), (0, 0, 0x3F014, ON | 5), (0, 0, 0x1F004, 1 << 6)],
            [("(0,0) south 3", [("(0,0) s2mm 1", "")])],
        ),
        (
            [(0, 0, 0x1F000, 1 << 14), (0, 0, 0x3F124, ON), (0, 0, 0x3F010, ON | 9), (0, 0, 0x1F004, 1 << 6)],
            [("(0,0) mm2s 1", [("(0,0) south 2", "")])],
        ),
        # Task-complete tokens leave by the shim's first port to the south.
        ([(0, 0, 0x3F100, ON), (0, 0, 0x3F008, ON)], [("(0,0) ctrl", [("(0,0) south 0 (tokens)", "")])]),
        # East and west, each to the port of its number.
        (
            [(0, 2, 0x3F104, ON), (0, 2, 0x3F058, ON | 1), (1, 2, 0x3F138, ON), (1, 2, 0x3F00C, ON | 14)],
            [("(0,2) mm2s 0", [("(1,2) ctrl", "")])],
        ),
        (
            [(1, 2, 0x3F108, ON), (1, 2, 0x3F030, ON | 2), (0, 2, 0x3F158, ON), (0, 2, 0x3F000, ON | 22)],
            [("(1,2) mm2s 1", [("(0,2) core", "")])],
        ),
        # A memory tile's trace to the shim.
        (
            [(0, 1, 0xB0144, ON), (0, 1, 0xB0028, ON | 17), (0, 0, 0x3F144, ON), (0, 0, 0x3F00C, ON | 17)],
            [("(0,1) trace", [("(0,0) south 1", "")])],
        ),
        # A neighbour that is written to but takes nothing there.
        (
            [(0, 2, 0x3F160, ON), (0, 2, 0x3F04C, ON | 24), (1, 2, 0x3F12C, 0)],
            [("(0,2) memory trace", [("(0,2) east 0", "(1,2) west 0 is not enabled")])],
        ),
        # A master that answers to no message select, one of another arbiter, one that is circuit-switched.
        (
            [
                (0, 2, 0x3F104, 3 << 30),
                (0, 2, 0x3F21C, 1 << 8 | 9 << 24 | 0x1F << 16 | 3 << 4 | 5),
                (0, 2, 0x3F000, 3 << 30 | 8 << 3 | 5),
                (0, 2, 0x3F004, 3 << 30 | 7 << 3 | 5),
                (0, 2, 0x3F008, 3 << 30 | 8 << 3 | 4),
                (0, 2, 0x3F00C, ON | 1),
            ],
            [("(0,2) mm2s 0", [("(0,2) core", "packet 9")])],
        ),
        # A slot that is off.
        (
            [
                (0, 2, 0x3F104, 3 << 30),
                (0, 2, 0x3F210, 9 << 24 | 0x1F << 16),
                (0, 2, 0x3F000, 3 << 30 | 1 << 3),
            ],
            [("(0,2) mm2s 0", [("(0,2) slave dma 0", "no master takes it")])],
        ),
        # A circuit does not leave by a packet master or by one that is off.
        (
            [(0, 2, 0x3F104, ON), (0, 2, 0x3F000, 3 << 30 | 1), (0, 2, 0x3F008, 1), (0, 2, 0x3F00C, ON | 1)],
            [("(0,2) mm2s 0", [("(0,2) ctrl", "")])],
        ),
    ],
)
def test_a_stream_goes_where_the_switches_registers_say(
    writes: list[tuple[int, int, int, int]], found: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    assert ends([W(at(c, r, offset), value) for c, r, offset, value in writes], 2) == found
