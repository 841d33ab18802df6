"""Disassembling instruction streams: AIE transactions, the emulator's own, and nonsense.

The reference words of the transactions are those that mlir-aie's own tests expect of its NPU target
(test/Targets/NPU: npu2_instgen, npu_blockwrite_instgen, npu_read_reg_instgen,
npu_address_patch_arg_plus_64bit); field positions of descriptors are aie-rt's register tables.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from amdxdna.aie import registers
from amdxdna.cli import main
from amdxdna.emu.kernels import stream
from amdxdna.insts import disassemble, txn
from tests.support.streams import elf, transaction, words


def one(*op: int, version: tuple[int, int] = (0, 1)) -> dict[str, Any]:
    (listing,) = disassemble(transaction(op, version=version))
    assert listing.format == "txn"
    assert listing.problems == []
    (found,) = listing.ops
    assert found.pop("offset") == 16
    assert found.pop("bytes") == 4 * len(op)
    return found


MLIR_AIE = (
    (0x06040100, 0x00000108, 7, 0xD0),
    (0, 0, 0x06400DEF, 0, 0x42, 0x18),
    (0, 0, 0xABC00DEF, 0, 0x314, 0x18),
    (1, 0, 0x12345679, 0x30, *range(0x64, 0x6C)),
    (1, 0x101, 0x02100064, 0x30, *range(0x64, 0x6C)),
    (3, 0, 0x0430567A, 0, 0x1001, 0xF00FF00F, 0x1C),
    (0x80, 0x10, 0x00030401, 0x05010200),
    (0x306,),
)


def test_what_mlir_aie_emits() -> None:
    (listing,) = disassemble(b"".join(words(*part) for part in MLIR_AIE))
    assert listing.problems == []
    assert listing.header == {
        "version": "0.1",
        "generation": 4,
        "device": "NPU2 (AIE2P)",
        "rows": 6,
        "columns": 8,
        "memory_rows": 1,
        "ops": 7,
        "size": 208,
    }
    assert [op["op"] for op in listing.ops] == [
        "WRITE",
        "WRITE",
        "BLOCKWRITE",
        "BLOCKWRITE",
        "MASKWRITE",
        "TCT",
        "PREEMPT",
    ]
    assert [op["offset"] for op in listing.ops] == [16, 40, 64, 112, 160, 188, 204]
    write, _, _, block, masked, wait, preempt = listing.ops
    assert (write["tile"], write["address"], write["value"]) == ([3, 4], "0x6400def", "0x00000042")
    assert (block["tile"], block["data"][0], len(block["data"])) == ([1, 1], "0x00000064", 8)
    assert (masked["tile"], masked["value"], masked["mask"]) == ([2, 3], "0x00001001", "0xf00ff00f")
    assert {key: wait[key] for key in ("tile", "direction", "channel", "columns", "rows")} == {
        "tile": [3, 4],
        "direction": "MM2S",
        "channel": 5,
        "columns": 1,
        "rows": 2,
    }
    assert preempt["level"] == "registers"


def test_hexadecimal_text_is_the_same_stream() -> None:
    binary = b"".join(words(*part) for part in MLIR_AIE)
    text = "".join(f"{word:08X}\n" for part in MLIR_AIE for word in part).encode()
    assert disassemble(text) == disassemble(binary)


@pytest.mark.parametrize(
    "text",
    [
        b"deadbeef\n\n" * 60 + b"x",
        b"deadbeef \n " * 60 + b"dead",
        b"deadbeef deadbeef\n",
        b"\n" * 1000,
        b"0x" * 500,
    ],
)
def test_almost_hexadecimal_text_is_unknown_at_once(text: bytes) -> None:
    (listing,) = disassemble(text)
    assert (listing.format, listing.size) == ("unknown", len(text))


def test_memory_tile_descriptor() -> None:
    op = one(1, 0, 0x061A00C0, 0x30, 1, 0x00580002, 0x000C0005, 0x00100007, 9, 0, 0x059A000C, 0x84038201)
    assert (op["tile"], op["register"]) == ([3, 1], "DMA_BD6_0")
    # Steps and the wrap of the iteration hold one less than they mean.
    assert op["descriptors"] == [
        {
            "bd": 6,
            "length": 1,
            "base": 2,
            "next_bd": 5,
            "use_next_bd": 1,
            "d0_wrap": 6,
            "d0_step": 6,
            "d1_wrap": 8,
            "d1_step": 8,
            "d2_step": 10,
            "iteration_current": 11,
            "iteration_wrap": 14,
            "iteration_step": 13,
            "valid": 1,
            "lock_rel_value": 4,
            "lock_rel_id": 3,
            "lock_acq_enable": 1,
            "lock_acq_value": 2,
            "lock_acq_id": 1,
        }
    ]


def test_shim_descriptor_and_its_address() -> None:
    low, high = 0x12345678 & ~3, 0xABCD
    op = one(
        1,
        0,
        0x0401D0E0,
        0x30,
        4096,
        low,
        high | 2 << 16 | 5 << 19 | 1 << 30,
        7 << 20 | 3,
        2 << 30 | 9 << 20 | 31,
        63,
        4 << 20 | 255,
        1 << 25 | 1 << 26 | 3 << 27,
    )
    assert (op["tile"], op["register"]) == ([2, 0], "DMA_BD7_0")
    assert op["descriptors"] == [
        {
            "bd": 7,
            "address": "0xabcd12345678",
            "length": 4096,
            "packet": 1,
            "packet_id": 5,
            "packet_type": 2,
            "d0_wrap": 7,
            "d0_step": 4,
            "burst": 2,
            "d1_wrap": 9,
            "d1_step": 32,
            "d2_step": 64,
            "iteration_wrap": 5,
            "iteration_step": 256,
            "valid": 1,
            "use_next_bd": 1,
            "next_bd": 3,
        }
    ]


def test_compute_tile_descriptor_has_six_words() -> None:
    op = one(1, 0, 0x0021D020, 0x28, 0x400 << 14 | 256, 0, 1 << 13, 16 << 13, 0, 1 << 25)
    assert op["descriptors"] == [
        {"bd": 1, "base": 0x400, "length": 256, "d1_step": 2, "d0_wrap": 16, "valid": 1}
    ]


NEXT_AND_LOCKS = "31 tlast_suppress, 30:27 next_bd, 26 use_next_bd, 25 valid, 24:18 lock_rel_value, "
NEXT_AND_LOCKS += "16:13 lock_rel_id, 12 lock_acq_enable, 11:5 lock_acq_value, 3:0 lock_acq_id"
DESCRIPTORS = {
    0x0001D000: (
        "31:0 length",
        "",  # with the low half of the next, the address
        "30 packet, 29:24 out_of_order_bd, 23:19 packet_id, 18:16 packet_type",
        "30 secure, 29:20 d0_wrap, 19:0 d0_step",
        "31:30 burst, 29:20 d1_wrap, 19:0 d1_step",
        "31:28 smid, 27:24 axcache, 23:20 axqos, 19:0 d2_step",
        "31:26 iteration_current, 25:20 iteration_wrap, 19:0 iteration_step",
        NEXT_AND_LOCKS,
    ),
    0x001A0000: (
        "31 packet, 30:28 packet_type, 27:23 packet_id, 22:17 out_of_order_bd, 16:0 length",
        "31:26 d0_zero_before, 25:20 next_bd, 19 use_next_bd, 18:0 base",
        "31 tlast_suppress, 26:17 d0_wrap, 16:0 d0_step",
        "31:27 d1_zero_before, 26:17 d1_wrap, 16:0 d1_step",
        "31 compression, 30:27 d2_zero_before, 26:17 d2_wrap, 16:0 d2_step",
        "31:28 d2_zero_after, 27:23 d1_zero_after, 22:17 d0_zero_after, 16:0 d3_step",
        "28:23 iteration_current, 22:17 iteration_wrap, 16:0 iteration_step",
        "31 valid, 30:24 lock_rel_value, 23:16 lock_rel_id, 15 lock_acq_enable, 14:8 lock_acq_value, "
        "7:0 lock_acq_id",
    ),
    0x0021D000: (
        "27:14 base, 13:0 length",
        "31 compression, 30 packet, 29:24 out_of_order_bd, 23:19 packet_id, 18:16 packet_type",
        "25:13 d1_step, 12:0 d0_step",
        "28:21 d1_wrap, 20:13 d0_wrap, 12:0 d2_step",
        "24:19 iteration_current, 18:13 iteration_wrap, 12:0 iteration_step",
        NEXT_AND_LOCKS,
    ),
}
"""Of a shim, a memory tile and a core, word by word as AMD's AM025 has DMA_BD0_0 and on."""


