"""Every kind of command that a PDI can have, written and read back, plain and with commands and data apart;
registers, which `insts` and `xclbin --pdi` call by one name."""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

import pytest

from amdxdna import pdi
from amdxdna.aie import registers
from amdxdna.insts import disassemble
from amdxdna.pdi import summary
from amdxdna.pdi.commands import NAMES
from tests.support.pdi_builder import B, Item, W, at, build

WRITES = {0x103, 0x102, 0x108, 0x107}
LONG = 255
LENGTHS = (0, 1, 2, 3, 4, 5, 17, LONG - 1, LONG, LONG + 1, 1000)


class Written(NamedTuple):
    """A command as it is written: its number and its payload's words."""

    number: int
    payload: tuple[int, ...]


def plain(commands: list[Written]) -> bytes:
    """The words of a plain body: a payload of 255 words or more has its length in a word of its own."""
    words: list[int] = []
    for number, payload in commands:
        size = len(payload)
        words += [number | size << 16] if size < LONG else [number | LONG << 16, size]
        words += payload
    return struct.pack(f"<{len(words)}I", *words)


def a_command(rng: random.Random, number: int) -> Written:
    """One of this kind with a payload that it may have."""
    least = {0x103: 2, 0x102: 3, 0x108: 3, 0x107: 4, 0x105: 2, 0x10D: 2, 0x10C: 4}.get(number, 0)
    length = least if number in WRITES or number == 0x10C else max(least, rng.choice(LENGTHS))
    return Written(number, tuple(rng.getrandbits(32) for _ in range(length)))


def test_every_kind_of_command_comes_back_plain() -> None:
    """In any order, with payloads on both sides of where the length needs a word of its own."""
    rng = random.Random(3)
    kinds = sorted(set(NAMES) - {0x100})
    commands = [a_command(rng, number) for number in kinds * 12]
    rng.shuffle(commands)
    image = pdi.read(build([], raw=plain([*commands, Written(0x100, ())]) + b"\xff" * 8))
    *found, end = pdi.commands(image)
    assert end.name == "END_MARK"
    assert [(c.number, c.known) for c in found] == [(c.number, True) for c in commands]
    for got, (number, payload) in zip(found, commands, strict=True):
        if number == 0x103:
            assert (got.address, got.value, got.mask) == (payload[0], payload[1], 0xFFFFFFFF)
        elif number == 0x102:
            assert (got.address, got.mask, got.value) == payload
        elif number == 0x108:
            assert (got.address, got.value, got.mask) == (
                payload[0] << 32 | payload[1],
                payload[2],
                0xFFFFFFFF,
            )
        elif number == 0x107:
            assert (got.address, got.mask, got.value) == (payload[0] << 32 | payload[1], *payload[2:])
        elif number == 0x105:
            assert (got.address, got.data, got.words, got.missing) == (
                payload[0] << 32 | payload[1],
                payload[2:],
                len(payload) - 2,
                0,
            )
        elif number == 0x10C:
            assert (got.address, got.value, got.payload) == (
                payload[0] << 32 | payload[1],
                payload[3],
                payload,
            )
        else:
            assert (got.address, got.payload) == (None, payload)


def some_items(rng: random.Random, wide: bool) -> list[Item]:
    """Writes, masked writes and blocks all over an array of two columns; wide ones name the high word too."""
    places = [
        at(column, row, offset)
        for column in range(2)
        for row, offset in (
            (0, 0x1F000),
            (0, 0x34010),
            (1, 0xA0000),
            (1, 0xC0010),
            (2, 0x1F000),
            (3, 0x20000),
            (4, 0x400),
            (5, 0x32000),
            (2, 0x3F104),
        )
    ]
    items: list[Item] = []
    for _ in range(120):
        address = rng.choice(places) + 4 * rng.randrange(4)
        value = rng.getrandbits(32)
        items.append(
            rng.choice(
                [
                    W(address, value),
                    W(address, value, rng.getrandbits(32)),
                    B(
                        address,
                        [rng.getrandbits(32) for _ in range(rng.choice((0, 1, 6, 252, 253, 254, 300)))],
                    ),
                    *(
                        [W(address, value, wide=True), W(address, value, rng.getrandbits(32), wide=True)]
                        if wide
                        else []
                    ),
                ]
            )
        )
    return items


