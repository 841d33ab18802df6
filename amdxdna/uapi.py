"""The requests of csrc/uapi.h: name, number and struct of each, in one table.

A request is what ioctl() takes: direction (bits 30-31), bytes of its struct (16-29), the letter d (8-15) and
its number (0-7), by which alone DRM finds what handles it (drm_ioctl of drivers/gpu/drm/drm_ioctl.c).
"""

from __future__ import annotations

from typing import NamedTuple

from amdxdna._native import lib


class Request(NamedTuple):
    """One request. `symbol` is its name in the kernel's headers."""

    name: str
    symbol: str
    value: int
    struct: str

    @property
    def number(self) -> int:
        """The low byte."""
        return number_of(self.value)


def number_of(value: int) -> int:
    """The number in a request."""
    return value & 0xFF


def struct_size(value: int) -> int:
    """Bytes of a request's struct, as the request itself says."""
    return value >> 16 & 0x3FFF


def _request(struct: str, name: str = "") -> Request:
    prefix = "amdxdna_drm_" if struct.startswith("amdxdna_drm_") else "drm_"
    name = name or struct.removeprefix(prefix).upper()
    symbol = f"DRM_IOCTL_AMDXDNA_{name}" if prefix == "amdxdna_drm_" else f"DRM_IOCTL_{name}"
    return Request(name, symbol, getattr(lib, symbol), struct)


REQUESTS: dict[str, Request] = {
    request.name: request
    for request in (
        _request("drm_version"),
        _request("drm_gem_close"),
        _request("drm_prime_handle", "PRIME_HANDLE_TO_FD"),
        _request("drm_prime_handle", "PRIME_FD_TO_HANDLE"),
        _request("drm_syncobj_destroy"),
        _request("drm_syncobj_timeline_wait"),
        _request("amdxdna_drm_create_hwctx"),
        _request("amdxdna_drm_destroy_hwctx"),
        _request("amdxdna_drm_config_hwctx"),
        _request("amdxdna_drm_create_bo"),
        _request("amdxdna_drm_get_bo_info"),
        _request("amdxdna_drm_sync_bo"),
        _request("amdxdna_drm_exec_cmd"),
        _request("amdxdna_drm_get_info"),
        _request("amdxdna_drm_set_state"),
        _request("amdxdna_drm_wait_cmd"),
        _request("amdxdna_drm_get_array"),
    )
}
"""By name."""

OTHERS: dict[str, int] = {
    "GET_UNIQUE": 0x01,
    "GET_MAGIC": 0x02,
    "GET_CAP": 0x0C,
    "SET_CLIENT_CAP": 0x0D,
    "AUTH_MAGIC": 0x11,
    "SET_MASTER": 0x1E,
    "DROP_MASTER": 0x1F,
    "SYNCOBJ_CREATE": 0xBF,
    "SYNCOBJ_HANDLE_TO_FD": 0xC1,
    "SYNCOBJ_FD_TO_HANDLE": 0xC2,
    "SYNCOBJ_WAIT": 0xC3,
    "SYNCOBJ_RESET": 0xC4,
    "SYNCOBJ_SIGNAL": 0xC5,
    "SYNCOBJ_QUERY": 0xCB,
    "SYNCOBJ_TRANSFER": 0xCC,
    "SYNCOBJ_TIMELINE_SIGNAL": 0xCD,
    "SYNCOBJ_EVENTFD": 0xCF,
    "SET_CLIENT_NAME": 0xD1,
}
"""DRM's requests that the binding does not use, name -> number (include/uapi/drm/drm.h)."""


def number(name: str) -> int:
    """The number of a request by its name, this package's or another of DRM's."""
    return REQUESTS[name].number if name in REQUESTS else OTHERS[name]
