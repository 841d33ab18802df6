"""Batches for training: a step number and a seed give one batch, so a run resumes where it stopped."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from . import pictures
from .corpus import Generator, Sample, Turn, render

POOL = 8
"""Text batches drawn together and sorted by length, which keeps padding small."""


@dataclass(frozen=True)
class Batch:
    """Ids [B, L] padded on the right; flat positions that predict a trained token, and their targets."""

    ids: Tensor
    where: Tensor
    targets: Tensor
    samples: tuple[Sample, ...]
    pixels: Tensor | None = None
    labels: Tensor | None = None
    whole: Tensor | None = None
    image_at: int = -1
    grid: tuple[int, int] = (0, 0)


class Encoder:
    """Samples to ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pad: int = tokenizer.token_to_id("<|endoftext|>") or 0
        self.image: int = tokenizer.token_to_id("<|image_pad|>") or 0

    def encode(self, sample: Sample, image_tokens: int = 0) -> tuple[list[int], list[bool]]:
        """Ids and whether each is trained on."""
        ids: list[int] = []
        trained: list[bool] = []
        for text, flag in render(sample, image_tokens):
            part = self.tokenizer.encode(text).ids
            ids += part
            trained += [flag] * len(part)
        return ids, trained

    def collate(self, samples: list[Sample], image_tokens: int = 0) -> Batch:
        """Pads samples into one batch."""
        rows = [self.encode(sample, image_tokens) for sample in samples]
        length = max(len(ids) for ids, _ in rows) - 1
        table = np.full((len(rows), length), self.pad, np.int64)
        where, targets = [], []
        for r, (ids, trained) in enumerate(rows):
            table[r, : len(ids) - 1] = ids[:-1]
            for i in range(1, len(ids)):
                if trained[i]:
                    where.append(r * length + i - 1)
                    targets.append(ids[i])
        image_at = rows[0][0].index(self.image) if image_tokens else -1
        return Batch(
            torch.from_numpy(table),
            torch.tensor(where),
            torch.tensor(targets),
            tuple(samples),
            image_at=image_at,
        )


class Batches:
    """Draws text, picture and tower-only batches by number; of `workers` each takes its share of a batch."""

    def __init__(
        self, encoder: Encoder, generator: Generator, size: int, seed: int, worker: int = 0, workers: int = 1
    ) -> None:
        self.encoder, self.generator, self.size, self.seed = encoder, generator, size, seed
        self._share = slice(worker, None, workers)
        self._pool: tuple[int, list[list[Sample]]] = (-1, [])

    def text(self, number: int, exponent: float) -> Batch:
        """Text batch `number`."""
        pool, place = divmod(number, POOL)
        if self._pool[0] != pool:
            self.generator.rng = rng = random.Random(f"text {self.seed} {pool}")
            drawn = [self.generator.text(exponent) for _ in range(POOL * self.size)]
            drawn.sort(key=lambda s: sum(len(t) for t, _ in render(s)))
            groups = [drawn[i : i + self.size] for i in range(0, len(drawn), self.size)]
            rng.shuffle(groups)
            self._pool = (pool, groups)
        return self.encoder.collate(self._pool[1][place][self._share])

    def scenes(self, number: int, tag: str, size: int) -> tuple[random.Random, list[pictures.Scene], Tensor]:
        """Scenes of one size, and their pixels [B, H, W, 3] uint8."""
        rng = random.Random(f"{tag} {self.seed} {number}")
        scenes: list[pictures.Scene] = []
        while len(scenes) < size:
            found = pictures.scene(rng)
            if not scenes or (found.width, found.height) == (scenes[0].width, scenes[0].height):
                scenes.append(found)
        scenes = scenes[self._share]
        pixels = np.stack([np.asarray(pictures.draw(s)) for s in scenes])
        return rng, scenes, torch.from_numpy(pixels)

    def tower(self, number: int) -> Batch:
        """Pictures with per-token labels only."""
        _, scenes, pixels = self.scenes(number, "tower", self.size)
        empty = torch.zeros(0, dtype=torch.long)
        grid = (pixels.shape[1] // pictures.PATCH, pixels.shape[2] // pictures.PATCH)
        labels = torch.tensor([pictures.labels(s) for s in scenes])
        whole = torch.tensor([pictures.summary(s) for s in scenes])
        return Batch(empty, empty, empty, (), pixels, labels, whole, -1, grid)

    def picture(self, number: int) -> Batch:
        """Pictures with a question and an answer each."""
        rng, scenes, pixels = self.scenes(number, "picture", self.size)
        samples = []
        for scene in scenes:
            kind, question, answer = pictures.ask(rng, scene)
            reason = picture_thought(scene, kind) if rng.random() < 0.08 else None
            samples.append(Sample((Turn(question, answer, reason),), image=True))
        grid = (pixels.shape[1] // pictures.PATCH, pixels.shape[2] // pictures.PATCH)
        plain = self.encoder.collate(samples, grid[0] * grid[1] // 4)
        labels = torch.tensor([pictures.labels(s) for s in scenes])
        whole = torch.tensor([pictures.summary(s) for s in scenes])
        return replace(plain, pixels=pixels, labels=labels, whole=whole, grid=grid)


def picture_thought(scene: pictures.Scene, kind: str) -> str:
    """What the model reasons before it answers about a picture."""
    what = pictures.about(scene)["what"]
    return f"The user asks about the picture. {what}"
