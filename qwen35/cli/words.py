"""What the words of a command line that are no options stand for: a command, a bundle, or a question."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence

from amdxdna.entry import nearest
from qwen35.errors import UsageError
from qwen35.find import model_size, nearest_folders, where_from
from qwen35.imageformats import SUFFIXES

__all__ = ["command_line", "interpret", "refuse_misspelt"]

#: Other programs' commands, by what this one has for them.
_ALIASES = {"chat": "--chat", "help": "--help", "version": "--version"}
_ELSEWHERE = {
    "run": "python -m qwen35 [BUNDLE] --prompt TEXT asks once, --chat talks",
    "ask": "python -m qwen35 --prompt TEXT",
    "pull": "python -m qwen35 info 2b says what a model costs and which command downloads it",
    "download": "python -m qwen35 info 2b says what a model costs and which command downloads it",
}
_NAME = re.compile(r"^\d[\d.]*b$|[/_]|\w[-.]\w|^(bundle|checkpoint)$")
"""What a bundle's, checkpoint's or file's name has and a word of a sentence has not."""


def command_line(words: Sequence[str]) -> list[str]:
    """The words with `chat`, `help` or `version` in front as the option it is.

    Raises UsageError for what only other programs call a command.
    """
    if words and not os.path.lexists(words[0]):
        if words[0] in _ALIASES:
            return [_ALIASES[words[0]], *words[1:]]
        if words[0] in _ELSEWHERE:
            raise UsageError(f"there is no command {words[0]}", "", _ELSEWHERE[words[0]])
    return list(words)


def refuse_misspelt(words: Sequence[str], commands: Iterable[str]) -> None:
    """Raises UsageError when the first word is nearly a command's name; alone, one of other programs' too."""
    known = [*commands, *(_ALIASES if len(words) == 1 else ())]
    if words and not _path(words[0]) and (meant := nearest(words[0], known)):
        asked = " ".join(words) if not any(word.startswith("-") for word in words) else ""
        raise UsageError(
            f"there is no command {words[0]}",
            "",
            f"did you mean {' or '.join(meant)}?"
            + (f" To ask it, python -m qwen35 --prompt {shlex.quote(asked)}" if asked else ""),
        )


def interpret(
    words: Sequence[str], asked: str, commands: Iterable[str], pictures: bool = False
) -> tuple[str | None, str | None]:
    """(bundle, question) of the plain words; `asked` names the option that says what to ask, or is empty.

    A path is a bundle, and so is a single word where an option asks, and a published model's name. Anything
    else with a space or a question mark, or several words, or a word about `pictures` that are given, is a
    question, behind a bundle too. Raises UsageError for what is neither, with the names nearest to it, and
    for a second question.
    """
    if not words:
        return None, None
    first, rest = words[0], words[1:]
    if not asked and not any(word.strip() for word in words):
        raise UsageError("nothing was asked", "", "the question is empty")
    for word in words:
        if _picture(word) and (len(words) == 1 or os.path.isfile(word)):
            raise UsageError("a picture is no bundle", word, f"did you mean --image {shlex.quote(word)}?")
    if _for_a_command(words, commands):
        refuse_misspelt(words, commands)
    about = pictures and not rest
    named = model_size(first) and (asked or about or (len(rest) == 1 and _question(rest[0])))
    if _path(first) or named or (asked and not rest and not _question(first)):
        bundle: str | None = first
    elif not rest and not _question(first) and not pictures:
        remedy = where_from(first)
        if not remedy:
            refuse_misspelt(words, commands)
            near = nearest_folders(first)
            remedy = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"to ask it, python -m qwen35 --prompt {shlex.quote(first)}"
            )
        raise UsageError(f"{first} is no command, and no bundle of that name is here", "", remedy)
    else:
        bundle, rest = None, words
    question = " ".join(rest) or None
    if question and asked:
        raise UsageError(
            f"{question!r} is taken for a question, and {asked} asks already",
            "",
            "give one of them (quote a text of several words)",
        )
    return bundle, question


def _for_a_command(words: Sequence[str], commands: Iterable[str]) -> bool:
    """Whether several words read as a command's, whose own name may be misspelt, and not as a question."""
    if len(words) < 2 or any(map(_question, words)):
        return False
    first, rest = words[0], words[1:]
    swapped = any(
        first == name[:at] + name[at + 1] + name[at] + name[at + 2 :]
        for name in commands
        for at in range(len(name) - 1)
    )
    return os.path.lexists(rest[0]) or (len(rest) <= 2 and (swapped or any(map(_NAME.search, rest))))


def _path(word: str) -> bool:
    """Whether a word is meant as a path: it is there, or is written as one."""
    if os.path.lexists(word):
        return True
    return not _question(word) and (os.sep in word or word in (".", "..") or word.startswith("~"))


def _picture(word: str) -> bool:
    return word.lower().endswith(SUFFIXES) and not _question(word)


def _question(word: str) -> bool:
    return any(c.isspace() for c in word) or word.endswith(("?", "？"))
