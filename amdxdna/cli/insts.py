"""`python -m amdxdna insts`: instruction streams, disassembled."""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import CommandError, Parser, document, print_json
from amdxdna.cli.screen import show, tell
from amdxdna.files import read_regular, read_up_to

if TYPE_CHECKING:
    from amdxdna.insts import Listing

_DESCRIPTION = """\
Disassembles an instruction stream: AIE transaction binaries (register writes, block writes with their DMA
buffer descriptors, masked writes, waits, address patches with their argument), control code in ELF files, the
emulator's own streams, and text files of hexadecimal words. What it does not understand is shown as words."""

_EPILOG = """\
Exit status: 0; 1 when the file cannot be read or a stream in it could not run, which a line on stderr says.
--json prints one document:

  {"schema": "amdxdna.insts", "version": 1, "file": "...", "streams": [
    {"format": "txn" | "emu" | "unknown", "section": null, "size": 300, "header": {...}, "arguments": [0, 1],
     "problems": [], "ops": [{"offset": 16, "op": "WRITE", "bytes": 24, ...}]}]}

Addresses, register values and raw words are hexadecimal strings. Ops that name a register have "address",
"tile" ([column, row]) and "register" (its name or null); BLOCKWRITE has "data" and, on a DMA's descriptors,
"descriptors"; a WRITE that starts a DMA has "task"; DDR_PATCH has "argument" and "plus"; "raw" has "data"."""

_MOST_BYTES = 8 << 20
_ROW = 8
_MOST_ROWS = 64
"""Of words that nobody understands: a file of another kind is not poured out."""
_SHOWN = ("offset", "op", "bytes")
_OWN_LINES = ("address", "tile", "register", "registers", "data", "descriptors", "task", "tail")


def parser() -> Parser:
    """The options of `insts`."""
    p = Parser("insts", description=_DESCRIPTION, epilog=_EPILOG)
    p.add_argument("file", metavar="FILE", help="the stream; - reads stdin")
    p.add_argument(
        "--at",
        metavar="N",
        type=int,
        help="mark operation N, where a hang stopped, and show what is around it",
    )
    p.add_argument(
        "--around",
        metavar="N",
        type=int,
        default=8,
        help="with --at: operations shown on each side (default %(default)s)",
    )
    p.add_json()
    return p


def read_file(path: str, most: int) -> bytes:
    """A file's bytes. Raises CommandError for one that cannot be read or is over `most` bytes."""
    try:
        data = read_up_to(sys.stdin.buffer, most) if path == "-" else read_regular(path, most)
    except OSError as failed:
        if failed.errno == errno.EFBIG:
            raise CommandError(f"{path} is over {most >> 20} MiB", "Give an instruction stream") from None
        raise CommandError(f"{path} cannot be read: {failed.strerror}") from None
    if len(data) > most:
        raise CommandError(f"{path} is over {most >> 20} MiB", "Give an instruction stream")
    return data


def insts_main(argv: list[str]) -> int:
    """Runs `insts` with `argv`; the exit status."""
    given = parser().parse_args(argv)
    data = read_file(given.file, _MOST_BYTES)

    from amdxdna.insts import disassemble

    listings = disassemble(data)
    if given.at is not None and not any(0 <= given.at < len(listing.ops) for listing in listings):
        most = max((len(listing.ops) for listing in listings), default=0)
        raise CommandError(f"there is no operation {given.at}", f"The stream has {most}, counted from 0")
    if given.json:
        print_json(document("insts", file=given.file, streams=[stream_json(listing) for listing in listings]))
    else:
        for listing in listings:
            show(stream_text(listing, given.at, max(given.around, 0)))
    problems = [problem for listing in listings for problem in listing.problems]
    for problem in problems:
        tell([f"amdxdna: insts: {given.file}: {problem}"])
    return 1 if problems else 0


def stream_json(listing: Listing) -> dict[str, Any]:
    names = ("format", "section", "size", "header", "arguments", "problems", "ops")
    return {name: getattr(listing, name) for name in names}


def stream_text(listing: Listing, marked: int | None = None, around: int = 0) -> list[str]:
    what = {"txn": "AIE transaction", "emu": "emulator stream", "unknown": "unknown format"}[listing.format]
    head = ", ".join(f"{name} {value}" for name, value in listing.header.items() if value is not None)
    lines = [
        f"{what}{f' in {listing.section}' if listing.section else ''}, {listing.size} bytes"
        + (f": {head}" if head else "")
    ]
    for number, op in enumerate(listing.ops):
        if marked is None or abs(number - marked) <= around:
            first, *rest = _op(op)
            mark = ">" if number == marked else " "
            lines += [f"{mark}{number:>5} {first}", *(f"       {row}" for row in rest)]
    if listing.arguments:
        lines.append(f"patches arguments {', '.join(map(str, listing.arguments))}")
    return lines


def _op(op: dict[str, Any]) -> list[str]:
    """One op; its words and descriptors in lines of their own."""
    parts = []
    if "register" in op:
        column, row = op["tile"]
        parts.append(f"{op['address']} ({column},{row}) {op['register'] or '?'}")
    elif "tile" in op:
        parts.append(f"tile ({op['tile'][0]},{op['tile'][1]})")
    for name, value in op.items():
        if name in _SHOWN or name in _OWN_LINES:
            continue
        parts.append(f"{name} {', '.join(value) or '-' if isinstance(value, list) else value}")
    if op["op"] == "DDR_PATCH":
        parts[1:] = [f"<- argument {op['argument']} + {op['plus']:#x}"]
    if "task" in op:
        task = op["task"]
        parts.append(
            f"start {task['direction']} {task['channel']}: BD {task['bd']}, {task['repeat']} times"
            + (", token" if task["token"] else "")
        )
    lines = [f"{op['offset']:#08x}  {op['op']:<12} {'  '.join(parts)}".rstrip()]
    data = op.get("data", [])
    if "descriptors" in op:
        for bd in op["descriptors"]:
            fields = "  ".join(f"{name} {value}" for name, value in bd.items() if name != "bd")
            lines.append(f"            BD {bd['bd']}: {fields}")
    else:
        rows = [f"            {' '.join(data[at : at + _ROW])}" for at in range(0, len(data), _ROW)]
        if op["op"] == "raw" and len(rows) > _MOST_ROWS:
            left = len(data) - _MOST_ROWS * _ROW
            rows[_MOST_ROWS:] = [f"            ... and {left} words more, which --json shows"]
        lines += rows
    for place in op.get("registers", []):
        lines.append(
            f"            {place['address']} ({place['tile'][0]},{place['tile'][1]}) "
            f"{place['register'] or '?'}"
        )
    if op.get("tail"):
        lines.append(f"            bytes {op['tail']}")
    return lines
