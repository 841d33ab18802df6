"""The commands of a PDI's configuration (CDO), plain or with commands and data apart.

Formats from bootgen (cdo-binary.c) and XRT (aie-pdi-transform: lib/load_pdi.c, lib/cdo_cmd.c). The firmware's
public parser runs writes, mask writes and block writes and refuses the rest; the others are named here and
skipped by their length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from amdxdna.pdi.image import BODY, BadPdi, Image

MASK_WRITE, WRITE, BLOCK_WRITE = 0x102, 0x103, 0x105
MASK_WRITE_64, WRITE_64 = 0x107, 0x108
BLOCK_SET, KEYHOLE, NOP, END_MARK = 0x10C, 0x10D, 0x111, 0x100
NAMES = {
    END_MARK: "END_MARK",
    0x101: "MASK_POLL",
    MASK_WRITE: "MASK_WRITE",
    WRITE: "WRITE",
    0x104: "DELAY",
    BLOCK_WRITE: "BLOCK_WRITE",
    0x106: "MASK_POLL_64",
    MASK_WRITE_64: "MASK_WRITE_64",
    WRITE_64: "WRITE_64",
    0x109: "DMA_TRANSFER",
    BLOCK_SET: "BLOCK_SET",
    KEYHOLE: "KEYHOLE_WRITE",
    NOP: "NOP",
    0x119: "MARKER",
    0x11B: "BEGIN",
    0x11C: "END",
    0x11D: "BREAK",
}
"""Command numbers (module << 8 | api) with a name."""

_LONG = 255
# Words of a plain command that has fields, and of a transformed group's entries.
_FIELDS = {MASK_WRITE: 3, WRITE: 2, MASK_WRITE_64: 4, WRITE_64: 3, BLOCK_SET: 4}
_ENTRIES = {MASK_WRITE: 3, WRITE: 2, BLOCK_WRITE: 4, MASK_WRITE_64: 4, WRITE_64: 3}
_ZEROS = 1 << 16


@dataclass(frozen=True)
class Command:
    """One command. ``offset``: its byte in the image; ``number``: see :data:`NAMES`.

    ``address`` is None for a command that writes nothing. ``value`` and ``mask`` belong to writes (a write's
    mask is all ones). ``data`` holds a block write's words, ``words`` how many it names: more than are there
    in an image that was cut short. ``payload``: the words of any other command.
    """

    offset: int
    number: int
    address: int | None = None
    value: int = 0
    mask: int = 0xFFFFFFFF
    data: tuple[int, ...] = ()
    words: int = 0
    payload: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Its name; a number for an unknown one."""
        return NAMES.get(self.number, f"COMMAND_{self.number:#x}")

    @property
    def known(self) -> bool:
        """Whether the command has a name."""
        return self.number in NAMES

    @property
    def missing(self) -> int:
        """Words of a block write that the image does not hold."""
        return self.words - len(self.data)


def commands(image: Image) -> Iterator[Command]:
    """The commands in order. Raises BadPdi at one that does not fit; those before it have been given then."""
    return _transformed(image) if image.transformed else _plain(image)


def _plain(image: Image) -> Iterator[Command]:
    words = struct.unpack_from(f"<{image.commands // 4}I", image.data, BODY)
    at = 0
    while at < len(words):
        offset, head = BODY + 4 * at, words[at]
        number, size = head & 0xFFFF, head >> 16 & 0xFF
        if head >> 24:
            raise BadPdi(offset, f"no command: word {head:#010x}")
        at += 1
        if size == _LONG:
            if at == len(words):
                raise BadPdi(offset, "the commands end inside this one")
            size, at = words[at], at + 1
        if size > len(words) - at:
            raise BadPdi(
                offset,
                f"{NAMES.get(number, hex(number))} of {size} words does not fit: {len(words) - at} are left",
            )
        payload = words[at : at + size]
        at += size
        yield _command(offset, number, payload)
        if number == END_MARK:
            return


def _command(offset: int, number: int, payload: tuple[int, ...]) -> Command:
    """A plain command with its payload."""
    need = _FIELDS.get(number)
    if (need is not None and len(payload) < need) or (number in (BLOCK_WRITE, KEYHOLE) and len(payload) < 2):
        raise BadPdi(offset, f"{NAMES[number]} of {len(payload)} words")
    if number == WRITE:
        return Command(offset, number, payload[0], payload[1])
    if number == MASK_WRITE:
        return Command(offset, number, payload[0], payload[2], payload[1])
    if number == WRITE_64:
        return Command(offset, number, payload[0] << 32 | payload[1], payload[2])
    if number == MASK_WRITE_64:
        return Command(offset, number, payload[0] << 32 | payload[1], payload[3], payload[2])
    if number == BLOCK_WRITE:
        return Command(
            offset, number, payload[0] << 32 | payload[1], data=payload[2:], words=len(payload) - 2
        )
    if number == BLOCK_SET:
        return Command(offset, number, payload[0] << 32 | payload[1], payload[3], payload=payload)
    return Command(offset, number, payload=payload)


def _transformed(image: Image) -> Iterator[Command]:
    end = BODY + image.commands
    data_end = len(image.data) & ~3
    at, used = BODY, end
    cut = False
    while at < end:
        if at + 8 > end:
            raise BadPdi(at, "the commands end inside a group")
        api, count = struct.unpack_from("<2I", image.data, at)
        number = 0x100 | api
        size = 4 * _ENTRIES.get(number, 0)
        if api > 0xFF or not size:
            raise BadPdi(at, f"a group of commands {api:#x}, which this form does not have")
        at += 8
        if count > (end - at) // size:
            raise BadPdi(at - 8, f"a group of {count} {NAMES[number]} does not fit the commands")
        for _ in range(count):
            entry = struct.unpack_from(f"<{size // 4}I", image.data, at)
            if number != BLOCK_WRITE:
                yield _command(at, number, entry)
            else:
                if cut:
                    raise BadPdi(at, "a block write after the end of the data")
                start, words = end + entry[2], entry[3] & 0xFFFF
                # Regions follow each other in every file seen; naming one twice could multiply a small file.
                if entry[3] >> 17 or start % 4 or start < used or start > data_end:
                    raise BadPdi(
                        at, f"data at {entry[2]}, {entry[3]:#x} words: not behind what was read before"
                    )
                held = min(words, (data_end - start) // 4)
                cut = held < words
                yield Command(
                    at,
                    number,
                    entry[0] << 32 | entry[1],
                    data=struct.unpack_from(f"<{held}I", image.data, start),
                    words=words,
                )
                used = start + 4 * held
            at += size
