"""The words the default model is taught, by kind, and glosses written for it: data/words.txt, data/glosses.

A kind names the WordNet lexicographer files its senses are taken from (so that "whale" is the animal and not
the person), whether its words take an article ("A penguin is ...") or none ("Water is ..."), and how a
reasoning sentence names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qwen35.train.datafile import FOLDER, DataError, Named, Section, lines, sections


@dataclass(frozen=True)
class Kind:
    """One group of words: `name` in a reasoning block, WordNet `files` in order, `countable` or not."""

    name: str
    files: tuple[str, ...]
    countable: bool
    words: tuple[str, ...]


def kind(section: Section) -> Kind:
    """The kind that a section of words.txt tells. Raises DataError."""
    name, files, counted = section.want("name", "WordNet files", "countable or not countable")
    if counted not in ("countable", "not countable"):
        raise section.title.error(f'"{counted}" is neither "countable" nor "not countable"')
    return Kind(name, tuple(files.split()), counted == "countable", section.words)


def glosses(folder: Path) -> dict[str, str]:
    """Each word's gloss of the files of a folder: one word a line, then its gloss. Raises DataError."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.txt")):
        for line in lines(file):
            word, _, gloss = line.text.partition(" ")
            if not gloss:
                raise line.error(f'"{word}" has no gloss; put one behind it')
            if word in found:
                raise line.error(f'"{word}" has a gloss already; keep one')
            found[word] = gloss
    if not found:
        raise DataError(f"{folder}: no glosses here; they are part of qwen35/train/data")
    return found


KINDS: tuple[Kind, ...] = tuple(kind(section) for section in sections("words.txt"))
"""Every kind, in the order a word is looked up: a word listed twice belongs to the first kind."""

_SOME = Named("some.txt")
FIRST = frozenset(_SOME.words("first"))
"""Taught before the rest when only some words are."""
DROPPED = frozenset(_SOME.words("dropped"))
"""Left out even when a kind lists them."""

PINNED: dict[str, str] = glosses(FOLDER / "glosses")
"""Glosses where WordNet's is long, circular, plural or of another sense; each goes on "A penguin is ..."."""
