"""The scored questions: what is asked, what is right, and the share that is wanted.

Seeds, phrasings, unknown words and colour and shape pairs are apart from the training's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qwen35.images import resize, smart_resize
from qwen35.train import phrases, pictures, scenes, sdf
from qwen35.train.corpus import Corpus, Sample, Turn, dressed, phrase, thought
from qwen35.train.datafile import FOLDER, DataError, sections
from qwen35.train.drawing import draw
from qwen35.train.scenes import CELL, MAX_PIXELS, MIN_PIXELS, Scene
from qwen35.train.wordnet import Entry

Judge = Callable[[str], bool]


@dataclass(frozen=True)
class Case:
    """One question: `right` judges the answer's text (without the thought and special tokens)."""

    mark: str
    sample: Sample
    right: Judge
    images: tuple[NDArray[np.uint8], ...] = ()
    """The sample's pictures [h, w, 3], of sizes that the processor keeps."""
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
    Mark("hand-written phrasings", 0.80, "a taught word in the phrasings of data/unseen.txt"),
    Mark("hand-written picture questions", None, "drawings, in the phrasings of data/unseen.txt"),
    Mark("pictures as trained", 0.85, "any question about a new picture of the training's generator"),
    Mark("several as trained", 0.80, "the same about two or three pictures at once"),
    Mark("drawings: light", 0.90, "an independent generator's: one shape on a light ground"),
    Mark("drawings: dark", 0.90, "on a dark ground"),
    Mark("drawings: coloured", 0.85, "on a ground of any colour"),
    Mark("drawings: gradient", 0.85, "on a gradient between two colours"),
    Mark("drawings: paper", 0.85, "on paper, half of it lined"),
    Mark("drawings: noise", 0.85, "on a noisy ground"),
    Mark("drawings: tall and wide", 0.85, "1080x1920, 400x800, 1920x1080, panoramas to 4:1"),
    Mark("drawings: outlines", 0.80, "outlines instead of filled shapes"),
    Mark("drawings: turned, blurred, JPEG", 0.85, "7 to 18 degrees, blurred, JPEG of quality 8 to 34"),
    Mark("drawings: position", 0.80, "one of nine places"),
    Mark("drawings: count of mixed shapes", 0.80, "two to five shapes, not all alike"),
    Mark("drawings: two pictures", 0.80, "both described, or the one asked for"),
    Mark("drawings: no shape", 0.90, "photographs of sorts, noise, rows of letters"),
)
"""The rows. `tests/qwen35/train/test_train_score.py` keeps the drawings' apart from the training's."""
HAND_WRITTEN = 40
"""Phrasings wanted in data/unseen.txt, and questions asked in each."""


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
    """Questions about new pictures of the training's generator, `count` for each mark."""
    rng = random.Random(f"pictures {seed}")
    cases = []

    def add(mark: str, scene: Scene, kind: str | None, group: str = "", right: Judge | None = None) -> None:
        fact, question = pictures.ask(rng, scene, group == "held", kind, group == "fresh")
        sample = Sample((Turn(question, fact.answer),), images=1)
        cases.append(Case(mark, sample, right or same(fact.answer), (np.asarray(draw(scene)),)))

    for number in range(count):
        group = "held" if number % 2 else ""
        for mark, pairs in (("colour and shape", False), ("colour and shape: new pairs", True)):
            scene = scenes.plain(rng, pairs, "one")
            thing = scene.things[0]
            add(mark, scene, "what", group, has(f"{thing.colour} {thing.shape}"))
        add("count", scenes.plain(rng, None, "one" if number % 5 == 0 else "many"), "count", group)
        add("position", scenes.plain(rng, None, "one"), "place", group)
        add("picture questions", scenes.plain(rng, None), None, "held")
    for _ in range(count):
        add("picture questions: fresh", scenes.plain(rng, None), None, "fresh")
    for _ in range(count):
        add("pictures as trained", scenes.scene(rng, None), None)
        group_of = [scenes.scene(rng, None) for _ in range(rng.choice((2, 2, 3)))]
        fact = rng.choice(pictures.several_facts(group_of, rng))
        question = pictures.worded(pictures.phrasing(rng, fact), fact)
        images = tuple(np.asarray(draw(scene)) for scene in group_of)
        sample = Sample((Turn(question, fact.answer),), images=len(images))
        cases.append(Case("several as trained", sample, same(fact.answer), images))
    return cases