@pytest.mark.parametrize("address", DESCRIPTORS)
def test_every_bit_of_a_descriptor(address: int) -> None:
    """Each alone: the field that it is in, or nothing. Steps and the iteration's wrap mean one more."""
    rows = DESCRIPTORS[address]
    for number, row in enumerate(rows):
        fields = [each.split() for each in row.split(", ") if each]
        for bit in range(32):
            block = [0] * len(rows)
            block[number] = 1 << bit
            expected: dict[str, Any] = {"bd": 0}
            if address == 0x0001D000:
                expected["address"] = f"{(block[2] & 0xFFFF) << 32 | block[1] & ~3:#x}"
            for bits, name in fields:
                high, low = (int(bits.split(":")[end]) for end in (0, -1))
                if low <= bit <= high:
                    expected[name] = (1 << bit - low) + (name.endswith("_step") or name == "iteration_wrap")
            assert registers.descriptor(registers.tile_of(address), block) == [expected], (number, bit)


def test_several_descriptors_in_one_write() -> None:
    op = one(1, 0, 0x0001D000, 16 + 64, *(100, 0, 0, 0, 0, 0, 0, 0), *(200, 0, 0, 0, 0, 0, 0, 0))
    assert [(bd["bd"], bd["length"]) for bd in op["descriptors"]] == [(0, 100), (1, 200)]


