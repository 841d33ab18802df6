"""Reads the word lists and phrases of `data/`: plain text that a person edits.

A file is sections; a section is a `[title]`, its fields divided by `|`, and lines below it. Empty lines and
lines that begin with `#` are left out. A line `3 x text` stands three times. Text in double quotes keeps the
spaces at its ends, and may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "data"
_TIMES = re.compile(r"(\d+) x (.*)")


class DataError(Exception):
    """A data file is missing or holds what its reader does not take: file, line and remedy."""


@dataclass(frozen=True)
class Line:
    """One line's text and where it stands."""

    text: str
    file: Path
    number: int

    def error(self, what: str) -> DataError:
        """The error that names this line."""
        return DataError(f"{self.file}:{self.number}: {what}")


@dataclass(frozen=True)
class Section:
    """A title's `fields` and the lines below it."""

    fields: tuple[str, ...]
    lines: tuple[Line, ...]
    title: Line

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each line."""
        return tuple(line.text for line in self.lines)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of all lines."""
        return tuple(word for line in self.lines for word in line.text.split())

    def want(self, *names: str) -> tuple[str, ...]:
        """The fields, which are as many as their names. Raises DataError."""
        if len(self.fields) != len(names):
            raise self.title.error(
                f"[{self.title.text}] has {len(self.fields)} fields; wanted [{' | '.join(names)}]"
            )
        return self.fields


def lines(file: Path) -> Iterator[Line]:
    """The lines that count. Raises DataError for a file that cannot be read."""
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}; it is part of qwen35/train/data") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    for number, line in enumerate(text.splitlines(), 1):
        if (bare := line.strip()) and not bare.startswith("#"):
            yield Line(bare, file, number)


def sections(name: str, folder: Path = FOLDER) -> list[Section]:
    """The sections of a file of `folder`, in its order. Raises DataError."""
    found: list[Section] = []
    title: Line | None = None
    below: list[Line] = []

    def close() -> None:
        if title is not None:
            if not below:
                raise title.error(f"[{title.text}] is empty; put its lines below it or take it out")
            fields = tuple(field.strip() for field in title.text.split("|"))
            found.append(Section(fields, tuple(below), title))

    for line in lines(folder / name):
        if line.text.startswith("["):
            if not line.text.endswith("]"):
                raise line.error("a title ends with ]")
            close()
            title, below = Line(line.text[1:-1].strip(), line.file, line.number), []
        elif title is None:
            raise line.error("a line before the first [title]")
        else:
            below += _lines(line)
    close()
    return found


def _lines(line: Line) -> list[Line]:
    times, text = 1, line.text
    if found := _TIMES.fullmatch(text):
        times, text = int(found[1]), found[2].strip()
    if text.startswith('"'):
        if len(text) < 2 or not text.endswith('"'):
            raise line.error('a text that begins with " ends with "')
        text = text[1:-1]
    return [Line(text, line.file, line.number)] * times


class Named:
    """A file's sections by their title, each of one field and given once."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self.file = folder / name
        self._sections: dict[str, Section] = {}
        for section in sections(name, folder):
            if section.title.text in self._sections:
                raise section.title.error(f"[{section.title.text}] stands twice; join the two")
            self._sections[section.title.text] = section

    def section(self, title: str) -> Section:
        """Raises DataError where the file has no such section."""
        if title not in self._sections:
            raise DataError(f"{self.file}: no [{title}] here; found {', '.join(self._sections) or 'none'}")
        return self._sections[title]

    def texts(self, title: str) -> tuple[str, ...]:
        """The lines' texts of the section called `title`."""
        return self.section(title).texts

    def words(self, title: str) -> tuple[str, ...]:
        """The words of the section called `title`."""
        return self.section(title).words