def fitted(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture at the size that the processor gives it."""
    height, width = picture.shape[:2]
    return resize(picture, *smart_resize(height, width, CELL, MIN_PIXELS, MAX_PIXELS))


def says(groups: tuple[tuple[str, ...], ...]) -> Judge:
    """Judges by what each sentence of an answer says, in order; one group alone may be said anywhere."""
    if len(groups) == 1:
        return has(*groups[0])

    def right(text: str) -> bool:
        told = [part for part in re.split(r"[.!?]", text) if part.strip()]
        return len(told) == len(groups) and all(has(*g)(t) for g, t in zip(groups, told, strict=True))

    return right


def _guess(drawn: sdf.Drawn) -> str:
    """A likely right answer, which saves its generation where the model gives it; `says` judges the rest."""
    told = [f"{pictures.article(group[0])} {group[0]}" for group in drawn.says]
    said = drawn.says[0][0]
    if drawn.mark == "drawings: position":
        return f"It is {said}."
    if drawn.mark == "drawings: count of mixed shapes":
        return f"There are {said}."
    if drawn.mark == "drawings: no shape":
        return pictures.NONE
    if drawn.mark == "drawings: two pictures":
        first = "second" if "second" in drawn.question else "first"
        names = (first,) if len(told) == 1 else ("first", "second")
        return " ".join(f"The {n} picture shows {t}." for n, t in zip(names, told, strict=True))
    return f"There is {told[0]} in the middle."


def drawings(seed: int, share: float = 1.0) -> list[Case]:
    """The independent generator's drawings, or a share of each group."""
    found = []
    for drawn in sdf.tests(seed, share):
        sample = Sample((Turn(drawn.question, _guess(drawn)),), images=len(drawn.pictures))
        found.append(Case(drawn.mark, sample, says(drawn.says), tuple(map(fitted, drawn.pictures))))
    return found


def unseen() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Phrasings of data/unseen.txt: about a word, and about a picture. Raises DataError."""
    words_asked: tuple[str, ...] = ()
    picture_asked: tuple[str, ...] = ()
    for section in sections("unseen.txt"):
        if section.fields == ("words",):
            words_asked += phrases.checked(section, ("w", "aw", "W"))
            for line in section.lines:
                if "{" not in line.text:
                    raise line.error("no {w}, {aw} or {W}: where does the word go?")
        elif section.fields == ("pictures",):
            picture_asked += phrases.checked(section, ())
        else:
            raise section.title.error(f"[{section.title.text}] is neither [words] nor [pictures]")
    asked = (*words_asked, *picture_asked)
    if len(set(asked)) != len(asked):
        raise DataError(f"{FOLDER / 'unseen.txt'}: a phrasing stands twice; keep one")
    return words_asked, picture_asked


def hand_written(corpus: Corpus, seed: int, each: int = HAND_WRITTEN) -> list[Case]:
    """Cases of every hand-written phrasing: `each` words of one, a quarter as many drawings of one shape."""
    rng = random.Random(f"hand-written {seed}")
    words_asked, picture_asked = unseen()
    cases = []
    for template in words_asked:
        for entry in rng.sample(corpus.taught, min(each, len(corpus.taught))):
            asked = phrase(template, entry.word, entry.kind.countable)
            cases.append(_known("hand-written phrasings", entry, asked))
    if picture_asked:
        shown = [case for case in drawings(seed + 1, 0.5) if case.mark == "drawings: light"]
        for template in picture_asked:
            for case in rng.sample(shown, min(each // 4, len(shown))):
                sample = Sample((Turn(template, case.sample.turns[0].answer),), images=1)
                cases.append(Case("hand-written picture questions", sample, case.right, case.images))
    return cases
