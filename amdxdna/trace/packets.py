"""Command packets, decoded. Layouts: amdxdna_ctx.h of the driver; see :mod:`amdxdna.packet`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from amdxdna import packet
from amdxdna.packet import Opcode
from amdxdna.trace.fields import STATES, guarded, hexadecimal, named

OPCODES = {opcode.value: opcode.name for opcode in Opcode}
_MOST_MEMBERS = 64
_PREEMPT = struct.Struct("<QQQIIII")

Find = Callable[[int], tuple[int, int] | None]
"""(BO handle, offset in it) of a device address, if a BO is known there."""
ReadBo = Callable[[int, int], bytes | None]
"""The first bytes of a BO, by handle; None when they cannot be reached."""


def place(address: int, find: Find) -> dict[str, Any]:
    """An address with the BO it lies in."""
    where: dict[str, Any] = {"address": hexadecimal(address)}
    found = find(address)
    if found is not None:
        where["bo"], where["offset"] = found
    return where


def state_of(data: bytes) -> int:
    """The state in a packet's header."""
    return packet.state_of(data[0])


def decode(data: bytes, find: Find, read: ReadBo) -> dict[str, Any]:
    """A packet as a dictionary; words that do not fit its opcode are shown raw."""
    (head,) = struct.unpack_from("<I", data)
    opcode, count, masks = packet.opcode_of(head), packet.payload_words(head), packet.mask_words(head)
    payload = struct.unpack_from(f"<{min(count, len(data) // 4 - 1)}I", data, 4)
    result: dict[str, Any] = {
        "opcode": named(OPCODES, opcode),
        "state": named(STATES, packet.state_of(head)),
        "words": count,
    }
    if opcode == Opcode.CMD_CHAIN:
        result.update(_chain(payload, find, read))
        return result
    if opcode not in OPCODES or len(payload) < masks:
        result["raw"] = [f"{word:#010x}" for word in payload]
        return result
    result["cu_mask"] = payload[0] if masks == 1 else list(payload[:masks])
    arguments = payload[masks:]
    if opcode == Opcode.START_CU:
        result.update(_kernel(arguments, find))
    elif opcode == Opcode.START_NPU:
        result.update(_start_npu(arguments, find))
    else:
        result.update(_preempt(arguments, find))
    return result


def _kernel(arguments: tuple[int, ...], find: Find) -> dict[str, Any]:
    """The argument words of a kernel that runs an instruction stream."""
    if len(arguments) < 5 or arguments[0] != packet.RUN_INSTRUCTIONS:
        return {"arguments": [f"{word:#010x}" for word in arguments]}
    result: dict[str, Any] = {"kernel_opcode": arguments[0]}
    address = arguments[2] | arguments[3] << 32
    if address or arguments[4]:
        result["instructions"] = {**place(address, find), "bytes": arguments[4]}
    result["buffers"] = _buffers(arguments[5:], find)
    return result


def _buffers(words: tuple[int, ...], find: Find) -> list[dict[str, Any]]:
    addresses = [low | high << 32 for low, high in zip(words[::2], words[1::2], strict=False)]
    while addresses and not addresses[-1]:
        addresses.pop()
    return [place(address, find) for address in addresses]


def _start_npu(arguments: tuple[int, ...], find: Find) -> dict[str, Any]:
    if len(arguments) < 4:
        return {"arguments": [f"{word:#010x}" for word in arguments]}
    low, high, size, properties = arguments[:4]
    rest = arguments[4:]
    result = _kernel(rest[properties:], find) if properties <= len(rest) else {}
    result["instructions"] = {**place(low | high << 32, find), "bytes": size}
    if properties:
        result["properties"] = [f"{word:#010x}" for word in rest[:properties]]
    return result


def _preempt(arguments: tuple[int, ...], find: Find) -> dict[str, Any]:
    data = struct.pack(f"<{len(arguments)}I", *arguments)
    if len(data) < _PREEMPT.size:
        return {"arguments": [f"{word:#010x}" for word in arguments]}
    code, save, restore, size, save_size, restore_size, properties = _PREEMPT.unpack_from(data)
    return {
        "instructions": {**place(code, find), "bytes": size},
        "save": {**place(save, find), "bytes": save_size},
        "restore": {**place(restore, find), "bytes": restore_size},
        "properties": properties,
        "arguments": [f"{word:#010x}" for word in arguments[_PREEMPT.size // 4 :]],
    }


def _chain(payload: tuple[int, ...], find: Find, read: ReadBo) -> dict[str, Any]:
    if len(payload) < 6:
        return {"raw": [f"{word:#010x}" for word in payload]}
    result: dict[str, Any] = {"members": payload[0]}
    if payload[2] not in (0, packet.UNTOUCHED):
        result["error_index"] = payload[2]
    handles = payload[6::2][: min(payload[0], _MOST_MEMBERS)]
    result["commands"] = [
        {"bo": handle, "packet": guarded(partial(_member, handle, find, read))} for handle in handles
    ]
    return result


def _member(handle: int, find: Find, read: ReadBo) -> dict[str, Any] | None:
    data = read(handle, packet.CMD_BYTES)
    if data is None:
        return None
    if packet.opcode_of(struct.unpack_from("<I", data)[0]) == Opcode.CMD_CHAIN:
        return {"opcode": "CMD_CHAIN"}  # chains do not nest
    return decode(data, find, read)


def instruction_bytes(decoded: dict[str, Any] | None) -> int:
    """The sum of the instructions of a decoded packet."""
    if not decoded:
        return 0
    if "commands" in decoded:
        return sum(instruction_bytes(member.get("packet")) for member in decoded["commands"])
    return int(decoded.get("instructions", {}).get("bytes", 0))


def health(data: bytes) -> str | None:
    """The health report of a timed-out packet in words."""
    report = packet.health(struct.unpack_from("<8I", data, 4))
    return None if report is None else str(report)
