"""`python -m amdxdna xclbin`: what an xclbin file holds, what its PDIs configure, how two files differ."""

from __future__ import annotations

import datetime
import hashlib
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import CommandError, Parser, UsageError, document, print_json, writing
from amdxdna.cli.screen import show, wrap
from amdxdna.output import same_file, write_whole

if TYPE_CHECKING:
    from amdxdna.pdi.summary import Summary
    from amdxdna.xclbin import Xclbin

_EPILOG = """\
Exit status: 0; 1 when a file cannot be read, is no valid xclbin, or is one that no NPU can run (what it
holds is shown all the same), and for two files that differ. --json prints one document:

  {"schema": "amdxdna.xclbin", "version": 1, "file": "...", "uuid": "...", "timestamp": 1754000000,
   "size": 9000, "digest": "...", "kernels": ["MLIR_AIE"], "generation": "NPU2 (8 columns)",
   "partition": {"name": "...", "columns": 8, "start_columns": [0], "ops_per_cycle": 2048},
   "arguments": {"MLIR_AIE": [{"index": 0, "name": "opcode", "size": 8, "offset": 0, "buffer": false,
                               "type": "uint64_t"}]},
   "sections": [{"kind": "MEM_TOPOLOGY", "name": "...", "offset": 1024, "size": 48}],
   "pdis": [{"uuid": "...", "size": 64, "kernel_ids": [257], "functions": [0], "used": true,
             "emulator": "copy", "digest": "..."}],
   "cus": [{"name": "MLIR_AIE:MLIRAIE", "kernel": "MLIR_AIE", "kernel_id": 257, "function": 0, "pdi": 0}],
   "problem": null}

"emulator" names the family of an emulated kernel's PDI, null for others; "used" tells whether a compute unit
loads the PDI; "problem" says why no NPU can run the file. Two files with one "digest" can share a hardware
context. With --pdi, "pdi" holds for each: "tiles" (descriptors, locks, started channels), "programs",
"routes", and with --commands every command."""


EVERY = 1 << 64
"""A number that no PDI has: all of a file's."""


def parser() -> Parser:
    """The options of `xclbin`."""
    p = Parser(
        "xclbin",
        epilog=_EPILOG,
        description="Tells what an xclbin file holds: sections, AIE "
        "partition, PDIs, compute units and kernels with their arguments; with --pdi, what a PDI "
        "configures in the array; with two files, what differs.",
    )
    p.add_argument("file", metavar="FILE", help="the xclbin")
    p.add_argument("other", metavar="OTHER", nargs="?", help="a second one to compare it with")
    p.add_argument(
        "--pdi",
        metavar="N",
        nargs="?",
        const=EVERY,
        type=int,
        help="what PDI N configures (without N: every PDI): programs, DMA, locks, streams",
    )
    p.add_argument(
        "--commands", action="store_true", help="with --pdi: every command, with tile and register"
    )
    p.add_argument(
        "--draw", action="store_true", help="with --pdi: the array as a grid, who is fed from where"
    )
    p.add_argument("--svg", metavar="FILE", help="with --pdi N: write the drawing as SVG")
    p.add_json()
    return p


def xclbin_main(argv: list[str]) -> int:
    """Runs `xclbin` with `argv`; the exit status."""
    given = parser().parse_args(argv)
    if given.other and (given.pdi is not None or given.commands or given.draw or given.svg):
        raise UsageError("two files are compared as a whole", "Leave --pdi and its options away")
    if given.pdi is None and (given.commands or given.draw or given.svg):
        given.pdi = EVERY

    if given.svg and same_file(given.file, given.svg):
        raise UsageError(f"{given.svg} is the xclbin, and --svg would take its place", "Name another file")

    found, content = _read(given.file)
    if given.other:
        return _compare(given.file, content, given.other, given.json)
    chosen = _chosen(found, given.pdi, given.svg) if given.pdi is not None else []
    decoded = [(number, _decode(found, number)) for number in chosen]
    if given.svg:
        _svg(given, decoded)
    if given.json:
        if given.pdi is not None:
            content["pdi"] = [_pdi_document(number, what, given.commands) for number, what in decoded]
        print_json(document("xclbin", file=given.file, **content))
    else:
        show(_text(given.file, content) if given.pdi is None else _pdi_text(given, content, found, decoded))
    return int(content["problem"] is not None)


