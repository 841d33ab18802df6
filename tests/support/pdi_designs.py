"""Designs as their makers describe them, written as PDIs: a router lays their streams through the switches.

What each connects is in public words; sources stand beside the designs. Nothing of a compiler's is in it, so
the ports on the way are ours: what a summary must tell is where each stream begins and where it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from amdxdna.aie import registers, switch
from tests.support.pdi_builder import B, Item, W, at

Place = tuple[int, int]
End = tuple[int, int, str]
"""Column, row and port, as a summary names them: (0, 1, "s2mm 2")."""

_AROUND = {
    "north": (0, 1, "south"),
    "south": (0, -1, "north"),
    "east": (1, 0, "west"),
    "west": (-1, 0, "east"),
}
# Shim ports behind the DMA's channels, and the multiplexers' bits that put them there (aie-rt, xaie_plif.c).
_SHIM_MM2S, _SHIM_S2MM = {0: ("south 3", 10), 1: ("south 7", 14)}, {0: ("south 2", 4), 1: ("south 3", 6)}


class Design:
    """The writes of a design that is being made. `columns` wide, rows 0 to 5."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.items: list[Item] = []
        self.streams: dict[End, set[End]] = {}
        """What was connected: a summary's routes must be these."""
        self._masters: set[tuple[Place, str]] = set()
        self._slaves: set[tuple[Place, str]] = set()

    def core(self, column: int, row: int, program: int) -> None:
        """A core that runs program number `program`."""
        words = [program * 1000 + n for n in range(64)]
        self.items += [
            W(at(column, row, registers.CORE_CONTROL), 2, 3),
            B(at(column, row, 0x20000), words),
            W(at(column, row, registers.CORE_CONTROL), 1, 3),
        ]

    def stream(self, source: End, *ends: End) -> None:
        """Leads a DMA's or core's output to every one of `ends`, broadcasting where ways part."""
        start = source[:2]
        slave = self._port(source, _SHIM_MM2S, 0x1F000)
        tree = {start: slave}
        self._slave(start, slave)
        for end in ends:
            goal = end[:2]
            for place, direction in self._way(tree, goal):
                port = self._free(place, direction)
                self._connect(place, port, tree[place])
                across, up, back = _AROUND[direction]
                there = place[0] + across, place[1] + up
                tree[there] = f"{back} {port.split()[1]}"
                self._slave(there, tree[there])
            self._connect(goal, self._port(end, _SHIM_S2MM, 0x1F004), tree[goal])
        self.streams[source] = set(ends)

    def _port(self, end: End, shim: dict[int, tuple[str, int]], register: int) -> str:
        """The switch's own name of a port."""
        column, row, name = end
        what, _, number = name.partition(" ")
        if what not in ("mm2s", "s2mm"):
            return name
        if row:
            return f"dma {number}"
        port, bit = shim[int(number)]
        self.items.append(W(at(column, row, register), 1 << bit, 3 << bit))
        return port

    def _way(self, tree: Iterable[Place], goal: Place) -> list[tuple[Place, str]]:
        """The steps from the nearest tile of the tree to the goal, over ports that are free."""
        came: dict[Place, tuple[Place, str] | None] = dict.fromkeys(tree)
        waiting = deque(came)
        while waiting and goal not in came:
            place = waiting.popleft()
            for direction, (across, up, _) in _AROUND.items():
                there = place[0] + across, place[1] + up
                if (
                    there in came
                    or not 0 <= there[0] < self.columns
                    or not 0 <= there[1] <= 5
                    or not self._free(place, direction)
                ):
                    continue
                came[there] = place, direction
                waiting.append(there)
        steps = []
        step = came[goal]
        while step is not None:
            steps.append(step)
            step = came[step[0]]
        return steps[::-1]

    def _free(self, place: Place, direction: str) -> str:
        """A free port out of a tile that its neighbour has too; nothing when all are taken."""
        across, up, back = _AROUND[direction]
        there = place[0] + across, place[1] + up
        for name in switch.MASTERS[_kind(place)]:
            other = f"{back} {name.split()[-1]}"
            if (
                name.startswith(direction)
                and (place, name) not in self._masters
                and other in switch.SLAVES[_kind(there)]
                and (there, other) not in self._slaves
            ):
                return name
        return ""

    def _connect(self, place: Place, master: str, slave: str) -> None:
        assert (place, master) not in self._masters, f"{place} {master} is taken"
        self._masters.add((place, master))
        kind = _kind(place)
        offset = registers.SWITCH[kind] + 4 * switch.MASTERS[kind].index(master)
        self.items.append(W(at(*place, offset), 1 << 31 | switch.SLAVES[kind].index(slave)))

    def _slave(self, place: Place, slave: str) -> None:
        self._slaves.add((place, slave))
        kind = _kind(place)
        self.items.append(W(at(*place, switch.slave_at(kind, switch.SLAVES[kind].index(slave))), 1 << 31))


def _kind(place: Place) -> str:
    return registers.tile_of(at(*place, 0)).kind


def vector_scalar_mul() -> Design:
    """mlir-aie, programming_examples/basic/vector_scalar_mul/README.md (10ce30a): one compute tile; object
    FIFOs `of_in` and `of_factor` from the shim tile to it, `of_out` back."""
    design = Design(1)
    design.core(0, 2, 0)
    design.stream((0, 0, "mm2s 0"), (0, 2, "s2mm 0"))
    design.stream((0, 0, "mm2s 1"), (0, 2, "s2mm 1"))
    design.stream((0, 2, "mm2s 0"), (0, 0, "s2mm 0"))
    return design


def distribute_and_join() -> Design:
    """mlir-aie, programming_guide/section-2/section-2e: 04_distribute_L2 and 05_join_L2 (14d2d81): the memory
    tile gives a part of what it is sent to each of three compute tiles, which send theirs back to be joined;
    all run the same program."""
    design = Design(1)
    design.stream((0, 0, "mm2s 0"), (0, 1, "s2mm 0"))
    for n, row in enumerate((2, 3, 4)):
        design.core(0, row, 0)
        design.stream((0, 1, f"mm2s {n}"), (0, row, "s2mm 0"))
        design.stream((0, row, "mm2s 0"), (0, 1, f"s2mm {n + 1}"))
    design.stream((0, 1, "mm2s 3"), (0, 0, "s2mm 0"))
    return design


def whole_array_gemm() -> Design:
    """mlir-aie, programming_examples/basic/matrix_multiplication/whole_array/README.md (96a9165): four
    columns of four cores; each column's shim sends a part of A and of B to its memory tile, which sends its A
    to every core of its column and its B to every core of one row; cores send C to their column's memory
    tile, which sends the joined C to the shim."""
    design = Design(4)
    for n in range(4):
        design.stream((n, 0, "mm2s 0"), (n, 1, "s2mm 0"))
        design.stream((n, 0, "mm2s 1"), (n, 1, "s2mm 1"))
        design.stream((n, 1, "mm2s 0"), *((n, row, "s2mm 0") for row in range(2, 6)))
        design.stream((n, 1, "mm2s 1"), *((column, 2 + n, "s2mm 1") for column in range(4)))
        for row in range(2, 6):
            design.core(n, row, 0)
            design.stream((n, row, "mm2s 0"), (n, 1, f"s2mm {row}"))
        design.stream((n, 1, "mm2s 2"), (n, 0, "s2mm 0"))
    return design
