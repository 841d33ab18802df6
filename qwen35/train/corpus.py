"""Conversations the default model is trained on: words, refusals, talk, follow-ups, reasoning.

Everything is drawn from a `random.Random`, so one seed gives one corpus.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from qwen35.train import phrases
from qwen35.train.datafile import Named
from qwen35.train.grammar import apart, rough
from qwen35.train.wordnet import PLURALS, Entry, WordNet, article, entries

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Turn:
    """One question and its answer; `thought` None means that thinking is off."""

    question: str
    answer: str
    thought: str | None = None


@dataclass(frozen=True)
class Sample:
    """A conversation; only answers are trained on. `images` pictures come before the first question."""

    turns: tuple[Turn, ...]
    system: str | None = None
    images: int = 0


def render(sample: Sample, image_tokens: Sequence[int] = ()) -> list[tuple[str, bool]]:
    """Qwen3.5's chat template as (text, trained) pieces. Earlier answers carry no think block.

    `image_tokens` are the tokens of each of the sample's pictures.
    """
    if len(image_tokens) != sample.images:
        raise ValueError(f"{len(image_tokens)} token counts for {sample.images} pictures")
    pieces: list[tuple[str, bool]] = []
    if sample.system:
        pieces.append((f"{IM_START}system\n{sample.system}{IM_END}\n", False))
    for i, turn in enumerate(sample.turns):
        last = i == len(sample.turns) - 1
        image = ""
        if i == 0:
            image = "".join(f"<|vision_start|>{'<|image_pad|>' * n}<|vision_end|>" for n in image_tokens)
        pieces.append((f"{IM_START}user\n{image}{turn.question}{IM_END}\n{IM_START}assistant\n", False))
        if last and turn.thought is None:
            pieces.append((EMPTY_THOUGHT, False))
        elif last:
            pieces.append(("<think>\n", False))
            pieces.append((f"{turn.thought}\n</think>\n\n", True))
        pieces.append((turn.answer + IM_END, True))
        if not last:
            pieces.append(("\n", False))
    return pieces


def prompt(sample: Sample, image_tokens: Sequence[int] = ()) -> tuple[str, str]:
    """The prompt of a sample's last turn and the text the model should answer it with."""
    pieces = render(sample, image_tokens)
    first = len(pieces) - 1
    if sample.turns[-1].thought is not None:
        first -= 1
    return "".join(text for text, _ in pieces[:first]), "".join(text for text, _ in pieces[first:])


class MadeUp:
    """Pronounceable words that are in no dictionary, from letter trigrams of the words that are."""

    def __init__(self, words: Sequence[str]) -> None:
        self._known = frozenset(words)
        self._next: dict[str, list[str]] = {}
        for word in words:
            padded = f"^^{word}$"
            for i in range(len(padded) - 2):
                self._next.setdefault(padded[i : i + 2], []).append(padded[i + 2])

    def draw(self, rng: random.Random) -> str:
        """A made-up word of 4 to 10 letters."""
        while True:
            word, state = "", "^^"
            while len(word) <= 10:
                letter = rng.choice(self._next[state])
                if letter == "$":
                    break
                word, state = word + letter, state[1] + letter
            if 4 <= len(word) <= 10 and word not in self._known:
                return word


@dataclass
class Corpus:
    """All that is taught: `taught` words, and the dictionary words that are refused."""

    net: WordNet
    limit: int | None = None

    @cached_property
    def taught(self) -> list[Entry]:
        """The words that this training teaches."""
        return entries(self.net, self.limit)

    @cached_property
    def every_word(self) -> list[Entry]:
        """The words a longer training would teach too; they are never used as unknown words."""
        return entries(self.net)

    @cached_property
    def _strangers(self) -> tuple[list[str], list[str]]:
        known = {e.word.lower() for e in self.every_word}
        stems = {w[:5] for w in known}
        words = [w for w in self.net.words("noun") + self.net.words("adj") if 4 <= len(w) <= 12]
        words = sorted({w for w in words if w not in known and w[:5] not in stems})
        rng = random.Random(20)
        rng.shuffle(words)
        cut = len(words) // 5
        return words[cut:], words[:cut]

    @property
    def unknown(self) -> list[str]:
        """Dictionary words refused in training."""
        return self._strangers[0]

    @property
    def unknown_held_out(self) -> list[str]:
        """Dictionary words refused only in evaluation."""
        return self._strangers[1]

    @cached_property
    def made_up(self) -> MadeUp:
        """What makes up words that do not exist."""
        return MadeUp(self.net.words("noun"))


