"""A trace's names for the interface's numbers, and packets word by word."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from amdxdna._native import ffi
from amdxdna.trace import fields
from amdxdna.trace.packets import decode, instruction_bytes


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (fields.BO_TYPES, {1: "SHARE", 2: "DEV_HEAP", 3: "DEV", 4: "CMD"}),
        (fields.PRIORITIES, {0x100: "REALTIME", 0x180: "HIGH", 0x200: "NORMAL", 0x280: "LOW"}),
        (fields.POWER_MODES, {0: "DEFAULT", 1: "LOW", 2: "MEDIUM", 3: "HIGH", 4: "TURBO"}),
        (
            fields.STATES,
            {
                1: "NEW",
                2: "QUEUED",
                3: "RUNNING",
                4: "COMPLETED",
                5: "ERROR",
                6: "ABORT",
                7: "SUBMITTED",
                8: "TIMEOUT",
                9: "NORESPONSE",
            },
        ),
    ],
)
def test_names_of_numbers(names: dict[int, str], numbers: dict[int, str]) -> None:
    """As in include/uapi/drm/amdxdna_accel.h and amdxdna_ctx.h of Linux."""
    assert {number: names.get(number) for number in numbers} == numbers


NAMED = {
    ("amdxdna_drm_config_hwctx", "param_type"): ("CONFIG_CU", "ASSIGN_DBG_BUF", "REMOVE_DBG_BUF"),
    ("amdxdna_drm_sync_bo", "direction"): ("TO_DEVICE", "FROM_DEVICE"),
    ("amdxdna_drm_exec_cmd", "type"): ("EXEC_BUF", "DEPENDENCY", "SIGNAL"),
    ("amdxdna_drm_get_info", "param"): (
        *("AIE_STATUS", "AIE_METADATA", "AIE_VERSION", "CLOCK_METADATA", "SENSORS", "HW_CONTEXTS", 6, 7),
        *("FIRMWARE_VERSION", "POWER_MODE", "TELEMETRY", "FORCE_PREEMPT", "RESOURCE_INFO"),
        *("FRAME_BOUNDARY_PREEMPT", 14),
    ),
    ("amdxdna_drm_set_state", "param"): (
        *("POWER_MODE", "AIE_MEM", "AIE_REG", "FORCE_PREEMPT", "FRAME_BOUNDARY_PREEMPT", 5),
    ),
    ("amdxdna_drm_get_array", "param"): ("HW_CONTEXT_ALL", 1, "HW_LAST_ASYNC_ERR", 3, 4, 5, "BO_USAGE", 7),
    ("amdxdna_drm_get_power_mode", "power_mode"): ("DEFAULT", "LOW", "MEDIUM", "HIGH", "TURBO", 5),
    ("amdxdna_drm_set_power_mode", "power_mode"): ("DEFAULT", "LOW", "MEDIUM", "HIGH", "TURBO", 5),
    ("amdxdna_drm_query_sensor", "type"): ("POWER", "COLUMN_UTILIZATION", 2),
    ("amdxdna_drm_hwctx_entry", "state"): ("IDLE", "ACTIVE", 2),
}
"""Numbers from 0 on by name, where the interface's header has one."""


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_names_of_a_fields_numbers(kind: str, name: str) -> None:
    for number, named in enumerate(NAMED[kind, name]):
        made = ffi.new(f"struct {kind} *", {name: number})
        assert fields.decode(kind, bytes(ffi.buffer(made)))[name] == named


INVALID = (1 << 64) - 1


@pytest.mark.parametrize(
    ("kind", "data", "zeros", "decoded"),
    [
        (
            "amdxdna_drm_create_bo",
            struct.pack("<QQQII", 0, 0, 4096, 3, 0),
            False,
            {"size": 4096, "type": "DEV"},
        ),
        (
            "amdxdna_drm_create_bo",
            struct.pack("<QQQII", 0, 0x1000, 4096, 9, 0),
            True,
            {"flags": 0, "vaddr": "0x1000", "size": 4096, "type": 9, "handle": 0},
        ),
        (
            "amdxdna_drm_sync_bo",
            struct.pack("<IIQQ", 4, 1, 0, 64),
            False,
            {"handle": 4, "direction": "FROM_DEVICE", "size": 64},
        ),
        ("amdxdna_drm_sync_bo", struct.pack("<I", 4), False, {"handle": 4, "direction": "TO_DEVICE"}),
        (
            "amdxdna_drm_get_bo_info",
            struct.pack("<QQIIQQQ", 0, 0, 5, 0, 0x100, INVALID, 0x4000000),
            False,
            {"handle": 5, "map_offset": "0x100", "vaddr": None, "xdna_addr": "0x4000000"},
        ),
    ],
)
def test_structs_by_field(kind: str, data: bytes, zeros: bool, decoded: dict[str, Any]) -> None:
    assert fields.decode(kind, data, zeros=zeros) == decoded


