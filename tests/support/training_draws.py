"""What the seeds of the training and of its score draw: digests of what is exact, coarse means of pictures.

`python -m tests.support.training_draws` writes the file that tests/qwen35/train/test_train_seeds.py reads.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from qwen35.train import cases, grounds, pictures, run, scenes, sdf, vocabulary
from qwen35.train.batches import Batch, Batches, Encoder
from qwen35.train.corpus import Corpus, Generator, Words
from qwen35.train.drawing import draw
from qwen35.train.trainer import Trainer, batch_kinds
from qwen35.train.wordnet import WordNet
from tests.support import tiny_wordnet

FILE = Path(__file__).parents[1] / "qwen35/train/seeds.json"
GRID = 4
"""Parts of a picture's side whose colours are averaged."""


def _corpus() -> Corpus:
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus(WordNet(tiny_wordnet.make(Path(folder))))
        for part in ("noun", "verb", "adj", "adv"):
            corpus.net.words(part)  # read now
        return corpus


def _asked(found: list[cases.Case]) -> list[Any]:
    return [(case.mark, case.sample, case.whole, [image.shape for image in case.images]) for case in found]


def _scenes() -> list[scenes.Scene]:
    rng = random.Random("scenes")
    held = (False, None, True)
    found = [scenes.scene(rng, held[i % 3]) for i in range(600)]
    return found + [scenes.plain(rng, held[i % 3]) for i in range(200)]


def _questions() -> list[Any]:
    rng = random.Random("questions")
    found: list[Any] = [pictures.ask(rng, scene) for scene in _scenes()]
    for _ in range(100):
        facts = pictures.several_facts([scenes.scene(rng) for _ in range(rng.choice((2, 3)))], rng)
        found.append([(fact, pictures.worded(pictures.phrasing(rng, fact), fact)) for fact in facts])
    return found


class _Letters:
    """A tokenizer of one token a letter, which no release of a library changes."""

    def encode(self, text: str) -> Any:
        return SimpleNamespace(ids=[ord(letter) for letter in text.replace("<|vision_start|>", "\1")])

    def token_to_id(self, name: str) -> int:
        return {"<|vision_start|>": 1, "<|endoftext|>": 2}[name]


def _batches() -> list[Any]:
    def told(batch: Batch) -> list[Any]:
        seen = batch.seen
        shown = [(tuple(one.pixels.shape), one.labels.tolist(), one.whole.tolist(), one.at) for one in seen]
        return [batch.ids.tolist(), batch.where.tolist(), batch.targets.tolist(), shown]

    found = []
    for worker in (0, 1):
        tokenizer: Any = _Letters()
        made = Batches(Encoder(tokenizer), Generator(_corpus(), 3), 4, 3, worker, 2)
        uneven = Words(1.0, made.generator.corpus.taught[:2], 0.3)
        found += [told(made.text(n, lambda first, given=uneven: given)) for n in (0, 3, 9, 20)]
        found += [told(made.tower(n, n / 8)) for n in range(9)]
        found += [told(make(n)) for n in range(24) for make in (made.picture, made.several)]
    return found


def _schedule() -> list[Any]:
    """Kind, number, learning rate and unevenness of words at steps of the whole training."""
    args: Any = run.parser().parse_args(["--wordnet", "", "--out", ""])
    made: Any = Trainer.__new__(Trainer)
    made.args, made.rows_from, made.hard = args, args.steps + args.more_steps, ["hard"]
    made.kinds = batch_kinds(args)
    made.batches = SimpleNamespace(text=lambda nth, words: ("text", nth, words(nth)))
    for kind in ("picture", "several", "tower"):
        setattr(made.batches, kind, lambda *given, kind=kind: (kind, *given))
    found = []
    for step in range(0, made.rows_from + args.row_steps, 7):
        made.step = step
        found.append((made.batch(), f"{made.rate():.6e}"))
    return found


EXACT: dict[str, Callable[[], Any]] = {
    "conversations": lambda: [
        [made.text(Words(uneven)) for _ in range(2500)]
        for made in [Generator(_corpus(), 1)]
        for uneven in (1.2, 0.3, 0.0)
    ],
    "marks": lambda: cases.MARKS,
    "scored words": lambda: _asked(cases.words(_corpus(), 4, 7)),
    "scored pictures": lambda: _asked(cases.looks(8, 7)),
    "scenes": lambda: [(scene, scenes.labels(scene), scenes.summary(scene)) for scene in _scenes()],
    "questions": _questions,
    "drawings": lambda: [(d.mark, d.question, d.says) for d in sdf.tests(7, 0.1)],
    "tokens": lambda: [
        (sorted(made.get_vocab().items()), vocabulary.families(made))
        for made in [vocabulary.build(_corpus(), merges=300, samples=600)]
    ],
    "batches": _batches,
    "schedule": _schedule,
}
"""What is the same to the last character wherever it is drawn."""


def digest(name: str) -> str:
    """Of all that one of `EXACT` draws."""
    return hashlib.sha256(repr(EXACT[name]()).encode()).hexdigest()[:16]


def colours(image: Any) -> np.ndarray:
    """Mean colours [GRID, GRID, 3] of a picture's parts, in hundredths of a level."""
    pixels = np.asarray(image, np.float64)
    rows, columns = (np.arange(size) * GRID // size for size in pixels.shape[:2])
    sums = np.zeros((GRID, GRID, 3))
    np.add.at(sums, (rows[:, None], columns[None]), pixels)
    counts = np.bincount(rows)[:, None] * np.bincount(columns)[None]
    return np.rint(100 * sums / counts[..., None]).astype("<u2")


def drawn() -> np.ndarray:
    """Of scenes of every kind and of the independent generator's drawings."""
    found = [colours(draw(scene)) for scene in _scenes()[::8]]
    for seed in range(4):
        for make in grounds.SHAPELESS.values():
            found.append(colours(make(np.random.default_rng(seed), 64, 96)))
        found += [
            colours(grounds.ground(kind, (9, 90, 200), (250, 80, 40), 64, 96, seed))
            for kind in grounds.GROUNDS
        ]
    found += [colours(image) for test in sdf.tests(7, 0.1) for image in test.pictures]
    return np.stack(found)


def kept() -> tuple[dict[str, str], np.ndarray]:
    """What the file holds: digests, and colours [pictures, GRID, GRID, 3]."""
    table = json.loads(FILE.read_text())
    packed = np.frombuffer(base64.b64decode(table["pictures"]), "<u2")
    return table["exact"], packed.reshape(-1, GRID, GRID, 3)


if __name__ == "__main__":
    told = {"exact": {name: digest(name) for name in EXACT}, "pictures": base64.b64encode(drawn()).decode()}
    FILE.write_text(json.dumps(told, indent=1) + "\n")
