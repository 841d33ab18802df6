"""AIE transaction binaries, as the firmware of NPU1 and NPU2 runs them.

Facts from public sources: aie-rt's xaie_txn.h (header, op codes, op headers), mlir-aie's and iree-amd-aie's
NPU targets (the words they emit). All fields are little-endian. A header of 16 bytes: major, minor, device
generation, rows, columns, rows of memory tiles (a byte each), two bytes of padding, ops, size in bytes.
Version 0.1 has ops with 64-bit register offsets and their own sizes, version 1.0 shorter ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from amdxdna.aie import registers

HEADER = struct.Struct("<BBBBBB2xII")
#: Ops that are listed of one stream. Whole models' streams have some ten thousand.
MOST_OPS = 1 << 17
VERSIONS = {(0, 1), (1, 0)}
GENERATIONS = {3: "NPU1 (AIE2)", 4: "NPU2 (AIE2P)"}

WRITE, BLOCKWRITE, BLOCKSET, MASKWRITE, MASKPOLL, NOOP, PREEMPT, MASKPOLL_BUSY, LOADPDI = range(9)
LOAD_PM_START, CREATE_SCRATCHPAD, UPDATE_STATE_TABLE, UPDATE_REG, UPDATE_SCRATCH = range(9, 14)
TCT, DDR_PATCH, READ_REGS, RECORD_TIMER, MERGE_SYNC = range(0x80, 0x85)
NAMES = {
    WRITE: "WRITE",
    BLOCKWRITE: "BLOCKWRITE",
    BLOCKSET: "BLOCKSET",
    MASKWRITE: "MASKWRITE",
    MASKPOLL: "MASKPOLL",
    NOOP: "NOOP",
    PREEMPT: "PREEMPT",
    MASKPOLL_BUSY: "MASKPOLL_BUSY",
    LOADPDI: "LOADPDI",
    LOAD_PM_START: "LOAD_PM_START",
    CREATE_SCRATCHPAD: "CREATE_SCRATCHPAD",
    UPDATE_STATE_TABLE: "UPDATE_STATE_TABLE",
    UPDATE_REG: "UPDATE_REG",
    UPDATE_SCRATCH: "UPDATE_SCRATCH",
    TCT: "TCT",
    DDR_PATCH: "DDR_PATCH",
    READ_REGS: "READ_REGS",
    RECORD_TIMER: "RECORD_TIMER",
    MERGE_SYNC: "MERGE_SYNC",
}
_PREEMPT_LEVELS = {0: "noop", 1: "memory tile", 2: "compute tile", 3: "registers"}
_STATE_FUNCTIONS = {0: "multiply", 1: "increment", 2: "decrement"}


class Header(NamedTuple):
    """The transaction's header."""

    major: int
    minor: int
    generation: int
    rows: int
    columns: int
    memory_rows: int
    ops: int
    size: int

    @property
    def short(self) -> bool:
        """Whether ops have the short form of version 1.0."""
        return self.major == 1

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": f"{self.major}.{self.minor}",
            "generation": self.generation,
            "device": GENERATIONS.get(self.generation),
            "rows": self.rows,
            "columns": self.columns,
            "memory_rows": self.memory_rows,
            "ops": self.ops,
            "size": self.size,
        }


class Malformed(Exception):
    """An op that does not fit: the rest of the stream cannot be read."""


def header(data: bytes) -> Header | None:
    """The header, if `data` begins with one."""
    if len(data) < HEADER.size:
        return None
    found = Header(*HEADER.unpack_from(data))
    plausible = (
        (found.major, found.minor) in VERSIONS
        and 0 < found.columns <= 128
        and 0 < found.rows <= 32
        and found.memory_rows < found.rows
        and found.size >= HEADER.size
    )
    return found if plausible else None


class Reader:
    """Reads fields of one op, bounds-checked."""

    def __init__(self, data: bytes, at: int, head: Header) -> None:
        self.data = data
        self.at = at
        self.head = head

    def field(self, code: str, offset: int) -> int:
        """A field of the op. Raises Malformed past the end of the stream."""
        size = struct.calcsize("<" + code)
        if self.at + offset + size > len(self.data):
            raise Malformed("the stream ends inside this op")
        return int(struct.unpack_from("<" + code, self.data, self.at + offset)[0])

    def words(self, offset: int, size: int) -> list[int]:
        """The words from `offset` to the op's end."""
        if size < offset or size % 4 or self.at + size > len(self.data):
            raise Malformed(f"its size of {size} bytes does not fit")
        return list(struct.unpack_from(f"<{(size - offset) // 4}I", self.data, self.at + offset))

    def place(self, address: int) -> dict[str, Any]:
        """An address with its tile and register."""
        tile = registers.tile_of(address, self.head.memory_rows)
        return {
            "address": f"{address:#x}",
            "tile": [tile.column, tile.row],
            "register": registers.name_of(tile),
        }


def ops(data: bytes, head: Header) -> Iterator[dict[str, Any]]:
    """The ops, in order. Raises Malformed where the stream cannot be read any further."""
    at = HEADER.size
    end = min(len(data), head.size)
    data = data[:end]
    for count in range(head.ops):
        if at >= end:
            raise Malformed("the stream ends before its last op")
        if count == MOST_OPS:
            raise Malformed(f"more than {MOST_OPS:,} ops: the rest is not read")
        reader = Reader(data, at, head)
        code = data[at]
        decode = DECODERS.get(code)
        if decode is None:
            raise Malformed(f"op code {code:#x} at byte {at} is unknown, and so is its length")
        try:
            size, fields = decode(reader, code)
            if size < 4 or size % 4 or at + size > end:
                raise Malformed(f"its size of {size} bytes does not fit")
        except Malformed as wrong:
            raise Malformed(f"{NAMES[code]} at byte {at}: {wrong}") from None
        yield {"offset": at, "op": NAMES[code], "bytes": size, **fields}
        at += size