def _read(path: str) -> tuple[Xclbin, dict[str, Any]]:
    """A file and its description, with why no NPU can run it."""
    from amdxdna.xclbin import read_any

    found, problem = read_any(path)
    content = {"size": os.path.getsize(path), **describe(found)}
    return found, {**content, "problem": problem and problem.meaning.removeprefix(f"{path}: ")}


def describe(found: Xclbin) -> dict[str, Any]:
    """The fields of the amdxdna.xclbin document that come from the file's contents."""
    from amdxdna.errors import BadXclbin
    from amdxdna.xclbin import metadata

    part = found.partition
    try:
        info = metadata.read(found).kernels
        problem = None
    except BadXclbin as error:
        info, problem = (), str(error)
    used = {cu.pdi for cu in found.cus}
    return {
        "uuid": str(found.uuid),
        "timestamp": found.timestamp,
        "digest": found.digest.hex(),
        "kernels": list(found.kernels),
        "generation": _generation(found),
        "partition": {
            "name": part.name,
            "columns": part.column_width,
            "start_columns": list(part.start_columns),
            "ops_per_cycle": part.ops_per_cycle,
        },
        "arguments": {
            kernel.name: [asdict(argument) for argument in kernel.arguments]
            for kernel in info
            if kernel.name in found.kernels or not found.cus
        },
        "arguments_problem": problem,
        "sections": [
            {
                "kind": section.kind_name,
                "name": section.name,
                "offset": section.offset,
                "size": len(section.data),
            }
            for section in found.sections
        ],
        "pdis": [
            {
                "uuid": str(pdi.uuid),
                "size": len(pdi.data),
                "kernel_ids": list(pdi.cu_ids),
                "functions": list(pdi.functions),
                "used": index in used,
                "emulator": _family(pdi.data),
                "digest": hashlib.blake2b(pdi.data, digest_size=16).hexdigest(),
            }
            for index, pdi in enumerate(found.pdis)
        ],
        "cus": [asdict(cu) for cu in found.cus],
    }


def _generation(found: Xclbin) -> str:
    """Which NPU the file is for, as far as it tells: no field of it says so.

    NPU1's array has five columns, and none of its first has a shim DMA, so files start at column 1 (mlir-aie,
    AIETargetModel); NPU2's has eight, and files start at 0.
    """
    if any(_family(pdi.data) for pdi in found.pdis):
        return "emulated NPU"
    starts, width = found.partition.start_columns, found.partition.column_width
    if not width:
        return "no NPU: it has no AIE partition"
    last = max(starts, default=0) + width
    if last > 5:
        return f"NPU2 ({last} columns)"
    if starts and 0 not in starts:
        return "NPU1, it seems: no partition starts at column 0"
    return "NPU1 or NPU2: the file does not tell"


def _family(data: bytes) -> str | None:
    """The kernel family of an emulator PDI."""
    from amdxdna.emu.kernels.families import UnknownPdi, family_of

    try:
        return family_of(data).label
    except UnknownPdi:
        return None


