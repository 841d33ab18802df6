"""GET_INFO and GET_ARRAY (aie2_pci.c, aie2_error.c, amdxdna_gem.c): what each minor answers."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

from amdxdna._native import ffi, lib
from amdxdna.emu.driver import clocks, minors
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.hwctx import OPS_PER_COLUMN
from amdxdna.emu.driver.objects import Client, Hwctx

MAX_TELEMETRY = 4 << 20
TELEMETRY_TYPES = 5
MAX_ELEMENT, MAX_ELEMENTS = 4096, 1024
_U32 = 0xFFFFFFFF


def _struct(kind: str, **fields: Any) -> bytes:
    return bytes(ffi.buffer(ffi.new(f"struct {kind} *", fields)))


def _name(text: str, size: int) -> bytes:
    return text.encode()[: size - 1].ljust(size, b"\0")


def _reply(client: Client, args: Any, name: str, **fields: Any) -> None:
    """Answers with a struct, cut to the buffer; the driver leaves buffer_size as it is."""
    client.user.write(args.buffer, _struct(name, **fields)[: args.buffer_size])


def _aie_status(client: Client, args: Any) -> None:
    device = client.device
    status = ffi.new("struct amdxdna_drm_query_aie_status *")
    client.user.read_into(args.buffer, status, ffi.sizeof("struct amdxdna_drm_query_aie_status"))
    info = device.npu.tile_info()
    if info.columns * info.column_bytes < status.buffer_size:
        raise error(errno.EINVAL)
    bitmap = 0
    for context in _contexts(client):
        bitmap |= (1 << context.num_col) - 1 << context.start_col
    client.user.write(status.buffer, device.npu.column_status(bitmap)[: status.buffer_size])
    status.cols_filled = bitmap
    client.user.write(args.buffer, bytes(ffi.buffer(status))[: args.buffer_size])


def _metadata(client: Client, args: Any) -> None:
    info = client.device.npu.tile_info()

    def tiles(part: str) -> dict[str, int]:
        return {
            "row_count": getattr(info, f"{part}_rows"),
            "row_start": getattr(info, f"{part}_row_start"),
            "dma_channel_count": getattr(info, f"{part}_dma_channels"),
            "lock_count": getattr(info, f"{part}_locks"),
            "event_reg_count": getattr(info, f"{part}_events"),
        }

    _reply(
        client,
        args,
        "amdxdna_drm_query_aie_metadata",
        col_size=info.column_bytes,
        cols=info.columns,
        rows=info.rows,
        version={"major": info.major, "minor": info.minor},
        core=tiles("core"),
        mem=tiles("mem"),
        shim=tiles("shim"),
    )


def _aie_version(client: Client, args: Any) -> None:
    major, minor = client.device.npu.AIE_VERSION
    _reply(client, args, "amdxdna_drm_query_aie_version", major=major, minor=minor)


def _clocks(client: Client, args: Any) -> None:
    npu, h = clocks.LEVELS[client.device.level]
    _reply(
        client,
        args,
        "amdxdna_drm_query_clock_metadata",
        mp_npu_clock={"name": _name("MP-NPU Clock", 16), "freq_mhz": npu},
        h_clock={"name": _name("H Clock", 16), "freq_mhz": h},
    )


def _sensors(client: Client, args: Any) -> None:
    device = client.device
    if not device.options.sensors:
        raise error(errno.ENODEV)
    power = _struct(
        "amdxdna_drm_query_sensor",
        label=_name("Total Power", 64),
        units=_name("mW", 16),
        unitm=-3,
        type=lib.AMDXDNA_SENSOR_TYPE_POWER,
        input=2000 if device.npu.computing else 100,
    )
    sensors = [power] + [
        _struct(
            "amdxdna_drm_query_sensor",
            label=_name(f"Column {column} Utilization", 64),
            units=_name("%", 16),
            type=lib.AMDXDNA_SENSOR_TYPE_COLUMN_UTILIZATION,
            input=100 if device.npu.computing else 0,
        )
        for column in range(device.options.columns)
    ]
    fit = min(args.buffer_size // len(power), len(sensors))
    client.user.write(args.buffer, b"".join(sensors[:fit]))
    args.buffer_size = fit * len(power)


def _hw_contexts(client: Client, args: Any) -> None:
    size = ffi.sizeof("struct amdxdna_drm_query_hwctx")
    fit = args.buffer_size // size
    entries = [_entry(context)[:size] for context in _contexts(client)][:fit]
    client.user.write(args.buffer, b"".join(entries))
    args.buffer_size -= len(entries) * size


def _firmware_version(client: Client, args: Any) -> None:
    major, minor, patch, build = client.device.npu.FIRMWARE_VERSION
    _reply(
        client, args, "amdxdna_drm_query_firmware_version", major=major, minor=minor, patch=patch, build=build
    )


def _power_mode(client: Client, args: Any) -> None:
    _reply(client, args, "amdxdna_drm_get_power_mode", power_mode=client.device.power_mode)


def _telemetry(client: Client, args: Any) -> None:
    """A header with the map from firmware contexts to handles; the firmware's part is empty."""
    slots = client.device.options.slots
    head = 16 + 4 * slots
    if not head < args.buffer_size <= head + MAX_TELEMETRY:
        raise error(errno.EINVAL)
    header = ffi.new("struct amdxdna_drm_query_telemetry_header *", {"map": slots})
    client.user.read_into(args.buffer, header, 16)
    if header.type >= TELEMETRY_TYPES:
        raise error(errno.EINVAL)
    header.map_num_elements = slots
    for context in _contexts(client):
        if context.firmware is not None and context.firmware < slots:
            header.map[context.firmware] = context.id
    header.major, header.minor = 1, 0
    client.user.write(args.buffer, bytes(ffi.buffer(ffi.cast("char *", header), head)))


