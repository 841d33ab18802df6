"""qwen35.cli.readline inside this process: entries, what is remembered of them, and where."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qwen35.cli.readline import LineReader

readline = pytest.importorskip("readline")


class Typed(io.StringIO):
    """A terminal on which this is typed."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "state" / "of" / "history"
    monkeypatch.setenv("QWEN35_HISTORY", str(file))
    readline.clear_history()
    yield file
    readline.clear_history()


def entries(typed: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(sys, "stdin", Typed(typed))
    with LineReader(["/help"]) as reader:
        found = [reader.read()]
        while found[-1] is not None and len(found) < 50:
            found.append(reader.read())
    return found[:-1]


def test_entries_and_what_is_remembered(
    history: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each once in a row, none that is empty; prompts do not go where the answers go."""
    typed = "one\none\n \ntwo\\\nthree\nfour\\\n"
    assert entries(typed, monkeypatch) == ["one", "one", " ", "two\nthree", "four"]
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "> > > > . > . \n> \n")
    assert history.read_text() == "one\ntwo\\\nthree\n"
    assert history.stat().st_mode & 0o777 == 0o600
    assert history.parent.stat().st_mode & 0o777 == history.parent.parent.stat().st_mode & 0o700
    readline.clear_history()
    assert entries("five\n", monkeypatch) == ["five"]
    assert [readline.get_history_item(n) for n in (1, 2, 3, 4)] == ["one", "two\nthree", "five", None]


def test_the_newest_thousand_are_kept(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.parent.mkdir(parents=True)
    history.write_text("".join(f"entry {n}\n" for n in range(1200)))
    entries("last\n", monkeypatch)
    assert readline.get_history_item(1) == "entry 200" and readline.get_current_history_length() == 1001
    kept = history.read_text().splitlines()
    assert (len(kept), kept[0], kept[-1]) == (1000, "entry 201", "last")


@pytest.mark.parametrize("size", [16 << 20, (16 << 20) + 1])
def test_a_history_that_is_too_long_is_not_read(
    size: int, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.parent.mkdir(parents=True)
    history.write_bytes(b"x" * (size - 5) + b"\nend\n")
    entries("", monkeypatch)
    assert readline.get_current_history_length() == (2 if size == 16 << 20 else 0)


@pytest.mark.parametrize(
    ("env", "where"),
    [
        ({"QWEN35_HISTORY": ""}, None),
        ({"XDG_STATE_HOME": "{}/xdg"}, "xdg/qwen35/history"),
        ({"XDG_STATE_HOME": ""}, ".local/state/qwen35/history"),
        ({}, ".local/state/qwen35/history"),
    ],
)
def test_where_it_is_kept(
    env: dict[str, str], where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QWEN35_HISTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in env.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    entries("one\n", monkeypatch)
    found = [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("history")]
    assert found == ([where] if where else []) and readline.get_current_history_length() == 1


def test_a_place_that_cannot_be_written_costs_the_history_alone(
    history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.parent.parent.write_text("a file")
    assert entries("one\ntwo\n", monkeypatch) == ["one", "two"]
