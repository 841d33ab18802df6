"""`pyxrt.xclbin` and what it lists."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from amdxdna.errors import BadArgument, BadXclbin
from amdxdna.pyxrt.calls import message, refuse, select, text
from amdxdna.pyxrt.uuids import uuid
from amdxdna.xclbin import Xclbin, metadata


class _Kernel:
    __module__ = "pyxrt"

    def __init__(self) -> None:
        self._info = metadata.KernelInfo("", "", (), ())

    def get_name(self) -> str:
        """The kernel's name."""
        return self._info.name

    def get_num_args(self) -> int:
        """How many arguments it has."""
        return len(self._info.arguments)


class _Memory:
    __module__ = "pyxrt"

    def __init__(self) -> None:
        self._memory = metadata.Memory("", 0, 0, False)
        self._index = 0

    def get_tag(self) -> str:
        """The bank's name."""
        return self._memory.tag

    def get_base_address(self) -> int:
        """Where it begins."""
        return self._memory.base

    def get_size_kb(self) -> int:
        """Its size in KiB."""
        return self._memory.size_kib

    def get_used(self) -> bool:
        """Whether the file marks it as used."""
        return self._memory.used

    def get_index(self) -> int:
        """Its place in the file."""
        return self._index


class _Ip:
    __module__ = "pyxrt"

    def get_name(self) -> str:
        """Its name."""
        return ""


for _cls, _called in ((_Kernel, "xclbinkernel"), (_Memory, "xclbinmem"), (_Ip, "xclbinip")):
    _cls.__name__, _cls.__qualname__ = _called, f"xclbin.{_called}"


class xclbin:
    """An xclbin file."""

    __module__ = "pyxrt"
    xclbinkernel = _Kernel
    xclbinmem = _Memory
    xclbinip = _Ip

    def __init__(self, *args: Any) -> None:
        form, values = select("__init__", args, {}, (), (("", text),))
        self._read: Xclbin | None = None
        if form == 1:
            try:
                self._read = Xclbin.read(values[0])
            except BadArgument as error:
                raise RuntimeError(f"No such file {values[0]!r}\n{message(error)}") from error
            except BadXclbin as error:
                first = f"No such file '{values[0]}'" if error.errno is not None else "Invalid xclbin"
                raise RuntimeError(f"{first}\n{error}") from error

    @property
    def read(self) -> Xclbin:
        """The binding's. Raises RuntimeError for an empty one."""
        if self._read is None:
            refuse("this xclbin object is empty: make it with a path")
        return self._read

    @cached_property
    def metadata(self) -> metadata.Metadata:
        """Kernels, memories and connections."""
        try:
            return metadata.read(self.read)
        except BadXclbin as error:
            raise RuntimeError(f"Invalid xclbin\n{error}") from error

    def get_uuid(self) -> uuid:
        """The file's UUID."""
        return uuid(str(self.read.uuid))

    def get_kernels(self) -> list[_Kernel]:
        """The kernels in the metadata's order, PL kernels included."""
        found = []
        for info in self.metadata.kernels:
            made = _Kernel()
            made._info = info
            found.append(made)
        return found

    def get_mems(self) -> list[_Memory]:
        """The memory banks."""
        found = []
        for index, memory in enumerate(self.metadata.memories):
            made = _Memory()
            made._memory, made._index = memory, index
            found.append(made)
        return found

    def get_xsa_name(self) -> str:
        """The name of the platform that the file was made for."""
        return self.read.vbnv.translate(str.maketrans(":.", "__"))

    def get_axlf(self) -> Any:
        """Nothing that Python can hold, in XRT neither."""
        raise TypeError("Unable to convert function return value to a Python type!")
