"""Command lists: every slot layout decoded, and what is no list refused."""

from __future__ import annotations

import struct

import pytest

from amdxdna.emu.npu import Slot, SlotType
from amdxdna.emu.pci.commands import BadCommand, decode_list, decode_single, list_location

EXECUTE_BUFFER, EXECUTE_DPU, EXECUTE_NPU = 0x0C, 0x10, 0x17
CHAIN_BUFFER, CHAIN_DPU, CHAIN_NPU = 0x12, 0x13, 0x18
ARGS = (3, 0, 0x4008000, 0, 40, 0xF7FFC000, 0xFFFF)


def npu_slot(kind: int, args: tuple[int, ...] = ARGS) -> bytes:
    """A protocol 7 slot with a different number in every field."""
    return struct.pack(
        "<IQQQIIIIII", kind, 0x4010000, 0x5000000, 0x6000000, 64, 65, 66, 7, 2, len(args)
    ) + struct.pack(f"<{len(args)}I", *args)


def test_protocol_7_slots() -> None:
    assert [*SlotType] == [1, 2, 3, 4]
    data = npu_slot(SlotType.START_NPU) + npu_slot(SlotType.ELF, (3,)) + npu_slot(SlotType.START_CU, ())
    first, second, third = decode_list(CHAIN_NPU, data, 3)
    assert first == Slot(2, 2, ARGS, 0x4010000, 64, 0x5000000, 65, 0x6000000, 66, 7)
    assert (second.type, second.args) == (4, (3,))
    assert (third.type, third.args) == (1, ())


def test_older_slots() -> None:
    dpu = struct.pack("<QIIII", 0x4010000, 64, 1, 3, 2) + struct.pack("<2I", 8, 9)
    (slot,) = decode_list(CHAIN_DPU, dpu, 1)
    assert slot == Slot(SlotType.START_NPU, 3, (8, 9), 0x4010000, 64, properties=1)
    plain = struct.pack("<II7I", 5, 7, *ARGS) * 2
    assert decode_list(CHAIN_BUFFER, plain, 2) == [Slot(SlotType.START_CU, 5, ARGS)] * 2


@pytest.mark.parametrize(
    ("data", "count", "index"),
    [
        (npu_slot(1)[:-1], 1, 0),
        (npu_slot(1) + npu_slot(1)[:30], 2, 1),
        (npu_slot(1) + b"\0\0\0\0", 1, 0),
        (b"", 1, 0),
    ],
)
def test_lists_that_end_elsewhere(data: bytes, count: int, index: int) -> None:
    with pytest.raises(BadCommand) as caught:
        decode_list(CHAIN_NPU, data, count)
    assert caught.value.index == index


def test_location() -> None:
    """Both messages are 24 bytes; the newer one begins with flags and a reserved word."""
    new = struct.pack("<IIQII", 0, 0, 0x4010000, 76, 1)
    assert list_location(CHAIN_NPU, new) == (0x4010000, 76, 1)
    old = struct.pack("<QII8x", 0x4010000, 76, 2)
    assert list_location(CHAIN_DPU, old) == (0x4010000, 76, 2)
    assert list_location(CHAIN_BUFFER, old[:16]) == (0x4010000, 76, 2)
    for size in (1, 0x1000):
        longest = struct.pack("<IIQII", 0, 0, 0x4010000, size, 1)
        assert list_location(CHAIN_NPU, longest) == (0x4010000, size, 1)
    with pytest.raises(BadCommand):
        list_location(CHAIN_NPU, new[:16])


@pytest.mark.parametrize(
    "body",
    [
        bytes(23),
        struct.pack("<IIQII", 0, 0, 0x4010000, 0, 1),
        struct.pack("<IIQII", 0, 0, 0x4010000, 76, 0),
        struct.pack("<IIQII", 0, 0, 0x4010000, 0x1001, 1),
    ],
)
def test_locations_that_are_none(body: bytes) -> None:
    with pytest.raises(BadCommand):
        list_location(CHAIN_NPU, body)


def test_single_commands() -> None:
    body = struct.pack("<IIQQQIIIII", 0, 2, 0x4010000, 1, 2, 64, 3, 4, 5, 6) + struct.pack("<27I", *range(27))
    slot = decode_single(EXECUTE_NPU, body)
    assert slot == Slot(2, 6, tuple(range(26)), 0x4010000, 64, 1, 3, 2, 4, 5)
    assert decode_single(EXECUTE_BUFFER, struct.pack("<20I", 1, *range(19))).args == tuple(range(19))
    assert decode_single(EXECUTE_BUFFER, struct.pack("<I", 7)) == Slot(1, 7, ())
    assert decode_single(EXECUTE_DPU, struct.pack("<QIIII", 0x4010000, 64, 1, 3, 9)).args == (9,)
    for size in (10, 16, 22):
        with pytest.raises(BadCommand):
            decode_single(EXECUTE_DPU, bytes(size))
