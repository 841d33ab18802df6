"""Lines of a trace: every request decoded by field, results, errors and their meaning, the summary."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amdxdna import packet, uapi
from amdxdna._native import ffi, lib
from amdxdna.ioctl import REQUESTS
from amdxdna.trace import calls, fields
from amdxdna.trace.recorder import Recorder
from amdxdna.trace.session import Session
from amdxdna.trace.summary import Durations, lines


class Memory:
    """A process's memory: chunks at addresses, everything else unmapped."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        self._next = 0x10000

    def put(self, data: bytes) -> int:
        address, self._next = self._next, self._next + 0x10000
        self._chunks[address] = bytearray(data)
        return address

    def struct(self, kind: str, **values: Any) -> int:
        return self.put(bytes(ffi.buffer(ffi.new(f"struct {kind} *", values))))

    def set(self, address: int, kind: str, **values: Any) -> None:
        view = ffi.from_buffer(f"struct {kind} *", self._chunks[address])
        for name, value in values.items():
            setattr(view, name, value)

    def write(self, address: int, data: bytes) -> None:
        self._chunks[address][: len(data)] = data

    def read(self, address: int, size: int) -> bytes:
        for start, data in self._chunks.items():
            if start <= address and address + size <= start + len(data):
                return bytes(data[address - start : address - start + size])
        raise OSError(14, "Bad address")


