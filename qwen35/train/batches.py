"""Batches for training: a step number and a seed give one batch, so a run resumes where it stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from qwen35.train import drawing, pictures, scenes
from qwen35.train.corpus import Generator, Sample, Turn, Words, render
from qwen35.train.scenes import CELL, Scene

POOL = 8
"""Text batches drawn together and sorted by length, which keeps padding small."""
PLAIN = 0.25
"""Share of the picture batches that are plain scenes."""


@dataclass(frozen=True)
class Seen:
    """One picture of each row of a batch: `pixels` [B, H, W, 3] uint8, its image tokens from `at` on.

    `labels` [B, tokens, 3] and `whole` [B, numbers] train the tower, `scenes.labels` and `scenes.summary`.
    """

    pixels: Tensor
    labels: Tensor
    whole: Tensor
    at: int = -1

    @property
    def rows(self) -> int:
        """Rows of image tokens."""
        return self.pixels.shape[1] // CELL

    @property
    def columns(self) -> int:
        """Columns of image tokens."""
        return self.pixels.shape[2] // CELL


@dataclass(frozen=True)
class Batch:
    """Ids [B, L] padded on the right; flat positions that predict a trained token, and their targets."""

    ids: Tensor
    where: Tensor
    targets: Tensor
    seen: tuple[Seen, ...] = ()


class Encoder:
    """Samples to ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pad: int = tokenizer.token_to_id("<|endoftext|>") or 0
        self.start: int = tokenizer.token_to_id("<|vision_start|>") or 0

    def encode(self, sample: Sample, image_tokens: tuple[int, ...] = ()) -> tuple[list[int], list[bool]]:
        """Ids and whether each is trained on."""
        ids: list[int] = []
        trained: list[bool] = []
        for text, flag in render(sample, image_tokens):
            part = self.tokenizer.encode(text).ids
            ids += part
            trained += [flag] * len(part)
        return ids, trained

    def collate(self, samples: list[Sample], seen: tuple[Seen, ...] = ()) -> Batch:
        """Pads samples into one batch; the pictures' `at` is filled in."""
        tokens = tuple(one.rows * one.columns for one in seen)
        rows = [self.encode(sample, tokens) for sample in samples]
        length = max(len(ids) for ids, _ in rows) - 1
        table = np.full((len(rows), length), self.pad, np.int64)
        where, targets = [], []
        for r, (ids, trained) in enumerate(rows):
            table[r, : len(ids) - 1] = ids[:-1]
            for i in range(1, len(ids)):
                if trained[i]:
                    where.append(r * length + i - 1)
                    targets.append(ids[i])
        starts = [i + 1 for i, token in enumerate(rows[0][0]) if token == self.start]
        placed = tuple(
            Seen(one.pixels, one.labels, one.whole, at) for one, at in zip(seen, starts, strict=True)
        )
        return Batch(torch.from_numpy(table), torch.tensor(where), torch.tensor(targets), placed)


class Batches:
    """Draws text, picture and tower-only batches by number; of `workers` each takes its share of a batch."""

    def __init__(
        self, encoder: Encoder, generator: Generator, size: int, seed: int, worker: int = 0, workers: int = 1
    ) -> None:
        self.encoder, self.generator, self.size, self.seed = encoder, generator, size, seed
        self._worker, self._workers = worker, workers
        self._pool: tuple[int, list[list[Sample]]] = (-1, [])

    def text(self, number: int, words: Callable[[int], Words]) -> Batch:
        """Text batch `number`; `words` tells which words are drawn at a text batch's number.

        A pool is drawn with that of its first batch, whichever of them is asked for first.
        """
        pool, place = divmod(number, POOL)
        if self._pool[0] != pool:
            self.generator.rng = rng = random.Random(f"text {self.seed} {pool}")
            of = words(pool * POOL)
            drawn = [self.generator.text(of) for _ in range(POOL * self.size)]
            drawn.sort(key=lambda s: sum(len(t) for t, _ in render(s)))
            groups = [drawn[i : i + self.size] for i in range(0, len(drawn), self.size)]
            rng.shuffle(groups)
            self._pool = (pool, groups)
        return self.encoder.collate(self._pool[1][place][self._worker :: self._workers])

    def _scenes(self, rng: random.Random, size: int, easy: float = PLAIN) -> list[Scene]:
        """Scenes of one size, all plain with the chance `easy`; this worker's share of them."""
        if rng.random() < easy:
            found = [scenes.plain(rng)]
            while len(found) < size:
                one = scenes.plain(rng)
                if one.fitted == found[0].fitted:
                    found.append(one)
        else:
            of = scenes.size(rng)
            found = [scenes.scene(rng, of=of) for _ in range(size)]
        return found[self._worker :: self._workers]

    def tower(self, number: int, done: float = 1.0) -> Batch:
        """Pictures with labels only; `done` of the tower's own steps are over.

        The first half are plain scenes, from which shapes are learned much sooner, then ever fewer.
        """
        easy = PLAIN + (1.0 - PLAIN) * min(1.0, 2.0 - 2.0 * done)
        found = self._scenes(random.Random(f"tower {self.seed} {number}"), self.size, easy)
        empty = torch.zeros(0, dtype=torch.long)
        return Batch(empty, empty, empty, (look(found),))

    def picture(self, number: int) -> Batch:
        """Pictures with a question and an answer each, or two."""
        rng = random.Random(f"picture {self.seed} {number}")
        found = self._scenes(rng, self.size)
        rng = random.Random(f"questions {self.seed} {number} {self._worker}")
        roll = random.Random(f"length {self.seed} {number}").random()  # one for all rows: less padding
        samples = []
        for scene in found:
            turns = []
            for _ in range(2 if roll < 0.10 else 1):
                fact, question = pictures.ask(rng, scene)
                turns.append(Turn(question, fact.answer))
            if roll > 0.94:
                last = turns[-1]
                turns[-1] = Turn(last.question, last.answer, picture_thought(scene))
            samples.append(Sample(tuple(turns), images=1))
        return self.encoder.collate(samples, (look(found),))

    def several(self, number: int) -> Batch:
        """Two or three pictures in one question, half as many questions as in the other batches."""
        rng = random.Random(f"several {self.seed} {number}")
        slots = [self._scenes(rng, self.size // 2) for _ in range(2 if rng.random() < 0.8 else 3)]
        rng = random.Random(f"several questions {self.seed} {number} {self._worker}")
        samples = []
        for group in zip(*slots, strict=True):
            fact = rng.choice(pictures.several_facts(group, rng))
            question = pictures.worded(pictures.phrasing(rng, fact), fact)
            samples.append(Sample((Turn(question, fact.answer),), images=len(group)))
        return self.encoder.collate(samples, tuple(look(list(slot)) for slot in slots))


def look(found: list[Scene]) -> Seen:
    """The pictures and labels of scenes of one size."""
    pixels = np.stack([np.asarray(drawing.draw(scene)) for scene in found])
    labels = torch.tensor([scenes.labels(scene) for scene in found])
    whole = torch.tensor([scenes.summary(scene) for scene in found])
    return Seen(torch.from_numpy(pixels), labels, whole)


def picture_thought(scene: Scene) -> str:
    """What the model reasons before it answers about a picture."""
    return f"The user asks about the picture. {pictures.what(scene)}"