def _text(path: str, content: dict[str, Any]) -> list[str]:
    when = ""
    if 0 < content["timestamp"] < 1 << 34:
        made = datetime.datetime.fromtimestamp(content["timestamp"], datetime.timezone.utc)
        when = f", made {made:%Y-%m-%d %H:%M} UTC"
    part = content["partition"]
    starts = ", ".join(map(str, part["start_columns"])) or "none"
    partition = f"{part['columns']} columns, start at {starts}; {part['ops_per_cycle']} operations a cycle"
    lines = [
        f"{path}: {content['size']} bytes",
        f"UUID       {content['uuid']}{when}",
        f"digest     {content['digest']}",
        f"made for   {content['generation']}",
        f"partition  {part['name'] or '-'}: {partition}" if part["columns"] else "partition  none",
        f"kernels    {', '.join(content['kernels']) or 'none'}",
    ]
    if content["problem"]:
        lines[1:1] = wrap(content["problem"], "problem    ")
    lines += _arguments(content)
    for index, cu in enumerate(content["cus"]):
        lines.append(
            f"CU {index:<8}{cu['name']}  kernel id {cu['kernel_id']:#x}  function {cu['function']}  "
            f"PDI {cu['pdi']}"
        )
    for index, pdi in enumerate(content["pdis"]):
        ids = ", ".join(f"{number:#x}" for number in pdi["kernel_ids"]) or "none"
        family = f"  emulated kernel {pdi['emulator']}" if pdi["emulator"] else ""
        unused = "" if pdi["used"] else "  no CU uses it"
        lines.append(f"PDI {index:<7}{pdi['uuid']}  {pdi['size']} bytes  kernel ids {ids}{family}{unused}")
    lines.append("section                   offset      bytes  name")
    lines += [
        f"  {section['kind']:<22}{section['offset']:>8}{section['size']:>11}  {section['name']}"
        for section in content["sections"]
    ]
    return lines


def _arguments(content: dict[str, Any]) -> list[str]:
    """The kernels' arguments; kernels with the same ones share a table."""
    if content["arguments_problem"]:
        return [f"arguments  cannot be read: {content['arguments_problem']}"]
    groups: dict[str, list[str]] = {}
    for kernel, arguments in content["arguments"].items():
        rows = [
            f"  {a['index']:>5}  {a['name']:<16}{a['size']:>3} bytes at {a['offset']:#04x}  "
            f"{'buffer' if a['buffer'] else 'value':<7}{a['type']}"
            for a in arguments
        ]
        groups.setdefault("\n".join(rows), []).append(kernel)
    lines = []
    for table, kernels in groups.items():
        lines.append(f"arguments  {', '.join(kernels)}" + ("" if table else ": none"))
        lines += table.split("\n") if table else []
    return lines


# -- PDIs


def _chosen(found: Xclbin, number: int, svg: str | None) -> list[int]:
    if number == EVERY:
        if svg and not found.pdis:
            raise CommandError("the file has no PDI to draw")
        if svg and len(found.pdis) > 1:
            raise CommandError(f"the file has {len(found.pdis)} PDIs and --svg draws one", "Name it: --pdi N")
        return list(range(len(found.pdis)))
    if not 0 <= number < len(found.pdis):
        raise CommandError(f"there is no PDI {number}", f"The file has {len(found.pdis)}, counted from 0")
    return [number]


def _decode(found: Xclbin, number: int) -> Summary | str:
    """A PDI's summary, or why there is none."""
    from amdxdna import pdi
    from amdxdna.pdi import summary

    data = found.pdis[number].data
    family = _family(data)
    if family is not None:
        return f"the emulated NPU's kernel {family}: a mark for the emulator, no configuration"
    try:
        return summary.summarise(pdi.read(data), found.partition.column_width)
    except pdi.BadPdi as error:
        return str(error)


def _pdi_document(number: int, what: Summary | str, every: bool) -> dict[str, Any]:
    from amdxdna.pdi import summary

    if isinstance(what, str):
        return {"pdi": number, "decoded": False, "reason": what}
    listed = {"commands_listed": _commands(what)} if every else {}
    return {"pdi": number, "decoded": True, **summary.document(what), **listed}


def _commands(what: Summary) -> list[dict[str, Any]]:
    """Every command, to the one that cannot be read."""
    from amdxdna import pdi
    from amdxdna.pdi import summary

    found = []
    try:
        for command in pdi.commands(what.image):
            found.append(summary.command_line(command))
    except pdi.BadPdi as error:
        found.append({"offset": error.offset, "command": "unreadable", "reason": str(error)})
    return found


