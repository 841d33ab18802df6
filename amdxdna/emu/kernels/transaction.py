"""Transactions that carry streams of the emulated NPU: what a control program compiled for a real one has.

Of a transaction (:mod:`amdxdna.insts.txn`) these ops are understood:

* LOADPDI names the PDI, and with it the kernel family, for what follows;
* BLOCKWRITE to DMA descriptors of a shim tile: descriptor n of column c holds buffer 16 c + n;
* BLOCKWRITE of a stream of this emulator (it begins with its magic) to a core's memory: the next kernel;
* DDR_PATCH: the address of an argument of the command goes into a descriptor (which a command without
  arguments, whose control code the host has patched, leaves as it is);
* CREATE_SCRATCHPAD says where the state table is; UPDATE_REG adds an entry of it times a number to the
  address in a descriptor, or to words of the kernel that was written last;
* TCT, the wait for a token: the kernel that was written last runs over the buffers;
* NOOP and PREEMPT, which change nothing here.

Everything else writes registers of an array that is not modelled, and is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from amdxdna.elf.patch import APERTURE
from amdxdna.emu.kernels.stream import MAGIC, StreamError
from amdxdna.insts import txn

_WORD = struct.Struct("<I")
_LONG = struct.Struct("<Q")
_COLUMN, _ROW = 25, 20
_DESCRIPTORS, _DESCRIPTOR_BYTES, _DESCRIPTOR_COUNT = 0x1D000, 0x20, 16
"""The shim's DMA descriptors (aie-rt's xaiemlgbl_params.h)."""
_MOST_BUFFERS = 26
# Firmware adds the aperture to the first five arguments; compilers fold it into the offset of later ones.
_WITHOUT_APERTURE = 5
_INERT = {txn.NOOP, txn.PREEMPT}
_MULTIPLY = 0
_ENTRY, _MOST_ENTRIES = 4, 32
"""Bytes and number of the state table's entries (mlir-aie's scratchpad parameters)."""


class Argument(NamedTuple):
    """A buffer by its place among the command's arguments, and an offset in it."""

    place: int
    plus: int


class Update(NamedTuple):
    """An UPDATE_REG: a pair of words, of buffer `number` or of the kernel from byte `at` on, becomes its sum
    with an entry of the state table times `factor`, whose low two bits are cleared.

    Facts from Xilinx/mlir-aie, which emits it for parameters (lib/Dialect/AIEX: update_from_scratchpad).
    """

    number: int | None
    at: int
    entry: int
    factor: int


@dataclass(frozen=True)
class Step:
    """A kernel's run: the stream, the PDI to load before it (0: what is loaded), and its buffers in order."""

    program: bytes
    pdi: int
    buffers: tuple[int | Argument | None, ...]
    patched: tuple[int | None, ...] = field(default=())
    """The buffers as the descriptors have them, for a command without arguments."""
    op: int = 0
    """The op that waits for it, and its byte."""
    offset: int = 0
    updates: tuple[Update, ...] = ()
    table: tuple[int, int] = (0, 0)
    """Address and bytes of the state table, if there are updates."""

    def updated(self, addresses: tuple[int, ...], table: bytes) -> tuple[bytes, tuple[int, ...]]:
        """The stream and the buffers' addresses once the state table's entries are added."""
        words = bytearray(self.program) + bytes(_ENTRY)
        places = list(addresses)
        for each in self.updates:
            delta = int.from_bytes(table[_ENTRY * each.entry :][:_ENTRY], "little") * each.factor
            if each.number is not None:
                places[each.number] = (places[each.number] + delta) % (1 << 48) & ~3
            else:
                value = _LONG.unpack_from(words, each.at)[0] + delta
                _LONG.pack_into(words, each.at, value & (1 << 64) - 4)
        return bytes(words[: len(self.program)]), tuple(places)

    def addresses(self, arguments: tuple[int, ...]) -> tuple[int, ...]:
        """Where the buffers are; 0 for one that is not described, or whose argument is not there."""
        if not arguments:
            return tuple(each or 0 for each in self.patched)
        return tuple(_address(each, arguments) for each in self.buffers)


def _address(buffer: int | Argument | None, arguments: tuple[int, ...]) -> int:
    if not isinstance(buffer, Argument):
        return buffer or 0
    base = arguments[buffer.place] if buffer.place < len(arguments) else 0
    plus = buffer.plus - (0 if buffer.place < _WITHOUT_APERTURE else APERTURE)
    return base + plus if base else 0


def is_transaction(data: bytes) -> bool:
    """Whether an instruction stream is one."""
    return txn.header(data) is not None


def own_bytes(data: bytes) -> int:
    """The length of a transaction by its own header; 0 for what is none."""
    head = txn.header(data)
    return 0 if head is None else head.size


