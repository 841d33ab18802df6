"""Control code in ELF files: the sections that hold instruction streams."""

from __future__ import annotations

import struct

MAGIC = b"\x7fELF"
_PREFIXES = (".ctrltext", ".preempt_save", ".preempt_restore")
_MOST_SECTIONS = 1 << 16
_LONGEST_NAME = 256


def streams(data: bytes) -> list[tuple[str, bytes]]:
    """(name, bytes) of the control-code sections of a little-endian ELF file; [] for a damaged one.

    What it returns is never larger than the file: sections that overlap are damage too.
    """
    try:
        return list(_streams(data))
    except (struct.error, ValueError, IndexError):
        return []


def _streams(data: bytes) -> list[tuple[str, bytes]]:
    wide = data[4] == 2
    if data[5] != 1:
        return []
    at = struct.unpack_from("<Q" if wide else "<I", data, 40 if wide else 32)[0]
    entry, count, names = struct.unpack_from("<HHH", data, 58 if wide else 46)
    layout = "<II8x8xQQ" if wide else "<II4x4xII"
    if count > _MOST_SECTIONS or entry < struct.calcsize(layout) or at + entry * count > len(data):
        return []
    # name (offset in the table of names), type, offset in the file, size
    sections = [struct.unpack_from(layout, data, at + entry * index) for index in range(count)]
    table = data[sections[names][2]:sections[names][2] + sections[names][3]]
    found = []
    room = len(data)
    for name, _, offset, size in sections:
        text = table[name:name + _LONGEST_NAME].split(b"\0", 1)[0].decode("ascii", "replace")
        if text.startswith(_PREFIXES) and offset + size <= len(data):
            room -= size
            if room < 0:
                return []
            found.append((text, data[offset:offset + size]))
    return found
