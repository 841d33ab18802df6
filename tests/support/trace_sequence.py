"""The sequence that is known to run on NPU2 hardware, as a check of a trace's lines.

Captured from working runtimes: once a heap of 64 MiB, mapped at a multiple of 64 MiB, and the metadata; for
each context a QoS block, the PDI in a DEV BO and one CU; for each run a packet in a CMD BO of 4 KiB, a submit
that lists the BOs the command touches, each once, and a wait for its sequence number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEAP = 64 << 20
WAIT_FOR_SUBMIT = 2

Line = dict[str, Any]


def read_trace(path: Path) -> tuple[Line, list[Line], Line]:
    """(header, calls, summary) of a trace file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    header, *calls, last = lines
    assert header["schema"] == "amdxdna.trace"
    assert header["version"] == 1
    assert set(last) == {"summary"}
    return header, [line for line in calls if "stage" not in line], last["summary"]


def calls_named(calls: Iterable[Line], *names: str) -> list[Line]:
    """The calls of these names that worked."""
    return [line for line in calls if line["call"] in names and "errno" not in line]


class Sequence:
    """Follows one open's calls and asserts the sequence. `contexts`, `runs`: what it saw."""

    def __init__(self, columns: int = 8, core_rows: int = 4) -> None:
        self._tiles = columns * core_rows
        self._bos: dict[int, tuple[str, int]] = {}
        self._heap_offset: str | None = None
        self._heap_mapped = False
        self._metadata = False
        self._syncobjs: dict[int, int] = {}
        self._configured: set[int] = set()
        self._submitted: dict[int, list[int]] = {}
        self.contexts = 0
        self.runs = 0
        self.waited = 0

    def follow(self, calls: Iterable[Line]) -> None:
        """Asserts every call in turn."""
        for line in calls:
            if "errno" in line:
                # The one call that is tried first where drivers may refuse it.
                assert (line["call"], line["errno"]) == ("CREATE_BO", "EFAULT"), line
                continue
            step = getattr(self, "_" + line["call"].lower(), None)
            if step is not None:
                step(line)

    def _create_bo(self, line: Line) -> None:
        given = line["in"]
        if given["type"] == "DEV_HEAP":
            assert given["size"] == HEAP
        elif given["type"] == "DEV":
            assert self._heap_mapped, "a DEV BO before the heap is mapped"
        elif given["type"] == "CMD":
            assert given["size"] == 4096
        self._bos[line["out"]["handle"]] = given["type"], given["size"]

    def _get_bo_info(self, line: Line) -> None:
        if self._bos[line["in"]["handle"]][0] == "DEV_HEAP":
            self._heap_offset = line["out"]["map_offset"]

    def _gem_close(self, line: Line) -> None:
        del self._bos[line["in"]["handle"]]

    def _mmap(self, line: Line) -> None:
        if line["in"]["offset"] == self._heap_offset:
            assert int(line["out"]["address"], 16) % HEAP == 0
            self._heap_mapped = True

    def _get_info(self, line: Line) -> None:
        if line["in"]["param"] == "AIE_METADATA":
            found = line["out"]["result"]
            assert found["cols"] * found["core"]["row_count"] == self._tiles
            self._metadata = True

    def _create_hwctx(self, line: Line) -> None:
        assert self._heap_mapped and self._metadata
        given = line["in"]
        assert (given["max_opc"], given["num_tiles"]) == (2048, self._tiles)
        qos = dict(given["qos"])
        assert qos.pop("gops") > 0
        assert not any(qos.values()), qos
        self._syncobjs[line["out"]["handle"]] = line["out"]["syncobj_handle"]
        self._submitted[line["out"]["handle"]] = []
        self.contexts += 1

    def _config_hwctx(self, line: Line) -> None:
        (cu,) = line["in"]["cus"]
        assert cu["function"] == 0
        assert self._bos[cu["bo"]][0] == "DEV"
        assert line["in"]["handle"] not in self._configured
        self._configured.add(line["in"]["handle"])

    def _exec_cmd(self, line: Line) -> None:
        given, packet = line["in"], line["packet"]
        context = given["hwctx"]
        assert context in self._configured
        assert self._bos[given["cmd_handles"]] == ("CMD", 4096)
        assert given["cmd_count"] == 1
        bos = given["bos"]
        assert len(bos) == len(set(bos)) == given["arg_count"]
        assert line["out"]["seq"] == len(self._submitted[context])
        self._submitted[context].append(line["out"]["seq"])
        for each in packet.get("commands") or [{"packet": packet}]:
            self._packet(each["packet"], bos)
        self.runs += 1

    def _packet(self, packet: Line, bos: list[int]) -> None:
        assert (packet["opcode"], packet["state"], packet["cu_mask"]) == ("START_CU", "NEW", 1)
        assert packet["kernel_opcode"] == 3
        code = packet["instructions"]
        kind, size = self._bos[code["bo"]]
        assert kind == "DEV"
        assert 0 < code["offset"] + code["bytes"] <= size
        assert packet["buffers"]
        for buffer in packet["buffers"]:
            assert self._bos[buffer["bo"]][0] in ("SHARE", "imported")
            assert buffer["bo"] in bos, "a buffer that the submit does not list"

    def _syncobj_timeline_wait(self, line: Line) -> None:
        given = line["in"]
        ((syncobj, point),) = given["waits"]
        (context,) = (handle for handle, known in self._syncobjs.items() if known == syncobj)
        assert point in self._submitted[context]
        assert given["flags"] == WAIT_FOR_SUBMIT
        assert all(command["state"] == "COMPLETED" for command in line["completed"])
        self.waited += 1

    def _destroy_hwctx(self, line: Line) -> None:
        del self._syncobjs[line["in"]["handle"]]
