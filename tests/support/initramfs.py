"""What an initramfs holds, and kernel modules to put into one."""

from __future__ import annotations

import struct


def entries(image: bytes) -> dict[str, tuple[int, bytes, tuple[int, int]]]:
    """What a newc archive holds: path -> (mode, data, device), in order; checks headers and padding.

    A header is inode, mode, user, group, links, time, size, and places of devices."""
    found: dict[str, tuple[int, bytes, tuple[int, int]]] = {}
    at = 0
    while True:
        assert image[at : at + 6] == b"070701"
        fields = [int(image[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        assert fields[0] == len(found) + 1 and fields[2:6] == [0, 0, 1, 0]
        name = image[at + 110 : at + 109 + fields[11]].decode()
        assert image[at + 109 + fields[11]] == 0
        at = (at + 110 + fields[11] + 3) & ~3
        data = image[at : at + fields[6]]
        at = (at + fields[6] + 3) & ~3
        if name == "TRAILER!!!":
            assert fields[1] == 0 and not any(fields[6:11])
            assert at == len(image)
            return found
        assert name not in found
        found[name] = (fields[1], data, (fields[9], fields[10]))


def fake_module(depends: str) -> bytes:
    """An ELF64 object with a .modinfo section."""
    names = b"\0.modinfo\0.names\0"
    info = b"license=GPL\0depends=" + depends.encode() + b"\0"
    body = bytes(64) + info + names
    sections = [
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 64, len(info), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, 64 + len(info), len(names), 0, 0, 1, 0),
    ]
    image = bytearray(body + b"".join(sections))
    image[:7] = b"\x7fELF\x02\x01\x01"
    struct.pack_into("<Q", image, 0x28, len(body))
    struct.pack_into("<HHH", image, 0x3A, 64, 3, 2)
    return bytes(image)
