"""Stream-switch routes of a configured array: from where streams start to where they end.

A route begins at a slave that starts one (DMA, core, control, trace, the shim's south ports) and is followed
through the switches, with the packet ids that can take it. Rules of the switches: :mod:`amdxdna.aie.switch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from amdxdna.aie import registers, switch
from amdxdna.aie.registers import SHIM
from amdxdna.pdi.array import TOP_ROW, Array, TileState

_PASSING = ("north", "east", "west", "fifo")
_ALL_IDS = 0x1F
# A search is bounded by its visited set (3^5 patterns of id bits times the ports); this bounds the ends that
# one source may list.
_MOST_ENDS = 4096


class Packet(NamedTuple):
    """Which packets: those whose id has the bits of `id` where `mask` has a 1; mask 0 is any stream."""

    id: int = 0
    mask: int = 0

    def meet(self, other_id: int, other_mask: int) -> Packet | None:
        """The packets that a slot takes too; None when there are none."""
        if (self.id ^ other_id) & self.mask & other_mask:
            return None
        return Packet(self.id & self.mask | other_id & other_mask, self.mask | other_mask)

    def __str__(self) -> str:
        if not self.mask:
            return ""
        return f"packet {self.id}" + ("" if self.mask == _ALL_IDS else f" mask {self.mask:#x}")


@dataclass(frozen=True)
class Port:
    """A stream's start or end: the tile, and what is there ("mm2s 0", "s2mm 1", "core", "ctrl", ...)."""

    column: int
    row: int
    name: str

    def __str__(self) -> str:
        return f"({self.column},{self.row}) {self.name}"


@dataclass(frozen=True)
class End:
    """Where a stream arrives, and the packets that do. ``fault``: why it cannot go on there, else empty."""

    port: Port
    packet: Packet
    fault: str = ""


@dataclass(frozen=True)
class Route:
    """A stream source with every place that it reaches."""

    source: Port
    ends: tuple[End, ...]


def routes(array: Array, columns: int | None = None) -> list[Route]:
    """The routes of all sources that a slave is enabled for, by column and row.

    `columns`: the partition's width; a stream that leaves it ends there. A source that no master takes has a
    faulty end.
    """
    width = array.columns if columns is None else columns
    found = []
    for place in sorted(array.tiles):
        tile = array.tiles[place]
        for index, name in enumerate(switch.SLAVES[tile.kind]):
            enabled, _ = switch.slave(tile.registers.get(switch.slave_at(tile.kind, index), 0))
            if enabled and _starts(tile, name):
                ends = _Walk(array, width).ends(tile, index)
                found.append(Route(Port(*place, _source(tile, name)), tuple(ends)))
    return found


def _starts(tile: TileState, slave: str) -> bool:
    return slave.split(" ")[0] not in _PASSING and (tile.kind == SHIM or not slave.startswith("south"))


def _source(tile: TileState, slave: str) -> str:
    if slave.startswith("dma"):
        return "mm2s" + slave[3:]
    if tile.kind == SHIM and slave in switch.SHIM_MM2S:
        channel, low = switch.SHIM_MM2S[slave]
        if tile.registers.get(registers.MUX, 0) >> low & 3 == 1:
            return f"mm2s {channel}"
    return slave


def _end(tile: TileState, master: str) -> str:
    if master.startswith("dma"):
        return "s2mm" + master[3:]
    if tile.kind == SHIM and master in switch.SHIM_S2MM:
        channel, low = switch.SHIM_S2MM[master]
        if tile.registers.get(registers.DEMUX, 0) >> low & 3 == 1:
            return f"s2mm {channel}"
    if tile.kind == SHIM and master == "south 0":
        # mlir-aie routes the tiles' task-complete tokens there (AIEPasses.td).
        return "south 0 (tokens)"
    return master


class _Walk:
    """One source's search through the switches."""

    def __init__(self, array: Array, columns: int) -> None:
        self.array = array
        self.columns = columns
        self.seen: set[tuple[int, int, int, Packet]] = set()
        self.found: dict[tuple[Port, Packet, str], End] = {}

    def ends(self, tile: TileState, slave: int) -> list[End]:
        """Every end, in the order found."""
        waiting = [(tile, slave, Packet())]
        while waiting and len(self.found) < _MOST_ENDS:
            here, index, packet = waiting.pop()
            key = here.column, here.row, index, packet
            if key in self.seen:
                continue
            self.seen.add(key)
            for master, met in self._through(here, index, packet):
                following = self._leave(here, master, met)
                if following is not None:
                    waiting.append((*following, met))
        return list(self.found.values())

    def _through(self, tile: TileState, index: int, packet: Packet) -> list[tuple[int, Packet]]:
        """The masters that a slave's stream goes to, with the packets that do."""
        value = tile.registers.get
        _, packets = switch.slave(value(switch.slave_at(tile.kind, index), 0))
        masters = [
            (number, switch.master(value(switch.master_at(tile.kind, number), 0)))
            for number in range(len(switch.MASTERS[tile.kind]))
        ]
        found = []
        if not packets:
            found = [
                (number, packet) for number, m in masters if m.enabled and not m.packet and m.slave == index
            ]
        else:
            for number in range(switch.SLOTS):
                slot = switch.slot(value(switch.slot_at(tile.kind, index, number), 0))
                met = packet.meet(slot.id, slot.mask) if slot.enabled else None
                if met is not None:
                    found += [
                        (at, met)
                        for at, m in masters
                        if m.enabled and m.packet and m.arbiter == slot.arbiter and m.msels >> slot.msel & 1
                    ]
        if not found:
            what = switch.SLAVES[tile.kind][index]
            self._add(tile, f"slave {what}", packet, "no master takes it")
        return found

    def _leave(self, tile: TileState, index: int, packet: Packet) -> tuple[TileState, int] | None:
        """The neighbour's slave that a master leads to; None, and an end, where the stream stops."""
        name = switch.MASTERS[tile.kind][index]
        if name.startswith("fifo"):
            return tile, switch.SLAVES[tile.kind].index(name)
        side = switch.facing(name)
        if side is None or (tile.kind == SHIM and name.startswith("south")):
            self._add(tile, _end(tile, name), packet)
            return None
        column, row = tile.column + side[0], tile.row + side[1]
        if not (0 <= column < self.columns and 0 <= row <= TOP_ROW):
            self._add(tile, name, packet, "leaves the partition")
            return None
        neighbour = self.array.get(column, row)
        slave = (
            switch.SLAVES[neighbour.kind].index(side[2])
            if neighbour is not None and side[2] in switch.SLAVES[neighbour.kind]
            else None
        )
        if (
            neighbour is None
            or slave is None
            or not switch.slave(neighbour.registers.get(switch.slave_at(neighbour.kind, slave), 0))[0]
        ):
            self._add(tile, name, packet, f"({column},{row}) {side[2]} is not enabled")
            return None
        return neighbour, slave

    def _add(self, tile: TileState, name: str, packet: Packet, fault: str = "") -> None:
        end = End(Port(tile.column, tile.row, name), packet, fault)
        self.found.setdefault((end.port, packet, fault), end)
