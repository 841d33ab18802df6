"""Instruction streams and ELF files that tests make."""

from __future__ import annotations

import struct


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def transaction(
    *ops: tuple[int, ...],
    version: tuple[int, int] = (0, 1),
    size: int | None = None,
    count: int | None = None,
) -> bytes:
    body = b"".join(words(*op) for op in ops)
    length = 16 + len(body) if size is None else size
    return (
        struct.pack("<BBBBBBHII", *version, 4, 6, 8, 1, 0, len(ops) if count is None else count, length)
        + body
    )


def elf(wide: bool, sections: dict[str, bytes]) -> bytes:
    names = b"\0" + b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
    head = 64 if wide else 52
    body = names + b"".join(sections.values())
    entries = [(0, 0, 0, 0)]
    at = head + len(names)
    for name, data in sections.items():
        entries.append((names.index(name.encode() + b"\0"), 1, at, len(data)))
        at += len(data)
    entries.append((names.index(b".shstrtab\0"), 3, head, len(names)))
    table = head + len(body)
    entry = "<IIQQQQ24x" if wide else "<IIIIII16x"
    packed = b"".join(
        struct.pack(entry, name, kind, 0, 0, offset, size) for name, kind, offset, size in entries
    )
    ident = (b"\x7fELF", 2 if wide else 1, 1, 1)
    sizes = (head, 0, 0, struct.calcsize(entry), len(entries), len(entries) - 1)
    layout = "<4sBBB9xHHIQQQIHHHHHH" if wide else "<4sBBB9xHHIIIIIHHHHHH"
    return struct.pack(layout, *ident, 1, 0, 1, 0, 0, table, 0, *sizes) + body + packed
