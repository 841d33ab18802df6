"""What the dynamic loader reads of an ELF64 shared object, and a copy that holds no more than that.

Only the program headers count at run time: sections, symbol tables for debuggers and what lies between
segments need not be there. Wheels' libraries were edited after linking (patchelf), which `strip` does not
always survive; here segments are moved as they are, so nothing in them changes (System V ABI, gABI 4.1,
"Program Loading": a segment's offset is its address modulo its alignment; x86-64's page is 4 KiB, alignments
beyond it are for huge pages, and for machines with larger ones).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["Dynamic", "compact", "dynamic"]

_LOAD, _DYNAMIC, _RELRO = 1, 2, 0x6474E552
_NEEDED, _STRTAB, _SYMTAB, _SONAME, _GNU_HASH = 1, 5, 6, 14, 0x6FFFFEF5
# type, flags, offset, address, physical address, bytes in the file, in memory, alignment
_HEADER = struct.Struct("<IIQQQQQQ")
_PHOFF, _PHENTSIZE, _SHENTSIZE = 0x20, 0x36, 0x3A
_PAGE = 4096


def _headers(image: bytes) -> list[tuple[int, ...]]:
    """The program headers; none for what is no ELF64 file for the dynamic loader."""
    if image[:6] != b"\x7fELF\x02\x01" or len(image) < 64 or image[16] not in (2, 3):
        return []
    (table,) = struct.unpack_from("<Q", image, _PHOFF)
    size, count = struct.unpack_from("<HH", image, _PHENTSIZE)
    if size != _HEADER.size or table + size * count > len(image):
        return []
    return [_HEADER.unpack_from(image, table + size * i) for i in range(count)]


@dataclass(frozen=True)
class Dynamic:
    """`name`: by which others ask for it (DT_SONAME), or nothing. `needed`: the names it asks for.

    `undefined`: the symbols it takes from others.
    """

    name: str
    needed: tuple[str, ...]
    undefined: frozenset[str]


def dynamic(image: bytes) -> Dynamic | None:
    """What a shared object or program says to the loader; None for what is none, or is static."""
    headers = _headers(image)
    section = next((h for h in headers if h[0] == _DYNAMIC), None)
    if section is None:
        return None

    def offset(address: int) -> int:
        for h in headers:
            if h[0] == _LOAD and h[3] <= address < h[3] + h[5]:
                return address - h[3] + h[2]
        raise ValueError(f"address {address:#x} is in no segment")

    entries = [struct.unpack_from("<qQ", image, at) for at in range(section[2], section[2] + section[5], 16)]
    values = dict(reversed(entries))
    if _STRTAB not in values:
        return None
    strings = offset(values[_STRTAB])

    def text(at: int) -> str:
        return image[strings + at : image.index(b"\0", strings + at)].decode()

    undefined = []
    if _GNU_HASH in values and _SYMTAB in values:
        # The symbols in front of the first hashed one are those of others.
        (first,) = struct.unpack_from("<I", image, offset(values[_GNU_HASH]) + 4)
        symbols = offset(values[_SYMTAB])
        for i in range(1, first):
            name, _, _, section_index = struct.unpack_from("<IBBH", image, symbols + 24 * i)
            if name and not section_index:
                undefined.append(text(name))
    return Dynamic(
        text(values[_SONAME]) if _SONAME in values else "",
        tuple(text(value) for tag, value in entries if tag == _NEEDED),
        frozenset(undefined),
    )


def compact(image: bytes) -> bytes:
    """The same program or shared object with its segments alone, or `images` where that would not be less."""
    headers = _headers(image)
    loads = sorted((h for h in headers if h[0] == _LOAD), key=lambda h: h[2])
    (table,) = struct.unpack_from("<Q", image, _PHOFF) if loads else (0,)
    if not loads or loads[0][2] != 0:
        return image
    out = bytearray()
    moved: dict[int, int] = {}
    for load in loads:
        align = min(max(load[7], 1), _PAGE)
        out += bytes((load[2] - len(out)) % align)
        moved[load[2]] = len(out)
        out += image[load[2] : load[2] + load[5]]

    def place(at: int, size: int) -> int | None:
        for load in loads:
            if load[2] <= at and at + size <= load[2] + load[5]:
                return at - load[2] + moved[load[2]]
        return None

    rows = []
    for h in headers:
        # What is made read-only may reach beyond the file's part of its segment.
        at = place(h[2], 0 if h[0] == _RELRO else h[5])
        if at is None:
            return image
        # An empty one (TLS without data) stays at its place in the segment's page.
        align = min(h[7], _PAGE)
        rows.append((h[0], h[1], at if h[5] else h[3] % max(align, 1), *h[3:7], align))
    place_of_table = place(table, _HEADER.size * len(rows))
    if place_of_table is None:
        place_of_table = (len(out) + 7) & ~7
        out += bytes(place_of_table - len(out) + _HEADER.size * len(rows))
    for i, row in enumerate(rows):
        _HEADER.pack_into(out, place_of_table + _HEADER.size * i, *row)
    struct.pack_into("<QQ", out, _PHOFF, place_of_table, 0)
    struct.pack_into("<HHH", out, _SHENTSIZE, 0, 0, 0)
    return bytes(out) if len(out) < len(image) else image