@pytest.mark.parametrize(
    ("low", "high", "plus"), [(0xFFFFFFFF, 0, 2**32 - 1), (0, 1, 2**32), (0x100, 2, 2**33 + 256)]
)
def test_address_patch(low: int, high: int, plus: int) -> None:
    op = one(0x81, 48, 0, 0, 0, 0, 0x0201D064, 0, 3, 0, low, high)
    assert (op["register"], op["tile"], op["argument"], op["plus"]) == ("DMA_BD3_1", [1, 0], 3, plus)


def test_arguments_are_listed_once() -> None:
    patch = [(0x81, 48, 0, 0, 0, 0, 0x1D004, 0, argument, 0, 0, 0) for argument in (4, 0, 4)]
    (listing,) = disassemble(transaction(*patch))
    assert listing.arguments == [0, 4]


@pytest.mark.parametrize("more", [(), (5, 1, 2)])
def test_a_count_of_registers_that_is_none(more: tuple[int, ...]) -> None:
    assert one(0x82, 8 + 4 * len(more), *more)["data"] == [f"{word:#010x}" for word in more]


def test_reading_registers() -> None:
    op = one(0x82, 16, 1, 0x04300100)
    assert op["registers"] == [{"address": "0x4300100", "tile": [2, 3], "register": "Data_Memory+0x100"}]
    wide = one(0x82, 32, 2, 9, 0x1D220, 0, 0x1D228, 0)
    assert [place["register"] for place in wide["registers"]] == ["DMA_S2MM_Status_0", "DMA_MM2S_Status_0"]
    # As many as are counted, whatever stands behind them; where they do not fit, the words as they are.
    padded = one(0x82, 48, 3, 0, 0x1D220, 0, 0x1D228, 0, 0x1F000, 0, 0x1F004, 0)
    assert [place["address"] for place in padded["registers"]] == ["0x1d220", "0x1d228", "0x1f000"]
    assert one(0x82, 32, 3, 0, 0x1D220, 0, 0x1D228, 0)["data"][0] == "0x00000003"