def test_lists_of_structs() -> None:
    """An element may be longer or shorter than the struct that is known; what is left over is none."""
    data = b"".join(struct.pack("<IIQQ", n, 1, 0, 64) for n in (1, 2))
    whole = [{"handle": n, "direction": "FROM_DEVICE", "offset": 0, "size": 64} for n in (1, 2)]
    assert fields.array("amdxdna_drm_sync_bo", data, 24) == whole
    assert fields.array("amdxdna_drm_sync_bo", data[:-1], 24) == whole[:1]
    assert fields.array("amdxdna_drm_sync_bo", data, 8) == [
        {"handle": handle, "direction": direction, "offset": 0, "size": 0}
        for handle, direction in ((1, "FROM_DEVICE"), (0, "TO_DEVICE"), (64, "TO_DEVICE"))
    ] + [
        {"handle": handle, "direction": direction, "offset": 0, "size": 0}
        for handle, direction in ((2, "FROM_DEVICE"), (0, "TO_DEVICE"), (64, "TO_DEVICE"))
    ]
    assert fields.array("amdxdna_drm_sync_bo", data, 0) == []


@pytest.mark.parametrize(
    ("number", "name"), [(22, "EINVAL"), (95, "EOPNOTSUPP"), (62, "ETIME"), (9999, "9999")]
)
def test_names_of_errors(number: int, name: str) -> None:
    assert fields.errno_name(number) == name


def raising(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (OSError(14, "Bad address"), "Bad address"),
        (OSError(), "unreadable"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_what_cannot_be_read_is_noted(error: Exception, noted: str) -> None:
    assert fields.guarded(lambda: raising(error)) == {"undecoded": noted}
    assert fields.guarded(lambda: 5) == 5


# -- packets


def words(opcode: int, *payload: int, extra: int = 0) -> bytes:
    return struct.pack(f"<{len(payload) + 1}I", 1 | extra << 10 | len(payload) << 12 | opcode << 23, *payload)


@pytest.mark.parametrize(
    ("data", "decoded"),
    [
        # A kernel that runs no stream: its opcode, none, and buffers of which the last ones are empty.
        (
            words(0, 1, 3, 0, 0, 0, 0, 0x1000, 0, 0, 0, 0, 0),
            {"kernel_opcode": 3, "buffers": [{"address": "0x1000"}]},
        ),
        (
            words(0, 1, 3, 0, 0, 0, 8),
            {"kernel_opcode": 3, "instructions": {"address": "0x0", "bytes": 8}, "buffers": []},
        ),
        (words(0, 1, 2, 0, 0, 0, 0), {"arguments": [f"{n:#010x}" for n in (2, 0, 0, 0, 0)]}),
        (words(0, 1, 3, 0, 0, 0), {"arguments": [f"{n:#010x}" for n in (3, 0, 0, 0)]}),
        # START_NPU: address, bytes, count of properties, these, the kernel's words.
        (
            words(20, 1, 0x4000, 1, 64, 2, 7, 8, 9),
            {
                "instructions": {"address": "0x100004000", "bytes": 64},
                "properties": ["0x00000007", "0x00000008"],
                "arguments": ["0x00000009"],
            },
        ),
        (
            words(20, 1, 0x4000, 0, 64, 1, 7),
            {
                "instructions": {"address": "0x4000", "bytes": 64},
                "properties": ["0x00000007"],
                "arguments": [],
            },
        ),
        (
            words(0, 1, 3, 0, 0x4000, 1, 64),
            {"kernel_opcode": 3, "instructions": {"address": "0x100004000", "bytes": 64}, "buffers": []},
        ),
        (
            words(20, 1, 0x4000, 0, 64, 4, 7, 8),
            {"instructions": {"address": "0x4000", "bytes": 64}, "properties": ["0x00000007", "0x00000008"]},
        ),
        (words(20, 1, 1, 2, 3), {"arguments": ["0x00000001", "0x00000002", "0x00000003"]}),
        (words(21, 1, *range(9)), {"arguments": [f"{n:#010x}" for n in range(9)]}),
        (
            words(21, 1, 1, 0, 2, 0, 3, 0, 10, 20, 30, 0),
            {
                "instructions": {"address": "0x1", "bytes": 10},
                "save": {"address": "0x2", "bytes": 20},
                "restore": {"address": "0x3", "bytes": 30},
                "properties": 0,
                "arguments": [],
            },
        ),
        (words(19, 1, 0, 0, 0, 0), {"raw": [f"{n:#010x}" for n in (1, 0, 0, 0, 0)]}),
        (words(19, 0, 0, 0, 0, 0, 0), {"members": 0, "commands": []}),
        (words(19, 0, 0, 0, 0, 0, 0, 9, 0), {"members": 0, "commands": []}),
        (
            words(19, 1, 0, 2, 0, 0, 0, 9, 0),
            {"members": 1, "error_index": 2, "commands": [{"bo": 9, "packet": None}]},
        ),
    ],
)
def test_packets(data: bytes, decoded: dict[str, Any]) -> None:
    found = decode(data.ljust(4096, b"\0"), lambda address: None, lambda handle, size: None)
    keys = ("opcode", "state", "words", "cu_mask")
    assert {key: value for key, value in found.items() if key not in keys} == decoded
    assert found["state"] == "NEW" and found["words"] == len(data) // 4 - 1


def test_a_long_chain() -> None:
    """64 members are decoded, and only those."""
    members = [n for handle in range(70) for n in (handle, 0)]
    found = decode(
        words(19, 70, 0, 0, 0, 0, 0, *members),
        lambda address: None,
        lambda handle, size: words(0, 1, 3, 0, 4096, 0, 8),
    )
    assert found["members"] == 70 and [each["bo"] for each in found["commands"]] == list(range(64))
    assert instruction_bytes(found) == 64 * 8 and instruction_bytes(None) == 0
