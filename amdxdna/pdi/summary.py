"""A PDI in a document and in lines that a person can read: tiles, programs, DMA, locks, streams."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from amdxdna.aie import registers
from amdxdna.aie.registers import COMPUTE, MEMORY, SHIM, tile_of
from amdxdna.pdi.array import Array, TileState
from amdxdna.pdi.commands import BLOCK_WRITE, MASK_WRITE, MASK_WRITE_64, Command, commands
from amdxdna.pdi.image import BadPdi, Image
from amdxdna.pdi.routes import End, Route, routes

_KINDS = ((COMPUTE, "compute"), (MEMORY, "memory"), (SHIM, "shim"))
_MANY = 4
"""Ends of one kind that are listed one by one; more are counted."""


@dataclass(frozen=True)
class Program:
    """A core program and the cores that hold it. ``size``: to its last byte written; ``data_bytes``: written
    to each core's data memory."""

    letter: str
    size: int
    data_bytes: int
    tiles: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Summary:
    """All of a PDI, decoded: see :func:`summarise`."""

    image: Image
    array: Array
    columns: int
    programs: tuple[Program, ...]
    routes: tuple[Route, ...]
    problems: tuple[str, ...]

    def letter(self, column: int, row: int) -> str:
        """The letter of the program that a core holds; empty where it holds none."""
        return next((program.letter for program in self.programs if (column, row) in program.tiles), "")


def summarise(image: Image, columns: int | None = None) -> Summary:
    """Decodes an image for a partition of `columns` (None: as many as it writes to)."""
    array = Array()
    problems = list(image.problems)
    try:
        array.apply(commands(image))
    except BadPdi as error:
        problems.append(f"{error}; what follows is not decoded")
    width = columns or array.columns
    if array.columns > width:
        problems.append(f"it writes to {array.columns} columns, the partition has {width}")
    return Summary(
        image,
        array,
        width,
        tuple(_programs(array)),
        tuple(routes(array, width)),
        (*problems, *array.problems),
    )


def _programs(array: Array) -> list[Program]:
    groups: dict[tuple[bytes, int], list[TileState]] = {}
    for place in sorted(array.tiles, key=lambda key: (key[1], key[0])):
        tile = array.tiles[place]
        if tile.program:
            groups.setdefault((hashlib.blake2b(tile.program).digest(), tile.data_bytes), []).append(tile)
    ordered = sorted(groups.values(), key=lambda tiles: -len(tiles))
    return [
        Program(
            _letter(number),
            len(tiles[0].program),
            tiles[0].data_bytes,
            tuple((tile.column, tile.row) for tile in tiles),
        )
        for number, tiles in enumerate(ordered)
    ]


