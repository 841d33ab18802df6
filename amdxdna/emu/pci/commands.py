"""Command lists and single commands of a context's channel, decoded to the NPU model's slots.

A list is a packed array of slots: a header that depends on the opcode, the number of argument words, and
those words (drivers/accel/amdxdna/aie2_msg_priv.h: cmd_chain_slot_npu, _dpu, _execbuf_cf).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from amdxdna.emu.npu import Slot, SlotType

EXECUTE_BUFFER, EXECUTE_DPU, EXECUTE_NPU = 0x0C, 0x10, 0x17
CHAIN_BUFFER, CHAIN_DPU, CHAIN_NPU = 0x12, 0x13, 0x18
CHAINS = (CHAIN_BUFFER, CHAIN_DPU, CHAIN_NPU)
SINGLES = (EXECUTE_BUFFER, EXECUTE_DPU, EXECUTE_NPU)
# The first protocol with the NPU commands (npu4_regs.c: AIE2_NPU_COMMAND).
SINCE = {EXECUTE_NPU: (6, 15), CHAIN_NPU: (6, 15)}
MAX_LIST_BYTES = 0x1000

_BUFFER = struct.Struct("<I")
_DPU = struct.Struct("<QIII")
_NPU = struct.Struct("<IQQQIIIII")
_COUNT = struct.Struct("<I")
_NPU_LIST = struct.Struct("<8xQII")
_OLDER_LIST = struct.Struct("<QII")


class BadCommand(Exception):
    """The list is not one the driver writes; `index` is the slot that is wrong."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


def _buffer(header: bytes) -> Slot:
    return Slot(SlotType.START_CU, *_BUFFER.unpack(header))


def _dpu(header: bytes) -> Slot:
    instructions, size, properties, cu = _DPU.unpack(header)
    return Slot(SlotType.START_NPU, cu, (), instructions, size, properties=properties)


def _npu(header: bytes) -> Slot:
    kind, instructions, save, restore, size, save_size, restore_size, properties, cu = _NPU.unpack(header)
    return Slot(kind, cu, (), instructions, size, save, save_size, restore, restore_size, properties)


_HEADERS: dict[int, tuple[int, Callable[[bytes], Slot]]] = {
    CHAIN_BUFFER: (_BUFFER.size, _buffer),
    EXECUTE_BUFFER: (_BUFFER.size, _buffer),
    CHAIN_DPU: (_DPU.size, _dpu),
    EXECUTE_DPU: (_DPU.size, _dpu),
    CHAIN_NPU: (_NPU.size, _npu),
    EXECUTE_NPU: (_NPU.size, _npu),
}


def list_location(opcode: int, body: bytes) -> tuple[int, int, int]:
    """Address, bytes and slot count of the list a chain message names.

    Raises BadCommand for a body of the wrong size or a list longer than the 4 KiB the driver's buffers have.
    """
    # Drivers that know the NPU lists pad the older, shorter message to the newer one's size.
    if len(body) != _NPU_LIST.size and (opcode == CHAIN_NPU or len(body) != _OLDER_LIST.size):
        raise BadCommand(0, f"a chain message of {len(body)} bytes")
    layout = _NPU_LIST if opcode == CHAIN_NPU else _OLDER_LIST
    address, size, count = layout.unpack_from(body)
    if not 0 < size <= MAX_LIST_BYTES or not count:
        raise BadCommand(0, f"a list of {count} commands in {size} bytes")
    return address, size, count


def decode_list(opcode: int, data: bytes, count: int) -> list[Slot]:
    """The slots of a list. Raises BadCommand where one runs past the end, or bytes are left over."""
    header_size, build = _HEADERS[opcode]
    slots, at = [], 0
    for index in range(count):
        end = at + header_size + _COUNT.size
        if end > len(data):
            raise BadCommand(index, "the list ends inside a command")
        slot = build(data[at : at + header_size])
        (words,) = _COUNT.unpack_from(data, at + header_size)
        at = end + 4 * words
        if at > len(data):
            raise BadCommand(index, f"{words} argument words run past the list's end")
        slot.args = struct.unpack_from(f"<{words}I", data, end)
        slots.append(slot)
    if at != len(data):
        raise BadCommand(count - 1, f"{len(data) - at} bytes behind the last command")
    return slots


def decode_single(opcode: int, body: bytes) -> Slot:
    """The command of a single-command message, whose argument words fill the rest of the body."""
    if opcode == EXECUTE_NPU:
        body = body[4:]
    header_size, build = _HEADERS[opcode]
    if len(body) < header_size or len(body) % 4:
        raise BadCommand(0, f"a command of {len(body)} bytes")
    slot = build(body[:header_size])
    words = struct.unpack(f"<{(len(body) - header_size) // 4}I", body[header_size:])
    # The message has a fixed number of argument words, more than any command uses.
    slot.args = words[:26]
    return slot
