"""`pyxrt.ext`: buffers without a group."""

from __future__ import annotations

from typing import Any as _Any

from amdxdna.allocation import PAGE as _PAGE
from amdxdna.pyxrt import kernels as _kernels
from amdxdna.pyxrt.buffers import bo as _bo
from amdxdna.pyxrt.calls import SIZE as _SIZE
from amdxdna.pyxrt.calls import refuse as _refuse
from amdxdna.pyxrt.calls import select as _select
from amdxdna.pyxrt.calls import text as _text
from amdxdna.pyxrt.calls import translated as _translated
from amdxdna.pyxrt.contexts import hw_context as _hw_context
from amdxdna.pyxrt.devices import device as _device
from amdxdna.pyxrt.elfs import CAPSULE as _CAPSULE
from amdxdna.pyxrt.elfs import address_of as _address_of
from amdxdna.pyxrt.enums import Enumeration as _Enumeration
from amdxdna.pyxrt.enums import enumeration as _enumeration
from amdxdna.pyxrt.modules import module as _module


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
_MODULE = ("module", lambda value: isinstance(value, _module))
_BYTES, _ACCESS = ("", _SIZE), ("", lambda value: isinstance(value, access_mode))


class bo(_bo):
    """A host_only buffer, or one over the caller's own pages."""

    __module__ = "pyxrt.ext"

    def __init__(self, *args: _Any) -> None:
        form, values = _select(
            "__init__",
            args,
            {},
            (_OWNER, _CAPSULE, _BYTES, _ACCESS),
            (_OWNER, _CAPSULE, _BYTES),
            (_OWNER, _BYTES, _ACCESS),
            (_OWNER, _BYTES),
            (_OF_CONTEXT, _BYTES, _ACCESS),
            (_OF_CONTEXT, _BYTES),
        )
        opened = values[0].opened if form < 4 else values[0].get_device().opened
        if form > 1:
            self._make(opened, int(values[1]), int(_bo.host_only))
            return
        address, size = _address_of(values[1]), int(values[2])
        if not size:
            _refuse("a user pointer needs an address and a size")
        with _translated():
            self._own(opened.wrap(address, -(-size // _PAGE) * _PAGE), size)


class kernel(_kernels.kernel):
    """A kernel of control code in ELF files: the context's own, or a module for an xclbin's kernel."""

    __module__ = "pyxrt.ext"

    def __init__(self, *args: _Any, **keywords: _Any) -> None:
        form, values = _select(
            "__init__",
            args,
            keywords,
            (("hwctx", _OF_CONTEXT[1]), _MODULE, ("name", _text)),
            (("hwctx", _OF_CONTEXT[1]), ("name", _text)),
        )
        if form == 0:
            self._open(values[0], values[2], values[1])
        else:
            self._open_elf(values[0], values[1])


def __dir__() -> list[str]:
    return [
        "access_mode",
        "bo",
        "hybrid",
        "kernel",
        "local",
        "none",
        "process",
        "read",
        "read_write",
        "shared",
        "write",
    ]
