"""The one ioctl function of the package.

:data:`REQUESTS` names every request; :func:`call` issues one through a node and turns a failure into the
exception of :mod:`amdxdna.errors`. Numbers and structs are those of csrc/uapi.h, through cffi.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amdxdna._native import ffi, lib
from amdxdna.errors import XdnaError, from_errno

if TYPE_CHECKING:
    from amdxdna.node import Node

REQUESTS: dict[str, int] = {
    "VERSION": lib.DRM_IOCTL_VERSION,
    "GEM_CLOSE": lib.DRM_IOCTL_GEM_CLOSE,
    "PRIME_HANDLE_TO_FD": lib.DRM_IOCTL_PRIME_HANDLE_TO_FD,
    "PRIME_FD_TO_HANDLE": lib.DRM_IOCTL_PRIME_FD_TO_HANDLE,
    "SYNCOBJ_DESTROY": lib.DRM_IOCTL_SYNCOBJ_DESTROY,
    "SYNCOBJ_TIMELINE_WAIT": lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT,
    "CREATE_HWCTX": lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX,
    "DESTROY_HWCTX": lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX,
    "CONFIG_HWCTX": lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX,
    "CREATE_BO": lib.DRM_IOCTL_AMDXDNA_CREATE_BO,
    "GET_BO_INFO": lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO,
    "SYNC_BO": lib.DRM_IOCTL_AMDXDNA_SYNC_BO,
    "EXEC_CMD": lib.DRM_IOCTL_AMDXDNA_EXEC_CMD,
    "GET_INFO": lib.DRM_IOCTL_AMDXDNA_GET_INFO,
    "SET_STATE": lib.DRM_IOCTL_AMDXDNA_SET_STATE,
    "WAIT_CMD": lib.DRM_IOCTL_AMDXDNA_WAIT_CMD,
    "GET_ARRAY": lib.DRM_IOCTL_AMDXDNA_GET_ARRAY,
}


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
