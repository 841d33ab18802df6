"""Stream switches: their ports in register order, and which port of which neighbour each faces.

Ports and fields from aie-rt (xaiemlgbl_params.h, xaie2pgbl_reginit.c). A circuit master's index names a slave
of its own tile. Master north i faces slave south i of the tile above, east i slave west i of the tile to the
east, and back.
"""

from __future__ import annotations

from typing import NamedTuple

from amdxdna.aie.registers import COMPUTE, MEMORY, SHIM, SWITCH

SLAVES_AT, SLOTS_AT = 0x100, 0x200
SLOTS = 4

_ENABLE, _PACKET = 1 << 31, 1 << 30


def _ports(*groups: tuple[str, int]) -> tuple[str, ...]:
    return tuple(
        f"{name} {i}" if count > 1 or name not in _SINGULAR else name
        for name, count in groups
        for i in range(count)
    )


_SINGULAR = ("core", "ctrl", "fifo", "trace", "core trace", "memory trace")
MASTERS = {
    COMPUTE: _ports(
        ("core", 1),
        ("dma", 2),
        ("ctrl", 1),
        ("fifo", 1),
        ("south", 4),
        ("west", 4),
        ("north", 6),
        ("east", 4),
    ),
    MEMORY: _ports(("dma", 6), ("ctrl", 1), ("south", 4), ("north", 6)),
    SHIM: _ports(("ctrl", 1), ("fifo", 1), ("south", 6), ("west", 4), ("north", 6), ("east", 4)),
}
"""Masters (what leaves the switch) of each kind of tile, by index."""
SLAVES = {
    COMPUTE: _ports(
        ("core", 1),
        ("dma", 2),
        ("ctrl", 1),
        ("fifo", 1),
        ("south", 6),
        ("west", 4),
        ("north", 4),
        ("east", 4),
        ("core trace", 1),
        ("memory trace", 1),
    ),
    MEMORY: _ports(("dma", 6), ("ctrl", 1), ("south", 6), ("north", 4), ("trace", 1)),
    SHIM: _ports(
        ("ctrl", 1), ("fifo", 1), ("south", 8), ("west", 4), ("north", 4), ("east", 4), ("trace", 1)
    ),
}
"""Slaves (what enters the switch) of each kind of tile, by index."""

_SIDES = {
    "north": (0, 1, "south"),
    "south": (0, -1, "north"),
    "east": (1, 0, "west"),
    "west": (-1, 0, "east"),
}

# The shim's ports to the south that its DMA can have: mux and demux fields that must be 1.
SHIM_MM2S = {"south 3": (0, 10), "south 7": (1, 14)}
SHIM_S2MM = {"south 2": (0, 4), "south 3": (1, 6)}


class Master(NamedTuple):
    """A master's register. ``slave``: of a circuit; ``arbiter``, ``msels`` (bits): of packets."""

    enabled: bool
    packet: bool
    slave: int
    arbiter: int
    msels: int


def master(value: int) -> Master:
    """Decodes a master's configuration."""
    return Master(bool(value & _ENABLE), bool(value & _PACKET), value & 0x7F, value & 7, value >> 3 & 0xF)


class Slot(NamedTuple):
    """A packet slave's slot: packets whose id equals `id` in the bits of `mask` go to `arbiter`, `msel`."""

    enabled: bool
    id: int
    mask: int
    msel: int
    arbiter: int


def slot(value: int) -> Slot:
    """Decodes a slot."""
    return Slot(bool(value >> 8 & 1), value >> 24 & 0x1F, value >> 16 & 0x1F, value >> 4 & 3, value & 7)


def slave(value: int) -> tuple[bool, bool]:
    """(enabled, packet) of a slave's configuration."""
    return bool(value & _ENABLE), bool(value & _PACKET)


def master_at(kind: str, index: int) -> int:
    """The offset of a master's register."""
    return SWITCH[kind] + 4 * index


def slave_at(kind: str, index: int) -> int:
    """The offset of a slave's register."""
    return SWITCH[kind] + SLAVES_AT + 4 * index


def slot_at(kind: str, slave_index: int, number: int) -> int:
    """The offset of a slave's slot."""
    return SWITCH[kind] + SLOTS_AT + 4 * SLOTS * slave_index + 4 * number


def facing(port: str) -> tuple[int, int, str] | None:
    """(columns, rows, slave) to the neighbour that a master's port leads to; None for one that stays."""
    side, _, number = port.partition(" ")
    if side not in _SIDES:
        return None
    columns, rows, opposite = _SIDES[side]
    return columns, rows, f"{opposite} {number}"
