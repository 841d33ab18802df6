"""File names in a conversation's commands: `~`, quotes and backslashes as in a shell; their completion."""

from __future__ import annotations

import os
import re
import shlex

from qwen35.errors import UsageError

__all__ = ["complete", "one_path", "paths"]


def paths(text: str) -> list[str]:
    """The file names of a command. A text that is itself the name of a file, quotes and spaces in it, is one.

    Raises UsageError for a quote that is not closed.
    """
    whole = os.path.expanduser(text)
    if text and os.path.lexists(whole):
        return [whole]
    try:
        return [os.path.expanduser(word) for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(f"{str(error).lower()} in the file names", text) from None


def one_path(text: str) -> str:
    """The one file name of a command; a text of several words without quotes is one name."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    return os.path.expanduser(words[0] if len(words) == 1 else text)


def complete(line: str, begin: int) -> list[str]:
    """What may stand from character `begin` on in a line whose last word is the beginning of a file name.

    A name goes on in the quotes that were opened, else with backslashes; a folder's ends in a slash.
    """
    start, quote, value = _last_word(line)
    raw = line[start:]
    folder, _, beginning = value.rpartition("/")
    folder += "/" if "/" in value else ""
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder) or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    typed = raw[: raw.rfind("/") + 1] if folder else ""
    opened = "" if any(mark in typed for mark in "\"'") and quote else quote
    found = []
    for entry in entries:
        name = entry.name
        hidden = name.startswith(".") and not beginning.startswith(".")
        cannot = not name.isprintable() or (quote == "'" and "'" in name)
        if not name.startswith(beginning) or hidden or cannot:
            continue
        whole = typed + opened + _quoted(name, quote) + ("/" if _is_folder(entry) else quote)
        if whole.startswith(raw):  # else it was typed in another way than it would be written
            found.append(whole[begin - start :])
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _quoted(name: str, quote: str) -> str:
    if quote == "'":
        return name
    return re.sub(r'(["\\])' if quote else r"""([\s"'\\])""", r"\\\1", name)


def _last_word(line: str) -> tuple[int, str, str]:
    """Where the last word starts, the quote that is open at its end, and what it says."""
    start, quote, value, at = 0, "", "", 0
    while at < len(line):
        char = line[at]
        if char == "\\" and quote != "'" and at + 1 < len(line):
            following = line[at + 1]
            value += following if not quote or following in '"\\' else char + following
            at += 1
        elif char == quote:
            quote = ""
        elif not quote and char in "\"'":
            quote = char
        elif not quote and char.isspace():
            start, value = at + 1, ""
        else:
            value += char
        at += 1
    return start, quote, value