def _force_preempt(client: Client, args: Any) -> None:
    _reply(client, args, "amdxdna_drm_attribute_state", state=client.device.force_preempt)


def _frame_boundary_preempt(client: Client, args: Any) -> None:
    _reply(client, args, "amdxdna_drm_attribute_state", state=client.device.frame_boundary_preempt)


def _resources(client: Client, args: Any) -> None:
    device = client.device
    used = device.npu.contexts
    if device.kind.context_limit:
        # Virtual contexts: only those at work have one of the firmware's.
        used = min(sum(bool(context.jobs) for context in _contexts(client)), device.options.slots)
    tops = OPS_PER_COLUMN * device.options.columns
    _reply(
        client,
        args,
        "amdxdna_drm_get_resource_info",
        npu_clk_max=device.clock_max,
        npu_tops_max=tops * device.clock_max // 1000000,
        npu_task_max=device.options.slots,
        npu_tops_curr=tops * clocks.LEVELS[device.level][1] // 1000000,
        npu_task_curr=used,
    )


Query = Callable[[Client, Any], None]
INFO: dict[int, tuple[int, Query]] = {
    lib.DRM_AMDXDNA_QUERY_AIE_STATUS: (minors.FIRST, _aie_status),
    lib.DRM_AMDXDNA_QUERY_AIE_METADATA: (minors.FIRST, _metadata),
    lib.DRM_AMDXDNA_QUERY_AIE_VERSION: (minors.FIRST, _aie_version),
    lib.DRM_AMDXDNA_QUERY_CLOCK_METADATA: (minors.FIRST, _clocks),
    lib.DRM_AMDXDNA_QUERY_SENSORS: (minors.SENSORS, _sensors),
    lib.DRM_AMDXDNA_QUERY_HW_CONTEXTS: (minors.FIRST, _hw_contexts),
    lib.DRM_AMDXDNA_QUERY_FIRMWARE_VERSION: (minors.FIRST, _firmware_version),
    lib.DRM_AMDXDNA_GET_POWER_MODE: (minors.FIRST, _power_mode),
    lib.DRM_AMDXDNA_QUERY_TELEMETRY: (minors.TELEMETRY, _telemetry),
    lib.DRM_AMDXDNA_GET_FORCE_PREEMPT_STATE: (minors.PREEMPTION, _force_preempt),
    lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO: (minors.RESOURCES, _resources),
    lib.DRM_AMDXDNA_GET_FRAME_BOUNDARY_PREEMPT_STATE: (minors.PREEMPTION, _frame_boundary_preempt),
}
"""GET_INFO's parameters: the first minor that answers, and the answer."""


