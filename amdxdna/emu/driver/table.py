"""Which ioctl number is handled by what (amdxdna_pci_drv.c and DRM's core)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from amdxdna._native import ffi
from amdxdna.emu.driver import drm, gem, hwctx, jobs, minors, power, queries, teardown
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.objects import Client, Entry

DRIVER = 0x40


def _wait_cmd(client: Client, args: Any) -> None:
    raise error(errno.EOPNOTSUPP)


def _entry(name: str, handler: Callable[[Client, Any], None], root: bool = False) -> Entry:
    return Entry(f"struct {name} *", ffi.sizeof(f"struct {name}"), handler, root)


ENTRIES: dict[int, Entry] = {
    0x00: _entry("drm_version", drm.version),
    0x09: _entry("drm_gem_close", gem.gem_close),
    0x0C: Entry("uint64_t[2]", 16, drm.get_cap),
    0x2D: _entry("drm_prime_handle", drm.handle_to_fd),
    0x2E: _entry("drm_prime_handle", drm.fd_to_handle),
    0xC0: _entry("drm_syncobj_destroy", drm.syncobj_destroy),
    0xCA: _entry("drm_syncobj_timeline_wait", drm.timeline_wait),
    DRIVER + 0x0: _entry("amdxdna_drm_create_hwctx", hwctx.create),
    DRIVER + 0x1: _entry("amdxdna_drm_destroy_hwctx", teardown.destroy),
    DRIVER + 0x2: _entry("amdxdna_drm_config_hwctx", hwctx.config),
    DRIVER + 0x3: _entry("amdxdna_drm_create_bo", gem.create_bo),
    DRIVER + 0x4: _entry("amdxdna_drm_get_bo_info", gem.get_bo_info),
    DRIVER + 0x5: _entry("amdxdna_drm_sync_bo", gem.sync_bo),
    DRIVER + 0x6: _entry("amdxdna_drm_exec_cmd", jobs.submit),
    DRIVER + 0x7: _entry("amdxdna_drm_get_info", queries.get_info),
    DRIVER + 0x8: _entry("amdxdna_drm_set_state", power.set_state, root=True),
    DRIVER + 0x9: _entry("amdxdna_drm_wait_cmd", _wait_cmd),
    DRIVER + 0xA: _entry("amdxdna_drm_get_array", queries.get_array),
}
SINCE = {DRIVER + 0x9: minors.WAIT_CMD, DRIVER + 0xA: minors.GET_ARRAY}
"""Minors that brought an ioctl: older drivers answer EINVAL."""


def entries(minor: int) -> dict[int, Entry]:
    """By ioctl number (a request's low byte), what the driver of that minor has; others are EINVAL."""
    return {number: entry for number, entry in ENTRIES.items() if minor >= SINCE.get(number, 0)}
