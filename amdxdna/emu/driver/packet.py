"""ERT command packets, read and answered as the driver does (aie2_message.c, amdxdna_ctx.c of Linux 7.3).

A packet that the driver rejects never reaches the firmware: its command completes with the state it had.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from amdxdna.emu.driver.bo import Bo
from amdxdna.emu.npu import Slot, SlotType
from amdxdna.emu.npu.slot import KERNEL_OP_TXN, MAX_ARGUMENT_WORDS
from amdxdna.packet import STATE_MASK, Opcode, mask_words, opcode_of, payload_words

CHAIN_BUFFER = 4096
"""Bytes of the buffer in which the driver builds a chain's slots."""
SLOT_HEADER = 52
CHAIN_HEADER = 24
_FILL = 1 << 20


class Rejected(Exception):
    """The driver refuses the packet."""


_WORD = struct.Struct("<I")
_START_NPU = struct.Struct("<QII")
_PREEMPT = struct.Struct("<QQQIIII")


def header(bo: Bo) -> int:
    """The packet's first word."""
    return int(_WORD.unpack_from(bo.words(), 0)[0])


def set_state(bo: Bo, state: int) -> None:
    """Changes the state in the packet's first word."""
    words = bo.words()
    _WORD.pack_into(words, 0, _WORD.unpack_from(words, 0)[0] & ~STATE_MASK | state)


def is_chain(bo: Bo) -> bool:
    """Whether the packet is a chain."""
    return opcode_of(header(bo)) == Opcode.CMD_CHAIN


def parse(bo: Bo, lookup: Callable[[int], Bo | None], fixed: int = 0) -> list[Slot]:
    """The slots of the packet in `bo`; `lookup` finds a chain's members by handle. Raises Rejected.

    `fixed`: argument words of a single START_CU that are taken whatever its count says; 0: as many as that.
    """
    word = header(bo)
    if opcode_of(word) != Opcode.CMD_CHAIN:
        slot = _slot(bo, word, CHAIN_BUFFER)[0]
        if fixed and slot.type == SlotType.START_CU:
            at = 4 + 4 * mask_words(word)
            slot.args = struct.unpack_from(f"<{fixed}I", bo.words(), at)
        return [slot]
    count = payload_words(word)
    if not count or 4 + 4 * count > bo.size:
        raise Rejected
    words = bo.words()
    members = _WORD.unpack_from(words, 4)[0]
    if not members or 4 * count < CHAIN_HEADER + 8 * members:
        raise Rejected
    slots: list[Slot] = []
    room = CHAIN_BUFFER
    kind = -1
    for handle in struct.unpack_from(f"<{members}Q", words, 4 + CHAIN_HEADER):
        member = lookup(handle & 0xFFFFFFFF)
        if member is None:
            raise Rejected
        word = header(member)
        kind = opcode_of(word) if kind < 0 else kind
        if opcode_of(word) != kind:
            raise Rejected
        slot, size = _slot(member, word, room)
        room -= size
        slots.append(slot)
    return slots


def _slot(bo: Bo, word: int, room: int) -> tuple[Slot, int]:
    """The slot of one packet and the bytes it takes in the chain buffer, of which `room` are left."""
    words = bo.words()
    masks = mask_words(word)
    count = payload_words(word)
    # A count of no payload, or beyond the BO, reads as an empty payload.
    payload = 4 * (count - masks) if masks < count and 4 + 4 * count <= bo.size else 0
    at = 4 + 4 * masks
    kind = opcode_of(word)
    if kind == Opcode.START_CU:
        _check(payload, 0, room, CHAIN_BUFFER)  # how many are too many is the firmware's to say
        args = struct.unpack_from(f"<{payload // 4}I", words, at)
        return Slot(SlotType.START_CU, _cu(words, masks), args), SLOT_HEADER + payload
    if kind == Opcode.START_NPU:
        extra = _check(payload, _START_NPU.size, room)
        instructions, size, properties = _START_NPU.unpack_from(words, at)
        args = struct.unpack_from(f"<{extra // 4}I", words, at + _START_NPU.size)
        return Slot(
            SlotType.START_NPU, _cu(words, masks), args, instructions, size, properties=properties
        ), SLOT_HEADER + extra
    if kind not in (Opcode.START_NPU_PREEMPT, Opcode.START_NPU_PREEMPT_ELF):
        raise Rejected
    extra = _check(payload, _PREEMPT.size, room)
    instructions, save, restore, size, save_size, restore_size, properties = _PREEMPT.unpack_from(words, at)
    if kind == Opcode.START_NPU_PREEMPT:
        slot = Slot(
            SlotType.PREEMPTIBLE,
            _cu(words, masks),
            struct.unpack_from(f"<{extra // 4}I", words, at + _PREEMPT.size),
        )
        used = SLOT_HEADER + extra
    else:
        slot = Slot(SlotType.ELF, 0, (KERNEL_OP_TXN,))
        used = SLOT_HEADER + 4
    slot.instructions, slot.instruction_bytes = instructions, size
    slot.save, slot.save_bytes = save, save_size
    slot.restore, slot.restore_bytes = restore, restore_size
    slot.properties = properties
    return slot, used


def _check(payload: int, fixed: int, room: int, most: int = 4 * MAX_ARGUMENT_WORDS) -> int:
    """Bytes of arguments behind the fixed part of a payload. Raises Rejected."""
    extra = payload - fixed
    if extra < 0 or extra > most or SLOT_HEADER + extra > room:
        raise Rejected
    return extra


def _cu(words: object, masks: int) -> int:
    """The CU: lowest bit of the first mask word that has one. Raises Rejected when none has."""
    for mask in struct.unpack_from(f"<{masks}I", words, 4):  # type: ignore[arg-type]
        if mask:
            return (int(mask) & -int(mask)).bit_length() - 1
    raise Rejected


def set_index(bo: Bo, failed: int) -> int:
    """Writes the failing member's index into a chain; the index written."""
    words = bo.words()
    index = failed if failed < _WORD.unpack_from(words, 4)[0] else 0
    _WORD.pack_into(words, 12, index)
    return index


def member(bo: Bo, index: int, lookup: Callable[[int], Bo | None]) -> Bo | None:
    """The BO of a chain's member `index`; None where its handle names none."""
    return lookup(_WORD.unpack_from(bo.words(), 4 + CHAIN_HEADER + 8 * index)[0])


def overwrite(bo: Bo, data: bytes, fill: bool) -> None:
    """Writes `data` over a packet's payload, and 0xFF over the rest of the BO where `fill` says so."""
    payload = bo.words()
    if fill:
        for at in range(4, bo.size, _FILL):
            size = min(_FILL, bo.size - at)
            payload[at : at + size] = b"\xff" * size
    payload[4 : 4 + len(data)] = data
