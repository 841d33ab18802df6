"""`pyxrt.module`: the control code of an ELF file, for a kernel of an xclbin."""

from __future__ import annotations

from typing import Any

from amdxdna.pyxrt.calls import select
from amdxdna.pyxrt.contexts import hw_context
from amdxdna.pyxrt.elfs import elf


class module:
    """The control code of an ELF file, for a kernel of an xclbin."""

    __module__ = "pyxrt"

    def __init__(self, *args: Any, **keywords: Any) -> None:
        _, values = select("__init__", args, keywords, (("elf", lambda value: isinstance(value, elf)),))
        self.elf: elf = values[0]

    def get_hw_context(self) -> hw_context:
        """An empty context, as XRT's: a module belongs to none."""
        return hw_context()