def state(image: bytes) -> dict[tuple[int, int], object]:
    """Everything that a PDI leaves in the array."""
    array = pdi.Array().apply(pdi.commands(pdi.read(image)))
    assert not array.unknown_commands and not array.problems, array.problems
    return {
        place: (tile.registers, bytes(tile.program), tile.data_bytes, tile.starts)
        for place, tile in array.tiles.items()
    }


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_both_forms_are_the_same_configuration(seed: int, wide: bool) -> None:
    """Commands one by one, and what they leave in the array."""
    items = some_items(random.Random(seed), wide)
    forms = [build(items, nops=True), build(items, nops=False), build(items, transformed=True)]
    told = []
    for form in forms:
        image = pdi.read(form)
        assert not image.problems
        told.append(
            [
                (c.name, c.address, c.value, c.mask, c.data, c.words)
                for c in pdi.commands(image)
                if c.name != "NOP"
            ]
        )
        # Commands that follow each other are told to be where they are.
        offsets = [c.offset for c in pdi.commands(image)]
        assert offsets == sorted(offsets)
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == len(items)
    assert {row[0] for row in told[0]} == {"WRITE", "MASK_WRITE", "BLOCK_WRITE"} | (
        {"WRITE_64", "MASK_WRITE_64"} if wide else set()
    )
    assert state(forms[0]) == state(forms[1]) == state(forms[2])


def test_data_that_is_zero_may_be_marked_so() -> None:
    """Bit 16 of a block write's length, with commands and data apart; the zeros are in the data as well."""
    items: list[Item] = [B(at(0, 2, 0x400), [0] * 6), B(at(0, 2, 0x800), [5])]
    whole = bytearray(build(items, transformed=True))
    length = struct.pack("<I", 6)
    at_length = whole.index(struct.pack("<2I", 0, 6), 0x164) + 4
    assert bytes(whole[at_length : at_length + 4]) == length
    whole[at_length + 2] |= 1
    first, second = pdi.commands(pdi.read(bytes(whole)))
    assert (first.data, second.data) == ((0,) * 6, (5,))


# -- names


def named_registers() -> list[int]:
    """The address of every register with a name, memories apart."""
    found = []
    for row, kind in ((0, registers.SHIM), (1, registers.MEMORY), (2, registers.COMPUTE)):
        for offset in range(registers.DATA_BYTES.get(kind, 0), 1 << 20, 4):
            program = kind == registers.COMPUTE and 0 <= offset - registers.PROGRAM < registers.PROGRAM_BYTES
            if not program and registers.name_of(registers.Tile(3, row, kind, offset)):
                found.append(at(3, row, offset))
    return found


def test_streams_and_pdis_call_registers_by_one_name() -> None:
    """Each of the named ones written by an instruction stream and by a PDI."""
    places = named_registers()
    assert len(places) > 1500
    for part in (places[start : start + 400] for start in range(0, len(places), 400)):
        body = b"".join(struct.pack("<6I", 0, 0, address, 0, 7, 24) for address in part)
        stream = struct.pack("<BBBBBBHII", 0, 1, 4, 6, 8, 1, 0, len(part), 16 + len(body)) + body
        (listing,) = disassemble(stream)
        assert listing.problems == []
        image = pdi.read(build([W(address, 7) for address in part]))
        told = [summary.command_line(command) for command in pdi.commands(image)]
        assert [op["register"] for op in listing.ops] == [line["register"] for line in told]
        assert all(line["register"] for line in told)