@lru_cache(maxsize=64)
def parse(data: bytes) -> tuple[Step, ...]:
    """The kernel runs of a transaction. Raises StreamError for one that cannot run here."""
    head = txn.header(data)
    if head is None:
        raise StreamError("no transaction")
    state = _State(data)
    try:
        for index, op in enumerate(txn.ops(data, head)):
            state.take(index, op)
    except txn.Malformed as error:
        raise StreamError(f"transaction: {error}") from None
    if state.program:
        raise StreamError("transaction: nothing waits for its last kernel")
    if not state.steps:
        raise StreamError(
            "transaction: it has no kernel of the emulated NPU (compiled AIE code is not interpreted)"
        )
    return tuple(state.steps)


class _State:
    """What ops have set up so far."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.steps: list[Step] = []
        self.program = b""
        self.program_at = 0
        self.updates: list[Update] = []
        self.table = 0, 0
        self.pdi = 0
        self.written: dict[int, int] = {}
        """Number of a buffer -> address in its descriptor."""
        self.arguments: dict[int, Argument] = {}

    def word(self, at: int) -> int:
        return int(_WORD.unpack_from(self.data, at)[0])

    def take(self, index: int, op: dict[str, Any]) -> None:
        """One op, as txn.ops decodes it."""
        at = op["offset"]
        code = self.data[at]
        if code == txn.BLOCKWRITE:
            self._write(index, op)
        elif code == txn.LOADPDI:
            self.pdi = _LONG.unpack_from(self.data, at + 8)[0]
            if not self.pdi:
                raise StreamError(f"transaction: op {index}: LOADPDI without an address")
        elif code == txn.DDR_PATCH:
            self._patch(index, op)
        elif code == txn.TCT:
            if self.program:
                count = 1 + max([*self.written, *self.arguments], default=-1)
                buffers = [self.arguments.get(n, self.written.get(n)) for n in range(count)]
                self.steps.append(
                    Step(
                        self.program,
                        self.pdi,
                        tuple(buffers),
                        tuple(self.written.get(n) for n in range(count)),
                        index,
                        at,
                        tuple(self.updates),
                        self.table if self.updates else (0, 0),
                    )
                )
            self.program, self.pdi, self.updates = b"", 0, []
        elif code == txn.CREATE_SCRATCHPAD:
            self.table = _LONG.unpack_from(self.data, at + 8)[0], self.word(at + 4)
        elif code == txn.UPDATE_REG:
            self._update(index, at)
        elif code not in _INERT:
            raise StreamError(
                f"transaction: op {index}: {txn.NAMES.get(code, code)} writes to the array, "
                "which is not modelled"
            )

    def _write(self, index: int, op: dict[str, Any]) -> None:
        register, end = int(op["address"], 16), op["offset"] + op["bytes"]
        start = end - 4 * len(op["data"])
        data = self.data[start:end]
        if len(data) >= 4 and _WORD.unpack_from(data)[0] == MAGIC:
            if self.program:
                raise StreamError(f"transaction: op {index}: nothing waits for the kernel before it")
            self.program, self.program_at = data, register
            return
        for each in range(0, len(data), _DESCRIPTOR_BYTES):
            number = self._number(register + each)
            if number is None or len(data) < each + 12:
                raise StreamError(
                    f"transaction: op {index}: a write to register {register + each:#x}, which "
                    "is not modelled"
                )
            low, high = self.word(start + each + 4), self.word(start + each + 8)
            address = (high & 0xFFFF) << 32 | low & 0xFFFFFFFC
            # Host addresses end at 2^48, as descriptors' do: those of the topmost 2 GiB wrap.
            self.written[number] = (address - APERTURE) % (1 << 48)
            self.arguments.pop(number, None)

    def _update(self, index: int, at: int) -> None:
        entry, function = self.data[at + 1], self.data[at + 2]
        register = self.word(at + 8)
        number, inside = self._number(register - 4), register - self.program_at
        if number not in self.written:
            number = None
        if function != _MULTIPLY or (
            number is None and not (inside % 4 == 0 and 0 <= inside <= len(self.program) - 4)
        ):
            raise StreamError(
                f"transaction: op {index}: an update of register {register:#x}, which is not modelled"
            )
        if entry >= _MOST_ENTRIES or _ENTRY * (entry + 1) > self.table[1]:
            raise StreamError(
                f"transaction: op {index}: entry {entry} of a state table of {self.table[1]} bytes"
            )
        self.updates.append(Update(number, inside, entry, self.word(at + 4)))

    def _patch(self, index: int, op: dict[str, Any]) -> None:
        register = int(op["address"], 16)
        number = self._number(register - 4)
        if number is None:
            raise StreamError(
                f"transaction: op {index}: a patch of register {register:#x}, which is not modelled"
            )
        self.arguments[number] = Argument(op["argument"], op["plus"])

    @staticmethod
    def _number(register: int) -> int | None:
        """The number of the buffer whose descriptor begins at a register."""
        row = register >> _ROW & (1 << _COLUMN - _ROW) - 1
        number, rest = divmod((register & (1 << _ROW) - 1) - _DESCRIPTORS, _DESCRIPTOR_BYTES)
        if row or rest or not 0 <= number < _DESCRIPTOR_COUNT:
            return None
        number += (register >> _COLUMN) * _DESCRIPTOR_COUNT
        return number if number < _MOST_BUFFERS else None
