"""`python -m amdxdna xclbin`: what an xclbin file holds."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import Parser, document, print_json

if TYPE_CHECKING:
    from amdxdna.xclbin import Xclbin

_EPILOG = """\
Exit status: 0; 1 when the file cannot be read or is no valid xclbin. --json prints one document:

  {"schema": "amdxdna.xclbin", "version": 1, "file": "...", "uuid": "...", "timestamp": 1754000000,
   "size": 9000, "digest": "...", "kernels": ["MLIR_AIE"],
   "partition": {"name": "...", "columns": 8, "start_columns": [0], "ops_per_cycle": 2048},
   "sections": [{"kind": "MEM_TOPOLOGY", "name": "...", "offset": 1024, "size": 48}],
   "pdis": [{"uuid": "...", "size": 64, "kernel_ids": [257], "functions": [0], "emulator": "copy"}],
   "cus": [{"name": "MLIR_AIE:MLIRAIE", "kernel": "MLIR_AIE", "kernel_id": 257, "function": 0, "pdi": 0}]}

"emulator" names the family of an emulated kernel's PDI, null for others. Two files with one "digest" can
share a hardware context."""


def parser() -> Parser:
    """The options of `xclbin`."""
    p = Parser("xclbin", epilog=_EPILOG, description="Tells what an xclbin file holds: sections, AIE "
               "partition, PDIs, compute units and kernels, with sizes.")
    p.add_argument("file", metavar="FILE", help="the xclbin")
    p.add_json()
    return p


def xclbin_main(argv: list[str]) -> int:
    """Runs `xclbin` with `argv`; the exit status."""
    given = parser().parse_args(argv)

    from amdxdna.xclbin import Xclbin

    found = Xclbin.read(given.file)
    content = {"size": os.path.getsize(given.file), **describe(found)}
    if given.json:
        print_json(document("xclbin", file=given.file, **content))
    else:
        # A file's names must not move a terminal's cursor; columns keep their spaces.
        for line in _text(given.file, content):
            print("".join(c if c.isprintable() else "?" for c in line))
    return 0


def describe(found: Xclbin) -> dict[str, Any]:
    """The fields of the amdxdna.xclbin document that come from the file's contents."""
    part = found.partition
    return {
        "uuid": str(found.uuid), "timestamp": found.timestamp, "digest": found.digest.hex(),
        "kernels": list(found.kernels),
        "partition": {"name": part.name, "columns": part.column_width,
                      "start_columns": list(part.start_columns), "ops_per_cycle": part.ops_per_cycle},
        "sections": [{"kind": section.kind_name, "name": section.name, "offset": section.offset,
                      "size": len(section.data)} for section in found.sections],
        "pdis": [{"uuid": str(pdi.uuid), "size": len(pdi.data), "kernel_ids": list(pdi.cu_ids),
                  "functions": list(pdi.functions), "emulator": _family(pdi.data)} for pdi in found.pdis],
        "cus": [{"name": cu.name, "kernel": cu.kernel, "kernel_id": cu.kernel_id, "function": cu.function,
                 "pdi": cu.pdi} for cu in found.cus],
    }


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
    lines = [f"{path}: {content['size']} bytes", f"UUID       {content['uuid']}{when}",
             f"digest     {content['digest']}",
             f"partition  {part['name'] or '-'}: {part['columns']} columns, start at {starts}; "
             f"{part['ops_per_cycle']} operations a cycle",
             f"kernels    {', '.join(content['kernels']) or 'none'}"]
    for index, cu in enumerate(content["cus"]):
        lines.append(f"CU {index:<8}{cu['name']}  kernel id {cu['kernel_id']:#x}  function {cu['function']}  "
                     f"PDI {cu['pdi']}")
    for index, pdi in enumerate(content["pdis"]):
        ids = ", ".join(f"{number:#x}" for number in pdi["kernel_ids"]) or "none"
        family = f"  emulated kernel {pdi['emulator']}" if pdi["emulator"] else ""
        lines.append(f"PDI {index:<7}{pdi['uuid']}  {pdi['size']} bytes  kernel ids {ids}{family}")
    lines.append("section                   offset      bytes  name")
    lines += [f"  {section['kind']:<22}{section['offset']:>8}{section['size']:>11}  {section['name']}"
              for section in content["sections"]]
    return lines
