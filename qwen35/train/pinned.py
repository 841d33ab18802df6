"""Glosses written for this program, where WordNet's is long, circular, plural or of another sense.

The texts have one word a line, then its gloss, which continues "A penguin is ..." (or "Water is ...").
"""

from __future__ import annotations

from . import pinned_ideas, pinned_life, pinned_people, pinned_things, pinned_world

PINNED: dict[str, str] = {}
for _module in (pinned_life, pinned_things, pinned_people, pinned_world, pinned_ideas):
    for _line in _module.TEXT.strip().splitlines():
        _word, _, _gloss = _line.partition(" ")
        PINNED[_word] = _gloss

DROPPED = frozenset(["May"])
"""Words whose senses cannot be told apart by kind, left out even when a kind lists them."""