@pytest.mark.parametrize(
    ("address", "value", "task"),
    [
        (0x0201D214, 0x80000003, {"direction": "MM2S", "channel": 0, "bd": 3, "repeat": 1, "token": True}),
        (
            0x0201D20C,
            0x00FF000F,
            {"direction": "S2MM", "channel": 1, "bd": 15, "repeat": 256, "token": False},
        ),
        (0x021A0634, 0x0001002A, {"direction": "MM2S", "channel": 0, "bd": 42, "repeat": 2, "token": False}),
    ],
)
def test_starting_a_dma(address: int, value: int, task: dict[str, Any]) -> None:
    assert one(0, 0, address, 0, value, 24)["task"] == task


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ((0x00, 0x0021F030, 7), {"op": "WRITE", "register": "Lock3_value", "value": "0x00000007"}),
        ((0x03, 0x00232000, 1, 3), {"op": "MASKWRITE", "register": "Core_Control", "mask": "0x00000003"}),
        ((0x04, 0x00232004, 1, 2), {"op": "MASKPOLL", "value": "0x00000001", "register": "Core_Status"}),
        ((0x07, 0x00232004, 1, 2), {"op": "MASKPOLL_BUSY", "mask": "0x00000002", "register": "Core_Status"}),
        ((0x02, 0x0001D000, 12), {"op": "BLOCKSET", "register": "DMA_BD0_0", "data": []}),
        ((0x01, 0x0001D000, 12 + 32, 64, 0, 0, 0, 0, 0, 0, 0), {"op": "BLOCKWRITE", "register": "DMA_BD0_0"}),
        (
            (0x81, 24, 0x1D004, 2, 0x40, 1),
            {"op": "DDR_PATCH", "register": "DMA_BD0_1", "argument": 2, "plus": 1 << 32 | 0x40},
        ),
        (
            (0x80, 16, 0x00020001, 0x01010100),
            {"op": "TCT", "tile": [2, 0], "channel": 1, "direction": "MM2S"},
        ),
        ((0x80, 16, 0x00020100, 0x01010100), {"op": "TCT", "tile": [2, 1], "direction": "S2MM"}),
        ((0x83, 12, 99), {"op": "RECORD_TIMER", "id": 99}),
        ((0x84, 12, 0x0402), {"op": "MERGE_SYNC", "tokens": 2, "columns": 4}),
        ((0x05,), {"op": "NOOP"}),
        ((0x0D,), {"op": "UPDATE_SCRATCH"}),
        ((0x006,), {"op": "PREEMPT", "level": "noop"}),
        ((0x106,), {"op": "PREEMPT", "level": "memory tile"}),
        ((0x206,), {"op": "PREEMPT", "level": "compute tile"}),
        ((0x406,), {"op": "PREEMPT", "level": 4}),
        (
            (0x0000030A, 4096, 0x1000, 1),
            {"op": "CREATE_SCRATCHPAD", "usage": 3, "size": 4096, "scratch_offset": "0x100001000"},
        ),
        ((0x0002000B, 5), {"op": "UPDATE_STATE_TABLE", "index": 0, "function": "decrement"}),
        ((0x0003000B, 5), {"op": "UPDATE_STATE_TABLE", "function": 3}),
        ((0x00050008, 4096, 0x1000, 1), {"op": "LOADPDI", "pdi": 5, "size": 4096, "address": "0x100001000"}),
        ((0x00000209, 7), {"op": "LOAD_PM_START", "sequences": 2, "id": 7}),
        ((0x0001020B, 5), {"op": "UPDATE_STATE_TABLE", "index": 2, "function": "increment", "operand": 5}),
        ((0x0002050B, 6), {"op": "UPDATE_STATE_TABLE", "index": 5, "function": "decrement", "operand": 6}),
        ((0x0003050B, 6), {"op": "UPDATE_STATE_TABLE", "index": 5, "function": 3, "operand": 6}),
        ((0x0000070A, 256, 8, 2), {"op": "CREATE_SCRATCHPAD", "usage": 7, "size": 256}),
        ((0x0000070A, 256, 8, 2), {"scratch_offset": "0x200000008"}),
        ((0x0D,), {"op": "UPDATE_SCRATCH"}),
        ((0x006,), {"op": "PREEMPT", "level": "noop"}),
        ((0x106,), {"op": "PREEMPT", "level": "memory tile"}),
        ((0x206,), {"op": "PREEMPT", "level": "compute tile"}),
        ((0x406,), {"op": "PREEMPT", "level": 4}),
        ((0x01, 0x0001D000, 12), {"op": "BLOCKWRITE", "data": []}),
        ((0x02, 0x00200400, 16, 9), {"op": "BLOCKSET", "register": "Data_Memory+0x400"}),
        ((0x07, 0x00232004, 1, 1), {"op": "MASKPOLL_BUSY", "register": "Core_Status"}),
        (
            (0x0000030C, 5, 0x1D004),
            {"op": "UPDATE_REG", "index": 3, "function": "multiply", "register": "DMA_BD0_1"},
        ),
    ],
)
def test_short_ops_of_version_1(op: tuple[int, ...], expected: dict[str, Any]) -> None:
    found = one(*op, version=(1, 0))
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("row", "offset", "name"),
    [
        (0, 0x14030, "Lock3_value"),
        (1, 0xC0030, "Lock3_value"),
        (2, 0x1F030, "Lock3_value"),
        (0, 0x1D200, "DMA_S2MM_0_Ctrl"),
        (1, 0xA0610, "DMA_S2MM_2_Ctrl"),
        (1, 0xA065C, "DMA_MM2S_5_Task_Queue"),
        (5, 0x1DE18, "DMA_MM2S_1_Ctrl"),
        (1, 0xA0688, "DMA_MM2S_Status_2"),
        (2, 0x24000, None),
        (2, 0x20010, "Program_Memory+0x10"),
        (0, 0x3F104, "Stream_Switch_Slave_Config+0x4"),
        (0, 0, None),
        (2, 0x60000, "Module_Clock_Control"),
        (2, 0x60010, "Module_Reset_Control"),
        (2, 0x32000, "Core_Control"),
        (2, 0x32030, "Error_Halt_Control"),
        (2, 0x32034, "Error_Halt_Event"),
        (2, 0x32038, "Core_Processor_Bus"),
        (2, 0x36030, "Tile_Control"),
        (2, 0x36060, "Accumulator_Control"),
        (2, 0x14010, "Memory_Event_Broadcast0"),
        (2, 0x3404C, "Core_Event_Broadcast15"),
        (1, 0xFFF00, "Module_Clock_Control"),
        (1, 0xFFF10, "Module_Reset_Control"),
        (0, 0x15004, "Interrupt_Controller_2nd_Level_Enable"),
        (0, 0x33000, "PL_Interface_Upsizer_Config"),
        (0, 0x35004, "Interrupt_Controller_1st_Level_Enable_A"),
        (0, 0x35048, "Interrupt_Controller_1st_Level_Block_North_In_B_Set"),
        (0, 0x35040, "Interrupt_Controller_1st_Level_IRQ_NO_B"),
        (0, 0x35044, "Interrupt_Controller_1st_Level_IRQ_Event_B"),
        (0, 0xFFF20, "Column_Clock_Control"),
        (0, 0xFFF28, "Column_Reset_Control"),
        (1, 0x7FFFF, "Data_Memory+0x7ffff"),
        (1, 0x80000, None),
    ],
)
def test_register_names(row: int, offset: int, name: str | None) -> None:
    assert registers.name_of(registers.tile_of(7 << 25 | row << 20 | offset)) == name


