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
    return (
        struct.pack(
            "<BBBBBBHII",
            *version,
            4,
            6,
            8,
            1,
            0,
            len(ops) if count is None else count,
            16 + len(body) if size is None else size,
        )
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
    if wide:
        packed = b"".join(
            struct.pack("<IIQQQQ24x", name, kind, 0, 0, offset, size) for name, kind, offset, size in entries
        )
        header = struct.pack(
            "<4sBBB9xHHIQQQIHHHHHH",
            b"\x7fELF",
            2,
            1,
            1,
            1,
            0,
            1,
            0,
            0,
            table,
            0,
            64,
            0,
            0,
            64,
            len(entries),
            len(entries) - 1,
        )
    else:
        packed = b"".join(
            struct.pack("<IIIIII16x", name, kind, 0, 0, offset, size) for name, kind, offset, size in entries
        )
        header = struct.pack(
            "<4sBBB9xHHIIIIIHHHHHH",
            b"\x7fELF",
            1,
            1,
            1,
            1,
            0,
            1,
            0,
            0,
            table,
            0,
            52,
            0,
            0,
            40,
            len(entries),
            len(entries) - 1,
        )
    return header + body + packed
