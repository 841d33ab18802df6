"""Our header of the driver's interface: sizes, offsets and numbers."""

from __future__ import annotations

import os

import pytest

from amdxdna import uapi
from amdxdna._native import ffi
from amdxdna.ioctl import REQUESTS
from tests.support.uapi_checks import check_header

INCLUDE = os.environ.get("AMDXDNA_UAPI_INCLUDE", "")

# Number and struct size of every request, as measured on a running driver.
NUMBERS = {
    "CREATE_HWCTX": (0xC0386440, 56),
    "DESTROY_HWCTX": (0xC0086441, 8),
    "CONFIG_HWCTX": (0xC0186442, 24),
    "CREATE_BO": (0xC0206443, 32),
    "GET_BO_INFO": (0xC0306444, 48),
    "SYNC_BO": (0xC0186445, 24),
    "EXEC_CMD": (0xC0386446, 56),
    "GET_INFO": (0xC0106447, 16),
    "SET_STATE": (0xC0106448, 16),
    "GET_ARRAY": (0xC018644A, 24),
    "SYNCOBJ_TIMELINE_WAIT": (0xC03064CA, 48),
}
STRUCTS = {
    "VERSION": "drm_version",
    "GEM_CLOSE": "drm_gem_close",
    "PRIME_HANDLE_TO_FD": "drm_prime_handle",
    "PRIME_FD_TO_HANDLE": "drm_prime_handle",
    "SYNCOBJ_DESTROY": "drm_syncobj_destroy",
    "SYNCOBJ_TIMELINE_WAIT": "drm_syncobj_timeline_wait",
    "CREATE_HWCTX": "amdxdna_drm_create_hwctx",
    "DESTROY_HWCTX": "amdxdna_drm_destroy_hwctx",
    "CONFIG_HWCTX": "amdxdna_drm_config_hwctx",
    "CREATE_BO": "amdxdna_drm_create_bo",
    "GET_BO_INFO": "amdxdna_drm_get_bo_info",
    "SYNC_BO": "amdxdna_drm_sync_bo",
    "EXEC_CMD": "amdxdna_drm_exec_cmd",
    "GET_INFO": "amdxdna_drm_get_info",
    "SET_STATE": "amdxdna_drm_set_state",
    "WAIT_CMD": "amdxdna_drm_wait_cmd",
    "GET_ARRAY": "amdxdna_drm_get_array",
}
SIZES = {
    "amdxdna_qos_info": 24,
    "amdxdna_drm_query_aie_metadata": 64,
    "amdxdna_drm_query_clock_metadata": 48,
    "amdxdna_drm_query_sensor": 168,
    "amdxdna_drm_query_firmware_version": 16,
    "amdxdna_drm_get_resource_info": 40,
    "amdxdna_drm_hwctx_entry": 144,
    "amdxdna_drm_query_hwctx": 64,
    "amdxdna_cu_config": 8,
    "amdxdna_hwctx_param_config_cu": 8,
    "amdxdna_drm_bo_usage": 32,
    "amdxdna_async_error": 24,
    "amdxdna_drm_va_tbl": 8,
    "amdxdna_drm_va_entry": 16,
}
_WAIT_CMD_IS_WRITE_ONLY = "WAIT_CMD"


@pytest.mark.parametrize("name", NUMBERS)
def test_request_numbers_and_sizes(name):
    number, size = NUMBERS[name]
    assert REQUESTS[name] == number
    assert (uapi.number(name), uapi.struct_size(number)) == (number & 0xFF, size)
    assert ffi.sizeof(f"struct {STRUCTS[name]}") == size


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_number_carries_its_structs_size(name):
    """Bits 16 to 29 of a request are the size of its struct, bits 8 to 15 the letter 'd'."""
    number = REQUESTS[name]
    assert number >> 16 & 0x3FFF == ffi.sizeof(f"struct {STRUCTS[name]}")
    assert number >> 8 & 0xFF == ord("d")
    assert number >> 30 == (1 if name in (_WAIT_CMD_IS_WRITE_ONLY, "GEM_CLOSE") else 3)


def test_numbers_of_drms_other_requests():
    """Of include/uapi/drm/drm.h."""
    core = ["GET_UNIQUE", "GET_MAGIC", "GET_CAP", "SET_CLIENT_CAP", "AUTH_MAGIC"]
    assert [uapi.number(name) for name in core] == [0x01, 0x02, 0x0C, 0x0D, 0x11]
    assert [uapi.number(f"{word}_MASTER") for word in ("SET", "DROP")] == [0x1E, 0x1F]
    syncobj = ["CREATE", "DESTROY", "HANDLE_TO_FD", "FD_TO_HANDLE", "WAIT", "RESET", "SIGNAL"]
    assert [uapi.number(f"SYNCOBJ_{name}") for name in syncobj] == [*range(0xBF, 0xC6)]
    timeline = ["TIMELINE_WAIT", "QUERY", "TRANSFER", "TIMELINE_SIGNAL"]
    assert [uapi.number(f"SYNCOBJ_{name}") for name in timeline] == [*range(0xCA, 0xCE)]
    assert [uapi.number(name) for name in ("SYNCOBJ_EVENTFD", "SET_CLIENT_NAME")] == [0xCF, 0xD1]


@pytest.mark.parametrize("name", SIZES)
def test_struct_sizes(name):
    assert ffi.sizeof(f"struct {name}") == SIZES[name]


@pytest.mark.parametrize(
    ("struct", "field", "offset"),
    [
        ("amdxdna_drm_exec_cmd", "seq", 48),
        ("amdxdna_drm_exec_cmd", "arg_count", 44),
        ("amdxdna_drm_create_hwctx", "qos_p", 16),
        ("amdxdna_drm_create_hwctx", "syncobj_handle", 52),
        ("amdxdna_drm_get_bo_info", "map_offset", 24),
        ("amdxdna_drm_get_bo_info", "xdna_addr", 40),
        ("amdxdna_drm_query_aie_metadata", "core", 16),
        ("drm_syncobj_timeline_wait", "timeout_nsec", 16),
        ("drm_syncobj_timeline_wait", "deadline_nsec", 40),
        ("amdxdna_drm_hwctx_entry", "state", 88),
    ],
)
def test_offsets_the_code_relies_on(struct, field, offset):
    assert ffi.offsetof(f"struct {struct}", field) == offset


@pytest.mark.skipif(not INCLUDE, reason="AMDXDNA_UAPI_INCLUDE names no folder with drm/amdxdna_accel.h")
def test_against_the_real_header(tmp_path):
    check_header(INCLUDE, tmp_path)