PLACES = {
    0: "14000-140fc 15004 1d000-1d22c 1f000-1f004 31000 31008 31020-31024 31080-31084 33000 34000 34008 "
    "34010-34058 34060-34068 34070-34078 34080-34088 34090-34098 340a0-340a8 340b0-340b8 340c0-340c8 "
    "340d0-340d8 340e0-340e4 340f0-340fc 34200-3420c 34400-34408 34500-34514 35004 35010-35018 35034 "
    "35040-35048 3ff00-3ff04 fff20-fff28",
    1: "91000-91008 91020-9102c 91080-9108c 92110 92120 94000 94008 94010-94058 94060-94068 94070-94078 "
    "94080-94088 94090-94098 940a0-940a8 940b0-940b8 940c0-940c8 940d0-940d8 940e0-940e4 940f0-9410c "
    "94200-94214 94400-94408 94500-94520 96040 96048 a0000-a0674 a0680-a0694 a06a0 b0f00-b0f04 "
    "c0000-c03fc fff00 fff10",
    2: "11000 11008 11020-11024 11080-11084 12110 12120 14000 14008 14010-14058 14060-14068 14070-14078 "
    "14080-14088 140d0-140d8 140e0-140e4 140f0-14104 14200-1420c 14400-14408 14500-1451c 16010 "
    "1d000-1d1fc 1de00-1de1c 1df00-1df04 1df10-1df14 1f000-1f0fc 31500-31508 31520-3152c 31580-3158c "
    "32000-32008 32010-32038 32100 32110 32120 34000 34008 34010-34058 34060-34068 34070-34078 "
    "34080-34088 340d0-340d8 340e0-340e4 340f0-340fc 34200-3420c 34400-34408 34500-34520 36030 36040 "
    "36060 36070 3ff00-3ff04 60000 60010",
}
"""By row, the offsets of registers with names: one, or the first and last of several."""


@pytest.mark.parametrize("row", PLACES)
def test_which_registers_have_names(row: int) -> None:
    """As AMD's AM025 places them; switches and memories, which are told by what is added, are apart."""
    names = ((o, registers.name_of(registers.tile_of(at(0, row, o)))) for o in range(0, 1 << 20, 4))
    found = [o for o, name in names if name and "+" not in name]
    ends = [part.split("-") for part in PLACES[row].split()]
    assert found == [o for each in ends for o in range(int(each[0], 16), int(each[-1], 16) + 4, 4)]


@pytest.mark.parametrize(
    ("row", "offset", "name"),
    [
        (2, 0x340D0, "Core_Trace_Control0"),
        (2, 0x340E4, "Core_Trace_Event1"),
        (2, 0x140E0, "Memory_Trace_Event0"),
        (2, 0x31500, "Core_Performance_Control0"),
        (2, 0x3152C, "Core_Performance_Counter3"),
        (2, 0x11084, "Memory_Performance_Counter1_Event_Value"),
        (2, 0x32008, "Enable_Events"),
        (2, 0x32010, "Debug_Control0"),
        (2, 0x32018, "Debug_Control2"),
        (2, 0x3201C, "Debug_Status"),
        (2, 0x3202C, "PC_Event3"),
        (2, 0x32100, "Core_ECC_Control"),
        (2, 0x32110, "Core_ECC_Scrubbing_Event"),
        (2, 0x32120, "Core_ECC_Failing_Address"),
        (2, 0x12110, "Memory_ECC_Scrubbing_Event"),
        (2, 0x12120, "Memory_ECC_Failing_Address"),
        (2, 0x36040, "CSSD_Trigger"),
        (2, 0x36070, "Core_Memory_Control"),
        (2, 0x16010, "Memory_Control"),
        (2, 0x14104, "Memory_WatchPoint1"),
        (2, 0x3420C, "Core_Event_Status3"),
        (2, 0x11008, "Memory_Performance_Control1"),
        (2, 0x3FF04, "Stream_Switch_Event_Port_Selection_1"),
        (1, 0x9410C, "WatchPoint3"),
        (1, 0x91008, "Performance_Control2"),
        (1, 0x92110, "ECC_Scrubbing_Event"),
        (1, 0x92120, "ECC_Failing_Address"),
        (1, 0x96048, "Memory_Control"),
        (1, 0x96040, "CSSD_Trigger"),
        (1, 0xB0F00, "Stream_Switch_Event_Port_Selection_0"),
        (0, 0xFFF24, "CSSD_Trigger"),
        (2, 0x34508, "Core_Event_Group_Core_Stall_Enable"),
        (2, 0x3FF00, "Stream_Switch_Event_Port_Selection_0"),
        (1, 0x940D4, "Trace_Control1"),
        (1, 0x94210, "Event_Status4"),
        (1, 0xA06A0, "DMA_Event_Channel_Selection"),
        (0, 0x340E0, "Trace_Event0"),
        (0, 0x31008, "Performance_Ctrl1"),
        (0, 0x3450C, "Event_Group_Errors_Enable"),
    ],
)
def test_registers_that_watch_a_design_have_names(row: int, offset: int, name: str) -> None:
    """As the register tables of aie-rt have them."""
    assert registers.name_of(registers.tile_of(at(0, row, offset))) == name
