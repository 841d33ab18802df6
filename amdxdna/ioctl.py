"""The one ioctl function of the package.

:func:`call` issues a request of :mod:`amdxdna.uapi` (numbers and structs are those of csrc/uapi.h) through a
node and turns a failure into the exception of :mod:`amdxdna.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amdxdna import uapi
from amdxdna._native import ffi
from amdxdna.causes import from_errno
from amdxdna.errors import XdnaError

if TYPE_CHECKING:
    from amdxdna.node import Node

REQUESTS: dict[str, int] = {name: request.value for name, request in uapi.REQUESTS.items()}


def address_of(struct: Any) -> int:
    """The address of a cffi object, as the integer that goes into ``uint64_t`` fields and :func:`call`."""
    return int(ffi.cast("uintptr_t", struct))


def call(node: Node, name: str, struct: Any, kind: str = "", detail: str = "") -> int:
    """Issues request `name` with `struct` (a cffi pointer, or its address when the caller keeps it).

    `kind` (``"DEV_HEAP"``) narrows the meaning of an errno, `detail` goes into the message. Returns the
    ioctl's value. Raises the :class:`~amdxdna.errors.XdnaError` of the table. Thread-safe.
    """
    try:
        return node.ioctl(REQUESTS[name], struct if type(struct) is int else address_of(struct))
    except XdnaError:
        raise
    except OSError as error:
        raise from_errno(f"{name} {kind}" if kind else name, error.errno or 0, detail) from None
