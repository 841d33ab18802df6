"""The scored questions: what is asked, what is right, and the share that is wanted.

Seeds, phrasings, unknown words and colour and shape pairs are apart from the training's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from . import phrases, pictures
from .corpus import Corpus, Sample, Turn, dressed, phrase, thought
from .wordnet import Entry

Judge = Callable[[str], bool]


@dataclass(frozen=True)
class Case:
    """One question: `right` judges the answer's text (without the thought and special tokens)."""

    mark: str
    sample: Sample
    right: Judge
    scene: pictures.Scene | None = None
    whole: bool = False
    """Judge the thought too."""


@dataclass(frozen=True)
class Mark:
    """A row of the score; `wanted` None is reported only."""

    name: str
    wanted: float | None
    meaning: str


MARKS = (
    Mark("trained phrasings", 0.90, "a taught word in a phrasing of the training set"),
    Mark("held-out phrasings", 0.75, "a taught word in a phrasing never trained on"),
    Mark("fresh phrasings", None, "a taught word in a phrasing of a third set, never trained on"),
    Mark("bare words", 0.80, "the word alone, lower case or capitalised"),
    Mark("refusals: made up", 0.85, "made-up words, refused"),
    Mark("refusals: dictionary", 0.85, "real words that were never in training, refused"),
    Mark("follow-ups", None, "a second question, in a phrasing never trained on"),
    Mark("thinking", None, "the answer after a think block"),
    Mark("thought", None, "what the think block says: the word and its kind"),
    Mark("talk", None, "greetings, who are you, what it cannot do (trained phrasings)"),
    Mark("colour and shape", 0.90, "new pictures, colour and shape both right"),
    Mark("colour and shape: new pairs", None, "pairs of colour and shape never trained on"),
    Mark("count", 0.80, "new pictures of one to five shapes"),
    Mark("position", 0.80, "new pictures, one of nine places"),
    Mark("picture questions", None, "any question kind in a phrasing never trained on"),
    Mark("picture questions: fresh", None, "the same in a phrasing of a third set, never trained on"),
)


def normal(text: str) -> str:
    """Lower case without punctuation and doubled spaces: how answers are compared."""
    return " ".join(re.sub(r"[^a-z0-9' ]+", " ", text.lower()).split())


def same(answer: str) -> Judge:
    """Judges by normalised exact match."""
    wanted = normal(answer)
    return lambda text: normal(text) == wanted


def has(*wanted: str) -> Judge:
    """Judges by every one of the wanted phrases being said as whole words."""
    return lambda text: all(f" {normal(part)} " in f" {normal(text)} " for part in wanted)


def _known(mark: str, entry: Entry, asked: str) -> Case:
    return Case(mark, Sample((Turn(asked, entry.answer),)), same(entry.answer))


def words(corpus: Corpus, count: int | None, seed: int) -> list[Case]:
    """Questions about taught and unknown words; `count` limits each mark."""
    rng = random.Random(f"evaluation {seed}")
    taught = list(corpus.taught)
    if count is not None and count < len(taught):
        taught = rng.sample(taught, count)
    cases = []
    for entry in taught:
        word, countable = entry.word, entry.kind.countable
        asked = phrase(dressed(rng, rng.choice(phrases.ASKED)), word, countable)
        cases.append(_known("trained phrasings", entry, asked))
        held = phrase(rng.choice(phrases.HELD_OUT), word, countable)
        cases.append(_known("held-out phrasings", entry, held))
        cases.append(_known("bare words", entry, rng.choice((word, word[0].upper() + word[1:]))))
    few = min(300, count or 300)
    for number in range(few):
        template = rng.choice((*phrases.ASKED, *phrases.HELD_OUT, "{w}", "{W}"))
        for mark, word in (
            ("refusals: made up", corpus.made_up.draw(rng)),
            ("refusals: dictionary", corpus.unknown_held_out[number]),
        ):
            turn = Turn(phrase(template, word, True), phrases.UNKNOWN)
            cases.append(Case(mark, Sample((turn,)), same(phrases.UNKNOWN)))
    for entry, before in zip(rng.sample(taught, few // 2), rng.sample(taught, few // 2), strict=True):
        first = Turn(phrase(rng.choice(phrases.HELD_OUT), before.word, before.kind.countable), before.answer)
        follow = phrase(rng.choice(phrases.FOLLOW_UPS_HELD_OUT), entry.word, entry.kind.countable)
        cases.append(Case("follow-ups", Sample((first, Turn(follow, entry.answer))), same(entry.answer)))
        asked = phrase(rng.choice(phrases.ASKED), entry.word, entry.kind.countable)
        turn = Turn(asked, entry.answer, thought(entry))
        cases.append(Case("thinking", Sample((turn,)), same(entry.answer)))
        cases.append(Case("thought", Sample((turn,)), has(thought(entry)), whole=True))
    for entry in taught:
        asked = phrase(rng.choice(phrases.FRESH), entry.word, entry.kind.countable)
        cases.append(_known("fresh phrasings", entry, asked))
    for answer, questions in phrases.CHAT:
        cases += [Case("talk", Sample((Turn(q, answer),)), same(answer)) for q in questions]
    return cases


def looks(count: int, seed: int) -> list[Case]:
    """Questions about new pictures, `count` for each mark."""
    rng = random.Random(f"pictures {seed}")
    cases = []

    def add(mark: str, scene: pictures.Scene, kind: str, right: Judge | None, held: bool) -> None:
        _, question, answer = pictures.ask(rng, scene, held, kind)
        sample = Sample((Turn(question, answer),), image=True)
        cases.append(Case(mark, sample, right or same(answer), scene))

    for number in range(count):
        held = number % 2 == 1
        for mark, pairs in (("colour and shape", False), ("colour and shape: new pairs", True)):
            scene = pictures.scene(rng, pairs, "one")
            thing = scene.things[0]
            add(mark, scene, "what", has(f"{thing.colour} {thing.shape}"), held)
        scene = pictures.scene(rng, None, "one" if number % 5 == 0 else "many")
        add("count", scene, "count", None, held)
        add("position", pictures.scene(rng, None, "one"), "place", None, held)
        scene = pictures.scene(rng, None)
        kinds = list(pictures.about(scene))
        if scene.kind == "many":
            kinds.remove("colour")
        add("picture questions", scene, rng.choice(kinds), None, True)
    for _ in range(count):
        scene = pictures.scene(rng, None)
        kinds = list(pictures.about(scene))
        if scene.kind == "many":
            kinds.remove("colour")
        _, question, answer = pictures.ask(rng, scene, kind=rng.choice(kinds), fresh=True)
        sample = Sample((Turn(question, answer),), image=True)
        cases.append(Case("picture questions: fresh", sample, same(answer), scene))
    return cases
