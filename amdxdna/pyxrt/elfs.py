"""`pyxrt.elf` and `pyxrt.program`: control code in ELF files."""

from __future__ import annotations

import ctypes
from typing import Any

from amdxdna.elf import ControlElf
from amdxdna.elf.control import GENERATIONS, MAX_FILE_BYTES
from amdxdna.errors import BadElf
from amdxdna.pyxrt.calls import SIZE, refuse, select, text

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p

CAPSULE = ("", lambda value: type(value).__name__ == "PyCapsule")
"""A parameter: a pointer, as programs make it with ctypes."""


def address_of(capsule: Any) -> int:
    """The pointer of an unnamed capsule. Raises RuntimeError for none."""
    address = _pointer(capsule, None)
    if not address:
        refuse("a user pointer needs an address")
    return int(address)


class elf:
    """An ELF file of control code."""

    __module__ = "pyxrt"

    def __init__(self, *args: Any) -> None:
        form, values = select("__init__", args, {}, (("", text),), (CAPSULE, ("", SIZE)))
        if form == 1 and int(values[1]) > MAX_FILE_BYTES:
            refuse(f"not valid ELF data\nit has {int(values[1]):,} bytes, more than any ELF file")
        first = f"{values[0]} is not found or is not a valid ELF file" if form == 0 else "not valid ELF data"
        try:
            self.read = ControlElf.read(
                values[0] if form == 0 else ctypes.string_at(address_of(values[0]), int(values[1]))
            )
        except BadElf as error:
            if error.os_abi is not None and error.os_abi not in GENERATIONS:
                first = f"ELF contains unsupported platform OS/ABI: {error.os_abi}"
            raise RuntimeError(f"{first}\n{error}") from error

    @property
    def columns(self) -> int:
        """The partition's width. Raises RuntimeError for a file that goes with an xclbin."""
        if self.read.columns is None:
            refuse("ELF is missing xrt configuration info\n")
        return self.read.columns


class program:
    """A full ELF file."""

    __module__ = "pyxrt"

    def __init__(self, *args: Any) -> None:
        _, values = select("__init__", args, {}, (("", lambda value: isinstance(value, elf)),))
        self._elf: elf = values[0]

    def get_partition_size(self) -> int:
        """The columns that it needs. Raises RuntimeError for a file that goes with an xclbin."""
        return self._elf.columns
