"""A trace for people: a line a call, in the manner of strace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amdxdna.entry import nearest
from amdxdna.errors import BadArgument
from amdxdna.text import printable
from amdxdna.trace.calls import CORE_NAMES, REQUESTS

_DUMP = 16
_OTHERS = ("open", "close", "mmap", "munmap")


class TextView:
    """Writes calls as lines. ``names``: only these calls (none: all); ``packets``: with those of submits.

    Made for :class:`amdxdna.trace.recorder.Recorder`'s views: called with each line's dictionary, in order.
    """

    def __init__(self, write: Callable[[str], object], *, names: Iterable[str], packets: bool) -> None:
        self._write = write
        self._names = {name.upper() for name in names}
        self._packets = packets

    def __call__(self, line: dict[str, Any]) -> None:
        if "call" in line:
            if not self._names or line["call"].upper() in self._names:
                self._write("".join(f"{printable(row)}\n" for row in call_lines(line, self._packets)))
        elif "stage" in line and not self._names:
            row = f"{line['t']:>12.6f} [{line['tid']}] -- {line['stage']} {line['us']:.1f} us"
            self._write(f"{printable(row)}\n")


def call_lines(line: dict[str, Any], packets: bool = False) -> list[str]:
    """A call's lines: what went in, what came out, and below it packets, commands that ended, buffers."""
    failed = line.get("errno")
    end = f"-1 {failed}" if failed else "0" if line["call"] not in ("open", "mmap") else ""
    filled = {name: value for name, value in line["out"].items() if value is not None}
    if line["call"] == "open" and not failed:
        end = str(filled.pop("fd", "?"))
    elif line["call"] == "mmap" and not failed:
        end = str(filled.pop("address", "?"))
    number = "" if line["open"] is None else f" {line['open']}"
    result = f" {{{_fields(filled)}}}" if filled else ""
    lines = [
        f"{line['t']:>12.6f} [{line['tid']}]{number} {line['call']}({_fields(line['in'])}) = {end}{result} "
        f"<{line['us']:.1f} us>"
    ]
    if failed:
        lines.append(
            f"             {line['meaning']}" + (f". {line['remedy']}" if line.get("remedy") else "")
        )
    if packets and line.get("packet"):
        lines += [f"             {row}" for row in packet_lines(line["packet"])]
    for handle, data in line.get("contents", {}).items():
        lines += [f"             BO {handle} {row}" for row in dump(bytes.fromhex(data))]
    for command in line.get("completed", ()):
        report = f": {command['health']}" if command.get("health") else ""
        which = f"context {command['context']} command {command['seq']}"
        state = command["state"] or "over"
        lines.append(f"             {which}: {state} after {command['us']:.1f} us{report}")
    return lines


def packet_lines(packet: dict[str, Any], indent: str = "") -> list[str]:
    """A decoded packet in lines, members of a chain below it."""
    if "undecoded" in packet:
        return [f"{indent}packet not readable: {packet['undecoded']}"]
    said = [f"{indent}packet {packet.get('opcode')}"]
    if "cu_mask" in packet:
        said.append(
            f"cu_mask {packet['cu_mask']:#x}"
            if isinstance(packet["cu_mask"], int)
            else f"cu_mask {packet['cu_mask']}"
        )
    if "instructions" in packet:
        said.append(f"instructions {packet['instructions']['bytes']} bytes {_place(packet['instructions'])}")
    if packet.get("buffers"):
        said.append("buffers " + ", ".join(_place(buffer) for buffer in packet["buffers"]))
    for name in ("arguments", "raw"):
        if packet.get(name):
            said.append(f"{name} {' '.join(map(str, packet[name]))}")
    rows = [": ".join([said[0], "; ".join(said[1:])]) if said[1:] else said[0]]
    for member in packet.get("commands", ()):
        inner = member.get("packet")
        rows += (
            packet_lines(inner, indent + "  ")
            if inner
            else [f"{indent}  packet in BO {member['bo']}: not seen"]
        )
    return rows


def _place(where: dict[str, Any]) -> str:
    if where.get("bo") is None:
        return str(where.get("address"))
    return f"BO {where['bo']}" + (f"+{where['offset']:#x}" if where.get("offset") else "")


def _fields(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + _fields(value) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        # Names and addresses stand bare; other text may hold anything, so it is quoted and escaped.
        return (
            value
            if value.replace("_", "").replace(".", "").isalnum() and value.isascii()
            else json.dumps(value)
        )
    return json.dumps(value)


def dump(data: bytes) -> list[str]:
    """Bytes as rows of sixteen, hexadecimal and ASCII; rows that repeat the one before are left out."""
    rows: list[str] = []
    before: bytes | None = None
    for at in range(0, len(data), _DUMP):
        row = data[at : at + _DUMP]
        if row == before:
            if rows[-1] != "*":
                rows.append("*")
            continue
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:#06x}  {_hex(row):<35}  {text}")
        before = row
    return rows


def _hex(row: bytes) -> str:
    return " ".join(row[at : at + 4].hex() for at in range(0, len(row), 4))


def names_of(text: Sequence[str]) -> list[str]:
    """The calls that `-e NAME,...` options name.

    Raises BadArgument for what no call is named.
    """
    names = [name for option in text for name in option.split(",") if name]
    known = [*_OTHERS, *(request.name for request in REQUESTS.values()), *CORE_NAMES.values()]
    for name in names:
        if name.upper() not in map(str.upper, known) and not name.startswith("ioctl "):
            meant = nearest(name, known)
            remedy = f"Did you mean {' or '.join(meant)}?" if meant else f"There are: {', '.join(known)}"
            raise BadArgument(f"-e {name}: no call has this name", remedy=remedy)
    return names