def _pdi_text(
    given: Any, content: dict[str, Any], found: Xclbin, decoded: list[tuple[int, Summary | str]]
) -> list[str]:
    from amdxdna.pdi import drawing, summary

    lines = []
    if not decoded:
        lines.append(f"{given.file}: no PDI")
    if content["problem"]:
        lines += wrap(content["problem"], "problem    ")
    for number, what in decoded:
        head = f"{given.file}: PDI {number} of {len(found.pdis)}: {len(found.pdis[number].data)} bytes"
        if isinstance(what, str):
            lines.append(f"{head}: {what}")
            continue
        form = "commands and data apart" if what.image.transformed else "plain"
        lines.append(
            f"{head}, {form}, {what.array.commands} commands"
            + (f", {what.array.unknown_commands} unknown" if what.array.unknown_commands else "")
        )
        lines += summary.lines(what)
        if given.draw:
            lines += drawing.text(what)
        if given.commands:
            lines += [command_text(command) for command in _commands(what)]
    return lines


def command_text(command: dict[str, Any]) -> str:
    """A command in a line; a block write's first words."""
    said = f"{command['offset']:#08x}  {command['command']:<13}"
    if "tile" in command:
        said += (
            f" {command['address']} ({command['tile'][0]},{command['tile'][1]}) {command['register'] or '?'}"
        )
    elif "address" in command:
        said += f" {command['address']}"
    if "words" in command:
        shown = command["data"][:8]
        said += f" {command['words']} words: {' '.join(shown)}" + (" ..." if len(command["data"]) > 8 else "")
    elif "value" in command:
        said += f" {command['value']}" + (f" mask {command['mask']}" if "mask" in command else "")
    else:
        said += " " + (" ".join(command.get("payload", [])) or command.get("reason", ""))
    return said.rstrip()


def _svg(given: Any, decoded: list[tuple[int, Summary | str]]) -> None:
    from amdxdna.pdi import drawing

    number, what = decoded[0]
    if isinstance(what, str):
        raise CommandError(f"PDI {number} cannot be drawn: {what}")
    drawn = drawing.svg(what, f"{os.path.basename(given.file)}, PDI {number}")
    with writing(given.svg):
        write_whole(given.svg, drawn.encode("utf-8", "replace"))


# -- two files


def _compare(path: str, content: dict[str, Any], other_path: str, as_json: bool) -> int:
    _, other = _read(other_path)
    mine, theirs = _flat(content), _flat(other)
    changes = [
        (name, mine.get(name), theirs.get(name))
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name) != theirs.get(name)
    ]
    unusable = [name for name, held in ((path, content), (other_path, other)) if held["problem"]]
    same = content["digest"] == other["digest"] and not unusable
    if as_json:
        print_json(
            document(
                "xclbin",
                file=path,
                other=other_path,
                same_context=same,
                differences=[{"what": n, "file": a, "other": b} for n, a, b in changes],
            )
        )
        return int(bool(changes))
    how = "the same content" if not changes else f"{len(changes)} differences"
    show(
        [
            f"{path} and {other_path}: {how}",
            *(f"  {name}: {'-' if a is None else a} | {'-' if b is None else b}" for name, a, b in changes),
            "One hardware context serves both."
            if same
            else f"No NPU can run {' or '.join(unusable)}."
            if unusable
            else "Columns, compute units or PDIs differ: each needs a hardware context of its own.",
        ]
    )
    return int(bool(changes))


def _flat(content: dict[str, Any]) -> dict[str, Any]:
    """A description as name -> value; lists by number, sections by kind, offsets left out."""
    flat: dict[str, Any] = {
        name: content[name] for name in ("uuid", "timestamp", "size", "digest", "generation")
    }
    flat |= {f"partition {name}": value for name, value in content["partition"].items()}
    for index, cu in enumerate(content["cus"]):
        flat |= {f"CU {index} {name}": value for name, value in cu.items()}
    for index, pdi in enumerate(content["pdis"]):
        flat |= {f"PDI {index} {name}": value for name, value in pdi.items()}
    if content["problem"]:
        flat["problem"] = content["problem"]
    for kernel, arguments in content["arguments"].items():
        flat |= {
            f"{kernel} argument {a['index']}": f"{a['name']}, {a['size']} bytes at {a['offset']:#x}, "
            f"{'buffer' if a['buffer'] else 'value'}"
            for a in arguments
        }
    for section in content["sections"]:
        flat[f"section {section['kind']} bytes"] = section["size"]
    return flat
