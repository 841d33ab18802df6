"""What a PDI's commands leave in the array: registers, programs and data of every tile.

Commands are applied in order; a mask write takes the register's reset value, 0, for what nobody has written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from amdxdna.aie import registers
from amdxdna.aie.registers import COMPUTE, DATA_BYTES, MEMORY, PROGRAM, PROGRAM_BYTES, Tile, tile_of
from amdxdna.pdi.commands import BLOCK_SET, KEYHOLE, MASK_WRITE, MASK_WRITE_64, WRITE, WRITE_64, Command
from amdxdna.pdi.commands import BLOCK_WRITE as BLOCK

_TILE_BYTES = 1 << registers.ROW_SHIFT
TOP_ROW = 5
"""The last row of compute tiles on NPU1 and NPU2."""


@dataclass(frozen=True)
class Start:
    """A DMA channel started: its direction and number, first descriptor, runs, whether it gives a token."""

    direction: str
    channel: int
    bd: int
    repeat: int
    token: bool


@dataclass
class TileState:
    """One tile after the PDI. ``registers``: value by offset; ``program``: up to the last byte written;
    ``data_bytes``: written to data memory; ``starts``: DMA channels, in order."""

    column: int
    row: int
    kind: str
    registers: dict[int, int] = field(default_factory=dict)
    program: bytearray = field(default_factory=bytearray)
    data_bytes: int = 0
    starts: list[Start] = field(default_factory=list)

    @property
    def running(self) -> bool:
        """Whether the core is left enabled and out of reset."""
        return self.kind == COMPUTE and self.registers.get(registers.CORE_CONTROL, 0) & 3 == 1

    def descriptors(self) -> dict[int, tuple[int, ...]]:
        """Words of the DMA descriptors that are written whole, by number."""
        dma = registers.DMAS[self.kind]
        found = {}
        for number in range(dma.number):
            at = dma.bds + number * registers.BD_STEP
            words = [self.registers.get(at + 4 * i) for i in range(dma.words)]
            if None not in words:
                found[number] = tuple(word for word in words if word is not None)
        return found

    def locks(self) -> dict[int, int]:
        """Values of the locks that are written, by number."""
        base, count = registers.LOCKS[self.kind]
        return {
            number: self.registers[base + number * registers.LOCK_STEP]
            for number in range(count)
            if base + number * registers.LOCK_STEP in self.registers
        }


@dataclass
class Array:
    """All tiles that are written, by (column, row); what was not understood; how many words were written."""

    tiles: dict[tuple[int, int], TileState] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    commands: int = 0
    unknown_commands: int = 0
    words: int = 0
    unknown_words: int = 0
    """Words written where neither a register nor a memory is known."""

    @property
    def columns(self) -> int:
        """Columns that the commands reach."""
        return max((column for column, _ in self.tiles), default=-1) + 1

    def get(self, column: int, row: int) -> TileState | None:
        """A tile, or None when nothing is written to it."""
        return self.tiles.get((column, row))

    def apply(self, found: Iterable[Command]) -> Array:
        """Carries out commands in order and returns itself. Raises what the iterator does."""
        for command in found:
            self.commands += 1
            self._one(command)
        return self

    def _one(self, command: Command) -> None:
        if not command.known:
            self.unknown_commands += 1
            self._problem(command, f"unknown command {command.number:#x}")
        elif command.number in (WRITE, WRITE_64, MASK_WRITE, MASK_WRITE_64):
            self._register(command)
        elif command.number == BLOCK:
            self._block(command, command.data)
            if command.missing:
                self._problem(
                    command, f"the image ends {4 * command.missing} bytes before this block write does"
                )
        elif command.number == BLOCK_SET:
            count = command.payload[2]
            if count > _TILE_BYTES // 4:
                self._problem(command, f"sets {count} words, more than a tile has")
            else:
                self._block(command, (command.value,) * count)
        elif command.number == KEYHOLE:
            self._problem(command, "a keyhole write: its words are not followed")

    def _problem(self, command: Command, what: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"{command.name} at byte {command.offset}: {what}")

    def _tile(self, place: Tile) -> TileState:
        key = place.column, place.row
        found = self.tiles.get(key)
        if found is None:
            found = self.tiles[key] = TileState(place.column, place.row, place.kind)
        return found

    def _place(self, command: Command, size: int) -> Tile | None:
        """Where a command writes `size` bytes; None, and a problem, outside the array."""
        address = command.address
        if address is None or address >> 32 or address % 4:
            self._problem(command, f"address {address if address is None else hex(address)}")
            return None
        place = tile_of(address)
        if place.row > TOP_ROW or place.offset + size > _TILE_BYTES:
            self._problem(
                command, f"({place.column},{place.row}) {place.offset:#x}, {size} bytes: outside the array"
            )
            return None
        return place

    def _register(self, command: Command) -> None:
        place = self._place(command, 4)
        if place is None:
            return
        tile = self._tile(place)
        old = tile.registers.get(place.offset, 0)
        self._set(tile, place, old & ~command.mask & 0xFFFFFFFF | command.value & command.mask)

    def _set(self, tile: TileState, place: Tile, value: int) -> None:
        self.words += 1
        if _memory(place.kind, place.offset):
            self._store(tile, place.offset, (value,))
            return
        if registers.name_of(place) is None:
            self.unknown_words += 1
        tile.registers[place.offset] = value
        started = registers.task(place, value)
        if started is not None:
            tile.starts.append(
                Start(
                    started["direction"].lower(),
                    started["channel"],
                    started["bd"],
                    started["repeat"],
                    started["token"],
                )
            )

    def _block(self, command: Command, words: tuple[int, ...]) -> None:
        place = self._place(command, 4 * len(words))
        if place is None:
            return
        tile = self._tile(place)
        end = place.offset + 4 * len(words)
        first, last = _memory(place.kind, place.offset), _memory(place.kind, max(end - 4, place.offset))
        if first and first == last:
            self.words += len(words)
            self._store(tile, place.offset, words)
            return
        for index, word in enumerate(words):
            self._set(tile, place._replace(offset=place.offset + 4 * index), word)

    def _store(self, tile: TileState, offset: int, words: tuple[int, ...]) -> None:
        """Writes words into program or data memory."""
        if _memory(tile.kind, offset) == "data":
            tile.data_bytes += 4 * len(words)
            return
        at = offset - PROGRAM
        if len(tile.program) < at + 4 * len(words):
            tile.program.extend(bytes(at + 4 * len(words) - len(tile.program)))
        tile.program[at : at + 4 * len(words)] = b"".join(word.to_bytes(4, "little") for word in words)


_MOST_PROBLEMS = 100


def _memory(kind: str, offset: int) -> str:
    """ "program" or "data" where a tile's offset is memory, else nothing."""
    if offset < DATA_BYTES.get(kind, 0):
        return "data"
    if kind == COMPUTE and PROGRAM <= offset < PROGRAM + PROGRAM_BYTES:
        return "program"
    return ""


__all__ = ["Array", "COMPUTE", "MEMORY", "Start", "TileState", "TOP_ROW"]
