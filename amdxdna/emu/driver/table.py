"""Which request is handled by what (amdxdna_pci_drv.c and DRM's core)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from amdxdna import uapi
from amdxdna._native import ffi
from amdxdna.emu.driver import drm, gem, hwctx, jobs, minors, power, queries, teardown
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.objects import Client, Entry


def _wait_cmd(client: Client, args: Any) -> None:
    raise error(errno.EOPNOTSUPP)


HANDLERS: dict[str, Callable[[Client, Any], None]] = {
    "VERSION": drm.version,
    "GEM_CLOSE": gem.gem_close,
    "PRIME_HANDLE_TO_FD": drm.handle_to_fd,
    "PRIME_FD_TO_HANDLE": drm.fd_to_handle,
    "SYNCOBJ_DESTROY": drm.syncobj_destroy,
    "SYNCOBJ_TIMELINE_WAIT": drm.timeline_wait,
    "CREATE_HWCTX": hwctx.create,
    "DESTROY_HWCTX": teardown.destroy,
    "CONFIG_HWCTX": hwctx.config,
    "CREATE_BO": gem.create_bo,
    "GET_BO_INFO": gem.get_bo_info,
    "SYNC_BO": gem.sync_bo,
    "EXEC_CMD": jobs.submit,
    "GET_INFO": queries.get_info,
    "SET_STATE": power.set_state,
    "WAIT_CMD": _wait_cmd,
    "GET_ARRAY": queries.get_array,
}
ROOT = {"SET_STATE"}
"""Only for the privileged."""
SINCE = {"WAIT_CMD": minors.WAIT_CMD, "GET_ARRAY": minors.GET_ARRAY}
"""Minors that brought an ioctl: older drivers answer EINVAL."""


def _entry(name: str, handler: Callable[[Client, Any], None]) -> Entry:
    struct = f"struct {uapi.REQUESTS[name].struct}"
    return Entry(f"{struct} *", ffi.sizeof(struct), handler, name in ROOT)


ENTRIES: dict[int, Entry] = {
    uapi.number("GET_CAP"): Entry("uint64_t[2]", 16, drm.get_cap),
    **{uapi.number(name): _entry(name, handler) for name, handler in HANDLERS.items()},
}
_SINCE = {uapi.number(name): minor for name, minor in SINCE.items()}


def entries(minor: int) -> dict[int, Entry]:
    """By number, the requests that the driver of that minor has; others are EINVAL."""
    return {number: entry for number, entry in ENTRIES.items() if minor >= _SINCE.get(number, 0)}