Decoded = tuple[int, dict[str, Any]]


def _write(r: Reader, code: int) -> Decoded:
    if r.head.short:
        address, value, size = r.field("I", 4), r.field("I", 8), 12
    else:
        address, value, size = r.field("Q", 8), r.field("I", 16), r.field("I", 20)
    result = {**r.place(address), "value": f"{value:#010x}"}
    started = registers.task(registers.tile_of(address, r.head.memory_rows), value)
    if started:
        result["task"] = started
    return size, result


def _masked(r: Reader, code: int) -> Decoded:
    if r.head.short:
        address, value, mask, size = r.field("I", 4), r.field("I", 8), r.field("I", 12), 16
    else:
        address, value, mask = r.field("Q", 8), r.field("I", 16), r.field("I", 20)
        size = r.field("I", 24)
    return size, {**r.place(address), "value": f"{value:#010x}", "mask": f"{mask:#010x}"}


def _block(r: Reader, code: int) -> Decoded:
    first = 4 if r.head.short else 8
    address, size = r.field("I", first), r.field("I", first + 4)
    words = r.words(first + 8, size)
    result = {**r.place(address), "data": [f"{word:#010x}" for word in words]}
    found = registers.descriptor(registers.tile_of(address, r.head.memory_rows), words)
    if found:
        result["descriptors"] = found
    return size, result


def _wait_for_tokens(r: Reader, code: int) -> Decoded:
    size, word, config = r.field("I", 4), r.field("I", 8), r.field("I", 12)
    return size, {
        "direction": "MM2S" if word & 0xFF else "S2MM",
        "channel": config >> 24 & 0xFF,
        "tile": [word >> 16 & 0xFF, word >> 8 & 0xFF],
        "columns": config >> 16 & 0xFF,
        "rows": config >> 8 & 0xFF,
    }


def _patch(r: Reader, code: int) -> Decoded:
    size = r.field("I", 4)
    if size == 24:
        address, argument, plus = r.field("I", 8), r.field("B", 12), r.field("Q", 16)
    else:
        address, argument, plus = r.field("Q", 24), r.field("Q", 32), r.field("Q", 40)
    return size, {**r.place(address), "argument": argument, "plus": plus}


def _read_registers(r: Reader, code: int) -> Decoded:
    """A count and as many addresses: words in what mlir-aie emits, 64-bit ones in aie-rt's struct."""
    size = r.field("I", 4)
    words = r.words(8, size)
    if words and size == 12 + 4 * words[0]:
        return size, {"registers": [r.place(address) for address in words[1:]]}
    if words and size >= 16 + 8 * words[0]:
        return size, {"registers": [r.place(address) for address in words[2 : 2 + 2 * words[0] : 2]]}
    return size, {"data": [f"{word:#010x}" for word in words]}


def _timer(r: Reader, code: int) -> Decoded:
    return r.field("I", 4), {"id": r.field("I", 8)}


def _merge(r: Reader, code: int) -> Decoded:
    word = r.field("I", 8)
    return r.field("I", 4), {"tokens": word & 0xFF, "columns": word >> 8 & 0xFF}


def _nothing(r: Reader, code: int) -> Decoded:
    return 4, {}


def _preempt(r: Reader, code: int) -> Decoded:
    level = r.field("B", 1)
    return 4, {"level": _PREEMPT_LEVELS.get(level, level)}


def _load_pdi(r: Reader, code: int) -> Decoded:
    return 16, {"pdi": r.field("H", 2), "size": r.field("I", 4), "address": f"{r.field('Q', 8):#x}"}


def _load_program(r: Reader, code: int) -> Decoded:
    return 8, {"sequences": r.field("I", 0) >> 8, "id": r.field("I", 4)}


def _scratchpad(r: Reader, code: int) -> Decoded:
    return 16, {"usage": r.field("B", 1), "size": r.field("I", 4), "scratch_offset": f"{r.field('Q', 8):#x}"}


def _state(r: Reader, code: int) -> Decoded:
    function = r.field("B", 2)
    return 8, {
        "index": r.field("B", 1),
        "function": _STATE_FUNCTIONS.get(function, function),
        "operand": r.field("I", 4),
    }


def _state_register(r: Reader, code: int) -> Decoded:
    _, fields = _state(r, code)
    return 12, {**fields, **r.place(r.field("I", 8))}


DECODERS: dict[int, Callable[[Reader, int], Decoded]] = {
    WRITE: _write,
    BLOCKWRITE: _block,
    BLOCKSET: _block,
    MASKWRITE: _masked,
    MASKPOLL: _masked,
    NOOP: _nothing,
    PREEMPT: _preempt,
    MASKPOLL_BUSY: _masked,
    LOADPDI: _load_pdi,
    LOAD_PM_START: _load_program,
    CREATE_SCRATCHPAD: _scratchpad,
    UPDATE_STATE_TABLE: _state,
    UPDATE_REG: _state_register,
    UPDATE_SCRATCH: _nothing,
    TCT: _wait_for_tokens,
    DDR_PATCH: _patch,
    READ_REGS: _read_registers,
    RECORD_TIMER: _timer,
    MERGE_SYNC: _merge,
}
