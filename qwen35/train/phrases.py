"""How the default model is asked: phrasings trained on and held out, and all that is not a word.

In a phrasing `{w}` is the word, `{aw}` the word with its article when it takes one, `{W}` the word
capitalised. The texts are data/phrases.txt and data/talk.txt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from qwen35.train.datafile import Named, Section, sections
from qwen35.train.grammar import Grammar, core

_PLACES = re.compile(r"\{(.*?)\}")


def checked(section: Section, names: Iterable[str]) -> tuple[str, ...]:
    """The section's texts, whose `{...}` are all of `names`. Raises DataError."""
    allowed = set(names)
    for line in section.lines:
        wrong = set(_PLACES.findall(line.text)) - allowed
        if wrong or re.search(r"[{}]", _PLACES.sub("", line.text)):
            may = ", ".join(f"{{{name}}}" for name in sorted(allowed))
            raise line.error(f'"{line.text}" may hold {may or "no braces"} only')
    return section.texts


_PHRASES = Named("phrases.txt")


def _asking(title: str) -> tuple[str, ...]:
    return checked(_PHRASES.section(title), ("w", "aw", "W"))


ASKED = _asking("asked")
"""Cores trained on; `dressed` multiplies them."""
HELD_OUT = _asking("held out")
"""Never trained on."""
FRESH = _asking("fresh")
"""Never trained on either."""
BARE = _asking("bare")
"""The word alone or nearly, as typed in a hurry."""
FOLLOW_UPS = _asking("follow-ups")
FOLLOW_UPS_HELD_OUT = _asking("follow-ups held out")
OPENINGS = _PHRASES.texts("openings")
ENDINGS = _PHRASES.texts("endings")
SYSTEMS = _PHRASES.texts("systems")
COMMON = Named("common.txt").words("words")
"""Words that may stand in a question without being what it asks about."""
QUESTIONS = Grammar()
"""Composes phrasings."""
KEPT = tuple(core(text) for text in (*HELD_OUT, *FRESH, *FOLLOW_UPS_HELD_OUT))
"""What no composed phrasing may hold."""

UNKNOWN = "Sorry, I do not know that word."


def _talk() -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    found = []
    for section in sections("talk.txt"):
        often, answer = section.want("how often", "answer")
        if not often.isdigit():
            raise section.title.error(f'"{often}" is not a whole number: how often the answer is drawn')
        found.append((int(often), answer, section.texts))
    return tuple(found)


_TALK = _talk()
CHAT: tuple[tuple[str, tuple[str, ...]], ...] = tuple((answer, asked) for _, answer, asked in _TALK)
"""Answers and what leads to them."""
CHAT_WEIGHTS: tuple[int, ...] = tuple(often for often, _, _ in _TALK)