class Bench:
    """A recorder on a file, one open, and calls made by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.recorder = Recorder(self.fd, "binding", ["program", "argument"])
        session = self.recorder.opened(10, 11, "/dev/accel/accel0", 3)
        assert session is not None
        self.session: Session = session
        self.memory = Memory()

    def call(
        self,
        name: str,
        address: int,
        failed: int = 0,
        after: Callable[[], None] | None = None,
        request: int | None = None,
    ) -> dict[str, Any]:
        number = REQUESTS[name] if request is None else request
        pending = self.recorder.enter(self.session, 10, 11, number, address, self.memory)
        if after:
            after()
        self.recorder.leave(pending, failed)
        return self.lines()[-1]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def bo(
        self,
        handle: int,
        kind: int = lib.AMDXDNA_BO_SHARE,
        size: int = 4096,
        host: int | None = None,
        device: int = lib.AMDXDNA_INVALID_ADDR,
    ) -> int:
        """CREATE_BO, GET_BO_INFO and mmap; the host address."""
        args = self.memory.struct("amdxdna_drm_create_bo", size=size, type=kind)
        self.call(
            "CREATE_BO", args, after=lambda: self.memory.set(args, "amdxdna_drm_create_bo", handle=handle)
        )
        offset = (1 << 32) + handle * 0x1000000
        info = self.memory.struct("amdxdna_drm_get_bo_info", handle=handle)
        self.call(
            "GET_BO_INFO",
            info,
            after=lambda: self.memory.set(
                info,
                "amdxdna_drm_get_bo_info",
                map_offset=offset,
                vaddr=lib.AMDXDNA_INVALID_ADDR,
                xdna_addr=device,
            ),
        )
        address = self.memory.put(bytes(size)) if host is None else host
        self.recorder.mapped(self.session, 10, 11, size, offset, 0, address)
        return address

    def context(self, handle: int, syncobj: int) -> dict[str, Any]:
        qos = self.memory.struct("amdxdna_qos_info", gops=7, priority=lib.AMDXDNA_QOS_HIGH_PRIORITY)
        args = self.memory.struct("amdxdna_drm_create_hwctx", qos_p=qos, max_opc=2048, num_tiles=32)
        return self.call(
            "CREATE_HWCTX",
            args,
            after=lambda: self.memory.set(
                args, "amdxdna_drm_create_hwctx", handle=handle, syncobj_handle=syncobj
            ),
        )

    def submit(self, context: int, command: int, bos: list[int], seq: int) -> dict[str, Any]:
        handles = self.memory.put(struct.pack(f"<{len(bos)}I", *bos))
        args = self.memory.struct(
            "amdxdna_drm_exec_cmd",
            hwctx=context,
            cmd_handles=command,
            cmd_count=1,
            args=handles,
            arg_count=len(bos),
        )
        return self.call(
            "EXEC_CMD", args, after=lambda: self.memory.set(args, "amdxdna_drm_exec_cmd", seq=seq)
        )

    def wait(
        self, pairs: list[tuple[int, int]], failed: int = 0, flags: int = 2, first: int = 0, old: bool = False
    ) -> dict[str, Any]:
        handles = self.memory.put(struct.pack(f"<{len(pairs)}I", *(pair[0] for pair in pairs)))
        points = self.memory.put(struct.pack(f"<{len(pairs)}Q", *(pair[1] for pair in pairs)))
        args = self.memory.struct(
            "drm_syncobj_timeline_wait",
            handles=handles,
            points=points,
            timeout_nsec=5,
            count_handles=len(pairs),
            flags=flags,
        )
        kind = "drm_syncobj_timeline_wait"
        return self.call(
            "SYNCOBJ_TIMELINE_WAIT",
            args,
            failed,
            request=lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT_V1 if old else None,
            after=lambda: self.memory.set(args, kind, first_signaled=first),
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "trace.jsonl")
    yield made
    os.close(made.fd)


def test_header_and_open(bench: Bench) -> None:
    header, opened = bench.lines()
    assert (header["schema"], header["version"], header["source"]) == ("amdxdna.trace", 1, "binding")
    assert header["command"] == ["program", "argument"]
    assert (opened["pid"], opened["tid"], opened["open"], opened["call"]) == (10, 11, 1, "open")
    assert (opened["in"], opened["out"]) == ({"path": "/dev/accel/accel0"}, {"fd": 3})
    assert opened["t"] >= 0
    assert "errno" not in opened


def test_every_request_of_the_binding_is_known() -> None:
    for name, request in REQUESTS.items():
        known = calls.REQUESTS[request & 0xFF]
        assert known.name == name
        assert ffi.sizeof(f"struct {known.struct}") == uapi.struct_size(request)


def test_create_bo(bench: Bench) -> None:
    args = bench.memory.struct("amdxdna_drm_create_bo", size=64 << 20, type=lib.AMDXDNA_BO_DEV_HEAP)
    line = bench.call(
        "CREATE_BO", args, after=lambda: bench.memory.set(args, "amdxdna_drm_create_bo", handle=1)
    )
    assert line["in"] == {"size": 64 << 20, "type": "DEV_HEAP"}
    assert line["out"] == {"handle": 1}


def test_user_pointer_table(bench: Bench) -> None:
    table = bench.memory.put(struct.pack("<iIQQQQ", -1, 2, 0x7F0000, 4096, 0x7F8000, 8192))
    args = bench.memory.struct("amdxdna_drm_create_bo", vaddr=table, size=12288, type=1)
    line = bench.call("CREATE_BO", args, failed=14)
    assert line["in"]["table"] == {"entries": 2, "ranges": [["0x7f0000", 4096], ["0x7f8000", 8192]]}
    assert line["errno"] == "EFAULT"
    assert "cannot pin this memory" in line["meaning"]
    assert "private read-write mapping" in line["remedy"]


@pytest.mark.parametrize(
    ("data", "given"),
    [
        (struct.pack("<iI", 9, 0), {"table": {"dmabuf_fd": 9}}),
        (struct.pack("<iIQQ", -1, 1, 0x7000, 64), {"table": {"entries": 1, "ranges": [["0x7000", 64]]}}),
        (struct.pack("<iI", -1, 1), {"undecoded": "Bad address"}),
    ],
)
def test_tables_of_user_pointers_and_imports(bench: Bench, data: bytes, given: dict[str, Any]) -> None:
    args = bench.memory.struct("amdxdna_drm_create_bo", vaddr=bench.memory.put(data), size=64, type=1)
    line = bench.call("CREATE_BO", args)
    assert {key: value for key, value in line["in"].items() if key in ("table", "undecoded")} == given


def test_failure_of_a_device_bo_is_explained_as_one(bench: Bench) -> None:
    args = bench.memory.struct("amdxdna_drm_create_bo", size=4096, type=lib.AMDXDNA_BO_DEV)
    assert "the device heap is full (or not mapped yet)" in bench.call("CREATE_BO", args, 11)["meaning"]


def test_get_bo_info(bench: Bench) -> None:
    args = bench.memory.struct("amdxdna_drm_get_bo_info", handle=3)
    line = bench.call(
        "GET_BO_INFO",
        args,
        after=lambda: bench.memory.set(
            args,
            "amdxdna_drm_get_bo_info",
            map_offset=lib.AMDXDNA_INVALID_ADDR,
            vaddr=0x7F12345000,
            xdna_addr=0x4028000,
        ),
    )
    assert line["out"] == {"map_offset": None, "vaddr": "0x7f12345000", "xdna_addr": "0x4028000"}


def test_context(bench: Bench) -> None:
    line = bench.context(4, 2)
    assert line["in"]["qos"] == {
        "gops": 7,
        "fps": 0,
        "dma_bandwidth": 0,
        "latency": 0,
        "frame_exec_time": 0,
        "priority": "HIGH",
    }
    assert (line["in"]["max_opc"], line["in"]["num_tiles"]) == (2048, 32)
    assert line["out"] == {"handle": 4, "syncobj_handle": 2}


def test_cu_configuration(bench: Bench) -> None:
    block = bench.memory.put(struct.pack("<H6xIB3xIB3x", 2, 5, 0, 6, 3))
    args = bench.memory.struct("amdxdna_drm_config_hwctx", handle=1, param_val=block, param_val_size=24)
    line = bench.call("CONFIG_HWCTX", args)
    assert line["in"]["cus"] == [{"bo": 5, "function": 0}, {"bo": 6, "function": 3}]
    debug = bench.memory.struct("amdxdna_drm_config_hwctx", handle=1, param_type=1, param_val=9)
    assert bench.call("CONFIG_HWCTX", debug)["in"] == {
        "handle": 1,
        "param_type": "ASSIGN_DBG_BUF",
        "param_val": "0x9",
        "bo": 9,
    }


def test_submit_shows_its_packet_and_where_addresses_lie(bench: Bench) -> None:
    data = bench.bo(7, size=8192)
    bench.bo(5, lib.AMDXDNA_BO_DEV, device=0x4028000)
    command = bench.bo(6, lib.AMDXDNA_BO_CMD)
    bench.memory.write(command, packet.start_cu(0, 0x4028000, 0xCB0, [data + 4096]))
    bench.context(1, 1)
    line = bench.submit(1, 6, [7, 5], 0)
    assert line["in"]["bos"] == [7, 5]
    assert line["out"]["seq"] == 0
    assert line["packet"]["instructions"] == {"address": "0x4028000", "bo": 5, "offset": 0, "bytes": 0xCB0}
    assert line["packet"]["buffers"] == [{"address": f"{data + 4096:#x}", "bo": 7, "offset": 4096}]


def test_packet_that_cannot_be_seen_is_null(bench: Bench) -> None:
    bench.context(1, 1)
    assert bench.submit(1, 77, [], 0)["packet"] is None


def test_waits_tell_which_commands_are_over(bench: Bench) -> None:
    command = bench.bo(6, lib.AMDXDNA_BO_CMD)
    bench.context(1, 21)
    bench.context(2, 22)
    for context, seq in ((1, 0), (1, 1), (1, 2), (2, 0)):
        bench.submit(context, 6, [], seq)
    bench.memory.write(command, struct.pack("<I", 4))
    over = bench.wait([(21, 1)])["completed"]
    assert [(each["context"], each["seq"], each["bo"], each["state"]) for each in over] == [
        (1, 0, 6, "COMPLETED"),
        (1, 1, 6, "COMPLETED"),
    ]
    assert all(each["us"] > 0 for each in over)
    assert bench.wait([(21, 1)])["completed"] == []
    # Point 0 is the newest one.
    assert [each["seq"] for each in bench.wait([(21, 0)])["completed"]] == [2]
    assert [each["context"] for each in bench.wait([(22, 0)], old=True)["completed"]] == [2]


def test_wait_for_any_of_several(bench: Bench) -> None:
    bench.bo(6, lib.AMDXDNA_BO_CMD)
    bench.context(1, 21)
    bench.context(2, 22)
    bench.submit(1, 6, [], 0)
    bench.submit(2, 6, [], 0)
    line = bench.wait([(21, 0), (22, 0)], first=1)
    assert line["in"]["waits"] == [[21, 0], [22, 0]]
    assert [each["context"] for each in line["completed"]] == [2]
    assert [each["context"] for each in bench.wait([(21, 0), (22, 0)], flags=3)["completed"]] == [1]


def test_timed_out_command_shows_its_health(bench: Bench) -> None:
    command = bench.bo(6, lib.AMDXDNA_BO_CMD)
    bench.context(1, 21)
    bench.submit(1, 6, [], 0)
    bench.memory.write(command, struct.pack("<9I", 8, 1, 0, 17, 0xABCD, 0, 0, 0, 0))
    (over,) = bench.wait([(21, 0)])["completed"]
    assert over["state"] == "TIMEOUT"
    assert "operation 17" in over["health"]


def test_timeout_of_a_wait(bench: Bench) -> None:
    bench.context(1, 21)
    line = bench.wait([(21, 5)], failed=62)
    assert line["errno"] == "ETIME"
    assert line["meaning"] == "the command has not completed within the time given"
    assert "completed" not in line


@pytest.mark.parametrize(
    ("param", "kind", "values", "expected"),
    [
        (
            lib.DRM_AMDXDNA_QUERY_FIRMWARE_VERSION,
            "amdxdna_drm_query_firmware_version",
            {"major": 1, "build": 64},
            {"major": 1, "minor": 0, "patch": 0, "build": 64},
        ),
        (
            lib.DRM_AMDXDNA_GET_POWER_MODE,
            "amdxdna_drm_get_power_mode",
            {"power_mode": 4},
            {"power_mode": "TURBO"},
        ),
        (
            lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO,
            "amdxdna_drm_get_resource_info",
            {"npu_task_max": 16},
            {"npu_clk_max": 0, "npu_tops_max": 0, "npu_task_max": 16, "npu_tops_curr": 0, "npu_task_curr": 0},
        ),
    ],
)
def test_query_results(
    bench: Bench, param: int, kind: str, values: dict[str, int], expected: dict[str, Any]
) -> None:
    buffer = bench.memory.struct(kind)
    args = bench.memory.struct(
        "amdxdna_drm_get_info", param=param, buffer=buffer, buffer_size=ffi.sizeof(f"struct {kind}")
    )
    line = bench.call("GET_INFO", args, after=lambda: bench.memory.set(buffer, kind, **values))
    assert line["in"]["param"] == fields.INFO[param]
    assert line["out"]["result"] == expected


def test_nested_result(bench: Bench) -> None:
    kind = "amdxdna_drm_query_clock_metadata"
    buffer = bench.memory.put(struct.pack("<16sII16sII", b"MP-NPU Clock", 1267, 0, b"H Clock", 1800, 0))
    args = bench.memory.struct(
        "amdxdna_drm_get_info",
        param=lib.DRM_AMDXDNA_QUERY_CLOCK_METADATA,
        buffer=buffer,
        buffer_size=ffi.sizeof(f"struct {kind}"),
    )
    assert bench.call("GET_INFO", args)["out"]["result"] == {
        "mp_npu_clock": {"name": "MP-NPU Clock", "freq_mhz": 1267},
        "h_clock": {"name": "H Clock", "freq_mhz": 1800},
    }


@pytest.mark.parametrize("size", [144, 160, 64])
def test_context_entries_of_any_size(bench: Bench, size: int) -> None:
    """Older drivers fill shorter entries, newer ones longer: the element size comes back."""
    entries = [
        bytes(ffi.buffer(ffi.new("struct amdxdna_drm_hwctx_entry *", {"hwctx_id": n, "pid": 100 + n}))).ljust(
            160, b"\0"
        )[:size]
        for n in range(2)
    ]
    buffer = bench.memory.put(b"".join(entries).ljust(1000, b"\0"))
    args = bench.memory.struct("amdxdna_drm_get_array", element_size=160, num_element=6, buffer=buffer)
    line = bench.call(
        "GET_ARRAY",
        args,
        after=lambda: bench.memory.set(args, "amdxdna_drm_get_array", element_size=size, num_element=2),
    )
    assert line["in"]["param"] == "HW_CONTEXT_ALL"
    assert [(entry["hwctx_id"], entry["pid"]) for entry in line["out"]["elements"]] == [(0, 100), (1, 101)]


def test_version_texts(bench: Bench) -> None:
    name = bench.memory.put(b"amdxdna_accel_driver".ljust(64, b"\0"))
    args = bench.memory.struct("drm_version", name=name, name_len=63)
    line = bench.call(
        "VERSION", args, after=lambda: bench.memory.set(args, "drm_version", version_minor=10, name_len=20)
    )
    assert line["out"] == {"version_minor": 10, "name_len": 20, "name": "amdxdna_accel_driver"}
    long = {"desc": bench.memory.put(b"d" * 300), "desc_len": 300}  # more than is worth showing
    args = bench.memory.struct("drm_version", **long)
    assert bench.call("VERSION", args)["out"] == {"desc": "d" * 256}


def test_power_mode_and_who_may_set_it(bench: Bench) -> None:
    mode = bench.memory.struct("amdxdna_drm_set_power_mode", power_mode=3)
    args = bench.memory.struct("amdxdna_drm_set_state", param=0, buffer=mode, buffer_size=8)
    line = bench.call("SET_STATE", args, failed=13)
    assert line["in"]["value"] == {"power_mode": "HIGH"}
    assert (line["errno"], line["meaning"]) == ("EACCES", "only root may change the device's state")


def test_unknown_request(bench: Bench) -> None:
    args = bench.memory.put(bytes(range(8)))
    line = bench.call("", args, failed=22, request=0xC0086477)
    assert line["call"] == "ioctl 0x77"
    assert line["in"] == {"request": "0xc0086477", "raw": "0001020304050607"}


def test_unreadable_struct_and_pointers(bench: Bench) -> None:
    assert bench.call("CREATE_BO", 8, failed=14)["in"] == {"address": "0x8"}
    args = bench.memory.struct("amdxdna_drm_exec_cmd", args=8, arg_count=3, cmd_count=1)
    line = bench.call("EXEC_CMD", args, failed=14)
    assert line["in"]["undecoded"] == "Bad address"
    assert line["errno"] == "EFAULT"


def test_names_of_errno_are_the_drivers(bench: Bench) -> None:
    args = bench.memory.struct("amdxdna_drm_get_info", param=99)
    assert bench.call("GET_INFO", args, failed=95)["errno"] == "EOPNOTSUPP"
    assert bench.call("GET_INFO", args, failed=4000)["errno"] == "4000"


def test_handle_that_is_used_again_before_its_close_is_seen_to_end(bench: Bench) -> None:
    """Threads: one's GEM_CLOSE or DESTROY_HWCTX ends after another's create got the same handle."""
    bench.bo(6, lib.AMDXDNA_BO_CMD)
    made: list[int] = []
    close = bench.memory.struct("drm_gem_close", handle=6)
    bench.call("GEM_CLOSE", close, after=lambda: made.append(bench.bo(6, lib.AMDXDNA_BO_CMD)))
    bench.memory.write(made[0], packet.start_cu(0, 0x4028000, 0xCB0, [made[0]]))
    bench.context(1, 21)
    destroy = bench.memory.struct("amdxdna_drm_destroy_hwctx", handle=1)
    bench.call("DESTROY_HWCTX", destroy, after=lambda: bench.context(1, 21))
    buffers = bench.submit(1, 6, [], 0)["packet"]["buffers"]
    assert buffers == [{"address": f"{made[0]:#x}", "bo": 6, "offset": 0}]
    assert len(bench.wait([(21, 0)])["completed"]) == 1
    bench.call("GEM_CLOSE", close, failed=22)
    assert bench.session.find(made[0]) == (6, 0)
    bench.call("GEM_CLOSE", close)
    assert bench.session.find(made[0]) is None


def test_mapping_and_unmapping(bench: Bench) -> None:
    bench.recorder.mapped(bench.session, 10, 11, 4096, 1 << 40, 0x5000, None, 22)
    line = bench.lines()[-1]
    assert line["in"] == {"length": 4096, "offset": "0x10000000000", "address": "0x5000"}
    assert (line["out"], line["errno"]) == ({}, "EINVAL")
    address = bench.bo(6, lib.AMDXDNA_BO_CMD)
    assert bench.lines()[-1]["out"] == {"address": f"{address:#x}", "bo": 6}
    assert bench.session.find(address + 8) == (6, 8)
    bench.recorder.unmapping(bench.session, address, 4096)
    assert bench.session.find(address + 8) is None
    # Another thread gets the same address before this one has said that its call is over.
    bench.bo(7, lib.AMDXDNA_BO_CMD, host=address)
    bench.recorder.unmapped(bench.session, 10, 11, address, 4096)
    assert bench.lines()[-1]["call"] == "munmap"
    assert bench.session.find(address + 8) == (7, 8)


def test_summary(bench: Bench) -> None:
    data = bench.bo(7, size=8192)
    command = bench.bo(6, lib.AMDXDNA_BO_CMD)
    bench.memory.write(command, packet.start_cu(0, 0x4028000, 100, [data]))
    bench.context(1, 1)
    for seq in range(3):
        bench.submit(1, 6, [7, 6], seq)
    bench.memory.write(command, struct.pack("<I", 4))
    bench.wait([(1, 1)])
    sync = bench.memory.struct("amdxdna_drm_sync_bo", handle=7, size=8192)
    bench.call("SYNC_BO", sync)
    bench.call("CREATE_BO", 8, failed=14)
    bench.recorder.closed(bench.session, 10, 11)
    found = bench.recorder.finish()
    assert bench.lines()[-1] == {"summary": found}
    assert (found["opens"], found["contexts"], found["submits"]) == (1, 1, 3)
    assert found["states"] == {"COMPLETED": 2, "unobserved": 1}
    assert found["bytes"] == {"allocated": 12288, "listed": 3 * 12288, "instructions": 300, "synced": 8192}
    assert found["errors"] == {"CREATE_BO EFAULT": 1}
    assert found["calls"]["CREATE_BO"]["count"] == 3
    assert found["calls"]["CREATE_BO"]["errors"] == 1
    latency = found["submit_to_complete_us"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert found["calls_per_second"] > 0
    text = "\n".join(lines(found))
    assert "1 opens, 1 contexts, 3 submits" in text
    assert "failed: CREATE_BO EFAULT x 1" in text


def test_summary_of_nothing(tmp_path: Path) -> None:
    with open(tmp_path / "t", "wb") as file:
        found = Recorder(file.fileno(), "binding").finish()
    assert found["submit_to_complete_us"] is None
    assert found["calls"] == {}
    assert lines(found)


def test_nothing_is_written_after_the_summary(bench: Bench) -> None:
    bench.recorder.finish()
    count = len(bench.lines())
    bench.recorder.closed(bench.session, 10, 11)
    bench.recorder.finish()
    assert len(bench.lines()) == count


def test_a_million_durations_are_kept() -> None:
    found = Durations()
    for _ in range((1 << 20) + 5):
        found.add(1.0)
    assert len(found) == 1 << 20


def test_when_things_were_and_how_long(bench: Bench) -> None:
    """Microseconds of a call, an mmap and a stage, each 2 s long; seconds since the trace began."""
    began = time.monotonic() + 5.0
    bench.recorder.mapped(bench.session, 1, 1, 4096, 0, 0, None, 22, began, began + 2.0)
    bench.recorder.stage("host", began + 7.0, began + 9.0)
    args = bench.memory.struct("amdxdna_drm_sync_bo")
    pending = bench.recorder.enter(bench.session, 1, 1, REQUESTS["SYNC_BO"], args, bench.memory)
    pending.began = began + 11.0
    bench.recorder.leave(pending, 0, began + 13.0)
    found = bench.lines()[-3:]
    assert [line["us"] for line in found] == [2e6] * 3
    assert 5.0 <= found[0]["t"] <= found[1]["t"] - 7.0 + 2e-6
    assert [round(line["t"] - found[0]["t"], 4) for line in found] == [0.0, 7.0, 11.0]


def test_percentiles() -> None:
    durations = Durations()
    for value in range(1, 101):
        durations.add(value * 1e-6)
    assert durations.percentiles() == {"p50": 50.5, "p90": 90.0, "p99": 99.0, "max": 100.0}
    two = Durations()
    two.add(10e-6)
    assert two.percentiles() == {"p50": 10.0, "p90": 10.0, "p99": 10.0, "max": 10.0}
    two.add(20e-6)
    assert two.percentiles() == {"p50": 15.0, "p90": 20.0, "p99": 20.0, "max": 20.0}


@pytest.mark.parametrize("seed", range(3))
def test_fuzz(bench: Bench, seed: int) -> None:
    """Random requests and structs: every call gives one line of valid JSON."""
    rng = random.Random(seed)
    bench.bo(6, lib.AMDXDNA_BO_CMD)
    bench.context(1, 1)
    count = len(bench.lines())
    for _ in range(300):
        number = rng.choice([*calls.REQUESTS, rng.randrange(256)])
        size = rng.choice((0, 8, 16, 40, 48, 56, 72, 200))
        data = bytearray(rng.randbytes(256))
        for at in range(0, 64, 8):
            if rng.random() < 0.6:
                data[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 6, 0x10000, 1 << 40)))
        address = rng.choice((8, bench.memory.put(bytes(data))))
        bench.call("", address, rng.choice((0, 0, 22, 5000)), request=3 << 30 | size << 16 | 0x6400 | number)
    assert len(bench.lines()) == count + 300


def test_a_full_disk_ends_the_trace_and_not_the_traced_call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from amdxdna.device import Device

    monkeypatch.setenv("AMDXDNA_TRACE", "/dev/full")
    with Device.open("emu:quiet,threads=1,slots=5") as device:
        assert device.alloc(64).view("u1").size == 64
        assert len(device.contexts()) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "the trace ends here" in line]
    assert len(said) == 1
    assert "No space left" in said[0]