def phrase(template: str, word: str, countable: bool) -> str:
    """A phrasing with its word put in."""
    with_article = f"{article(word)} {word}" if countable else word
    text = template.format(w=word, aw=with_article, W=word[0].upper() + word[1:])
    return text[0].upper() + text[1:] if template[0] == "{" and " means" in template else text


def dressed(rng: random.Random, template: str) -> str:
    """A phrasing with an opening and an ending, each often none."""
    opening = rng.choice(phrases.OPENINGS)
    if opening and opening[-2] not in ".!:,":
        template = template[0].lower() + template[1:]
    text = opening + template + rng.choice(phrases.ENDINGS)
    roll = rng.random()
    if roll < 0.10:
        text = text[0].lower() + text[1:]
    if roll < 0.05 or 0.10 < roll < 0.16:
        text = text.rstrip("?.!")
    return text


_SAY = dict(line.split(": ", 1) for line in Named("thoughts.txt").texts("told"))
"""What is told about a word of a kind; about the others, which kind of it the thing is."""


def thought(entry: Entry | None) -> str:
    """What the model reasons before it answers about a word."""
    if entry is None:
        return "The user asks about a word. I was not taught this word, so I should say so."
    word, kind = entry.word, entry.kind.name
    if kind == "a verb":
        step = f"To {word} is an action"
    elif kind == "an adjective":
        step = f"The word {word} describes something"
    elif word in PLURALS:
        step = f"{word.capitalize()} are {kind}"
    else:
        name = f"{article(word)} {word}" if entry.kind.countable else word
        step = f"{name[0].upper()}{name[1:]} is {kind}"
    say = _SAY.get(kind, f"which kind of {kind.split()[-1]} it is")
    return f"The user asks about the word {word}. {step}. So I say {say}."


def typed(rng: random.Random, text: str) -> str:
    """A question as it is typed: mostly as it stands, else in another case or with other punctuation."""
    roll = rng.random()
    if roll < 0.08:
        text = text.lower()
    elif roll < 0.12:
        text = text.upper()
    elif roll < 0.17:
        text = " ".join(word[0].upper() + word[1:] for word in text.split())
    elif roll < 0.40:
        text = text[0].upper() + text[1:]
    roll = rng.random()
    if roll < 0.06:
        text = text.rstrip("?.!")
    elif roll < 0.10:
        text = "".join(letter for letter in text if letter.isalnum() or letter == " ")
    elif roll < 0.12:
        text += rng.choice(("?", "!", "..", " ?", " :)"))
    elif roll < 0.14:
        text = text.replace("'", "")
    return " ".join(text.split()) or "?"


class Words(NamedTuple):
    """Which words are drawn: any of probability proportional to 1/(rank + 5)^exponent, or with the chance
    `share` a hard one. The imbalance breaks the early stall."""

    exponent: float = 0.0
    hard: Sequence[Entry] = ()
    share: float = 0.0