def test_tiles_follow_the_rows_of_memory_tiles() -> None:
    assert registers.tile_of(2 << 20, memory_rows=2).kind == registers.MEMORY
    assert registers.tile_of(3 << 20, memory_rows=2).kind == registers.COMPUTE


@pytest.mark.parametrize(
    ("fields", "plausible"),
    [
        ({}, True),
        ({"major": 1, "minor": 0}, True),
        ({"minor": 2}, False),
        ({"major": 1}, False),
        ({"major": 2, "minor": 0}, False),
        ({"minor": 0}, False),
        ({"columns": 1}, True),
        ({"columns": 128}, True),
        ({"columns": 0}, False),
        ({"columns": 129}, False),
        ({"rows": 1, "memory_rows": 0}, True),
        ({"rows": 32}, True),
        ({"rows": 0, "memory_rows": 0}, False),
        ({"rows": 33}, False),
        ({"rows": 2, "memory_rows": 1}, True),
        ({"rows": 2, "memory_rows": 2}, False),
        ({"size": 15}, False),
    ],
)
def test_which_headers_are_a_transactions(fields: dict[str, int], plausible: bool) -> None:
    """Also one of no op, which is all that there is of it."""
    told = {"major": 0, "minor": 1, "generation": 3, "rows": 6, "columns": 5, "memory_rows": 1} | {
        "ops": 0,
        "size": 16,
    }
    told |= fields
    data = struct.pack("<6B2x2I", *told.values())
    assert (txn.header(data) is not None) == plausible and txn.header(data[:15]) is None
    (listing,) = disassemble(data)
    if not plausible:
        assert listing.format == "unknown"
        return
    assert (listing.format, listing.problems, listing.ops) == ("txn", [], [])
    version = f"{told.pop('major')}.{told.pop('minor')}"
    assert listing.header == {"version": version, "device": "NPU1 (AIE2)", **told}


def test_bytes_behind_the_last_word_are_shown() -> None:
    for data, words_, tail in (
        (b"hello", ["0x6c6c6568"], "6f"),
        (b"hellohel", ["0x6c6c6568", "0x6c65686f"], None),
    ):
        (listing,) = disassemble(data)
        (op,) = listing.ops
        assert (op["offset"], op["bytes"], op["data"], op.get("tail")) == (0, len(data), words_, tail)


# -- malformed


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({0: 1, 1: 0}, True),
        ({0: 1}, False),
        ({1: 2}, False),
        ({3: 32, 4: 128, 5: 31}, True),
        ({3: 1, 4: 1, 5: 0}, True),
        ({3: 33}, False),
        ({4: 129}, False),
        ({3: 0, 5: 0}, False),
        ({4: 0}, False),
        ({3: 4, 5: 4}, False),
        ({8: 0, 12: 16}, True),
        ({12: 15}, False),
    ],
)
def test_what_a_header_may_say(changes: dict[int, int], taken: bool) -> None:
    """Versions, rows, columns, rows of memory tiles, size: a byte each at its place."""
    data = bytearray(transaction((5,)))
    for at, value in changes.items():
        data[at] = value
    for generation, device in ((3, "NPU1 (AIE2)"), (4, "NPU2 (AIE2P)"), (5, None)):
        data[2] = generation
        (listing,) = disassemble(bytes(data))
        assert listing.format == ("txn" if taken else "unknown")
        assert not taken or listing.header["device"] == device
    assert bool(txn.header(bytes(data[:16]))) == taken and txn.header(bytes(data[:15])) is None


