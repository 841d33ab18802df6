"""PDIs of known designs."""

from __future__ import annotations

import random

from tests.support.pdi_builder import B, Item, W, at, circuit, packets


def program(seed: int, size: int = 400) -> list[int]:
    return [random.Random(seed).getrandbits(32) for _ in range(size)]


def design() -> list[Item]:
    """Two columns: shim (0,0) feeds memory (0,1), which feeds two cores that answer through the switches."""
    items: list[Item] = [W(at(c, r, 0x32000), 2, 3) for c, r in ((0, 2), (0, 3), (1, 2))]
    for column, row, seed in ((0, 2, 1), (0, 3, 1), (1, 2, 2)):
        items += [
            B(at(column, row, 0x400), [7] * 3),
            B(at(column, row, 0x20000), program(seed)),
            W(at(column, row, 0x1F000), 2),
            W(at(column, row, 0x1F010), 0),
        ]
    items.append(B(at(0, 2, 0x1D000), (0x10 << 14 | 64, 0, 0, 0, 0, 1 << 25)))
    items.append(W(at(0, 2, 0x1DE04), 1 << 31 | 3 << 16))
    items.append(B(at(0, 1, 0xA0000), (64, 0, 0, 0, 0, 0, 0, 1 << 31)))
    items += [*circuit(0, 0, "north 0", "south 3"), W(at(0, 0, 126976), 1 << 10, 3 << 10)]
    items += circuit(0, 1, "dma 0", "south 0")
    items += circuit(0, 1, "north 1", "dma 2")
    items += circuit(0, 2, "dma 1", "south 1") + circuit(0, 2, "north 4", "south 1")
    items += circuit(0, 3, "dma 0", "south 4")
    items += circuit(0, 3, "south 2", "dma 1")
    items += circuit(0, 2, "south 0", "north 2")
    items += packets(
        0, 1, "north 0", [(2, 0x1F, 1, 3), (4, 0x1C, 0, 3)], [("south 2", 3, 0b0010), ("dma 5", 3, 0b0001)]
    )
    items += [*circuit(0, 0, "south 2", "north 2"), W(at(0, 0, 126980), 1 << 4, 3 << 4)]
    items += circuit(1, 2, "west 0", "core")
    items += circuit(0, 2, "core", "east 0")
    items += [W(at(c, r, 0x32000), 1, 3) for c, r in ((0, 2), (0, 3), (1, 2))]
    return items
