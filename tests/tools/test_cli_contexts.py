"""contexts: the table, its reasons for n/a, its JSON, and --watch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from amdxdna.cli import main
from amdxdna.cli.contexts import screen
from tests.conformance.kit import until
from tests.support.binding import adder, copy_xclbin, hanging


def run(capsys, *words):
    status = main(["contexts", *words])
    return status, capsys.readouterr().out


def spec(options=""):
    """The device that ``open_emu(options)`` opens, for the command line."""
    return "emu:" + ",".join(part for part in ("threads=1,quiet", options) if part)


def documents(text):
    return [json.loads(line) for line in text.splitlines()]


def test_none(capsys):
    assert run(capsys, "--device", "emu:quiet,slots=7") == (0, "0 of 7 contexts in use\n")


@pytest.mark.parametrize("address", ["pasid", "iova"])
def test_own_contexts(address, open_emu, capsys):
    device = open_emu(f"slots=5,address={address}")
    source, target = device.alloc(64), device.alloc(64)
    kernel = adder(device, 64, 1)
    for _ in range(3):
        kernel.run(source, target)
    with device.context(copy_xclbin(1)):
        status, out = run(capsys, "--device", spec(f"slots=5,address={address}"), "--json")
        heap = device.bo_usage().heap
    (found,) = documents(out)
    assert status == 0 and (found["schema"], found["version"]) == ("amdxdna.contexts", 1)
    assert (found["limit"], found["taken"], found["unavailable"]) == (5, 2, {})
    first, second = found["contexts"]
    assert {first["pid"], second["pid"]} == {os.getpid()}
    assert (first["columns"], second["columns"]) == (8, 8)
    assert first["process"] == Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert first["memory"] == device.bo_usage().total > 64 << 20
    same = {"first_column": 0, "columns": 8, "errors": 0, "suspensions": 0, "priority": 0, "state": "idle"}
    health = dict.fromkeys(("operation", "pc", "fatal", "exception", "exception_pc", "module"), 0)
    for context, number, sent in ((first, 1, 3), (second, 2, 0)):
        assert context == {
            **{key: first[key] for key in ("pid", "process", "memory")},
            "heap": heap,
            **same,
            "context": number,
            "submitted": sent,
            "completed": sent,
            "health": health,
        }


def test_a_command_under_way(open_emu, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    device = open_emu("tdr=0")
    device.node.driver.idle_wait = 0.05  # what the end of its context waits for the command
    run_ = hanging(device).start()
    until(lambda: device.node.driver.npu.waiting_since > 0, 60, "the hang")
    status, out = run(capsys, "--device", spec("tdr=0"))
    assert status == 0
    header, row = out.splitlines()[2:]
    assert header.split() == ["PID", "PROCESS", "COLS", "SENT", "DONE", "ERRORS", "MEMORY", "STATE", "HEALTH"]
    assert row.split()[0] == str(os.getpid())
    assert "0-7" in row and "1 running" in row and row.endswith("at op 0")
    assert not run_.done


@pytest.mark.parametrize(
    ("minor", "missing"),
    [
        (0, {"limit", "memory", "heap", "health"}),
        (3, {"limit", "memory", "health"}),
        (7, {"memory", "health"}),
        (8, {"health"}),
        (9, set()),
    ],
)
def test_what_is_left_on_old_drivers(minor, missing, open_emu, capsys):
    device = open_emu(f"minor={minor}")
    with device.context(copy_xclbin()):
        status, out = run(capsys, "--device", spec(f"minor={minor}"))
        _, text = run(capsys, "--device", spec(f"minor={minor}"), "--json")
    (found,) = documents(text)
    assert status == 0 and set(found["unavailable"]) == missing
    assert [(c["pid"], c["columns"]) for c in found["contexts"]] == [(os.getpid(), 8)]
    assert ("n/a" in out) == bool(missing)
    for name, reason in found["unavailable"].items():
        assert f"0.{minor}" in reason or "newer" in reason, name
    assert (found["contexts"][0]["memory"] is None) == ("memory" in missing)
    assert (found["contexts"][0]["heap"] is None) == ("heap" in missing)


def test_watch(capsys):
    words = ("--device", "emu:quiet", "--watch", "--count", "3", "--interval", "0.01")
    status, out = run(capsys, *words)
    assert status == 0 and out.count("0 of 16 contexts in use") == 3 and "\x1b" not in out
    status, out = run(capsys, *words, "--json")
    times = [document["time"] for document in documents(out)]
    assert len(times) == 3 and times == sorted(times)
    status, out = run(capsys, "--device", "emu:quiet", "--watch", "--count", "1", "--interval", "3600")
    assert (status, out) == (0, "0 of 16 contexts in use\n")


@pytest.mark.parametrize(
    "words",
    [
        ("--interval", "0"),
        ("--interval", "3601", "--watch", "--count", "1"),
        ("--interval", "x"),
        ("--count", "-1"),
        ("--watch", "--count", "0"),
        ("--count", "2"),
        ("--nonsense",),
    ],
)
def test_wrong_usage(words, capsys):
    assert run(capsys, *words)[0] == 2


def test_fails_when_the_device_cannot_be_opened(capsys):
    status, out = run(capsys, "--device", "emu:open=1:EACCES", "--json")
    assert status == 1
    assert documents(out)[0]["schema"] == "amdxdna.error" and documents(out)[0]["errno"] == "EACCES"


def entry(**changes):
    health = {"operation": 3, "pc": 16, "fatal": 0, "exception": 0, "exception_pc": 0, "module": 0}
    return {
        "pid": 7,
        "process": None,
        "context": 1,
        "first_column": 4,
        "columns": 1,
        "submitted": 9,
        "completed": 9,
        "errors": 2,
        "suspensions": 0,
        "priority": 512,
        "memory": 3 << 20,
        "heap": 0,
        "state": "idle",
        "health": health,
        **changes,
    }


def facts(*entries, taken=None):
    return {
        "limit": 16,
        "taken": len(entries) if taken is None else taken,
        "contexts": list(entries),
        "unavailable": {},
    }


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({}, "idle       ok"),
        ({"submitted": 11}, "2 running  at op 3"),
        ({"submitted": 10, "health": {**entry()["health"], "operation": None}}, "1 running  not started"),
        (
            {"health": {**entry()["health"], "fatal": 5, "exception": 2, "exception_pc": 0x1234}},
            "idle       fatal error 5, exception 2 at 0x1234",
        ),
        ({"health": None}, "idle       n/a"),
    ],
)
def test_health_in_words(changes, ending, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    wide = [entry(submitted=10), entry(**changes)]
    assert screen(facts(*wide))[-1].endswith(ending)


def test_contexts_that_are_counted_but_not_listed():
    assert "2 not listed" in screen(facts(entry(), taken=3))[0]


def test_a_narrow_terminal_gets_blocks(monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    lines = screen(facts(entry(), entry(pid=8)))
    assert max(map(len, lines)) <= 44
    assert [line for line in lines if line.startswith("PID")] == ["PID      7", "PID      8"]
    assert "MEMORY   3 MiB" in lines and "COLS     4" in lines