def test_unknown_op_is_shown_raw_and_said() -> None:
    (listing,) = disassemble(transaction((0x306,), (0x77, 1, 2)))
    assert [op["op"] for op in listing.ops] == ["PREEMPT", "raw"]
    assert listing.ops[1]["data"] == ["0x00000077", "0x00000001", "0x00000002"]
    assert listing.problems == ["op code 0x77 at byte 20 is unknown, and so is its length"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            transaction((1, 0, 0x1D000, 0x30, 1, 2)),
            "BLOCKWRITE at byte 16: its size of 48 bytes does not fit",
        ),
        (transaction((0, 0, 0x1D000, 0, 5, 0)), "WRITE at byte 16: its size of 0 bytes does not fit"),
        (
            transaction((0, 0, 0x1D000, 0, 5, 2**32 - 4)),
            "WRITE at byte 16: its size of 4294967292 bytes does not fit",
        ),
        (transaction((0, 0, 0x1D000, 0, 5, 22)), "WRITE at byte 16: its size of 22 bytes does not fit"),
        (transaction((1, 0, 0x1D000, 12, 5)), "BLOCKWRITE at byte 16: its size of 12 bytes does not fit"),
        (transaction((1, 0, 0x1D000, 18, 5)), "BLOCKWRITE at byte 16: its size of 18 bytes does not fit"),
        (transaction((0x80, 16)), "TCT at byte 16: the stream ends inside this op"),
        (transaction((0x306,), count=2), "the stream ends before its last op"),
        (transaction((0x306,), (0x306,), count=1), "the header says 24 bytes, the ops end at 20"),
        (transaction((0x306,), size=400), "the header says 400 bytes, the file has 20"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, problem: str) -> None:
    (listing,) = disassemble(data)
    assert problem in listing.problems


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"hello", bytes(64), b"\x7fELF", b"\x7fELF" + bytes(60), b"amdxdna\n" * 3]
)
def test_other_files_are_unknown(data: bytes) -> None:
    (listing,) = disassemble(data)
    assert listing.format == "unknown"
    assert listing.problems


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"xclbin2\0" + bytes(600), "`python -m amdxdna xclbin` reads"),
        (b"", "there is nothing in it"),
        (struct.pack("<4I", 0xDD, 0x11223344, 0x55667788, 0x99AABBCC) + bytes(64), "it is a PDI"),
    ],
)
def test_files_of_another_kind_are_named(data: bytes, says: str) -> None:
    (listing,) = disassemble(data)
    assert listing.format == "unknown" and says in listing.problems[0]


def test_what_nobody_understands_is_not_poured_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"xclbin2\0" + bytes(100_000))
    assert main(["insts", str(file)]) == 1
    out = capsys.readouterr().out
    assert out.count("\n") == 2 + 64 + 1 and "and 24490 words more" in out


@pytest.mark.parametrize("emulator", [False, True])
def test_every_prefix_is_read_without_an_exception(emulator: bool) -> None:
    whole = b"".join(words(*part) for part in MLIR_AIE)
    if emulator:
        whole = stream.program([stream.Copy(64, 7), stream.Hang(), stream.Delay(9), stream.Fail(3)])
    for length in range(len(whole)):
        (listing,) = disassemble(whole[:length])
        assert listing.problems
        shown = sum(op["bytes"] for op in listing.ops)
        head = {"txn": 16, "emu": min(length, 12)}.get(listing.format, 0)
        assert (listing.format == "emu") == (emulator and length >= 4)
        assert shown == length - head
        assert bool(listing.header) == (length >= (12 if emulator else 16))
        ops, ends = [op for op in listing.ops if op["op"] != "raw"], (24, 28, 36) if emulator else ()
        assert not emulator or len(ops) == sum(length >= end for end in ends)


def test_emulator_words_that_are_no_ops() -> None:
    """A count of none, of another op, and one past the end: shown as they are."""
    for odd in (5, 5 | 2 << 16, 1 | 4 << 16, 99 | 1 << 16):
        (listing,) = disassemble(words(stream.MAGIC, 1, 2, 5 | 1 << 16, odd, 7))
        assert [(op["op"], op["offset"]) for op in listing.ops] == [("HANG", 12), ("raw", 16)]


# -- the emulator's own streams


def test_emulator_stream() -> None:
    data = stream.program([stream.Copy(64, 7), stream.Delay(1000), stream.Hang(), stream.Fail(0x3000002)])
    (listing,) = disassemble(data)
    assert (listing.format, listing.problems, listing.header) == ("emu", [], {"version": 1, "ops": 4})
    assert [
        {key: value for key, value in op.items() if key not in ("offset", "bytes")} for op in listing.ops
    ] == [
        {"op": "COPY", "nbytes": 64, "addend": 7},
        {"op": "DELAY", "microseconds": 1000},
        {"op": "HANG"},
        {"op": "FAIL", "status": 0x3000002},
    ]


