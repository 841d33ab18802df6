"""doctor's screen and its JSON, and the helpers that all screens share."""

from __future__ import annotations

import json

import pytest

from amdxdna.cli import main, screen
from amdxdna.cli.doctor import screen as doctor_screen
from amdxdna.doctor import Finding, Report, Status
from amdxdna.doctor.checks import CHECKS
from tests.support.fake_machine import FakeMachine


def test_json(capsys):
    assert main(["doctor", "--device", "emu:quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["version"], found["ok"], found["cause"]) == (
        "amdxdna.doctor",
        1,
        True,
        None,
    )
    assert [check["check"] for check in found["checks"]] == list(CHECKS)
    for check in found["checks"]:
        assert set(check) == {"check", "status", "meaning", "remedy", "symptom", "facts"}


def test_root_is_another_machine(tmp_path, capsys):
    FakeMachine(tmp_path).npu(driver="").loaded().iommu()
    assert main(["doctor", "--root", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["cause"]) == (False, "firmware")


def test_a_failure_ends_with_its_cause_and_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    FakeMachine(tmp_path).npu(driver="").loaded().iommu()
    assert main(["doctor", "--root", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    cause = lines.index(next(line for line in lines if line.startswith("Cause: ")))
    assert "firmware is missing" in lines[cause]
    assert next(line for line in lines[cause:] if line.startswith("Do: ")).startswith(
        "Do:    Install or update"
    )
    assert "see firmware" in next(line for line in lines if line.startswith("fail  module"))
    assert not any("\x1b" in line for line in lines)


REPORT = Report(
    (
        Finding(
            "one", Status.OK, "all is well with a text that is long enough to be wrapped on a narrow terminal"
        ),
        Finding(
            "second",
            Status.WARN,
            "a warning",
            ("do this, which is also a long text that will not fit one line",),
        ),
        Finding("third", Status.SKIP, "nothing", ("not shown",)),
    )
)


@pytest.mark.parametrize("columns", [40, 59, 60, 80, 120])
def test_it_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = doctor_screen(REPORT)
    assert max(map(len, lines)) <= columns
    assert "not shown" not in "\n".join(lines)
    assert "worth a look: second" in " ".join(lines)


class Terminal:
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("tty", "variables", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour(tty, variables, expected, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    if tty:
        monkeypatch.setattr("sys.stdout", Terminal())
    assert screen.coloured() == expected
    assert screen.paint("x", "red") == ("\x1b[31;1mx\x1b[0m" if expected else "x")


def test_tables_line_up(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = screen.table(("A", "NUMBER"), [("long name", "7"), ("b", "123")], right=(1,))
    assert lines == ["A          NUMBER", "long name       7", "b             123"]


def test_tables_become_blocks(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert screen.table(("NAME", "VALUE"), [("n" * 30, "v" * 20), ("x", "y")]) == [
        f"NAME   {'n' * 30}",
        f"VALUE  {'v' * 20}",
        "",
        "NAME   x",
        "VALUE  y",
    ]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (150 << 10, "150 KiB"),
        (64 << 20, "64 MiB"),
        (5 << 30, "5 GiB"),
        (3000 << 30, "3000 GiB"),
    ],
)
def test_sizes(nbytes, text):
    assert screen.size(nbytes) == text


def test_times_that_are_none():
    assert screen.when(1 << 63) == f"{1 << 63} us"
