"""The data files of the training, and what their reader says of a bad one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from qwen35.train import datafile, phrases, words
from qwen35.train.datafile import DataError, Named, sections


def _file(folder: Path, text: str) -> str:
    (folder / "f.txt").write_text(text)
    return "f.txt"


def test_sections_repeat_quote_and_leave_out_comments(tmp_path: Path) -> None:
    name = _file(tmp_path, '# note\n\n[a | b c]\n2 x " x "\n  plain words\n# note\n""\n[d]\n3 x {w}\n')
    first, second = sections(name, tmp_path)
    assert first.fields == ("a", "b c")
    assert first.texts == (" x ", " x ", "plain words", "")
    assert (second.fields, second.texts) == (("d",), ("{w}",) * 3)
    assert first.lines[2].number == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("word\n[a]\nb\n", "f.txt:1: a line before the first [title]"),
        ("[a\nb\n", "f.txt:1: a title ends with ]"),
        ('[a]\n"b\n', 'f.txt:2: a text that begins with " ends with "'),
        ("[a]\n\n[b]\nc\n", "f.txt:1: [a] is empty"),
        ("[a]\nb\n[a]\nc\n", "f.txt:3: [a] stands twice"),
        ("[b]\nc\n", "f.txt: no [a] here; found b"),
    ],
)
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    name = _file(tmp_path, text)
    with pytest.raises(DataError, match=re.escape(said)):
        Named(name, tmp_path).section("a")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: No such file"):
        sections("none.txt", tmp_path)
    (tmp_path / "f.txt").write_bytes(b"[a]\n\xff\n")
    with pytest.raises(DataError, match=r"f\.txt: byte 4 is not UTF-8"):
        sections("f.txt", tmp_path)


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (words.kind, "[a | b]\nc\n", r"f\.txt:1: .*2 fields; wanted \[name \| WordNet files"),
        (words.kind, "[a | b | many]\nc\n", r'f\.txt:1: "many" is neither "countable"'),
        (lambda s: phrases.checked(s, ("w",)), "[a]\n{w}\ny {q}\n", r'f\.txt:3: "y \{q\}" may hold \{w\}'),
        (lambda s: phrases.checked(s, ("w",)), "[a]\nx {w\n", r"f\.txt:2: "),
    ],
)
def test_a_wrong_section_is_told(
    tmp_path: Path, read: Callable[[datafile.Section], object], text: str, said: str
) -> None:
    section = sections(_file(tmp_path, text), tmp_path)[0]
    with pytest.raises(DataError, match=said):
        read(section)


def test_glosses_are_one_for_each_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("# note\nowl a night bird\n")
    assert words.glosses(tmp_path) == {"owl": "a night bird"}
    (tmp_path / "b.txt").write_text("owl a bird\n")
    with pytest.raises(DataError, match=r'b\.txt:1: "owl" has a gloss already'):
        words.glosses(tmp_path)
    (tmp_path / "b.txt").write_text("hawk\n")
    with pytest.raises(DataError, match=r'b\.txt:1: "hawk" has no gloss'):
        words.glosses(tmp_path)
    with pytest.raises(DataError, match="no glosses here"):
        words.glosses(tmp_path / "none")


def test_the_shipped_lists_are_whole() -> None:
    """What a line lost or joined by an editor would change."""
    assert len(words.KINDS) == 36
    assert len(words.PINNED) == 1878
    assert sum(len(kind.words) for kind in words.KINDS) == 2041
    assert set(words.PINNED) <= {word for kind in words.KINDS for word in kind.words}
    assert phrases.BARE.count("{w}") == 5
    assert phrases.OPENINGS.count("") == 5 and "Please: " in phrases.OPENINGS
    assert len(phrases.CHAT) == len(phrases.CHAT_WEIGHTS) == 7
