"""A PDI image: its headers, and where the configuration (CDO) they carry lies.

A partial Versal PDI of one image with one partition. Layout from bootgen (imageheadertable-versal.h,
partitionheadertable-versal.h, cdo-binary.c); the transformed form from XRT (xclbinutil's aie-pdi-transform).
All words are 32 bits, little-endian. A header's checksum is the complement of the sum of its other words.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

BUS_WIDTH = (0xDD, 0x11223344, 0x55667788, 0x99AABBCC)
PARTIAL_PDI = 0x50504449
CDO = 0x004F4443
IMAGE_TABLE, IMAGE_HEADER, PARTITION_HEADER = 0x10, 0x90, 0xD0
TABLE_WORDS, HEADER_WORDS = 32, 16
CDO_HEADER, BODY = 0x150, 0x164
# In the partition header, and 0 in an image that xclbinutil has not transformed.
TRANSFORM, ZONE, CHECK = 0x70, 0x74, 0x78
CHECK_MARK = 0x8866


class BadPdi(ValueError):
    """Bytes that are no PDI image or a damaged one: what is wrong, and at which byte."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"at byte {offset}: {what}")
        self.offset = offset


@dataclass(frozen=True)
class Image:
    """Where the parts of a PDI are.

    ``data``: the whole image. ``name``, ``id``: of its image header. ``transformed``: whether commands and
    data lie apart. ``commands``: bytes from ``BODY`` to the end of the commands. ``problems``: what is wrong
    with the headers and does not keep the commands from being read.
    """

    data: bytes
    name: str
    id: int
    transformed: bool
    commands: int
    problems: tuple[str, ...]


def check_word(kind: int, zone: int) -> int:
    """The partition header's check word of a transformed image with `zone` bytes of commands."""
    swapped = (kind & 0xFF) << 8 | kind >> 8 & 0xFF
    return CHECK_MARK | swapped | (zone & 0xFFFF) << 16 | zone >> 16


def checksum(words: tuple[int, ...]) -> int:
    """The checksum of a header with these words before it."""
    return ~sum(words) & 0xFFFFFFFF


def is_pdi(data: bytes) -> bool:
    """Whether `data` begins as a PDI image does."""
    return len(data) >= BODY and struct.unpack_from("<4I", data, 0) == BUS_WIDTH


def read(data: bytes) -> Image:
    """Reads the headers. Raises BadPdi for what is no such image, or holds more than one partition."""
    if not is_pdi(data):
        raise BadPdi(
            0,
            f"no PDI image: {len(data)} bytes that do not begin with the bus width words"
            if len(data) >= BODY
            else f"no PDI image: {len(data)} bytes, less than its headers ({BODY})",
        )
    problems: list[str] = []
    table = _header(data, IMAGE_TABLE, TABLE_WORDS, "image header table", problems)
    image = _header(data, IMAGE_HEADER, HEADER_WORDS, "image header", problems)
    kind, zone, check = struct.unpack_from("<3I", data, PARTITION_HEADER + TRANSFORM)
    transformed = kind == 1 and check == check_word(kind, zone)
    # xclbinutil leaves the checksum that the header had before it wrote the three words.
    partition = _header(
        data,
        PARTITION_HEADER,
        TABLE_WORDS,
        "partition header",
        problems,
        range(TRANSFORM // 4, CHECK // 4 + 1) if transformed else (),
    )
    if table[10] != PARTIAL_PDI:
        raise BadPdi(IMAGE_TABLE + 40, f"no partial PDI: identification {table[10]:#x}")
    if table[1] != 1 or table[3] != 1:
        raise BadPdi(IMAGE_TABLE + 4, f"{table[1]} images and {table[3]} partitions; one of each is expected")
    for what, word, at in (
        ("image header", table[2], IMAGE_HEADER),
        ("partition header", table[4], PARTITION_HEADER),
    ):
        if 4 * word != at:
            raise BadPdi(IMAGE_TABLE + 8, f"the {what} lies at byte {4 * word}, expected at {at}")
    if 4 * partition[8] != CDO_HEADER:
        raise BadPdi(PARTITION_HEADER + 32, f"the partition's data lies at byte {4 * partition[8]}")
    size, mark, version, words, given = struct.unpack_from("<5I", data, CDO_HEADER)
    if (size, mark) != (4, CDO):
        raise BadPdi(CDO_HEADER, "the partition holds no configuration (CDO)")
    if given != checksum((size, mark, version, words)):
        problems.append("the CDO header's checksum is wrong")
    room = len(data) - BODY
    if transformed:
        if zone % 4 or zone > room:
            raise BadPdi(
                PARTITION_HEADER + ZONE, f"{zone} bytes of commands do not fit the image ({room} left)"
            )
        commands = zone
    else:
        commands = 4 * words
        if commands > room:
            problems.append(f"the CDO header promises {commands} bytes of commands, the image holds {room}")
            commands = room & ~3
    name = struct.pack("<4I", *image[4:8]).split(b"\0", 1)[0].decode("utf-8", "replace")
    return Image(data, name, image[8], transformed, commands, tuple(problems))


def _header(
    data: bytes, at: int, count: int, what: str, problems: list[str], blank: range | tuple[()] = ()
) -> tuple[int, ...]:
    """A header's words; its checksum is right with the words in `blank` taken as 0, or a problem."""
    words = struct.unpack_from(f"<{count}I", data, at)
    if words[-1] != checksum(tuple(0 if i in blank else word for i, word in enumerate(words[:-1]))):
        problems.append(f"the {what}'s checksum is wrong")
    return words
