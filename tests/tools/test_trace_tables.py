"""What a trace shows for people, line by line: text, summary and time axis of calls written out here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amdxdna.errors import BadArgument
from amdxdna.trace.summary import Durations, Summary, lines
from amdxdna.trace.text import TextView, call_lines, dump, names_of, packet_lines
from amdxdna.trace.timeline import TimelineView


def call(name: str, number: int | None = 1, **more: Any) -> dict[str, Any]:
    line = {"t": 1.25, "us": 12.34, "pid": 7, "tid": 8, "open": number, "call": name, "in": {}, "out": {}}
    return line | more


def submit(seq: int, context: int = 3, **more: Any) -> dict[str, Any]:
    return call("EXEC_CMD", **{"in": {"hwctx": context}, "out": {"seq": seq}}, **more)


def ended(seq: int, state: str | None, us: float = 2.5, context: int = 3, **more: Any) -> dict[str, Any]:
    return {"context": context, "seq": seq, "state": state, "us": us, **more}


HEAD = "    1.250000 [8] 1 "
ERROR = {"errno": "EINVAL", "meaning": "it is wrong"}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            call("open", **{"in": {"path": "/dev/accel/accel0"}, "out": {"fd": 3}}),
            [HEAD + 'open(path="/dev/accel/accel0") = 3 <12.3 us>'],
        ),
        (call("open", out={}), [HEAD + "open() = ? <12.3 us>"]),
        (
            call("open", None, **ERROR, remedy="Do this"),
            ["    1.250000 [8] open() = -1 EINVAL <12.3 us>", "             it is wrong. Do this"],
        ),
        (
            call("mmap", out={"address": "0x7f00", "bo": 4}),
            [HEAD + "mmap() = 0x7f00 {bo=4} <12.3 us>"],
        ),
        (call("mmap", out={"address": None, "bo": None}), [HEAD + "mmap() = ? <12.3 us>"]),
        (call("mmap", **ERROR), [HEAD + "mmap() = -1 EINVAL <12.3 us>", "             it is wrong"]),
        (call("close"), [HEAD + "close() = 0 <12.3 us>"]),
        (
            call("CREATE_BO", **{"in": {"type": "SHARE", "size": 4096, "a": None}, "out": {"handle": 2}}),
            [HEAD + "CREATE_BO(type=SHARE, size=4096, a=null) = 0 {handle=2} <12.3 us>"],
        ),
        (
            call("GET_INFO", out={"result": {"v": [1, [2]], "s": "a b", "f": True, "n": "x_1.2", "e": "é"}}),
            [HEAD + 'GET_INFO() = 0 {result={v=[1, [2]], s="a b", f=true, n=x_1.2, e="\\u00e9"}} <12.3 us>'],
        ),
        (
            call("SYNC_BO", contents={"5": "41424344" * 4 + "00", "6": ""}),
            [
                HEAD + "SYNC_BO() = 0 <12.3 us>",
                "             BO 5 0x0000  41424344 41424344 41424344 41424344  ABCDABCDABCDABCD",
                "             BO 5 0x0010  00                                   .",
            ],
        ),
        (
            call(
                "WAIT",
                completed=[ended(9, "COMPLETED"), ended(10, None, 30.06), ended(11, "ERROR", health="bad")],
            ),
            [
                HEAD + "WAIT() = 0 <12.3 us>",
                "             context 3 command 9: COMPLETED after 2.5 us",
                "             context 3 command 10: over after 30.1 us",
                "             context 3 command 11: ERROR after 2.5 us: bad",
            ],
        ),
    ],
)
def test_a_call_in_text(line: dict[str, Any], shown: list[str]) -> None:
    assert call_lines(line) == shown


CODE = {"address": "0x4000000", "bo": 2, "offset": 0x40, "bytes": 24}


@pytest.mark.parametrize(
    ("packet", "shown"),
    [
        ({"undecoded": "Bad address"}, ["packet not readable: Bad address"]),
        ({"opcode": "START_CU"}, ["packet START_CU"]),
        ({"opcode": "START_CU", "cu_mask": 0x10, "buffers": []}, ["packet START_CU: cu_mask 0x10"]),
        ({"opcode": "START_CU", "cu_mask": [0, 2]}, ["packet START_CU: cu_mask [0, 2]"]),
        (
            {
                "opcode": "START_CU",
                "cu_mask": 1,
                "instructions": CODE,
                "buffers": [{"address": "0x9"}, {"bo": 3, "offset": 0}],
            },
            ["packet START_CU: cu_mask 0x1; instructions 24 bytes BO 2+0x40; buffers 0x9, BO 3"],
        ),
        (
            {"opcode": 13, "raw": ["0x1", "0x2"], "arguments": ["0x3"]},
            ["packet 13: arguments 0x3; raw 0x1 0x2"],
        ),
        (
            {
                "opcode": "CMD_CHAIN",
                "commands": [{"bo": 5, "packet": {"opcode": "START_CU"}}, {"bo": 6, "packet": None}],
            },
            ["packet CMD_CHAIN", "  packet START_CU", "  packet in BO 6: not seen"],
        ),
    ],
)
def test_a_packet_in_text(packet: dict[str, Any], shown: list[str]) -> None:
    assert packet_lines(packet) == shown
    rows = [f"             {row}" for row in shown]
    assert call_lines(submit(0, packet=packet), packets=True)[1:] == rows
    assert call_lines(submit(0, packet=packet))[1:] == []


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", []),
        (b"\x1f ~\x7f", ["0x0000  1f207e7f                             . ~."]),
        (
            bytes(range(17)),
            ["0x0000  00010203 04050607 08090a0b 0c0d0e0f  ................", f"0x0010  10{'':35}."],
        ),
        (
            b"A" * 32 + b"B" * 16 + b"A" * 48,
            [
                "0x0000  41414141 41414141 41414141 41414141  " + "A" * 16,
                "*",
                "0x0020  42424242 42424242 42424242 42424242  " + "B" * 16,
                "0x0030  41414141 41414141 41414141 41414141  " + "A" * 16,
                "*",
            ],
        ),
    ],
)
def test_bytes_in_text(data: bytes, rows: list[str]) -> None:
    assert dump(data) == rows


STAGE = {"t": 2.0, "us": 1500.06, "pid": 7, "tid": 8, "stage": "host\x1b"}


@pytest.mark.parametrize(
    ("names", "packets", "shown"),
    [
        ((), False, ["close()", "EXEC_CMD(hwctx=3)", "-- host"]),
        (("exec_cmd",), False, ["EXEC_CMD(hwctx=3)"]),
        (("EXEC_CMD",), True, ["EXEC_CMD(hwctx=3)", "packet START_CU"]),
        (("open",), True, []),
    ],
)
def test_which_lines_are_shown(names: tuple[str, ...], packets: bool, shown: list[str]) -> None:
    said: list[str] = []
    view = TextView(said.append, names=names, packets=packets)
    for line in (
        {"schema": "x"},
        call("close"),
        submit(0, packet={"opcode": "START_CU"}),
        STAGE,
        {"summary": {}},
    ):
        view(line)
    rows = "".join(said).splitlines()
    assert len(rows) == len(shown) and all(part in row for part, row in zip(shown, rows, strict=True))
    if not names:
        assert rows[-1] == "    2.000000 [8] -- host\\x1b 1500.1 us"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], []),
        (["open,close", "exec_cmd", "mmap,,munmap"], ["open", "close", "exec_cmd", "mmap", "munmap"]),
        (["ioctl 0x99", "SYNCOBJ_TIMELINE_WAIT"], ["ioctl 0x99", "SYNCOBJ_TIMELINE_WAIT"]),
    ],
)
def test_names_of_calls(options: list[str], names: list[str]) -> None:
    assert names_of(options) == names


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("CREATE_B0", "Did you mean CREATE_BO"), ("zzz", "There are: open, close, mmap, munmap, ")],
)
def test_a_name_that_no_call_has(name: str, remedy: str) -> None:
    with pytest.raises(BadArgument) as caught:
        names_of(["open", f"close,{name}"])
    assert caught.value.meaning == f"-e {name}: no call has this name"
    assert (caught.value.remedy or "").startswith(remedy)


# -- the summary


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([3], (3, 3, 3, 3)),
        ([4, 1], (2.5, 4, 4, 4)),
        (list(range(1, 11)), (5.5, 9, 10, 10)),
        (list(range(100, 0, -1)), (50.5, 90, 99, 100)),
        (list(range(1, 102)), (51, 91, 100, 101)),
    ],
)
def test_percentiles(values: list[int], expected: tuple[float, ...] | None) -> None:
    """p50 is the median; p90 and p99 the smallest value that at least so many of a hundred do not exceed."""
    found = Durations()
    for value in values:
        found.add(value * 1e-6)
    assert len(found) == len(values)
    assert found.percentiles() == (
        expected and dict(zip(("p50", "p90", "p99", "max"), expected, strict=True))
    )


def summarised() -> Summary:
    made = Summary()
    for us, error in ((10, None), (20, "EBUSY"), (30, "EBUSY"), (40, "EINVAL")):
        made.call("EXEC_CMD", us * 1e-6, error)
    made.call("CLOSE", 5e-6, None)
    made.opens, made.contexts, made.unobserved = 2, 3, 4
    chain = {"commands": [{"packet": {"instructions": {"bytes": 30}}}, {"packet": None}, {}]}
    for packet in (None, {"instructions": {"bytes": 12}}, chain, {"opcode": "X"}):
        made.submitted(packet, 1000)
    made.add_bytes("allocated", 10239)
    made.add_bytes("synced", 10 << 20)
    made.add_bytes("synced", 1)
    for state, us in (("COMPLETED", 100.0), ("TIMEOUT", 2e6), (None, 50.0), ("COMPLETED", 300.0)):
        made.completed({"state": state, "us": us})
    return made


def test_the_summary_as_a_document() -> None:
    assert summarised().document(2.5000004) == {
        "seconds": 2.5,
        "calls": {
            "CLOSE": {"count": 1, "errors": 0, "us": {"p50": 5.0, "p90": 5.0, "p99": 5.0, "max": 5.0}},
            "EXEC_CMD": {"count": 4, "errors": 3, "us": {"p50": 25.0, "p90": 40.0, "p99": 40.0, "max": 40.0}},
        },
        "calls_per_second": 2.0,
        "opens": 2,
        "contexts": 3,
        "submits": 4,
        "submit_to_complete_us": {"p50": 200.0, "p90": 300.0, "p99": 300.0, "max": 300.0},
        "states": {"COMPLETED": 2, "TIMEOUT": 1, "unobserved": 5},
        "errors": {"EXEC_CMD EBUSY": 2, "EXEC_CMD EINVAL": 1},
        "bytes": {"allocated": 10239, "listed": 4000, "instructions": 42, "synced": 10485761},
    }


def test_the_summary_in_lines() -> None:
    assert lines(summarised().document(2.5)) == [
        "5 calls in 2.50 s (2 a second), 2 opens, 3 contexts, 4 submits",
        "submit to complete: p50 200 us, p90 300 us, p99 300 us, max 300 us",
        "commands: 2 COMPLETED, 1 TIMEOUT, 5 unobserved",
        "memory: 10239 bytes allocated, 4000 bytes listed by submits, 42 bytes of instructions, "
        "10 MiB synced",
        "  CLOSE          1  p50       5.0 us  p99       5.0 us",
        "  EXEC_CMD       4  p50      25.0 us  p99      40.0 us  3 failed",
        "  failed: EXEC_CMD EBUSY x 2",
        "  failed: EXEC_CMD EINVAL x 1",
    ]


def test_the_summary_of_nothing() -> None:
    nothing = Summary().document(0.0)
    assert (nothing["calls"], nothing["calls_per_second"], nothing["submit_to_complete_us"]) == (
        {},
        0.0,
        None,
    )
    assert nothing["states"] == nothing["errors"] == {}
    assert lines(nothing) == [
        "0 calls in 0.00 s (0 a second), 0 opens, 0 contexts, 0 submits",
        "memory: 0 bytes allocated, 0 bytes listed by submits, 0 bytes of instructions, 0 bytes synced",
    ]


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (10239, "10239 bytes"),
        (10240, "10 KiB"),
        (10239 << 10, "10239 KiB"),
        (10240 << 10, "10 MiB"),
        (1 << 40, "1048576 MiB"),
    ],
)
def test_sizes_in_the_summary(nbytes: int, said: str) -> None:
    made = Summary()
    made.add_bytes("allocated", nbytes)
    assert f"memory: {said} allocated" in lines(made.document(1.0))[-1]


# -- the time axis


def timeline(*calls: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Complete events as (process, thread, name, begin, duration), in their names' words."""
    said: list[str] = []
    view = TimelineView(said.append)
    for line in calls:
        view(line)
    view.finish()
    document = json.loads("".join(said))
    assert document["displayTimeUnit"] == "ms"
    events = document["traceEvents"]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert len(names) == sum(e["ph"] == "M" for e in events)  # each once
    return [
        (names[e["pid"], None], names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"], e["args"])
        for e in events
        if e["ph"] == "X"
    ]


PROGRAM = ("program 7", "thread 8")
NPU = ("NPU, open 1", "context 3")
NONE: dict[str, Any] = {"in": {}, "out": {}}
CHAIN = {"opcode": "CMD_CHAIN", "members": 70, "commands": [{"bo": n, "packet": None} for n in range(64)]}


@pytest.mark.parametrize(
    ("calls", "events"),
    [
        ((), []),
        (({"schema": "x"}, {"summary": {}}), []),
        ((call("close"),), [(*PROGRAM, "close", 1250000.0, 12.34, NONE)]),
        (
            (call("open", None, **ERROR),),
            [(*PROGRAM, "open", 1250000.0, 12.34, NONE | ERROR)],
        ),
        (
            ({"t": 2.0, "us": 1.5, "pid": 7, "stage": "host"},),
            [("program 7", "stages of the model", "host", 2000000.0, 1.5, {})],
        ),
        (
            (call("CREATE_HWCTX", out={"handle": 3}), call("DESTROY_HWCTX", **{"in": {"handle": 3}})),
            [
                (*PROGRAM, "CREATE_HWCTX", 1250000.0, 12.34, {"in": {}, "out": {"handle": 3}}),
                (*NPU, "context created", 1250000.0, 12.34, {}),
                (*PROGRAM, "DESTROY_HWCTX", 1250000.0, 12.34, {"in": {"handle": 3}, "out": {}}),
                (*NPU, "context destroyed", 1250000.0, 12.34, {}),
            ],
        ),
        ((call("CREATE_HWCTX"),), [(*PROGRAM, "CREATE_HWCTX", 1250000.0, 12.34, NONE)]),
        (
            (call("CREATE_HWCTX", out={"handle": 3}, **ERROR),),
            [(*PROGRAM, "CREATE_HWCTX", 1250000.0, 12.34, {"in": {}, "out": {"handle": 3}, **ERROR})],
        ),
    ],
)
def test_calls_on_the_time_axis(calls: tuple[dict[str, Any], ...], events: list[tuple[Any, ...]]) -> None:
    assert timeline(*calls) == events


@pytest.mark.parametrize(
    ("packet", "state", "name"),
    [
        ({"opcode": "START_CU"}, "COMPLETED", "START_CU"),
        ({"opcode": 13}, None, "13"),
        ({"opcode": "START_CU"}, "TIMEOUT", "START_CU TIMEOUT"),
        (CHAIN, "COMPLETED", "chain of 70"),
        ({"undecoded": "x"}, "COMPLETED", "command"),
        (None, "ERROR", "command ERROR"),
    ],
)
def test_a_command_on_the_time_axis(packet: dict[str, Any] | None, state: str | None, name: str) -> None:
    """It ends where the wait that saw its end does, and lasted as long as the wait says."""
    wait = call("WAIT", t=2.0, us=10.0, completed=[ended(5, state, 100.0, health="stuck")])
    other = call("WAIT", t=3.0, us=10.0, completed=[ended(5, state, 100.0)])
    *_, last, _, again = timeline(submit(5, packet=packet), wait, other)
    about = {"seq": 5, "state": state}
    assert last == (*NPU, name, 1999910.0, 100.0, about | {"health": "stuck"})
    # The same number once more is a command that was not seen to begin.
    assert again[2] == (f"command {state}" if state not in ("COMPLETED", None) else "command")
    assert again[5] == about


def test_commands_of_several_contexts_and_opens() -> None:
    lines = [
        submit(0, 3, packet={"opcode": "A"}),
        submit(0, 4, packet={"opcode": "B"}),
        submit(0, 3, packet={"opcode": "C"}) | {"open": 2},
        call("WAIT", 2, completed=[ended(0, "COMPLETED")]),
        call("WAIT", 1, completed=[ended(0, "COMPLETED", context=4), ended(0, "COMPLETED")]),
    ]
    found = [event[:3] for event in timeline(*lines) if event[0].startswith("NPU")]
    assert found == [
        ("NPU, open 2", "context 3", "C"),
        ("NPU, open 1", "context 4", "B"),
        ("NPU, open 1", "context 3", "A"),
    ]
