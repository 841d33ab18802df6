"""Makes PDI images in the documented format, plain and transformed, from lists of writes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from amdxdna.aie import registers, switch


class W(NamedTuple):
    """A register write; with a mask, a masked one; `wide`: by the command with the address's high word."""

    address: int
    value: int
    mask: int | None = None
    wide: bool = False


class B(NamedTuple):
    """A block write."""

    address: int
    words: Sequence[int]


Item = W | B


def at(column: int, row: int, offset: int) -> int:
    """The address of a tile's offset."""
    return column << registers.COLUMN_SHIFT | row << registers.ROW_SHIFT | offset


def _sum(words: Sequence[int]) -> int:
    return 0xFFFFFFFF - (sum(words) & 0xFFFFFFFF)


def _plain(items: Sequence[Item], nops: bool) -> bytes:
    words: list[int] = []
    for item in items:
        if isinstance(item, B):
            size = len(item.words) + 2
            if nops:
                words += [0x111 | 1 << 16, 0]
            words += [0x105 | size << 16] if size < 255 else [0x105 | 255 << 16, size]
            words += [item.address >> 32, item.address & 0xFFFFFFFF, *item.words]
        else:
            fields = _fields(item)
            words += [0x100 | _api(item) | len(fields) << 16, *fields]
    return struct.pack(f"<{len(words)}I", *words)


def _apart(items: Sequence[Item]) -> tuple[bytes, bytes]:
    """Command zone and data zone; neighbours of one kind share a group."""
    zone, data = b"", b""
    at_item = 0
    while at_item < len(items):
        kind = _api(items[at_item])
        group = []
        while at_item < len(items) and _api(items[at_item]) == kind:
            group.append(items[at_item])
            at_item += 1
        zone += struct.pack("<2I", kind, len(group))
        for item in group:
            if isinstance(item, B):
                zone += struct.pack(
                    "<4I", item.address >> 32, item.address & 0xFFFFFFFF, len(data), len(item.words)
                )
                data += struct.pack(f"<{len(item.words)}I", *item.words)
            else:
                fields = _fields(item)
                zone += struct.pack(f"<{len(fields)}I", *fields)
    return zone, data


def _api(item: Item) -> int:
    if isinstance(item, B):
        return 5
    if item.wide:
        return 8 if item.mask is None else 7
    return 3 if item.mask is None else 2


def _fields(item: W) -> list[int]:
    """A write's payload."""
    where = [item.address >> 32, item.address & 0xFFFFFFFF] if item.wide else [item.address]
    return [*where, *([] if item.mask is None else [item.mask]), item.value]


def build(
    items: Sequence[Item],
    *,
    transformed: bool = False,
    nops: bool = True,
    raw: bytes | None = None,
    apart: tuple[bytes, bytes] | None = None,
    short: int = 0,
) -> bytes:
    """An image of these writes. `raw` replaces a plain body, `apart` a transformed one's commands and data;
    `short` cuts that many bytes off the end."""
    plain = _plain(items, nops) if raw is None else raw
    body = plain
    head = [4, 0x004F4443, 0x200, len(plain) // 4]
    zone = b""
    if transformed:
        zone, data = _apart(items) if apart is None else apart
        body = zone + data
    table = [0] * 31
    table[0:5] = [0x00040000, 1, 0x24, 1, 0x34]
    table[6], table[10], table[11], table[12], table[17] = 0x14CA8093, 0x50504449, 0x201020, 0x30, 1
    image = [0] * 15
    image[0:2] = [0x34, 1]
    image[4:8] = struct.unpack("<4I", b"aie_image".ljust(16, b"\0"))
    image[8] = 0x1C000000
    part = [0] * 31
    length = (0x14 + len(plain)) // 4
    part[0:3] = [length, length, -(-length // 4) * 4]
    part[8], part[9], part[10] = 0x54, 0x02000006, 1
    part_sum = _sum(part)
    if transformed:
        # The tool does not make the sum again.
        low, high = len(zone) & 0xFFFF, len(zone) >> 16
        part[28:31] = [1, len(zone), 0x8866 | 0x0100 | low << 16 | high]
    parts = [
        *(0xDD, 0x11223344, 0x55667788, 0x99AABBCC, *table, _sum(table), *image, _sum(image), *part),
        *(part_sum, *head, _sum(head)),
    ]
    whole = struct.pack(f"<{len(parts)}I", *parts) + body
    whole += bytes(-len(whole) % 16) if not transformed else b""
    return whole[: len(whole) - short]


def circuit(column: int, row: int, master: str, slave: str) -> list[Item]:
    """The two writes that lead a tile's slave to its master."""
    kind = registers.tile_of(at(column, row, 0)).kind
    m, s = switch.MASTERS[kind].index(master), switch.SLAVES[kind].index(slave)
    return [
        W(at(column, row, registers.SWITCH[kind] + 4 * m), 1 << 31 | s),
        W(at(column, row, registers.SWITCH[kind] + 0x100 + 4 * s), 1 << 31),
    ]


def packets(
    column: int,
    row: int,
    slave: str,
    slots: Sequence[tuple[int, int, int, int]],
    masters: Sequence[tuple[str, int, int]],
) -> list[Item]:
    """A packet slave with slots (id, mask, msel, arbiter) and masters (name, arbiter, msels)."""
    kind = registers.tile_of(at(column, row, 0)).kind
    s = switch.SLAVES[kind].index(slave)
    base = registers.SWITCH[kind]
    items: list[Item] = [W(at(column, row, base + 0x100 + 4 * s), 3 << 30)]
    for number, (ident, mask, msel, arbiter) in enumerate(slots):
        items.append(
            W(
                at(column, row, base + 0x200 + 16 * s + 4 * number),
                1 << 8 | ident << 24 | mask << 16 | msel << 4 | arbiter,
            )
        )
    for name, arbiter, msels in masters:
        items.append(
            W(at(column, row, base + 4 * switch.MASTERS[kind].index(name)), 3 << 30 | arbiter | msels << 3)
        )
    return items
