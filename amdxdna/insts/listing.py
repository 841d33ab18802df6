"""An instruction stream as a list of ops, whatever its format."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, fields
from typing import Any

from amdxdna.insts import elf, txn
from amdxdna.pdi.image import BUS_WIDTH

_HEX_TEXT = re.compile(rb"[0-9a-fA-Fx\s]+")
_HEX_WORD = re.compile(rb"(?:0x)?[0-9a-fA-F]{8}")
_TWO_ON_A_LINE = re.compile(rb"\S[^\S\n]+\S")
_XCLBIN = b"xclbin2\0"
_PDI = struct.pack("<4I", *BUS_WIDTH)


@dataclass
class Listing:
    """What :func:`disassemble` found.

    `format`: "txn" (AIE transaction), "emu" (the emulator's stream) or "unknown". `section`: of an ELF file.
    `header`: its fields; `ops`: each with ``offset``, ``op`` and ``bytes``; `problems`: why it cannot run.
    """

    format: str
    size: int
    section: str | None = None
    header: dict[str, Any] = field(default_factory=dict)
    ops: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> list[int]:
        """The arguments that address patches name, in order, each once."""
        return sorted({op["argument"] for op in self.ops if "argument" in op})


def disassemble(data: bytes) -> list[Listing]:
    """The streams in `data`: one, or one a control-code section of an ELF file.

    A text file of 32-bit words in hexadecimal, one a line, is taken for its words. Never raises on bytes.
    """
    data = bytes(data)
    if data.startswith(elf.MAGIC):
        sections = elf.streams(data)
        if sections:
            listings = []
            for name, part in sections:
                listing = _one(part)
                listing.section = name
                listings.append(listing)
            return listings
        return [Listing("unknown", len(data), problems=["an ELF file without control code"])]
    return [_one(from_text(data) or data)]


def from_text(data: bytes) -> bytes:
    """The words of a text file of hexadecimal words, one a line; nothing when `data` is no such file."""
    if not _HEX_TEXT.fullmatch(data) or _TWO_ON_A_LINE.search(data):
        return b""
    words = data.split()
    if not all(_HEX_WORD.fullmatch(word) for word in words):
        return b""
    return struct.pack(f"<{len(words)}I", *(int(word, 16) for word in words))


def _one(data: bytes) -> Listing:
    from amdxdna.emu.kernels import stream

    if data[:4] == struct.pack("<I", stream.MAGIC):
        return _emulated(data)
    head = txn.header(data)
    if head is not None:
        return _transaction(data, head)
    listing = Listing("unknown", len(data), problems=[_why_unknown(data)])
    _raw(listing, data, 0)
    return listing


def _why_unknown(data: bytes) -> str:
    if not data:
        return "there is nothing in it"
    if data.startswith(_XCLBIN):
        return "it is an xclbin, which `python -m amdxdna xclbin` reads; streams are files of their own"
    if data.startswith(_PDI):
        return "it is a PDI, which configures the array; streams are files of their own"
    return "no transaction header and no emulator stream"


def _raw(listing: Listing, data: bytes, at: int) -> None:
    """Shows the rest of a stream as words."""
    rest = data[at:]
    if not rest:
        return
    words = struct.unpack_from(f"<{len(rest) // 4}I", rest)
    op: dict[str, Any] = {
        "offset": at,
        "op": "raw",
        "bytes": len(rest),
        "data": [f"{word:#010x}" for word in words],
    }
    if len(rest) % 4:
        op["tail"] = rest[len(rest) // 4 * 4 :].hex()
    listing.ops.append(op)


def _transaction(data: bytes, head: txn.Header) -> Listing:
    listing = Listing("txn", len(data), header=head.document())
    at = txn.HEADER.size
    try:
        for op in txn.ops(data, head):
            listing.ops.append(op)
            at = op["offset"] + op["bytes"]
    except txn.Malformed as wrong:
        listing.problems.append(str(wrong))
    if not listing.problems and at != head.size:
        listing.problems.append(f"the header says {head.size} bytes, the ops end at {at}")
    if head.size > len(data):
        listing.problems.append(f"the header says {head.size} bytes, the file has {len(data)}")
    _raw(listing, data, at)
    return listing


def _emulated(data: bytes) -> Listing:
    """The emulator's stream: ops with the names of their fields."""
    from amdxdna.emu.kernels import stream

    try:
        stream.parse(data)
        problems = []
    except stream.StreamError as wrong:
        problems = [str(wrong)]
    listing = Listing("emu", len(data), problems=problems)
    words = struct.unpack_from(f"<{len(data) // 4}I", data)
    if len(words) >= 3:
        listing.header = {"version": words[1], "ops": words[2]}
    at = 3
    most = min(words[2], txn.MOST_OPS) if len(words) >= 3 else 0
    while at < len(words) and len(listing.ops) < most:
        opcode, count = words[at] & 0xFFFF, words[at] >> 16
        kind = stream.OPS.get(opcode)
        if kind is None or count < 1 or at + count > len(words):
            break
        names = [item.name for item in fields(kind)]
        values = words[at + 1 : at + count]
        if len(values) != len(names):
            break
        listing.ops.append(
            {"offset": 4 * at, "op": kind.__name__.upper(), "bytes": 4 * count, **_named(names, values)}
        )
        at += count
    _raw(listing, data, min(4 * at, len(data)))
    return listing


def _named(names: list[str], values: tuple[int, ...]) -> dict[str, Any]:
    """Fields of an emulator op, with the names of flags and weight format."""
    from amdxdna.emu.kernels import stream

    result: dict[str, Any] = dict(zip(names, values, strict=True))
    if "flags" in result:
        known = {stream.SWIGLU: "swiglu", stream.BIAS: "bias", stream.GELU: "gelu", stream.PAIR: "pair"}
        flags = [name for bit, name in known.items() if result["flags"] & bit]
        rest = result["flags"] & ~sum(known)
        result["flags"] = flags + ([f"{rest:#x}"] if rest else [])
    if "format" in result:
        result["format"] = {value: name for name, value in stream.FORMATS.items()}.get(
            result["format"], result["format"]
        )
    return result
