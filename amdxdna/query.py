"""Asks the driver and the firmware about the device; the answers are :mod:`amdxdna.device_info`'s.

Each function gates on the DRM minor that brought the query (the ladder of amdxdna_pci_drv.c) and raises
:class:`~amdxdna.errors.Unsupported`, naming the minor, on older drivers. All are thread-safe.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from amdxdna import ioctl
from amdxdna._native import ffi, lib
from amdxdna.arguments import whole
from amdxdna.device_info import (
    AieMetadata,
    AsyncError,
    BoUsage,
    Clock,
    ContextInfo,
    DeviceInfo,
    FirmwareVersion,
    PowerMode,
    ResourceInfo,
    Sensor,
    Telemetry,
    TileInfo,
)
from amdxdna.errors import BadArgument, Unsupported, XdnaError
from amdxdna.node import Node
from amdxdna.packet import Health
from amdxdna.profile import DriverProfile
from amdxdna.version import DrmVersion

_CONTEXT_ELEMENT = 256  # room for entries that grow; 144 bytes in Linux 7.3.4's header
_CONTEXTS = 256
_TELEMETRY_BYTES, _TELEMETRY_HEAD = 64 << 10, 4096
_HEALTH_END = ffi.offsetof("struct amdxdna_drm_hwctx_entry", "fatal_error_app_module") + 4


class Open(Protocol):
    """What a query needs of the open it goes through."""

    version: DrmVersion

    @property
    def node(self) -> Node: ...

    @property
    def profile(self) -> DriverProfile: ...

    def need(self, feature: str) -> None:
        """Raises Unsupported on drivers older than the feature."""

    def check_open(self) -> None:
        """Raises Closed when it is no longer open."""


def _info(client: Open, name: str, buffer: Any, nbytes: int) -> int:
    """GET_INFO `name` (a parameter's name without DRM_AMDXDNA_) into `buffer`; returns the bytes reported."""
    client.check_open()
    request = ffi.new(
        "struct amdxdna_drm_get_info *",
        {
            "param": getattr(lib, f"DRM_AMDXDNA_{name}"),
            "buffer_size": nbytes,
            "buffer": ioctl.address_of(buffer),
        },
    )
    ioctl.call(client.node, "GET_INFO", request, name)
    return int(request.buffer_size)


def _struct(client: Open, name: str, kind: str) -> Any:
    value = ffi.new(f"struct {kind} *")
    _info(client, name, value, ffi.sizeof(value[0]))
    return value


def _text(field: Any) -> str:
    return bytes(ffi.buffer(field)).split(b"\0", 1)[0].decode("utf-8", "replace")


def metadata(client: Open) -> AieMetadata:
    """QUERY_AIE_METADATA."""
    m = _struct(client, "QUERY_AIE_METADATA", "amdxdna_drm_query_aie_metadata")
    tiles = [
        TileInfo(t.row_count, t.row_start, t.dma_channel_count, t.lock_count, t.event_reg_count)
        for t in (m.core, m.mem, m.shim)
    ]
    return AieMetadata(m.col_size, m.cols, m.rows, (m.version.major, m.version.minor), *tiles)


def aie_version(client: Open) -> tuple[int, int]:
    """QUERY_AIE_VERSION: (major, minor)."""
    v = _struct(client, "QUERY_AIE_VERSION", "amdxdna_drm_query_aie_version")
    return v.major, v.minor


def firmware_version(client: Open) -> FirmwareVersion:
    """QUERY_FIRMWARE_VERSION."""
    v = _struct(client, "QUERY_FIRMWARE_VERSION", "amdxdna_drm_query_firmware_version")
    return FirmwareVersion(v.major, v.minor, v.patch, v.build)


def clocks(client: Open) -> tuple[Clock, Clock]:
    """QUERY_CLOCK_METADATA: the MP-NPU clock and the H clock."""
    c = _struct(client, "QUERY_CLOCK_METADATA", "amdxdna_drm_query_clock_metadata")
    return (
        Clock(_text(c.mp_npu_clock.name), c.mp_npu_clock.freq_mhz),
        Clock(_text(c.h_clock.name), c.h_clock.freq_mhz),
    )


def sensors(client: Open) -> tuple[Sensor, ...]:
    """QUERY_SENSORS: power and column utilisation. Raises Unsupported without the amd_pmf module too."""
    client.need("the sensors")
    found = ffi.new("struct amdxdna_drm_query_sensor[]", 64)
    try:
        filled = _info(client, "QUERY_SENSORS", found, ffi.sizeof(found))
    except XdnaError as error:
        if error.errno == errno.ENODEV:
            _struct(client, "QUERY_AIE_VERSION", "amdxdna_drm_query_aie_version")  # DeviceLost if it is
        raise
    count = min(filled // ffi.sizeof("struct amdxdna_drm_query_sensor"), len(found))
    return tuple(
        Sensor(
            _text(s.label),
            s.input,
            s.max,
            s.average,
            s.highest,
            _text(s.status),
            _text(s.units),
            s.unitm,
            s.type,
        )
        for s in found[0:count]
    )


def resource_info(client: Open) -> ResourceInfo:
    """QUERY_RESOURCE_INFO: how many contexts there can be and are, clock and TOPS limits."""
    client.need("the resource information")
    r = _struct(client, "QUERY_RESOURCE_INFO", "amdxdna_drm_get_resource_info")
    return ResourceInfo(r.npu_clk_max, r.npu_tops_max, r.npu_task_max, r.npu_tops_curr, r.npu_task_curr)


@dataclass(frozen=True)
class ContextUse:
    """Hardware contexts in use: those listed, how many in all, and how many there can be (None: not told)."""

    listed: tuple[ContextInfo, ...]
    taken: int
    limit: int | None


def context_use(client: Open) -> ContextUse:
    """Who holds the device's contexts. What the driver is too old for is left out.

    AMD's legacy driver has more (virtual) contexts than the firmware holds: resource info counts the
    firmware's, of which only contexts at work have one; the virtual ones are what runs out.
    """
    listed = contexts(client)
    virtual = client.profile.context_limit
    if virtual is not None:
        return ContextUse(listed, len(listed), virtual)
    try:
        resources = resource_info(client)
    except Unsupported:
        return ContextUse(listed, len(listed), None)
    return ContextUse(listed, max(len(listed), resources.npu_task_curr), resources.npu_task_max)


def power_mode(client: Open) -> PowerMode:
    """GET_POWER_MODE."""
    value = _struct(client, "GET_POWER_MODE", "amdxdna_drm_get_power_mode").power_mode
    try:
        return PowerMode(value)
    except ValueError:
        raise Unsupported(
            f"the driver reports power mode {value}",
            call="GET_INFO GET_POWER_MODE",
            remedy="Use a newer version of this package",
        ) from None


def set_power_mode(client: Open, mode: PowerMode | int) -> None:
    """SET_POWER_MODE. Raises PermissionDenied unless root, BadArgument for TURBO while a context is open."""
    client.check_open()
    try:
        wanted = PowerMode(mode)
    except ValueError:
        raise BadArgument(
            f"there is no power mode {mode!r:.80}",
            call="SET_STATE",
            remedy=f"Use one of {', '.join(m.name for m in PowerMode)}",
        ) from None
    value = ffi.new("struct amdxdna_drm_set_power_mode *", {"power_mode": wanted})
    request = ffi.new(
        "struct amdxdna_drm_set_state *",
        {
            "param": lib.DRM_AMDXDNA_SET_POWER_MODE,
            "buffer_size": ffi.sizeof(value[0]),
            "buffer": ioctl.address_of(value),
        },
    )
    ioctl.call(client.node, "SET_STATE", request, detail=f"power mode {wanted.name}")


def preemption(client: Open) -> tuple[bool, bool]:
    """GET_FORCE_PREEMPT_STATE and GET_FRAME_BOUNDARY_PREEMPT_STATE."""
    client.need("the preemption state")
    force = _struct(client, "GET_FORCE_PREEMPT_STATE", "amdxdna_drm_attribute_state")
    frame = _struct(client, "GET_FRAME_BOUNDARY_PREEMPT_STATE", "amdxdna_drm_attribute_state")
    return bool(force.state), bool(frame.state)


def telemetry(client: Open, kind: int = 0, nbytes: int = _TELEMETRY_BYTES) -> Telemetry:
    """QUERY_TELEMETRY: the firmware's block `kind`, at most `nbytes` of it."""
    client.need("telemetry")
    kind = whole("telemetry", "kind", kind, 0, (1 << 32) - 1)
    size = _TELEMETRY_HEAD + nbytes
    if not _TELEMETRY_HEAD < size <= 4 << 20:
        raise BadArgument(
            f"{nbytes} bytes of telemetry", call="telemetry", remedy="Ask for up to 4 MiB less a page"
        )
    block = ffi.new("uint8_t[]", size)
    header = ffi.cast("struct amdxdna_drm_query_telemetry_header *", block)
    header.type = kind
    _info(client, "QUERY_TELEMETRY", block, size)
    count = header.map_num_elements
    start = ffi.sizeof("struct amdxdna_drm_query_telemetry_header") + 4 * count
    if start > size:
        raise Unsupported(
            f"telemetry of {count} contexts",
            call="GET_INFO QUERY_TELEMETRY",
            remedy="Use a newer version of this package",
        )
    return Telemetry(
        header.major,
        header.minor,
        header.type,
        tuple(header.map[i] for i in range(count)),
        bytes(ffi.buffer(block)[start : start + nbytes]),
    )


def _array(client: Open, param: int, element: int, count: int, buffer: Any) -> tuple[int, int]:
    """GET_ARRAY; returns (elements, bytes an element), as the driver filled them."""
    client.check_open()
    request = ffi.new(
        "struct amdxdna_drm_get_array *",
        {"param": param, "element_size": element, "num_element": count, "buffer": ioctl.address_of(buffer)},
    )
    ioctl.call(client.node, "GET_ARRAY", request)
    return min(int(request.num_element), count), min(int(request.element_size), element)


def contexts(client: Open) -> tuple[ContextInfo, ...]:
    """Every hardware context of the device, of all processes.

    GET_ARRAY (DRM minor 1; the size of an entry travels both ways, so shorter and longer ones are
    understood), else QUERY_HW_CONTEXTS.
    """
    try:
        client.need("GET_ARRAY")
        return _contexts_array(client)
    except Unsupported:
        return _contexts_info(client)


# Of an entry, in ContextInfo's and Health's order.
_COUNTS = attrgetter(
    "context_id",
    "pid",
    "start_col",
    "num_col",
    "command_submissions",
    "command_completions",
    "migrations",
    "preemptions",
    "errors",
)
_NEWER = attrgetter("hwctx_id", "priority", "heap_usage", "suspensions")
_STANDS = attrgetter(
    "txn_op_idx",
    "ctx_pc",
    "fatal_error_type",
    "fatal_error_exception_type",
    "fatal_error_exception_pc",
    "fatal_error_app_module",
)


def _contexts_array(client: Open) -> tuple[ContextInfo, ...]:
    block = ffi.new("uint8_t[]", _CONTEXTS * _CONTEXT_ELEMENT)
    count, stride = _array(client, lib.DRM_AMDXDNA_HW_CONTEXT_ALL, _CONTEXT_ELEMENT, _CONTEXTS, block)
    entry = ffi.new("struct amdxdna_drm_hwctx_entry *")
    size = ffi.sizeof(entry[0])
    found = []
    # Older drivers have the fields and leave them 0.
    told = client.version.has("health reports")
    for index in range(count):
        ffi.buffer(entry)[:] = bytes(size)
        part = min(stride, size)
        ffi.memmove(entry, block + index * stride, part)
        active = entry.state == lib.AMDXDNA_HWCTX_STATE_ACTIVE
        health = Health(1, *_STANDS(entry)) if told and stride >= _HEALTH_END else None
        known = [*_COUNTS(entry), *_NEWER(entry), active, entry.gops, entry.fps, entry.latency, health]
        found.append(ContextInfo(*known))
    return tuple(found)


def _contexts_info(client: Open) -> tuple[ContextInfo, ...]:
    block = ffi.new("struct amdxdna_drm_query_hwctx[]", _CONTEXTS)
    _info(client, "QUERY_HW_CONTEXTS", block, ffi.sizeof(block))
    # Drivers disagree on the size they answer with (filled, or left over): count by the process id.
    count = sum(1 for entry in block[0:_CONTEXTS] if entry.pid)
    return tuple(ContextInfo(*_COUNTS(entry)) for entry in block[0:count])


def last_async_error(client: Open) -> AsyncError | None:
    """The last asynchronous error of the array since the driver was loaded, or None."""
    client.need("the last asynchronous error")
    error = ffi.new("struct amdxdna_async_error *")
    count, _ = _array(client, lib.DRM_AMDXDNA_HW_LAST_ASYNC_ERR, ffi.sizeof(error[0]), 1, error)
    return AsyncError(error.err_code, error.ts_us, error.ex_err_code) if count and error.err_code else None


def bo_usage(client: Open, pid: int | None = None) -> BoUsage:
    """Buffer bytes of process `pid` (None: this one)."""
    client.need("the buffer usage")
    pid = os.getpid() if pid is None else whole("bo_usage", "pid", pid)
    usage = ffi.new("struct amdxdna_drm_bo_usage *", {"pid": pid})
    _array(client, lib.DRM_AMDXDNA_BO_USAGE, ffi.sizeof(usage[0]), 1, usage)
    return BoUsage(usage.pid, usage.total_usage, usage.internal_usage, usage.heap_usage)


def everything(client: Open) -> DeviceInfo:
    """All of the above that makes sense at once."""
    firmware = firmware_version(client)
    resources: ResourceInfo | None = None
    readings: tuple[Sensor, ...] | None = None
    try:
        resources = resource_info(client)
        readings = sensors(client)
    except XdnaError as error:
        if not isinstance(error, Unsupported) and error.errno not in (errno.EOPNOTSUPP, errno.ENODEV):
            raise
    return DeviceInfo(
        client.node.path,
        firmware.emulated,
        client.version,
        metadata(client),
        aie_version(client),
        firmware,
        clocks(client),
        power_mode(client),
        resources,
        readings,
        contexts(client),
    )
