"""Every request: its name, its struct, and what that points to, before and after the call."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from amdxdna import uapi
from amdxdna._native import ffi, lib
from amdxdna.trace import fields
from amdxdna.trace.fields import Memory

MOST_ITEMS = 4096
"""Elements of a list that are shown."""
_MOST_BYTES = 1 << 20


class Request(NamedTuple):
    """One request. `given` and `filled` add to what the struct's own fields say."""

    name: str
    struct: str
    given: Callable[[Any, Memory], dict[str, Any]] | None = None
    filled: Callable[[Any, Any, Memory], dict[str, Any]] | None = None


def _list(memory: Memory, address: int, count: int, code: str, size: int) -> list[int]:
    count = min(count, MOST_ITEMS)
    return list(struct.unpack(f"<{count}{code}", memory.read(address, size * count))) if count else []


def _read(memory: Memory, address: int, size: int) -> bytes:
    return memory.read(address, min(size, _MOST_BYTES))


# -- before


def _qos(args: Any, memory: Memory) -> dict[str, Any]:
    size = ffi.sizeof("struct amdxdna_qos_info")
    return {"qos": fields.decode("amdxdna_qos_info", memory.read(args.qos_p, size), zeros=True)}


def _cus(args: Any, memory: Memory) -> dict[str, Any]:
    if args.param_type != lib.DRM_AMDXDNA_HWCTX_CONFIG_CU:
        return {"bo": args.param_val & 0xFFFFFFFF}
    data = _read(memory, args.param_val, args.param_val_size)
    count = int.from_bytes(data[:2], "little")
    cus = [
        {"bo": bo, "function": function}
        for bo, function in struct.iter_unpack("<IB3x", data[8 : 8 + min(count, len(data) // 8 - 1) * 8])
    ]
    return {"cus": cus}


def _table(args: Any, memory: Memory) -> dict[str, Any]:
    if not args.vaddr:
        return {}
    dmabuf, count = struct.unpack("<iI", memory.read(args.vaddr, 8))
    if not count:
        return {"table": {"dmabuf_fd": dmabuf}}
    data = memory.read(args.vaddr + 8, 16 * min(count, MOST_ITEMS))
    return {
        "table": {
            "entries": count,
            "ranges": [
                [fields.hexadecimal(address), length] for address, length in struct.iter_unpack("<QQ", data)
            ],
        }
    }


def _bos(args: Any, memory: Memory) -> dict[str, Any]:
    if args.type != lib.AMDXDNA_CMD_SUBMIT_EXEC_BUF:
        return {}
    result: dict[str, Any] = {"bos": _list(memory, args.args, args.arg_count, "I", 4)}
    if args.cmd_count > 1:
        result["commands"] = _list(memory, args.cmd_handles, args.cmd_count, "I", 4)
    return result


def _waits(args: Any, memory: Memory) -> dict[str, Any]:
    handles = _list(memory, args.handles, args.count_handles, "I", 4)
    points = _list(memory, args.points, args.count_handles, "Q", 8)
    return {"waits": [list(pair) for pair in zip(handles, points, strict=True)]}


def _setting(args: Any, memory: Memory) -> dict[str, Any]:
    kind = {
        lib.DRM_AMDXDNA_SET_POWER_MODE: "amdxdna_drm_set_power_mode",
        lib.DRM_AMDXDNA_SET_FORCE_PREEMPT: "amdxdna_drm_attribute_state",
        lib.DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT: "amdxdna_drm_attribute_state",
    }.get(args.param)
    if kind is None:
        return {}
    return {"value": fields.decode(kind, _read(memory, args.buffer, args.buffer_size), zeros=True)}


# -- after

_RESULTS = {
    lib.DRM_AMDXDNA_QUERY_AIE_STATUS: "amdxdna_drm_query_aie_status",
    lib.DRM_AMDXDNA_QUERY_AIE_METADATA: "amdxdna_drm_query_aie_metadata",
    lib.DRM_AMDXDNA_QUERY_AIE_VERSION: "amdxdna_drm_query_aie_version",
    lib.DRM_AMDXDNA_QUERY_CLOCK_METADATA: "amdxdna_drm_query_clock_metadata",
    lib.DRM_AMDXDNA_QUERY_FIRMWARE_VERSION: "amdxdna_drm_query_firmware_version",
    lib.DRM_AMDXDNA_GET_POWER_MODE: "amdxdna_drm_get_power_mode",
    lib.DRM_AMDXDNA_QUERY_TELEMETRY: "amdxdna_drm_query_telemetry_header",
    lib.DRM_AMDXDNA_GET_FORCE_PREEMPT_STATE: "amdxdna_drm_attribute_state",
    lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO: "amdxdna_drm_get_resource_info",
    lib.DRM_AMDXDNA_GET_FRAME_BOUNDARY_PREEMPT_STATE: "amdxdna_drm_attribute_state",
}
_LISTS = {
    lib.DRM_AMDXDNA_QUERY_SENSORS: "amdxdna_drm_query_sensor",
    lib.DRM_AMDXDNA_QUERY_HW_CONTEXTS: "amdxdna_drm_query_hwctx",
}
_ARRAYS = {
    lib.DRM_AMDXDNA_HW_CONTEXT_ALL: "amdxdna_drm_hwctx_entry",
    lib.DRM_AMDXDNA_HW_LAST_ASYNC_ERR: "amdxdna_async_error",
    lib.DRM_AMDXDNA_BO_USAGE: "amdxdna_drm_bo_usage",
}


def _info(before: Any, after: Any, memory: Memory) -> dict[str, Any]:
    kind = _RESULTS.get(before.param)
    if kind is not None:
        size = min(before.buffer_size, ffi.sizeof(f"struct {kind}"))
        return {"result": fields.decode(kind, memory.read(before.buffer, size), zeros=True)}
    kind = _LISTS.get(before.param)
    if kind is None:
        return {}
    # The context list gives back the room left, the sensors the bytes written.
    is_contexts = before.param == lib.DRM_AMDXDNA_QUERY_HW_CONTEXTS
    size = before.buffer_size - after.buffer_size if is_contexts else after.buffer_size
    return {
        "elements": fields.array(
            kind, _read(memory, before.buffer, max(size, 0)), ffi.sizeof(f"struct {kind}")
        )
    }


def _array(before: Any, after: Any, memory: Memory) -> dict[str, Any]:
    kind = _ARRAYS.get(before.param)
    if kind is None:
        return {}
    data = _read(memory, before.buffer, after.element_size * after.num_element)
    return {"elements": fields.array(kind, data, after.element_size)}


def _version(before: Any, after: Any, memory: Memory) -> dict[str, Any]:
    result = {}
    for name in ("name", "date", "desc"):
        length = min(getattr(before, f"{name}_len"), getattr(after, f"{name}_len"), 256)
        if length and getattr(before, name):
            result[name] = memory.read(getattr(before, name), length).decode("utf-8", "replace")
    return result


_GIVEN: dict[str, Callable[[Any, Memory], dict[str, Any]]] = {
    "SYNCOBJ_TIMELINE_WAIT": _waits,
    "CREATE_HWCTX": _qos,
    "CONFIG_HWCTX": _cus,
    "CREATE_BO": _table,
    "EXEC_CMD": _bos,
    "SET_STATE": _setting,
}
_FILLED: dict[str, Callable[[Any, Any, Memory], dict[str, Any]]] = {
    "VERSION": _version,
    "GET_INFO": _info,
    "GET_ARRAY": _array,
}
REQUESTS: dict[int, Request] = {
    request.number: Request(name, request.struct, _GIVEN.get(name), _FILLED.get(name))
    for name, request in uapi.REQUESTS.items()
}
"""By number."""
CORE_NAMES = {number: name for name, number in uapi.OTHERS.items()}
"""By number too: DRM's own requests, which are shown as bytes."""


def view(kind: str, data: bytes) -> Any:
    """`data` as a pointer to `struct kind`."""
    size = ffi.sizeof(f"struct {kind}")
    return ffi.from_buffer(f"struct {kind} *", bytearray(data[:size].ljust(size, b"\0")))
