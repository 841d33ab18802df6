"""The interface's structs as dictionaries: names for numbers, hexadecimal for addresses."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from typing import Any, Protocol

from amdxdna._native import ffi, lib
from amdxdna.packet import State

_INVALID = lib.AMDXDNA_INVALID_ADDR
_PADDING = {"pad", "ext", "ext_flags"}
_ADDRESSES = {
    "address",
    "args",
    "buffer",
    "date",
    "desc",
    "handles",
    "map_offset",
    "name",
    "param_val",
    "points",
    "qos_p",
    "vaddr",
    "xdna_addr",
}

PRIORITIES = {
    lib.AMDXDNA_QOS_REALTIME_PRIORITY: "REALTIME",
    lib.AMDXDNA_QOS_HIGH_PRIORITY: "HIGH",
    lib.AMDXDNA_QOS_NORMAL_PRIORITY: "NORMAL",
    lib.AMDXDNA_QOS_LOW_PRIORITY: "LOW",
}
BO_TYPES = {
    lib.AMDXDNA_BO_SHARE: "SHARE",
    lib.AMDXDNA_BO_DEV_HEAP: "DEV_HEAP",
    lib.AMDXDNA_BO_DEV: "DEV",
    lib.AMDXDNA_BO_CMD: "CMD",
}
POWER_MODES = {
    lib.POWER_MODE_DEFAULT: "DEFAULT",
    lib.POWER_MODE_LOW: "LOW",
    lib.POWER_MODE_MEDIUM: "MEDIUM",
    lib.POWER_MODE_HIGH: "HIGH",
    lib.POWER_MODE_TURBO: "TURBO",
}
STATES = {state.value: state.name for state in State if state != State.INVALID}


def _parameters(*names: str) -> dict[int, str]:
    """The numbers that the header gives DRM_AMDXDNA_ names, with what sets those apart."""
    return {
        getattr(lib, f"DRM_AMDXDNA_{name}"): re.sub("^(QUERY|GET|SET|WRITE|HWCTX)_|_STATE$", "", name)
        for name in names
    }


INFO = _parameters(
    "QUERY_AIE_STATUS",
    "QUERY_AIE_METADATA",
    "QUERY_AIE_VERSION",
    "QUERY_CLOCK_METADATA",
    "QUERY_SENSORS",
    "QUERY_HW_CONTEXTS",
    "QUERY_FIRMWARE_VERSION",
    "GET_POWER_MODE",
    "QUERY_TELEMETRY",
    "GET_FORCE_PREEMPT_STATE",
    "QUERY_RESOURCE_INFO",
    "GET_FRAME_BOUNDARY_PREEMPT_STATE",
)
ARRAYS = _parameters("HW_CONTEXT_ALL", "HW_LAST_ASYNC_ERR", "BO_USAGE")
SETTINGS = _parameters(
    "SET_POWER_MODE", "WRITE_AIE_MEM", "WRITE_AIE_REG", "SET_FORCE_PREEMPT", "SET_FRAME_BOUNDARY_PREEMPT"
)
CONFIGS = _parameters("HWCTX_CONFIG_CU", "HWCTX_ASSIGN_DBG_BUF", "HWCTX_REMOVE_DBG_BUF")

_NAMES: dict[tuple[str, str], dict[int, str]] = {
    ("amdxdna_drm_create_bo", "type"): BO_TYPES,
    ("amdxdna_qos_info", "priority"): PRIORITIES,
    ("amdxdna_drm_hwctx_entry", "priority"): PRIORITIES,
    ("amdxdna_drm_config_hwctx", "param_type"): CONFIGS,
    ("amdxdna_drm_sync_bo", "direction"): {0: "TO_DEVICE", 1: "FROM_DEVICE"},
    ("amdxdna_drm_exec_cmd", "type"): {
        lib.AMDXDNA_CMD_SUBMIT_EXEC_BUF: "EXEC_BUF",
        lib.AMDXDNA_CMD_SUBMIT_DEPENDENCY: "DEPENDENCY",
        lib.AMDXDNA_CMD_SUBMIT_SIGNAL: "SIGNAL",
    },
    ("amdxdna_drm_get_info", "param"): INFO,
    ("amdxdna_drm_set_state", "param"): SETTINGS,
    ("amdxdna_drm_get_array", "param"): ARRAYS,
    ("amdxdna_drm_get_power_mode", "power_mode"): POWER_MODES,
    ("amdxdna_drm_set_power_mode", "power_mode"): POWER_MODES,
    ("amdxdna_drm_query_sensor", "type"): {
        lib.AMDXDNA_SENSOR_TYPE_POWER: "POWER",
        lib.AMDXDNA_SENSOR_TYPE_COLUMN_UTILIZATION: "COLUMN_UTILIZATION",
    },
    ("amdxdna_drm_hwctx_entry", "state"): {
        lib.AMDXDNA_HWCTX_STATE_IDLE: "IDLE",
        lib.AMDXDNA_HWCTX_STATE_ACTIVE: "ACTIVE",
    },
}


class Memory(Protocol):
    """The memory of the traced process."""

    def read(self, address: int, size: int) -> bytes:
        """The `size` bytes at `address`. Raises OSError."""


def hexadecimal(value: int) -> str | None:
    """An address for JSON; None for the driver's "no address"."""
    return None if value == _INVALID else f"{value:#x}"


def errno_name(number: int) -> str:
    """The name that the driver's own source uses."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))


def named(names: dict[int, str], value: int) -> str | int:
    """The name of a number, or the number."""
    return names.get(value, value)


def decode(kind: str, data: bytes, *, zeros: bool = False) -> dict[str, Any]:
    """The fields of `struct kind` in `data` (padded with zeros if it is short), without padding fields.

    Fields that are 0 and have no name for it are left out unless `zeros`.
    """
    size = ffi.sizeof(f"struct {kind}")
    struct = ffi.from_buffer(f"struct {kind} *", bytearray(data[:size].ljust(size, b"\0")))
    return _fields(kind, struct, zeros)


def _fields(kind: str, struct: Any, zeros: bool) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, field in ffi.typeof(f"struct {kind}").fields:
        if name in _PADDING:
            continue
        value = getattr(struct, name)
        if field.type.kind == "struct":
            value = _fields(field.type.cname.removeprefix("struct "), value, zeros)
        elif field.type.kind == "array":
            if field.type.length is None:
                continue
            value = bytes(ffi.buffer(value)).split(b"\0", 1)[0].decode("utf-8", "replace")
        elif (kind, name) in _NAMES:
            value = named(_NAMES[kind, name], value)
        elif not value and not zeros:
            continue
        elif name in _ADDRESSES:
            value = hexadecimal(value)
        result[name] = value
    return result


def changes(kind: str, before: bytes, after: bytes) -> dict[str, Any]:
    """The fields of `struct kind` that a call changed."""
    old, new = decode(kind, before, zeros=True), decode(kind, after, zeros=True)
    return {name: value for name, value in new.items() if old[name] != value}


def array(kind: str, data: bytes, element: int) -> list[dict[str, Any]]:
    """`struct kind` after `struct kind`, each `element` bytes long."""
    return (
        [
            decode(kind, data[at : at + element], zeros=True)
            for at in range(0, len(data) - element + 1, element)
        ]
        if element > 0
        else []
    )


def guarded(make: Callable[[], Any]) -> Any:
    """What `make` returns; where it cannot read or understand something, a note of that instead."""
    try:
        return make()
    except OSError as unreadable:
        return {"undecoded": unreadable.strerror or "unreadable"}
    except Exception as strange:
        return {"undecoded": f"{type(strange).__name__}: {strange}"}