def _contexts(client: Client) -> Iterator[Hwctx]:
    """Every context of the device, open by open."""
    for each in client.device.clients:
        yield from sorted(each.contexts.values(), key=lambda context: context.id)


def _entry(context: Hwctx) -> bytes:
    device = context.device
    fields: dict[str, Any] = {}
    if context.firmware is not None and device.kind.level >= minors.HEALTH_REPORT:
        status, health = device.npu.health(context.firmware)
        if not status:
            fatal = health.fatal
            fields = {
                "txn_op_idx": health.transaction,
                "ctx_pc": health.context_pc & _U32,
                "fatal_error_type": fatal.type,
                "fatal_error_exception_type": fatal.exception_type,
                "fatal_error_exception_pc": fatal.exception_pc,
                "fatal_error_app_module": fatal.app_module,
            }
    return _struct(
        "amdxdna_drm_hwctx_entry",
        context_id=context.id,
        start_col=context.start_col,
        num_col=context.num_col,
        pid=context.client.pid,
        command_submissions=context.sequence,
        command_completions=context.completions,
        priority=context.priority,
        heap_usage=context.client.heap.usage,
        state=lib.AMDXDNA_HWCTX_STATE_ACTIVE,
        pasid=context.client.pasid & _U32,
        gops=context.gops,
        fps=context.fps,
        dma_bandwidth=context.dma_bandwidth,
        latency=context.latency,
        frame_exec_time=context.frame_exec_time,
        **fields,
    )


def _all_contexts(client: Client, args: Any) -> None:
    if args.element_size > MAX_ELEMENT or args.num_element > MAX_ELEMENTS:
        raise error(errno.EINVAL)
    size = min(args.element_size, ffi.sizeof("struct amdxdna_drm_hwctx_entry"))
    fit = args.num_element * args.element_size // size
    entries = [_entry(context)[:size] for context in _contexts(client)][:fit]
    client.user.write(args.buffer, b"".join(entries))
    args.element_size = size
    args.num_element = len(entries)


def _last_async_error(client: Client, args: Any) -> None:
    args.num_element = 1
    args.element_size = ffi.sizeof("struct amdxdna_async_error")
    client.user.write(args.buffer, client.device.last_async_error)


def _bo_usage(client: Client, args: Any) -> None:
    usage = ffi.new("struct amdxdna_drm_bo_usage *")
    size = min(args.element_size, ffi.sizeof("struct amdxdna_drm_bo_usage"))
    if args.num_element != 1:
        raise error(errno.EINVAL)
    client.user.read_into(args.buffer, usage, size)
    if not usage.pid:
        raise error(errno.EINVAL)
    owners = [each for each in client.device.clients if each.pid == usage.pid]
    usage.total_usage = sum(each.total_usage for each in owners)
    usage.internal_usage = sum(each.internal_usage for each in owners)
    usage.heap_usage = sum(each.heap.usage for each in owners)
    client.user.write_from(args.buffer, usage, size)


ARRAY: dict[int, tuple[int, Query]] = {
    lib.DRM_AMDXDNA_HW_CONTEXT_ALL: (minors.CONTEXTS, _all_contexts),
    lib.DRM_AMDXDNA_HW_LAST_ASYNC_ERR: (minors.ASYNC_ERROR, _last_async_error),
    lib.DRM_AMDXDNA_BO_USAGE: (minors.BO_USAGE, _bo_usage),
}
"""GET_ARRAY's parameters, likewise."""


def _answer(table: dict[int, tuple[int, Query]], client: Client, args: Any) -> None:
    minor, query = table.get(args.param, (0, None))
    if query is None or client.device.kind.level < minor:
        raise error(errno.EOPNOTSUPP)
    with client.device.lock:
        query(client, args)


def get_info(client: Client, args: Any) -> None:
    """GET_INFO: the answer of its parameter's row in :data:`INFO`; EOPNOTSUPP without one."""
    _answer(INFO, client, args)


def get_array(client: Client, args: Any) -> None:
    """GET_ARRAY: element_size and num_element come back as what was written."""
    if args.pad or not args.num_element or not args.element_size:
        raise error(errno.EINVAL)
    _answer(ARRAY, client, args)