def test_emulator_gemm_flags_and_format() -> None:
    (listing,) = disassemble(stream.gemm(8, 128, 64, swiglu=True, bias=True, format=stream.BFP6S))
    (op,) = listing.ops
    assert (op["op"], op["m"], op["k"], op["n"]) == ("GEMM", 8, 128, 64)
    assert (op["flags"], op["format"]) == (["swiglu", "bias"], "bfp6s")
    data = bytearray(stream.gemm(8, 128, 64, gelu=True, pair=True))
    at = data.index(words(op["n"])) + 4 * 3
    data[at : at + 8] = words(1 << 20 | 12, 9)
    (listing,) = disassemble(bytes(data))
    assert (listing.ops[0]["flags"], listing.ops[0]["format"]) == (["gelu", "pair", "0x100000"], 9)


def test_emulator_stream_that_cannot_run_is_still_shown() -> None:
    data = bytearray(stream.program([stream.Copy(64, 7), stream.Delay(1)]))
    data[12 + 4 : 12 + 8] = words(63)  # bytes of the COPY
    (listing,) = disassemble(bytes(data))
    assert [op["op"] for op in listing.ops] == ["COPY", "DELAY"]
    assert listing.problems == ["op 0 at word 3: COPY: 63 bytes: not a positive multiple of 4"]


def test_emulator_stream_whose_count_is_wrong() -> None:
    data = stream.program([stream.Copy(64, 7), stream.Delay(1)])
    for count, ops in ((0, ["raw"]), (1, ["COPY", "raw"]), (2, ["COPY", "DELAY"]), (3, ["COPY", "DELAY"])):
        (listing,) = disassemble(data[:8] + words(count) + data[12:])
        assert [op["op"] for op in listing.ops] == ops and listing.header == {"version": 1, "ops": count}
        assert (listing.problems == []) == (count == 2)
        assert sum(op["bytes"] for op in listing.ops) == len(data) - 12
    (bare,) = disassemble(data[:8] + words(0))
    assert (bare.format, bare.header, bare.ops) == ("emu", {"version": 1, "ops": 0}, [])
    (cut,) = disassemble(data[:8])
    assert (cut.header, cut.ops, bool(cut.problems)) == ({}, [], True)


def test_emulator_flags_and_formats_without_a_name() -> None:
    data = stream.gemm(8, 128, 64, swiglu=True, format=stream.BFP6S)
    (listing,) = disassemble(data)
    ((op,), flags) = listing.ops, struct.pack("<I", stream.SWIGLU)
    names = [key for key in op if key not in ("offset", "op", "bytes")]
    at = 16 + 4 * names.index("flags")
    assert data[at : at + 4] == flags
    (listing,) = disassemble(data[:at] + words(stream.SWIGLU | 1 << 30) + data[at + 4 :])
    assert listing.ops[0]["flags"] == ["swiglu", "0x40000000"]
    at = 16 + 4 * names.index("format")
    (listing,) = disassemble(data[:at] + words(99) + data[at + 4 :])
    assert listing.ops[0]["format"] == 99


# -- ELF


@pytest.mark.parametrize("wide", [False, True])
def test_control_code_in_elf(wide: bool) -> None:
    code = transaction((0x306,))
    data = elf(wide, {".ctrltext.0": code, ".ctrldata": b"1234", ".preempt_save.0": transaction((0x5,))})
    first, second = disassemble(data)
    assert (first.section, [op["op"] for op in first.ops]) == (".ctrltext.0", ["PREEMPT"])
    assert (second.section, [op["op"] for op in second.ops]) == (".preempt_save.0", ["NOOP"])
    for length in range(len(data)):
        disassemble(data[:length])


def test_overlapping_sections_cannot_multiply_an_elf_file() -> None:
    data = bytearray(elf(True, {".ctrltext.0": bytes(64), ".ctrltext.1": b"1234"}))
    second = len(data) - 2 * 64
    struct.pack_into("<QQ", data, second + 24, 0, len(data))
    (listing,) = disassemble(bytes(data))
    assert listing.problems == ["an ELF file without control code"]


# -- the command


def test_sections_that_lie_nowhere() -> None:
    for wide in (False, True):
        for offset in (1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1):
            data = bytearray(elf(wide, {".ctrltext": transaction((5,))}))
            at, size = (40, 8) if wide else (32, 4)
            data[at : at + size] = (offset % (1 << 8 * size)).to_bytes(size, "little")
            (listing,) = disassemble(bytes(data))
            assert listing.problems == ["an ELF file without control code"]


def test_long_streams_take_linear_time_and_bounded_memory() -> None:
    """Megabytes of ops, of words behind them, of text: each within seconds, none multiplied in memory."""
    ops = transaction(*[(5,)] * 140_000)
    (listing,) = disassemble(ops + bytes(4 << 20))
    assert len(listing.ops) == txn.MOST_OPS + 1 and "more than 131,072 ops" in listing.problems[0]
    (listing,) = disassemble(transaction((5,)) + bytes(4 << 20))
    assert [op["op"] for op in listing.ops] == ["NOOP", "raw"]
    hangs = struct.pack("<3I", stream.MAGIC, 1, 0xFFFFFFFF) + struct.pack("<I", 5 | 1 << 16) * 140_000
    (listing,) = disassemble(hangs)
    assert len(listing.ops) == txn.MOST_OPS + 1
    (listing,) = disassemble(b"\n" * (8 << 20))
    assert listing.format == "unknown"


