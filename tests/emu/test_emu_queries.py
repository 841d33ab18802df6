"""Queries word by word: buffers' bounds, what is written, and what is left as it was."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amdxdna._native import ffi, lib
from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from tests.conformance import errnos, kit
from tests.conformance.kit import fails

Open = Callable[..., kit.Client]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Clients, with ``heap`` given a heap too, that are closed after the test."""
    made: list[kit.Client] = []

    def make(heap: bool = False, **values: Any) -> kit.Client:
        made.append(kit.Client(EmuNode(EmuOptions(threads=1, quiet=True, privileged=True, **values))))
        if heap:
            made[-1].heap()
        return made[-1]

    yield make
    for client in made:
        client.close()


def address(data: Any) -> int:
    return int(ffi.cast("uintptr_t", data))


def get_info(client: kit.Client, param: int, data: Any, size: int) -> Any:
    fields = {"param": param, "buffer_size": size, "buffer": address(data)}
    return errnos.call(client, "AMDXDNA_GET_INFO", "amdxdna_drm_get_info", **fields)


@pytest.mark.parametrize(("size", "written"), [(4 * 0x2000, 4 * 0x2000), (100, 100), (0, 0)])
@pytest.mark.parametrize("used", [False, True])
def test_status_of_the_columns(opened: Open, used: bool, size: int, written: int) -> None:
    """Of those that contexts have, as far as the buffer goes; it may be as long as all columns' are."""
    client = opened(heap=True, columns=4)
    if used:
        client.context(tiles=16)
    data = ffi.new("uint8_t[]", b"#" * (4 * 0x2000 + 1))
    status = ffi.new("struct amdxdna_drm_query_aie_status *", {"buffer": address(data), "buffer_size": size})
    get_info(client, lib.DRM_AMDXDNA_QUERY_AIE_STATUS, status, ffi.sizeof(status[0]))
    assert status.cols_filled == (0xF if used else 0)
    written = written if used else 0
    assert bytes(data)[: written + 1] == bytes(written) + b"#"
    status.buffer_size = 4 * 0x2000 + 1
    with fails(errno.EINVAL):
        get_info(client, lib.DRM_AMDXDNA_QUERY_AIE_STATUS, status, ffi.sizeof(status[0]))


@pytest.mark.parametrize(
    ("size", "kind", "refused"),
    [
        (29, 4, 0),
        (28 + (4 << 20), 0, 0),
        (28, 0, errno.EINVAL),
        (29 + (4 << 20), 0, errno.EINVAL),
        (64, 5, errno.EINVAL),
    ],
)
def test_telemetry(opened: Open, size: int, kind: int, refused: int) -> None:
    """A header and a word for each of the firmware's contexts: the driver's number of it, 0 without."""
    client = opened(heap=True, slots=3)
    first, _ = client.context()
    second, _ = client.context()
    client.destroy(first)
    data = ffi.new("uint8_t[]", struct.pack("<IIII", 9, 9, kind, 9) + b"#" * 24)
    if refused:
        with fails(refused):
            get_info(client, lib.DRM_AMDXDNA_QUERY_TELEMETRY, data, size)
        return
    get_info(client, lib.DRM_AMDXDNA_QUERY_TELEMETRY, data, size)
    assert bytes(data)[:30] == struct.pack("<7I", 1, 0, kind, 3, 0, second, 0) + b"##"


def test_contexts_of_every_open(opened: Open) -> None:
    """By process and number; what a context asked for is in its entry."""
    first, second = opened(heap=True, slots=4), opened(heap=True, slots=4)
    asked = {"gops": 3, "fps": 5, "dma_bandwidth": 7, "latency": 900, "frame_exec_time": 11}
    numbers = [first.context(**asked)[0], first.context()[0], second.context()[0]]
    assert numbers == [1, 2, 1]
    found = second.contexts()
    assert [entry.context_id for entry in found] == [1, 2, 1]
    for entry in found:
        assert (entry.pid, entry.start_col, entry.num_col) == (os.getpid(), 0, 8)
        assert (entry.state, entry.pasid) == (lib.AMDXDNA_HWCTX_STATE_ACTIVE, 1)
        assert entry.heap_usage > 0
    assert {name: getattr(found[0], name) for name in asked} == asked
    info = first.get_info(lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO, "amdxdna_drm_get_resource_info")
    assert (info.npu_task_max, info.npu_task_curr, info.npu_clk_max) == (4, 3, 1800)


def test_elements_and_their_bounds(opened: Open) -> None:
    client = opened(heap=True, slots=4)
    client.context()
    client.context()
    data = ffi.new("uint8_t[]", b"#" * (4 << 20))

    def get_array(param: int, size: int, count: int) -> tuple[int, int]:
        fields = {"element_size": size, "num_element": count, "buffer": address(data)}
        args = errnos.call(client, "AMDXDNA_GET_ARRAY", "amdxdna_drm_get_array", param=param, **fields)
        return int(args.element_size), int(args.num_element)

    contexts = lib.DRM_AMDXDNA_HW_CONTEXT_ALL
    entry = ffi.sizeof("struct amdxdna_drm_hwctx_entry")
    assert get_array(contexts, 4096, 1024) == (entry, 2)
    assert bytes(data)[2 * entry : 2 * entry + 1] == b"#"
    assert get_array(contexts, entry, 1) == (entry, 1)
    assert get_array(contexts, 4, 2) == (4, 2)
    assert struct.unpack_from("<II", bytes(data[0:8])) == (1, 2)
    for size, count in ((4097, 1), (8, 1025), (0, 1), (8, 0)):
        with fails(errno.EINVAL):
            get_array(contexts, size, count)
    data[0:24] = b"#" * 24
    assert get_array(lib.DRM_AMDXDNA_HW_LAST_ASYNC_ERR, 8, 3) == (24, 1)
    assert bytes(data[0:24]) == bytes(24)
    usage = lib.DRM_AMDXDNA_BO_USAGE
    for count, pid in ((2, os.getpid()), (1, 0)):
        data[0:8] = struct.pack("<q", pid)
        with fails(errno.EINVAL):
            get_array(usage, 32, count)
    client.create_bo(lib.AMDXDNA_BO_SHARE, 8192)
    data[0:40] = struct.pack("<q", os.getpid()) + b"#" * 32
    assert get_array(usage, 16, 1) == (16, 1)
    pid, total, rest = struct.unpack("<qq24s", bytes(data[0:40]))
    assert (pid, rest) == (os.getpid(), b"#" * 24) and total >= (64 << 20) + 8192
