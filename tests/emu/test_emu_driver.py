"""The emulated driver where it goes beyond the conformance suite: versions, limits, faults, timeouts."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.bo import AddressMap
from amdxdna.emu.driver.device import HOLDER_PID
from amdxdna.emu.driver.ranges import RangeAllocator
from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import HEAP_CHUNK, Status
from amdxdna.emu.options import EmuOptions
from tests.conformance import errnos, kit
from tests.conformance.kit import COMPLETED, ERROR, NEW, TIMEOUT, fails
from tests.support.driver_clients import Clock, Open, driver
from tests.support.gate import Gate

PAGE = 4096
# -- versions


def text_lengths(client: kit.Client, rooms: dict[str, int]) -> tuple[Any, dict[str, bytes]]:
    texts = {name: ffi.new("char[]", b"#" * 63) for name in rooms}
    args = ffi.new("struct drm_version *")
    for name, room in rooms.items():
        setattr(args, f"{name}_len", room)
        setattr(args, name, int(ffi.cast("uintptr_t", texts[name])))
    client.ioctl(lib.DRM_IOCTL_VERSION, args)
    return args, {name: bytes(ffi.buffer(text)) for name, text in texts.items()}


def test_version_is_asked_in_two_calls(bare: Callable[..., kit.Client]) -> None:
    client = bare(minor=3)
    args = ffi.new("struct drm_version *")
    client.ioctl(lib.DRM_IOCTL_VERSION, args)
    assert (args.version_major, args.version_minor, args.version_patchlevel) == (0, 3, 0)
    assert (args.name_len, args.date_len, args.desc_len) == (20, 1, 27)
    args, texts = text_lengths(client, {"name": 20, "date": 1, "desc": 10})
    assert texts["name"][:21] == b"amdxdna_accel_driver#"
    assert texts["date"][:2] == b"0#"
    assert texts["desc"][:11] == b"AMD XDNA D#"
    assert args.desc_len == 27


LADDER = [
    (4, "GET_INFO resource info", lambda c: errnos.get_info(12)(c), errno.EOPNOTSUPP),
    (5, "GET_INFO telemetry", lambda c: errnos.get_info(10)(c), errno.EOPNOTSUPP),
    (6, "GET_INFO force preempt", lambda c: errnos.get_info(11)(c), errno.EOPNOTSUPP),
    (6, "GET_INFO frame boundary preempt", lambda c: errnos.get_info(13)(c), errno.EOPNOTSUPP),
    (6, "SET_STATE force preempt", lambda c: errnos.set_state(3)(c), errno.EOPNOTSUPP),
    (7, "GET_INFO sensors", lambda c: errnos.get_info(4)(c), errno.EOPNOTSUPP),
    (1, "GET_ARRAY contexts", lambda c: errnos.get_array(0)(c), errno.EINVAL),
    (2, "GET_ARRAY async error", lambda c: errnos.get_array(2)(c), errno.EOPNOTSUPP),
    (8, "GET_ARRAY BO usage", lambda c: errnos.get_array(6)(c), errno.EOPNOTSUPP),
]


@pytest.mark.parametrize(("minor", "name", "call", "older"), LADDER, ids=[line[1] for line in LADDER])
def test_ladder(
    bare: Callable[..., kit.Client], minor: int, name: str, call: Callable[[kit.Client], object], older: int
) -> None:
    call(bare(minor=minor, sensors=True))
    with fails(older if minor > 1 or "ARRAY contexts" in name else errno.EINVAL):
        call(bare(minor=minor - 1, sensors=True))


def test_what_minor_zero_has(bare: Callable[..., kit.Client]) -> None:
    client = bare(minor=0)
    for param in (0, 1, 2, 3, 5, 8, 9):
        errnos.get_info(param)(client)
    with fails(errno.EINVAL):
        errnos.call(client, "AMDXDNA_WAIT_CMD", "amdxdna_drm_wait_cmd")


def test_debug_buffers(ready: Open) -> None:
    client = ready()
    buffer = client.dev(PAGE)

    def attach(param: int, handle: int) -> None:
        errnos.call(
            client,
            "AMDXDNA_CONFIG_HWCTX",
            "amdxdna_drm_config_hwctx",
            handle=client.hwctx,
            param_type=param,
            param_val=handle,
        )

    with fails(errno.EINVAL):
        attach(lib.DRM_AMDXDNA_HWCTX_REMOVE_DBG_BUF, buffer.handle)
    attach(lib.DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF, buffer.handle)
    with fails(errno.EBUSY):
        attach(lib.DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF, buffer.handle)
    client.sync(buffer.handle, lib.SYNC_DIRECT_FROM_DEVICE)
    attach(lib.DRM_AMDXDNA_HWCTX_REMOVE_DBG_BUF, buffer.handle)
    with fails(errno.EINVAL):
        client.sync(buffer.handle, lib.SYNC_DIRECT_FROM_DEVICE)


# -- structs of other sizes


def test_the_shorter_timeline_wait(ready: Open) -> None:
    """The struct of older headers, without deadline_nsec."""
    client = ready()
    seq = client.start(stream.copy(PAGE, 1), client.source.device, client.destination.device)
    handles, points = ffi.new("uint32_t[]", [client.syncobj]), ffi.new("uint64_t[]", [seq])
    deadline = time.monotonic_ns() + 60 * 10**9
    data = bytearray(
        struct.pack(
            "<QQqIIII",
            int(ffi.cast("uintptr_t", handles)),
            int(ffi.cast("uintptr_t", points)),
            deadline,
            1,
            0,
            7,
            0,
        )
    )
    guard = bytearray(b"\xaa" * 8)
    block = ffi.from_buffer(data + guard)
    client.node.ioctl(lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT_V1, int(ffi.cast("uintptr_t", block)))
    assert bytes(ffi.buffer(block))[40:] == guard
    assert struct.unpack_from("<I", bytes(ffi.buffer(block)), 32) == (0,)


def test_answers_are_cut_to_the_buffer(bare: Callable[..., kit.Client]) -> None:
    client = bare()
    buffer = ffi.new("uint8_t[]", b"\xee" * 16)
    args = errnos.call(
        client,
        "AMDXDNA_GET_INFO",
        "amdxdna_drm_get_info",
        param=1,
        buffer_size=6,
        buffer=int(ffi.cast("uintptr_t", buffer)),
    )
    assert bytes(ffi.buffer(buffer)[:7]) == struct.pack("<IH", 0x2000, 8) + b"\xee"
    assert args.buffer_size == 6


def test_sensors(bare: Callable[..., kit.Client]) -> None:
    size = ffi.sizeof("struct amdxdna_drm_query_sensor")
    client = bare(sensors=True, columns=4)
    buffer = ffi.new("struct amdxdna_drm_query_sensor[8]")
    args = errnos.call(
        client,
        "AMDXDNA_GET_INFO",
        "amdxdna_drm_get_info",
        param=4,
        buffer_size=8 * size,
        buffer=int(ffi.cast("uintptr_t", buffer)),
    )
    assert args.buffer_size == 5 * size
    labels = [ffi.string(ffi.cast("char *", sensor.label)) for sensor in buffer]
    assert labels[:6] == [b"Total Power", *(b"Column %d Utilization" % column for column in range(4)), b""]
    assert (buffer[0].unitm, ffi.string(ffi.cast("char *", buffer[0].units))) == (-3, b"mW")


def test_the_context_list_says_what_is_left_of_the_buffer(ready: Open) -> None:
    client = ready()
    client.new_context()
    buffer = ffi.new("struct amdxdna_drm_query_hwctx[3]")
    args = errnos.call(
        client,
        "AMDXDNA_GET_INFO",
        "amdxdna_drm_get_info",
        param=5,
        buffer_size=3 * 64 + 10,
        buffer=int(ffi.cast("uintptr_t", buffer)),
    )
    assert args.buffer_size == 64 + 10
    assert [entry.context_id for entry in buffer] == [1, 2, 0]


def test_array_elements_of_another_size(ready: Open) -> None:
    client = ready()
    client.new_context()
    data = ffi.new("uint8_t[]", 400)
    for asked, count, size in ((200, 2, 144), (64, 1, 64)):
        given = {"element_size": asked, "num_element": count, "buffer": int(ffi.cast("uintptr_t", data))}
        args = errnos.call(client, "AMDXDNA_GET_ARRAY", "amdxdna_drm_get_array", param=0, **given)
        assert (args.element_size, args.num_element) == (size, count)
        if count == 2:
            assert struct.unpack_from("<I", bytes(data), 144) == (2,)


# -- limits


def test_held_slots_are_another_process(ready: Open) -> None:
    client = ready(slots=3, held_slots=2)
    with fails(errno.EINVAL):
        client.context()
    assert [(entry.pid, entry.context_id) for entry in client.contexts()] == [
        (HOLDER_PID, 1),
        (HOLDER_PID, 2),
        (os.getpid(), 1),
    ]
    info = client.get_info(lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO, "amdxdna_drm_get_resource_info")
    assert (info.npu_task_max, info.npu_task_curr) == (3, 3)
    assert client.copy() == COMPLETED


def test_255_contexts_a_file(bare: Callable[..., kit.Client]) -> None:
    client = bare(slots=300)
    client.heap()
    handles = [client.context()[0] for _ in range(255)]
    assert handles == list(range(1, 256))
    with fails(errno.EBUSY):
        client.context()
    assert len(client.node.client.syncobjs) == 255
    client.destroy(77)
    assert client.context()[0] == 77


def test_a_heap_off_its_alignment_is_refused_with_pasid(bare: Callable[..., kit.Client]) -> None:
    for address, refused in (("pasid", True), ("iova", False)):
        client = bare(address=address)
        client.heap(at=client.reserve(2 * HEAP_CHUNK) + PAGE)
        if refused:
            with fails(errno.EINVAL):
                client.context()
            assert "0x4000003" in driver(client).messages[-1]
        else:
            client.context()


def test_iovas_come_from_the_top(ready: Open) -> None:
    client = ready(address="iova")
    heap = client.info(client.heap_bo.handle)
    assert heap.xdna_addr == kit.HEAP_DEVICE
    assert client.destination.device == client.source.device - PAGE
    assert client.command.device == client.destination.device - PAGE
    chunk = driver(client).memory.by_offset[client.heap_bo.offset]
    assert chunk.iova % HEAP_CHUNK == 0
    client.close_bo(client.destination.handle)
    client.munmap(client.destination.host, PAGE)
    assert client.bo(PAGE).device == client.destination.device


def test_clock_level_follows_qos(ready: Open) -> None:
    client = ready()

    def h_clock() -> int:
        clock = client.get_info(lib.DRM_AMDXDNA_QUERY_CLOCK_METADATA, "amdxdna_drm_query_clock_metadata")
        return int(clock.h_clock.freq_mhz)

    assert h_clock() == 1800
    client.context(gops=100, fps=10)
    assert h_clock() == 792
    client.context()
    assert h_clock() == 1800


def test_clock_level_follows_the_power_mode(ready: Open) -> None:
    """Each mode has its level; the default one goes back to what the contexts ask for (aie2_pm.c)."""
    client = ready(privileged=True)

    def clocks() -> tuple[int, int]:
        clock = client.get_info(lib.DRM_AMDXDNA_QUERY_CLOCK_METADATA, "amdxdna_drm_query_clock_metadata")
        return int(clock.mp_npu_clock.freq_mhz), int(clock.h_clock.freq_mhz)

    client.context(gops=100, fps=10)
    before = clocks()
    assert before == (396, 792)
    shown = {}
    for mode in (lib.POWER_MODE_LOW, lib.POWER_MODE_MEDIUM, lib.POWER_MODE_HIGH, lib.POWER_MODE_DEFAULT):
        errnos.set_state(0, bytes([mode]) + bytes(7))(client)
        shown[mode] = clocks()
    assert shown == {
        lib.POWER_MODE_LOW: (396, 792),
        lib.POWER_MODE_MEDIUM: (975, 1267),
        lib.POWER_MODE_HIGH: (1267, 1800),
        lib.POWER_MODE_DEFAULT: before,
    }
    errnos.set_state(0, bytes([lib.POWER_MODE_MEDIUM]) + bytes(7))(client)
    client.context()  # asks for no rate: the default level rises, the mode's stays
    assert clocks() == (975, 1267)
    errnos.set_state(0, bytes([lib.POWER_MODE_DEFAULT]) + bytes(7))(client)
    assert clocks() == (1267, 1800)


# -- injected faults


def test_what_is_logged_of_an_injected_hang(ready: Open) -> None:
    """The hang and its reset: nothing of memory that the command lost with its context."""
    client = ready(faults=EmuOptions.parse("hang=2", {}).faults)
    clock = Clock(client)
    assert client.copy() == COMPLETED
    clock.hang(program=stream.copy(PAGE), buffers=(client.source.device, client.destination.device))
    clock.forward(0.41)
    assert client.copy() == COMPLETED
    assert driver(client).npu.close(60)  # its worker has said what it had to say
    messages = list(driver(client).messages)
    assert any("hangs" in line for line in messages)
    assert not any("no memory" in line for line in messages), messages


def test_hang_fail_and_slow_by_count(ready: Open) -> None:
    client = ready(faults=EmuOptions.parse("fail=2:0x3000002,hang=4,slow=1:1000", {}).faults)
    clock = Clock(client)
    assert [client.copy() for _ in range(3)] == [COMPLETED, ERROR, COMPLETED]
    clock.hang(program=stream.copy(PAGE), buffers=(client.source.device, client.destination.device))
    assert kit.state(client.command) == TIMEOUT
    clock.forward(0.41)
    assert client.copy() == COMPLETED


def test_refused_context(ready: Open) -> None:
    client = ready()
    driver(client).faults.next("refuse")
    with fails(errno.EINVAL):
        client.context()
    driver(client).faults.next("refuse", Status.APPLICATION_ACTIVE)
    with fails(errno.EINVAL):
        client.context()
    assert "0x2000007" in driver(client).messages[-1]
    assert client.copy(client.new_context()) == COMPLETED


def test_refused_configuration_shows_only_in_the_commands(ready: Open) -> None:
    client = ready()
    driver(client).faults.next("refuse_config")
    context = client.new_context()
    assert client.copy(context) == ERROR
    assert client.copy() == COMPLETED


# -- packets


def test_chain_error_index_out_of_range_reads_zero(ready: Open, gate: Gate) -> None:
    """The error index is checked against the count that the packet has then."""
    client = ready()
    member = client.bo(PAGE, lib.AMDXDNA_BO_CMD)
    program = stream.program([stream.Delay(1), stream.Copy(PAGE, 1), stream.Fail(0x3000002)])
    client.pack(program, client.source.device, client.destination.device, command=member)
    client.raw(client.command, kit.header(kit.CHAIN, 10), 2, 0, 0, 0, 0, 0, *[member.handle, 0] * 2)
    seq = client.submit(client.hwctx, client.command.handle)
    client.command.words()[1] = 0
    gate.open()
    client.wait(client.syncobj, seq)
    assert list(client.command.words()[:4]) == [kit.header(kit.CHAIN, 10, ERROR), 0, 0, 0]
    assert member.words()[1] == 0xFFFFFFFF


def test_chains_hold_what_one_list_holds(ready: Open) -> None:
    client = ready()
    member = client.bo(PAGE, lib.AMDXDNA_BO_CMD)
    client.pack(stream.copy(PAGE, 1), client.source.device, client.destination.device, command=member)
    # 52 bytes a slot and nine argument words: 46 fit into 4 KiB.
    for count, expected in ((46, COMPLETED), (47, NEW)):
        words = [count, 0, 0, 0, 0, 0] + [member.handle, 0] * count
        client.raw(client.command, kit.header(kit.CHAIN, len(words)), *words)
        client.wait(client.syncobj, client.submit(client.hwctx, client.command.handle))
        assert kit.state(client.command) == expected


def test_mixed_chains_are_rejected(ready: Open) -> None:
    client = ready()
    first, second = client.bo(PAGE, lib.AMDXDNA_BO_CMD), client.bo(PAGE, lib.AMDXDNA_BO_CMD)
    client.pack(stream.copy(PAGE, 1), client.source.device, client.destination.device, command=first)
    client.raw(second, kit.header(kit.START_NPU, 14), *[1] * 14)
    client.raw(client.command, kit.header(kit.CHAIN, 10), 2, 0, 0, 0, 0, 0, first.handle, 0, second.handle, 0)
    client.wait(client.syncobj, client.submit(client.hwctx, client.command.handle))
    assert kit.state(client.command) == NEW


def test_extra_cu_masks(ready: Open) -> None:
    """Up to four mask words; the first that is not zero names the CU by its lowest bit."""
    client = ready()
    packet = client.pack(stream.copy(PAGE, 1), client.source.device, client.destination.device)
    words = list(packet.words()[:12])
    count = words[0] >> 12 & 0x7FF
    client.raw(packet, kit.header(kit.START_CU, count + 2) | 2 << 10, 0, 0, 1 | 1 << 7, *words[2:])
    client.wait(client.syncobj, client.submit(client.hwctx, packet.handle))
    assert kit.state(packet) == COMPLETED
    client.check_copy(client.destination)


# -- address ranges


def test_allocator_fits_best_and_merges() -> None:
    space = RangeAllocator(0, 100)
    first, second, third, fourth = (space.lowest(size, 1) for size in (10, 20, 5, 30))
    assert (first, second, third, fourth) == (0, 10, 30, 35)
    space.free(10, 20)
    space.free(35, 30)
    assert space.lowest(25, 1) == 35  # of the holes 10-30 and 35-100 only the larger fits
    assert space.lowest(18, 1) == 10
    assert space.lowest(50, 1) is None
    for start, size in ((0, 10), (30, 5), (35, 25), (10, 18)):
        space.free(start, size)
    assert space.lowest(100, 1) == 0


def test_allocator_from_the_top() -> None:
    space = RangeAllocator(0x1000, 0x10000)
    assert space.highest(0x1800, 0x1000) == 0xE000
    assert space.highest(0x2000, 0x4000) == 0xC000
    assert space.highest(0x800, 0x1000) == 0xB000
    assert space.highest(0x10000) is None


def test_address_map_against_a_plain_one() -> None:
    import random

    random.seed(5)
    plain: dict[int, tuple[str, int]] = {}
    space = AddressMap()
    for turn in range(2000):
        start, size = random.randrange(0, 200), random.randrange(1, 30)
        if random.random() < 0.5:
            if not any(at in plain for at in range(start, start + size)):
                name: Any = f"bo{turn}"
                space.add(start, size, name)
                plain.update({at: (name, at - start) for at in range(start, start + size)})
        else:
            pieces = space.remove(start, size)
            gone = [plain.pop(at) for at in range(start, start + size) if at in plain]
            assert [(p.bo, p.offset + i) for p in pieces for i in range(p.end - p.start)] == gone
        at = random.randrange(0, 230)
        assert space.find(at, 1) == plain.get(at)
        assert sum(r.end - r.start for r in space) == len(plain)
