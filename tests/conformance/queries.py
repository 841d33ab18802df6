"""Queries and settings: what the device says of itself."""

from __future__ import annotations

import errno
import os

from amdxdna._native import ffi, lib

from .kit import COMPLETED, Client, Target, case, fails, join


@case()
def version(t: Target) -> None:
    """The DRM version: name and minor 10."""
    client = t.client()
    name = ffi.new("char[64]")
    args = ffi.new("struct drm_version *", {"name_len": 63, "name": int(ffi.cast("uintptr_t", name))})
    client.ioctl(lib.DRM_IOCTL_VERSION, args)
    assert ffi.string(name) == b"amdxdna_accel_driver"
    assert (args.version_major, args.version_minor, args.version_patchlevel) == (0, 10, 0)
    assert args.name_len == len(b"amdxdna_accel_driver")


@case()
def metadata(t: Target) -> None:
    """Geometry: eight columns of one shim, one memory and four core rows."""
    m = t.client().get_info(lib.DRM_AMDXDNA_QUERY_AIE_METADATA, "amdxdna_drm_query_aie_metadata")
    assert (m.cols, m.rows, m.col_size) == (8, 6, 0x2000)
    assert (m.version.major, m.version.minor) == (2, 0)
    assert [(kind.row_count, kind.row_start) for kind in (m.core, m.mem, m.shim)] == [(4, 2), (1, 1), (1, 0)]
    assert (m.core.dma_channel_count, m.core.lock_count) == (2, 16)


@case()
def versions(t: Target) -> None:
    """AIE and firmware versions."""
    client = t.client()
    aie = client.get_info(lib.DRM_AMDXDNA_QUERY_AIE_VERSION, "amdxdna_drm_query_aie_version")
    assert (aie.major, aie.minor) == (2, 0)
    fw = client.get_info(lib.DRM_AMDXDNA_QUERY_FIRMWARE_VERSION, "amdxdna_drm_query_firmware_version")
    assert (fw.major, fw.minor, fw.patch, fw.build) == (1, 1, 2, 58597)


@case()
def clocks(t: Target) -> None:
    """Clock names."""
    clock = t.client().get_info(lib.DRM_AMDXDNA_QUERY_CLOCK_METADATA, "amdxdna_drm_query_clock_metadata")
    assert ffi.string(ffi.cast("char *", clock.mp_npu_clock.name)) == b"MP-NPU Clock"
    assert ffi.string(ffi.cast("char *", clock.h_clock.name)) == b"H Clock"


@case()
def no_contexts(t: Target) -> None:
    """An idle device lists nobody."""
    assert t.client().contexts() == []


def _power(client: Client) -> int:
    mode = client.get_info(lib.DRM_AMDXDNA_GET_POWER_MODE, "amdxdna_drm_get_power_mode")
    return int(mode.power_mode)


def _set_power(client: Client, mode: int) -> None:
    value = ffi.new("struct amdxdna_drm_set_power_mode *", {"power_mode": mode})
    client.ioctl(
        lib.DRM_IOCTL_AMDXDNA_SET_STATE,
        ffi.new(
            "struct amdxdna_drm_set_state *",
            {
                "param": lib.DRM_AMDXDNA_SET_POWER_MODE,
                "buffer_size": 8,
                "buffer": int(ffi.cast("uintptr_t", value)),
            },
        ),
    )


@case()
def power_modes(t: Target) -> None:
    """Every mode can be set while no context exists, and read back."""
    client = t.client()
    for mode in (1, 2, 3, 4, 0):
        _set_power(client, mode)
        assert _power(client) == mode
    with fails(errno.EINVAL):
        _set_power(client, 9)


@case()
def no_turbo_with_a_context(t: Target) -> None:
    """Turbo needs an idle device."""
    ready = t.ready()
    with fails(errno.EINVAL):
        _set_power(ready, 4)
    _set_power(ready, 3)
    assert _power(ready) == 3
    _set_power(ready, 0)
    assert ready.copy() == COMPLETED


@case()
def power_needs_root(t: Target) -> None:
    """SET_STATE is for root; the rest of the device is not."""
    t.needs_kernel("privileges are a process's")
    os.chmod("/dev/accel/accel0", 0o666)

    def try_it(inner: Target) -> None:
        client = inner.client()
        with fails(errno.EACCES):
            _set_power(client, 3)
        assert inner.ready().copy() == COMPLETED

    join(t.in_child(try_it, user=1000))


@case()
def permissions(t: Target) -> None:
    """Without the node's permission it cannot be opened."""
    t.needs_kernel("permissions are the node's")
    os.chmod("/dev/accel/accel0", 0o600)

    def try_it(inner: Target) -> None:
        with fails(errno.EACCES):
            inner.client()

    join(t.in_child(try_it, user=1000))


@case()
def no_async_error(t: Target) -> None:
    """A device without array errors reports none."""
    client = t.client()
    errors = client.get_array(lib.DRM_AMDXDNA_HW_LAST_ASYNC_ERR, "amdxdna_async_error", 1)
    assert [int(error.err_code) for error in errors] in ([], [0])


@case()
def older_context_query(t: Target) -> None:
    """GET_INFO's context list, which older drivers have alone, says the same."""
    ready = t.ready()
    assert ready.copy() == COMPLETED
    entry = ready.get_info(lib.DRM_AMDXDNA_QUERY_HW_CONTEXTS, "amdxdna_drm_query_hwctx")
    assert (entry.context_id, entry.num_col, entry.pid) == (ready.hwctx, 8, os.getpid())
    assert (entry.command_submissions, entry.command_completions) == (1, 1)
