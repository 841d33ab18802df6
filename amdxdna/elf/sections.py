"""ELF files, 32 and 64 bits, little-endian: sections, symbols, relocations, notes.

Every read is bounds-checked. The layouts are those of the System V ABI's chapter on object files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from amdxdna.errors import BadElf

MAGIC = b"\x7fELF"
NOBITS, GROUP = 8, 17
OBJECT, FUNC = 1, 2
_COMPRESSED = 0x800
_LONGEST_NAME = 4096


class Section(NamedTuple):
    """A section; `data` is empty for one that has no bytes in the file."""

    name: str
    kind: int
    flags: int
    link: int
    info: int
    at: int
    """Where its bytes begin in the file."""
    data: bytes


class Symbol(NamedTuple):
    """A symbol; `section` is what its st_shndx says."""

    name: str
    kind: int
    size: int
    section: int


class Relocation(NamedTuple):
    """A place to patch; `symbol` is the symbol's index, `addend` signed."""

    offset: int
    symbol: int
    kind: int
    addend: int


class Layout(NamedTuple):
    """Where fields are, by the file's class."""

    header: struct.Struct
    """e_shoff, e_shentsize, e_shnum, e_shstrndx."""
    section: struct.Struct
    symbol: struct.Struct
    relocation: struct.Struct
    kind_bits: int
    """Of r_info, below the symbol's index."""


_NARROW = Layout(
    struct.Struct("<32xI10xHHH"),
    struct.Struct("<IIIIIIII8x"),
    struct.Struct("<IIIBBH"),
    struct.Struct("<IIi"),
    8,
)
_WIDE = Layout(
    struct.Struct("<40xQ10xHHH"),
    struct.Struct("<IIQQQQII16x"),
    struct.Struct("<IBBHQQ"),
    struct.Struct("<QQq"),
    32,
)


class Elf:
    """An ELF file's parts. Immutable. Raises BadElf for what is none, or is damaged."""

    def __init__(self, data: bytes, path: str = "ELF file") -> None:
        self.path = path
        if data[:4] != MAGIC or len(data) < 52:
            self.bad("this is no ELF file", 0)
        if data[4] not in (1, 2) or data[5] != 1:
            self.bad("an ELF file of another class or byte order than little-endian 32 or 64 bits", 4)
        self.os_abi, self.abi_version = data[7], data[8]
        self._layout = _WIDE if data[4] == 2 else _NARROW
        self.sections = tuple(self._sections(data))

    def bad(self, what: str, offset: int) -> NoReturn:
        """Raises BadElf for the byte at `offset`."""
        raise BadElf(
            f"{self.path} at byte {offset}: {what}",
            call="elf",
            path=self.path,
            offset=offset,
            remedy="Make the file anew, with aiebu-asm",
        )

    def _sections(self, data: bytes) -> Iterator[Section]:
        layout = self._layout
        if len(data) < layout.header.size:
            self.bad("the file ends inside its header", len(data))
        at, entry, count, names = layout.header.unpack_from(data)
        if not count:
            return
        if entry < layout.section.size or at + entry * count > len(data):
            self.bad(f"{count} section headers of {entry} bytes do not fit the file", at)
        raw = [self._raw(data, at + entry * index) for index in range(count)]
        if names >= count:
            self.bad(f"there is no section {names}, which should hold the names", at)
        room = len(data)
        for index, (_, kind, _, _, _, offset, size) in enumerate(raw):
            size = 0 if (nowhere := kind in (0, NOBITS)) else size
            room -= size
            if (offset + size > len(data) and not nowhere) or room < 0:
                self.bad(f"section {index} of {size} bytes at byte {offset} does not fit the file", at)
            raw[index] = (*raw[index][:6], size)
        table = self._part(data, raw[names])
        for name, kind, flags, link, info, offset, size in raw:
            yield Section(text(table, name), kind, flags, link, info, offset, data[offset : offset + size])

    def _raw(self, data: bytes, at: int) -> tuple[int, ...]:
        """Name, kind, flags, link, info, offset, size."""
        name, kind, flags, _, offset, size, link, info = self._layout.section.unpack_from(data, at)
        return name, kind, flags, link, info, offset, size

    @staticmethod
    def _part(data: bytes, raw: tuple[int, ...]) -> bytes:
        return data[raw[5] : raw[5] + raw[6]]

    def named(self, name: str) -> Section | None:
        """The first section of this name."""
        return next((each for each in self.sections if each.name == name), None)

    def plain(self, section: Section) -> bytes:
        """A section's bytes. Raises BadElf for a compressed one."""
        if section.flags & _COMPRESSED:
            self.bad(f"section {section.name!r} is compressed, which is not read", section.at)
        return section.data

    def _linked(self, section: Section) -> Section:
        if section.link >= len(self.sections):
            self.bad(f"{section.name!r} refers to section {section.link}, which is not there", section.at)
        return self.sections[section.link]

    def symbols(self, section: Section) -> tuple[Symbol, ...]:
        """The symbols of a table."""
        names = self.plain(self._linked(section))
        data, layout = self.plain(section), self._layout.symbol
        found: list[Symbol] = []
        for fields in layout.iter_unpack(data[: len(data) // layout.size * layout.size]):
            if layout is _WIDE.symbol:
                name, info, _, place, _, size = fields
            else:
                name, _, size, info, _, place = fields
            if name >= len(names) and name:
                self.bad(f"symbol {len(found)} has its name at {name} of {len(names)} bytes", section.at)
            found.append(Symbol(text(names, name), info & 15, size, place))
        return tuple(found)

    def relocations(self, section: Section) -> Iterator[Relocation]:
        """The relocations of a table, with addends."""
        data, layout = self.plain(section), self._layout
        size, bits = layout.relocation.size, layout.kind_bits
        for offset, info, addend in layout.relocation.iter_unpack(data[: len(data) // size * size]):
            yield Relocation(offset, info >> bits, info & (1 << bits) - 1, addend)

    def note(self, section: Section) -> bytes:
        """What the first note of a section holds."""
        data = self.plain(section)
        name, size, _ = struct.unpack_from("<III", data.ljust(12, b"\0"))
        start = 12 + (name + 3) // 4 * 4
        if start + size > len(data):
            self.bad(f"the note in {section.name!r} does not fit it", section.at)
        return data[start : start + size]


def text(table: bytes, at: int) -> str:
    """A name in a table of names; what is no ASCII is replaced."""
    return table[at : at + _LONGEST_NAME].split(b"\0", 1)[0].decode("ascii", "replace")
