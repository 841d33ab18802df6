"""Draws phrasings from data/grammar.txt, and roughens them as hurried people do."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from qwen35.train.datafile import FOLDER, Named, Section

_MARK = re.compile(r"<([^<>]*)>|\(([^()]*)\)")
_SLOT = re.compile(r"\{\w+\}")


class Grammar:
    """Sections of alternatives that name each other. Raises DataError for a name that no section has."""

    def __init__(self, name: str = "grammar.txt", folder: Path = FOLDER, start: str = "question") -> None:
        self._named = Named(name, folder)
        self._start = self._named.section(start)
        self._check(self._start, (start,))

    def _check(self, section: Section, above: tuple[str, ...]) -> None:
        for line in section.lines:
            left = _MARK.sub("", _MARK.sub("", line.text))
            if re.search(r"[<>()]", left):
                raise line.error(f'"{line.text}": < > and ( ) come in pairs, ( ) holds no ( )')
            for name in re.findall(r"<([^<>]*)>", line.text):
                if name in above:
                    raise line.error(f"<{name}> leads back to itself: {' > '.join((*above, name))}")
                self._check(self._named.section(name), (*above, name))

    def draw(self, rng: random.Random) -> str:
        """One phrasing with its `{w}` or `{aw}` still in it."""
        text = rng.choice(self._start.texts)
        while found := re.search(r"\(([^()]*)\)|<([^<>]*)>", text):
            if found[1] is not None:
                part = rng.choice(found[1].split("|"))
            else:
                part = rng.choice(self._named.texts(found[2]))
            text = text[: found.start()] + part + text[found.end() :]
        return re.sub(r" +([.,?!;:](?: |$))", r"\1", " ".join(text.split()))


def core(template: str) -> str:
    """A phrasing's words without case and punctuation, to tell whether two are one."""
    low = re.sub(r"\{a?w\}", "{w}", template.replace("{W}", "{w}").lower())
    return f" {' '.join(re.sub(r'[^a-z0-9{} ]+', ' ', low.replace(chr(39), '')).split())} "


def apart(draw: Callable[[], str], kept: Sequence[str]) -> str:
    """The first phrasing drawn that holds none of the `kept` cores."""
    while True:
        text = draw()
        said = core(text)
        if not any(part in said for part in kept):
            return text


def rough(rng: random.Random, template: str, stray: Callable[[], str]) -> str:
    """`template` as typed or said carelessly: words lost, put in, exchanged or misspelt, never its slot.

    `stray` draws a word to put in. What the model learns of it: the word asked about is known by its place,
    and a strange word elsewhere is no reason to refuse.
    """
    words = template.split()
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        free = [i for i, word in enumerate(words) if not _SLOT.search(word)]
        roll = rng.random()
        if roll < 0.30 or not free:
            words.insert(rng.choice((0, 0, rng.randint(0, len(words)))), stray())
        elif roll < 0.60:
            words[rng.choice(free)] = stray()
        elif roll < 0.78:
            del words[rng.choice(free)]
        elif roll < 0.90:
            at = rng.choice(free)
            words[at] = misspelt(rng, words[at])
        elif len(free) > 1:
            i, j = rng.sample(free, 2)
            words[i], words[j] = words[j], words[i]
    return " ".join(words)


def misspelt(rng: random.Random, word: str) -> str:
    """`word` with a letter lost, doubled or exchanged with the next one."""
    if len(word) < 3:
        return word
    at = rng.randrange(len(word) - 1)
    roll = rng.randrange(3)
    if roll == 0:
        return word[:at] + word[at + 1 :]
    if roll == 1:
        return word[: at + 1] + word[at:]
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
