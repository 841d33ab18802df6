"""Control code in ELF files: the sections that hold instruction streams."""

from __future__ import annotations

from amdxdna.elf.sections import MAGIC as MAGIC
from amdxdna.elf.sections import Elf
from amdxdna.errors import BadElf

_PREFIXES = (".ctrltext", ".preempt_save", ".preempt_restore")


def streams(data: bytes) -> list[tuple[str, bytes]]:
    """(name, bytes) of the control-code sections of a little-endian ELF file; [] for a damaged one.

    What it returns is never larger than the file: sections that overlap are damage too.
    """
    try:
        return [(each.name, each.data) for each in Elf(data).sections if each.name.startswith(_PREFIXES)]
    except BadElf:
        return []
