"""Decoding command packets, against packets whose words are written out and the binding's own."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from amdxdna import packet
from amdxdna.trace import packets


def nowhere(address: int) -> None:
    return None


def unreadable(handle: int, size: int) -> None:
    return None


def decode(*words: int, find: Any = nowhere, read: Any = unreadable) -> dict[str, Any]:
    return packets.decode(struct.pack(f"<{len(words)}I", *words).ljust(4096, b"\0"), find, read)


def test_check_value_of_working_runtimes() -> None:
    """Instructions at 0x4028000, 0xCB0 bytes, three buffers: word 0 is 0x30010001."""
    found = decode(
        0x30010001,
        1,
        3,
        0,
        0x4028000,
        0,
        0xCB0,
        0x1000,
        0x7F,
        0x2000,
        0,
        0x3000,
        0,
        find=lambda address: (int(address >> 12) & 0xFF, address & 0xFFF),
    )
    assert found == {
        "opcode": "START_CU",
        "state": "NEW",
        "words": 16,
        "cu_mask": 1,
        "kernel_opcode": 3,
        "instructions": {"address": "0x4028000", "bo": 0x28, "offset": 0, "bytes": 0xCB0},
        "buffers": [
            {"address": "0x7f00001000", "bo": 1, "offset": 0},
            {"address": "0x2000", "bo": 2, "offset": 0},
            {"address": "0x3000", "bo": 3, "offset": 0},
        ],
    }


@pytest.mark.parametrize("count", [0, 1, 3, 5, 8, 10])
def test_what_the_binding_packs(count: int) -> None:
    buffers = [0x7F0000000000 + 0x1000 * (i + 1) for i in range(count)]
    found = packets.decode(packet.start_cu(2, 0x4008000, 640, buffers), nowhere, unreadable)
    assert (found["opcode"], found["cu_mask"]) == ("START_CU", 4)
    assert found["instructions"] == {"address": "0x4008000", "bytes": 640}
    assert [int(buffer["address"], 16) for buffer in found["buffers"]] == buffers


def test_what_the_binding_packs_for_control_code() -> None:
    code = packet.Placed(0x4008000, 640)
    save, restore = packet.Placed(0x4010000, 8), packet.Placed(0x4018000, 9)
    npu = packets.decode(packet.start_npu(0, code), nowhere, unreadable)
    assert npu == {
        "opcode": "START_NPU",
        "state": "NEW",
        "words": 7,
        "cu_mask": 1,
        "arguments": ["0x00000003", "0x00000000"],
        "instructions": {"address": "0x4008000", "bytes": 640},
    }
    for data, name, mask in (
        (packet.start_npu_preempt(0, code, save, restore), "START_NPU_PREEMPT", 1),
        (packet.start_npu_elf(code, save, restore), "START_NPU_PREEMPT_ELF", 0),
    ):
        found = packets.decode(data, nowhere, unreadable)
        assert (found["opcode"], found["cu_mask"], found["properties"]) == (name, mask, 0)
        assert found["instructions"] == {"address": "0x4008000", "bytes": 640}
        assert found["restore"] == {"address": "0x4018000", "bytes": 9}


def test_chain() -> None:
    members = {
        5: packet.start_cu(0, 0x4000000, 24, [0x1000]),
        6: packet.start_cu(0, 0x4008000, 48, [0x2000]),
        7: packet.chain([5]),
    }
    found = packets.decode(packet.chain([5, 6, 7, 8], 12), nowhere, lambda handle, size: members.get(handle))
    assert (found["opcode"], found["members"]) == ("CMD_CHAIN", 4)
    assert [command["bo"] for command in found["commands"]] == [5, 6, 7, 8]
    first, second, nested, missing = (command["packet"] for command in found["commands"])
    assert (first["instructions"]["bytes"], second["instructions"]["bytes"]) == (24, 48)
    assert nested == {"opcode": "CMD_CHAIN"}
    assert missing is None
    assert packets.instruction_bytes(found) == 72


def test_error_index_of_a_failed_chain() -> None:
    assert decode(5 | 8 << 12 | 19 << 23, 1, 0, 1, 0, 0, 0, 9)["error_index"] == 1


def test_preemptible_packet() -> None:
    words = [0x4000000, 0, 0x4008000, 0, 0x4010000, 0, 100, 20, 30, 2, 11, 12]
    found = decode(1 | (1 + len(words)) << 12 | 21 << 23, 1, *words)
    assert found["opcode"] == "START_NPU_PREEMPT"
    assert found["save"] == {"address": "0x4008000", "bytes": 20}
    assert found["restore"] == {"address": "0x4010000", "bytes": 30}
    assert (found["properties"], found["arguments"]) == (2, ["0x0000000b", "0x0000000c"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((0, 0), {"opcode": "START_CU", "state": 0, "words": 0, "raw": []}),
        ((1 | 2 << 12 | 13 << 23, 5, 6), {"opcode": 13, "raw": ["0x00000005", "0x00000006"]}),
        ((1 | 3 << 12, 1, 7, 8), {"arguments": ["0x00000007", "0x00000008"]}),
        ((1 | 3 << 12 | 1 << 10, 0, 2, 9), {"cu_mask": [0, 2], "arguments": ["0x00000009"]}),
        ((4 | 2 << 12 | 19 << 23, 1, 2), {"state": "COMPLETED", "raw": ["0x00000001", "0x00000002"]}),
    ],
)
def test_what_does_not_fit_is_shown_raw(words: tuple[int, ...], expected: dict[str, Any]) -> None:
    found = decode(*words)
    assert {key: found[key] for key in expected} == expected


def test_health_in_words() -> None:
    data = struct.pack("<9I", 8, 1, 0, 17, 0xABCD, 0, 0, 0, 0)
    text = packets.health(data)
    assert text is not None
    assert "operation 17" in text
    assert "0x0000abcd" in text
    assert packets.health(struct.pack("<9I", 8, *[0xFFFFFFFF] * 8)) is None


@pytest.mark.parametrize("seed", range(3))
def test_fuzz(seed: int) -> None:
    rng = random.Random(seed)
    good = [
        packet.start_cu(0, 0x4000000, 24, [1, 2]),
        packet.chain([5, 6]),
        packet.start_npu(0, packet.Placed(1, 2)),
    ]
    for _ in range(500):
        data = bytearray(rng.choice(good).ljust(rng.choice((64, 256, 4096)), b"\0"))
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(min(len(data), 80))] = rng.randrange(256)
        found = packets.decode(bytes(data), nowhere, lambda handle, size: bytes(rng.choice(good)))
        json.dumps(found)
        packets.instruction_bytes(found)
