"""doctor's screen and its JSON, and the helpers that all screens share."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource

import pytest

from amdxdna import sysfs
from amdxdna.cli import main, screen
from amdxdna.cli.doctor import screen as doctor_screen
from amdxdna.cli.emulate import cannot_start
from amdxdna.doctor import Finding, Machine, Report, Status
from amdxdna.doctor.checks import CHECKS
from amdxdna.emu.seccomp.spawn import CannotConfine
from amdxdna.errors import XdnaError
from tests.support.fake_machine import PCI, FakeMachine
from tests.support.program import python


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


def test_a_root_may_be_a_relative_path(tmp_path, capsys, monkeypatch):
    FakeMachine(tmp_path).npu(driver="").loaded().iommu().firmware()
    said = []
    for folder, root in (("/", tmp_path), (tmp_path.parent, tmp_path.name), (tmp_path, ".")):
        monkeypatch.chdir(folder)
        assert main(["doctor", "--root", str(root), "--json"]) == 1
        assert main(["snapshot", "--root", str(root), "-"]) == 0
        found = capsys.readouterr().out.partition("\n{")
        said.append((json.loads(found[0]), json.loads("{" + found[2])))
        said[-1][1].pop("created")
    assert said[0] == said[1] == said[2]
    assert said[0][1]["npus"]


@pytest.mark.parametrize("kind", ["fifo", "endless", "sparse"])
def test_files_that_do_not_end_are_none(kind, tmp_path):
    FakeMachine(tmp_path).good()
    for path in ("proc/cpuinfo", "proc/cmdline", "etc/group", f"sys/bus/pci/devices/{PCI}/revision"):
        target = tmp_path / path
        target.unlink()
        if kind == "fifo":
            os.mkfifo(target)
        elif kind == "endless":
            target.symlink_to("/dev/zero")
        else:
            target.touch()
            os.truncate(target, 20 << 30)
    ended = python("-c", DOCTOR, tmp_path)
    assert not ended.stderr
    assert [check["check"] for check in json.loads(ended.stdout)["checks"]] == list(CHECKS)


@contextlib.contextmanager
def no_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "look",
    [
        lambda root: sysfs.find_nodes(root / "sys", root / "dev"),
        lambda root: sysfs.why_none(root / "sys"),
        lambda root: Machine(root).npus(),
        lambda root: Machine(root).text("proc/cmdline"),
    ],
    ids=["nodes", "why", "npus", "text"],
)
def test_a_machine_that_cannot_be_read_is_not_one_without_an_npu(look, tmp_path):
    FakeMachine(tmp_path).good()
    with no_descriptors(), pytest.raises(XdnaError, match=r"file descriptors ran out.*ulimit -n") as caught:
        look(tmp_path)
    assert caught.value.errno == errno.EMFILE


@pytest.mark.parametrize("kind", [CannotConfine, OSError])
def test_a_program_that_finds_no_descriptors_is_not_refused_a_filter(kind):
    said = str(cannot_start(["program"], kind(errno.EMFILE, os.strerror(errno.EMFILE))))
    assert "program cannot be started: file descriptors ran out" in said and "ulimit -n" in said
    assert "filter" in str(cannot_start(["program"], CannotConfine(errno.EBUSY, os.strerror(errno.EBUSY))))


DOCTOR = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from amdxdna.cli import main
sys.exit(main(["doctor", "--json", "--root", sys.argv[1]]))
"""


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