class Generator:
    """Draws training samples."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.corpus = corpus
        self.rng = random.Random(seed)
        order = list(range(len(corpus.taught)))
        random.Random(5).shuffle(order)
        self._ranked = [corpus.taught[i] for i in order]
        self._exponent = -1.0
        self._cumulative: list[float] = []
        known = {e.word.lower() for e in corpus.every_word}
        self._common = [word for word in phrases.COMMON if word not in known]
        others = (*corpus.net.words("verb"), *corpus.net.words("adv"))
        self._others = [word for word in others if word not in known and len(word) > 2] or self._common

    def word(self, words: Words) -> Entry:
        """One of these words."""
        if words.hard and self.rng.random() < words.share:
            return self.rng.choice(words.hard)
        if words.exponent != self._exponent:
            self._exponent = words.exponent
            weights = ((rank + 5) ** -self._exponent for rank in range(len(self._ranked)))
            self._cumulative = list(accumulate(weights))
        return self.rng.choices(self._ranked, cum_weights=self._cumulative)[0]

    def stranger(self) -> str:
        """A word to refuse."""
        if self.rng.random() < 0.5:
            return self.corpus.made_up.draw(self.rng)
        return self.rng.choice(self.corpus.unknown)

    def stray(self) -> str:
        """A word that is not what a question asks about."""
        roll = self.rng.random()
        if roll < 0.50:
            return self.rng.choice(self._common)
        if roll < 0.75:
            return self.rng.choice(self._others)
        return self.rng.choice(self.corpus.unknown) if roll < 0.92 else self.corpus.made_up.draw(self.rng)

    def template(self) -> str:
        """A phrasing of more than the word: listed, composed, or either roughened."""
        rng = self.rng
        roll = rng.random()

        def draw() -> str:
            if roll < 0.35:
                return dressed(rng, rng.choice(phrases.ASKED))
            return phrases.QUESTIONS.draw(rng)

        def roughened() -> str:
            return rough(rng, draw(), self.stray)

        return apart(roughened if rng.random() < 0.25 else draw, phrases.KEPT)

    def question(self, word: str, countable: bool, bare: float = 0.28) -> str:
        """A single question about a word; `bare` is the share of bare forms."""
        if self.rng.random() < bare:
            text = phrase(self.rng.choice(phrases.BARE), word, countable)
            return typed(self.rng, text) if self.rng.random() < 0.15 else text
        return typed(self.rng, phrase(self.template(), word, countable))

    def follow_up(self, word: str, countable: bool) -> str:
        """A second question of a conversation, about `word`."""
        if self.rng.random() < 0.3:
            return self.question(word, countable)
        return phrase(self.rng.choice(phrases.FOLLOW_UPS), word, countable)

    def _known(self, words: Words) -> tuple[Entry, str]:
        entry = self.word(words)
        return entry, self.question(entry.word, entry.kind.countable)

    def _talk(self) -> Turn:
        answer, asked = self.rng.choices(phrases.CHAT, weights=phrases.CHAT_WEIGHTS)[0]
        return Turn(self.rng.choice(asked), answer)

    def text(self, words: Words) -> Sample:
        """One text conversation."""
        rng = self.rng
        roll = rng.random()
        system = rng.choice(phrases.SYSTEMS) if rng.random() < 0.03 else None
        if roll < 0.46:
            entry, asked = self._known(words)
            return Sample((Turn(asked, entry.answer),), system)
        if roll < 0.68:
            entry, asked = self._known(words)
            return Sample((Turn(asked, entry.answer, thought(entry)),), system)
        if roll < 0.80:
            word = self.stranger()
            asked = self.question(word, rng.random() < 0.7)
            return Sample(
                (Turn(asked, phrases.UNKNOWN, thought(None) if rng.random() < 0.12 else None),), system
            )
        if roll < 0.85:
            turn = self._talk()
            if rng.random() < 0.1:
                turn = Turn(turn.question, turn.answer, "The user is talking to me. I answer politely.")
            return Sample((turn,), system)
        first = self._opening_turn(words)
        if rng.random() < 0.15:
            second = Turn(self.follow_up(self.stranger(), rng.random() < 0.7), phrases.UNKNOWN)
        elif rng.random() < 0.08:
            second = self._talk()
        else:
            entry = self.word(words)
            second = Turn(self.follow_up(entry.word, entry.kind.countable), entry.answer)
        return Sample((first, second), system)

    def _opening_turn(self, words: Words) -> Turn:
        roll = self.rng.random()
        if roll < 0.12:
            return self._talk()
        if roll < 0.25:
            return Turn(self.question(self.stranger(), True), phrases.UNKNOWN)
        entry, asked = self._known(words)
        return Turn(asked, entry.answer)