def _letter(number: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(ord("A") + digit) + text
    return text


def document(summary: Summary) -> dict[str, Any]:
    """The summary for JSON."""
    image, array = summary.image, summary.array
    return {
        "name": image.name,
        "bytes": len(image.data),
        "form": "transformed" if image.transformed else "plain",
        "commands": array.commands,
        "unknown_commands": array.unknown_commands,
        "words": array.words,
        "unknown_words": array.unknown_words,
        "columns": summary.columns,
        "problems": list(summary.problems),
        "tiles": [_tile(summary, array.tiles[place]) for place in sorted(array.tiles)],
        "programs": [
            {
                "program": p.letter,
                "bytes": p.size,
                "data_bytes": p.data_bytes,
                "tiles": [list(tile) for tile in p.tiles],
            }
            for p in summary.programs
        ],
        "routes": [
            {
                "from": _port(route.source),
                "to": [
                    {
                        **_port(end.port),
                        "packet_id": end.packet.id if end.packet.mask else None,
                        "packet_mask": end.packet.mask or None,
                        "fault": end.fault or None,
                    }
                    for end in route.ends
                ],
            }
            for route in summary.routes
        ],
    }


def _port(port: Any) -> dict[str, Any]:
    return {"tile": [port.column, port.row], "port": port.name}


def _tile(summary: Summary, tile: TileState) -> dict[str, Any]:
    place = tile_of(tile.column << registers.COLUMN_SHIFT | tile.row << registers.ROW_SHIFT)
    dma = registers.DMAS[tile.kind]
    described = []
    for number, words in tile.descriptors().items():
        at = place._replace(offset=dma.bds + number * registers.BD_STEP)
        described += registers.descriptor(at, list(words))
    return {
        "tile": [tile.column, tile.row],
        "kind": tile.kind,
        "running": tile.running,
        "program": summary.letter(tile.column, tile.row) or None,
        "program_bytes": len(tile.program),
        "data_bytes": tile.data_bytes,
        "descriptors": described,
        "starts": [asdict(start) for start in tile.starts],
        "locks": {str(number): value for number, value in tile.locks().items()},
    }


def command_line(command: Command) -> dict[str, Any]:
    """A command for JSON and for listing: offset, name, and where it writes what."""
    found: dict[str, Any] = {"offset": command.offset, "command": command.name}
    if command.address is not None and not command.address >> 32:
        tile = tile_of(command.address)
        found |= {
            "address": f"{command.address:#010x}",
            "tile": [tile.column, tile.row],
            "register": registers.name_of(tile),
        }
    elif command.address is not None:
        found["address"] = f"{command.address:#x}"
    if command.number == BLOCK_WRITE:
        found |= {"words": command.words, "data": [f"{word:#010x}" for word in command.data]}
    elif command.address is not None:
        found["value"] = f"{command.value:#010x}"
        if command.number in (MASK_WRITE, MASK_WRITE_64):
            found["mask"] = f"{command.mask:#010x}"
    else:
        found["payload"] = [f"{word:#010x}" for word in command.payload]
    return found


# -- lines


def lines(summary: Summary) -> list[str]:
    """The summary as text, without its first line's file and number."""
    array = summary.array
    cores = [tile for tile in array.tiles.values() if tile.kind == COMPUTE]
    running = [tile for tile in cores if tile.running]
    empty = [tile for tile in running if not tile.program]
    said = [
        f"tiles     {_count(summary.columns, 'column')}; {len(running)} of {_count(len(cores), 'core')} run, "
        f"{_count(len(summary.programs), 'program')}"
        + (f"; {len(empty)} without one here (the instructions load it)" if empty else "")
    ]
    bare = [tile for tile in cores if not tile.running and not tile.program]
    passing = [tile for tile in bare if not tile.descriptors()]
    if passing:
        said.append(f"          {_places(passing)} only pass streams on")
    if len(bare) > len(passing):
        waiting = [tile for tile in bare if tile.descriptors()]
        said.append(f"          {_many(waiting)} left for the instructions to load and start")
    for index, program in enumerate(summary.programs):
        said.append(
            f"{'program' if index == 0 else '':<10}{program.letter:<3}{program.size} bytes, data "
            f"{program.data_bytes}, in {len(program.tiles)}: {_tiles(program.tiles)}"
        )
    said.append("dma       " + "; ".join(_dma(array, kind, label) for kind, label in _KINDS))
    locks = [value for tile in array.tiles.values() for value in tile.locks().values()]
    if locks:
        said.append(f"locks     {sum(value != 0 for value in locks)} set to a count, {locks.count(0)} to 0")
    loose = sum(bool(end.fault) for route in summary.routes for end in route.ends)
    said.append(
        f"streams   {_count(len(summary.routes), 'source')}, "
        f"{_count(sum(len(route.ends) for route in summary.routes), 'end')}"
        + (f", {loose} of them loose" if loose else ", no loose end")
    )
    said += [f"  {line}" for line in _streams(summary.routes)]
    said += [f"problem   {problem}" for problem in summary.problems]
    return said


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _tiles(places: Iterable[tuple[int | str, int]]) -> str:
    return " ".join(f"({column},{row})" for column, row in places)


def _places(tiles: Iterable[TileState]) -> str:
    return _tiles(sorted((tile.column, tile.row) for tile in tiles))


def _many(tiles: Sequence[TileState]) -> str:
    """The tiles one by one, or how many where they are a crowd."""
    return _places(tiles) if len(tiles) <= 2 * _MANY else f"{len(tiles)} cores"


def _dma(array: Array, kind: str, label: str) -> str:
    tiles = [tile for tile in array.tiles.values() if tile.kind == kind]
    descriptors = sum(len(tile.descriptors()) for tile in tiles)
    channels = sum(len({(start.direction, start.channel) for start in tile.starts}) for tile in tiles)
    if not descriptors and not channels:
        return f"{label} left to the instructions"
    return f"{label} {_count(descriptors, 'BD')}, {_count(channels, 'channel')} started"


def _streams(found: Sequence[Route]) -> list[str]:
    """A line a source and packet pattern. Sources of one tile that go to the same places share a line, and so
    do columns in which the same happens; "c" stands for each of them then."""
    said: dict[tuple[int, int, str, str], list[str]] = {}
    for route in found:
        patterns: dict[str, list[End]] = {}
        for end in route.ends:
            patterns.setdefault(str(end.packet), []).append(end)
        for pattern, ends in patterns.items() or [("", [])]:
            key = route.source.column, route.source.row, pattern, _ends(ends, route.source.column)
            said.setdefault(key, []).append(route.source.name)
    columns: dict[tuple[int, str], list[int]] = {}
    for (column, row, pattern, where_to), names in said.items():
        packets = f", {pattern}" if pattern else ""
        columns.setdefault((row, f"{_ports(names)}{packets} -> {where_to or 'nowhere'}"), []).append(column)
    listed = []
    for (row, line), where in columns.items():
        if len(where) == 1:
            listed.append(f"({where[0]},{row}) {line}".replace("(c,", f"({where[0]},"))
        else:
            listed.append(f"(c,{row}) {line}, c = {' '.join(map(str, where))}")
    return listed


def _ports(names: Sequence[str]) -> str:
    """Port names, those that differ in their number together."""
    groups: dict[str, list[str]] = {}
    for name in names:
        head, _, number = name.rpartition(" ")
        groups.setdefault(head if number.isdigit() else name, []).append(number if number.isdigit() else "")
    return ", ".join(f"{head} {' '.join(filter(None, numbers))}".strip() for head, numbers in groups.items())


def _ends(ends: Sequence[End], own: int) -> str:
    """Ends by what they are: the tiles of one port together, or how many; column `own` is "c"."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for end in ends:
        groups.setdefault((end.port.name, end.fault), []).append((end.port.column, end.port.row))
    said = []
    for (name, fault), places in groups.items():
        places = sorted(set(places))
        where = _tiles(("c" if column == own else column, row) for column, row in places)
        if len(places) > _MANY:
            columns = sorted(Counter(column for column, _ in places))
            where = (
                f"{len(places)} tiles in column{'s' if len(columns) > 1 else ''} "
                f"{' '.join(map(str, columns))}:"
            )
        said.append(f"{where} {name}" + (f" ({fault})" if fault else ""))
    return "; ".join(said)
