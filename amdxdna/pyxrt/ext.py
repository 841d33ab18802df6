"""`pyxrt.ext`: buffers without a group."""

from __future__ import annotations

import ctypes as _ctypes
from typing import Any as _Any

from amdxdna.buffer import PAGE as _PAGE
from amdxdna.pyxrt import kernels as _kernels
from amdxdna.pyxrt.buffers import bo as _bo
from amdxdna.pyxrt.calls import SIZE as _SIZE
from amdxdna.pyxrt.calls import refuse as _refuse
from amdxdna.pyxrt.calls import select as _select
from amdxdna.pyxrt.calls import text as _text
from amdxdna.pyxrt.calls import translated as _translated
from amdxdna.pyxrt.contexts import hw_context as _hw_context
from amdxdna.pyxrt.devices import device as _device
from amdxdna.pyxrt.enums import Enumeration as _Enumeration
from amdxdna.pyxrt.enums import enumeration as _enumeration

_pointer = _ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [_ctypes.py_object, _ctypes.c_char_p], _ctypes.c_void_p


@_enumeration("pyxrt.ext", none=0, read=1, write=2, read_write=3, local=0, shared=4, process=8, hybrid=16)
class access_mode(_Enumeration):
    """Who may reach a buffer, which the NPU's allocator ignores."""

    __slots__ = ()

    def __or__(self, other: _Any) -> _Any:
        return access_mode(int(self) | int(other)) if isinstance(other, access_mode) else NotImplemented

    def __and__(self, other: _Any) -> _Any:
        return access_mode(int(self) & int(other)) if isinstance(other, access_mode) else NotImplemented


none, read, write, read_write = access_mode(0), access_mode(1), access_mode(2), access_mode(3)
local, shared, process, hybrid = access_mode(0), access_mode(4), access_mode(8), access_mode(16)

_OWNER = ("", lambda value: isinstance(value, _device))
_OF_CONTEXT = ("", lambda value: isinstance(value, _hw_context))
_CAPSULE = ("", lambda value: type(value).__name__ == "PyCapsule")
_BYTES, _ACCESS = ("", _SIZE), ("", lambda value: isinstance(value, access_mode))


class bo(_bo):
    """A host_only buffer, or one over the caller's own pages."""

    __module__ = "pyxrt.ext"

    def __init__(self, *args: _Any) -> None:
        form, values = _select(
            "__init__", args, {}, (_OWNER, _CAPSULE, _BYTES, _ACCESS), (_OWNER, _CAPSULE, _BYTES),
            (_OWNER, _BYTES, _ACCESS), (_OWNER, _BYTES),
            (_OF_CONTEXT, _BYTES, _ACCESS), (_OF_CONTEXT, _BYTES))
        opened = values[0].opened if form < 4 else values[0].get_device().opened
        if form > 1:
            self._make(opened, int(values[1]), int(_bo.host_only))
            return
        address, size = _pointer(values[1], None), int(values[2])
        if not address or not size:
            _refuse("a user pointer needs an address and a size")
        with _translated():
            self._own(opened.wrap(address, -(-size // _PAGE) * _PAGE), size)


class kernel(_kernels.kernel):
    """A kernel of control code in an ELF file, which this module does not read."""

    __module__ = "pyxrt.ext"

    def __init__(self, *args: _Any) -> None:
        _select("__init__", args, {}, (_OF_CONTEXT, ("", _text)))
        _refuse("this context has no ELF file with control code: use pyxrt.kernel for an xclbin's kernels")


def __dir__() -> list[str]:
    return ["access_mode", "bo", "hybrid", "kernel", "local", "none", "process", "read", "read_write",
            "shared", "write"]