def test_the_largest_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "large"
    for more, said in ((0, "no transaction header"), (1, "over 8 MiB")):
        with open(path, "wb") as file:
            file.truncate((8 << 20) + more)
        assert main(["insts", str(path)]) == 1
        assert said in capsys.readouterr().err


def test_command_prints_ops(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "insts.bin"
    path.write_bytes(
        transaction(
            (1, 0, 0x0201D060, 48, 1024, 0, 0, 0, 0x80000000, 0, 0, 0x02000000),
            (0x81, 48, 0, 0, 0, 0, 0x0201D064, 0, 2, 0, 0x100, 0),
            (0, 0, 0x0201D214, 0, 0x80000003, 24),
        )
    )
    assert main(["insts", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("AIE transaction, 136 bytes: version 0.1")
    assert "BD 3: address 0x0  length 1024  burst 2  valid 1" in lines[2]
    assert lines[3].endswith("0x201d064 (1,0) DMA_BD3_1  <- argument 2 + 0x100")
    assert lines[4].endswith("start MM2S 0: BD 3, 1 times, token")
    assert lines[5] == "patches arguments 2"


def test_command_prints_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "insts.bin"
    token, read = (0x80, 16, 0x00020100, 0x01010203), (0x82, 32, 2, 9, 0x1D220, 0, 0x224000, 0)
    write = (0, 0, 0x00224000, 0, 5, 24)
    path.write_bytes(transaction(token, write, read, (0x06,), (0x77, *range(9))) + b"abc")
    assert main(["insts", str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "     0 0x000010  TCT          tile (2,1)  direction S2MM  channel 1  columns 1  rows 2",
        "     1 0x000020  WRITE        0x224000 (0,2) ?  value 0x00000005",
        "     2 0x000038  READ_REGS",
        "                   0x1d220 (0,0) DMA_S2MM_Status_0",
        "                   0x224000 (0,2) ?",
        "     3 0x000058  PREEMPT      level noop",
        "     4 0x00005c  raw",
        "                   0x00000077 " + " ".join(f"{n:#010x}" for n in range(7)),
        "                   0x00000007 0x00000008",
        "                   bytes 616263",
    ]
    path.write_bytes(stream.gemm(8, 128, 64, bias=True))
    assert main(["insts", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split("  ")[-3:-1] == ["flags bias", "format bfp16"]
    path.write_bytes(stream.gemm(8, 128, 64))
    assert main(["insts", str(path)]) == 0
    assert "  flags -  format bfp16  " in capsys.readouterr().out


def test_command_as_json(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "insts.bin"
    path.write_bytes(transaction((0x306,), (0x77,)))
    assert main(["insts", str(path), "--json"]) == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["schema"], document["version"]) == ("amdxdna.insts", 1)
    (found,) = document["streams"]
    assert set(found) == {"format", "section", "size", "header", "arguments", "problems", "ops"}
    assert [op["op"] for op in found["ops"]] == ["PREEMPT", "raw"]
    assert said.err.count("\n") == 1
    assert "op code 0x77" in said.err


def test_command_without_a_file(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["insts", str(tmp_path / "none"), "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["schema"] == "amdxdna.error"
    assert said.err.count("\n") == 1
    assert main(["insts"]) == 2


def test_ops_table_is_complete() -> None:
    assert set(txn.NAMES) == set(txn.DECODERS)


def test_operations_are_numbered_and_one_can_be_marked(tmp_path, capsys):
    path = tmp_path / "s.bin"
    path.write_bytes(stream.program([stream.Copy(64 * (n + 1), 0) for n in range(20)]))
    assert main(["insts", str(path), "--at", "11", "--around", "2"]) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if "COPY" in row]
    assert [row.split()[0 if row[0] != ">" else 1] for row in rows] == ["9", "10", "11", "12", "13"]
    assert [row[0] for row in rows] == [" ", " ", ">", " ", " "]
    for at, around, shown in (("0", "0", 1), ("19", "-3", 1), ("10", None, 17)):
        words = ["--at", at, *(["--around", around] if around else [])]
        assert main(["insts", str(path), *words]) == 0
        assert capsys.readouterr().out.count("COPY") == shown
    for at in ("20", "-1"):
        assert main(["insts", str(path), "--at", at]) == 1
        assert f"there is no operation {at}. The stream has 20, counted" in capsys.readouterr().err
