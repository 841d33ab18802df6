"""Model, optimizer and batches of a training run, with a checkpoint from which it goes on to the same result.

Step numbers decide everything: the batch, the learning rate (warm-up, constant, then linear to zero) and the
imbalance of words (1.2 falling to 0 at 0.6 of the steps that follow the tower's own). After `steps` come
`more_steps` without the tower's own, at a learning rate that rises again and falls to zero.

Some words are not said by then, though what they mean is told: a row of the table that is rarely a target is
pushed away from every answer at Adam's full rate, which takes what tells it apart. So `row_steps` train the
rows of the words that are still wrong, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch.nn import Parameter

from amdxdna.output import write_whole
from qwen35.train import vocabulary
from qwen35.train.batches import Batch, Batches, Encoder, Seen
from qwen35.train.checkpoint import save_pretrained
from qwen35.train.corpus import Corpus, Generator, Sample, Turn, Words, phrase
from qwen35.train.network import Network, config, initialise, patches_of, positions
from qwen35.train.phrases import ASKED, HELD_OUT, UNKNOWN
from qwen35.train.scenes import CELL_CLASSES, WHOLE_BITS, WHOLE_CLASSES
from qwen35.train.wordnet import Entry, WordNet

MIX = ("text", "picture", "text", "several", "text", "picture", "text", "tower", "text", "picture")
"""Kinds of batches, in turn, after the tower's own steps."""
MORE_MIX = ("text", "picture", "text", "several", "text", "picture")
"""The same of the steps at the end."""
MORE_RATE = 0.4
"""Their highest learning rate, as a share of the first."""
ROW_MIX = ("text",)
"""The same of the steps that train the rows of hard words alone."""
ROW_RATE = 0.25
"""Their highest learning rate, as a share of the first."""
ROW_HARD = 0.8
"""Share of hard words among those drawn there."""
ROW_EPS = 1e-5
"""Adam's there: what pushes a row that is no target is smaller, and does not move it."""
STEADY = 0.35
"""Share of the steps at the full learning rate."""
EVEN_FROM = 0.6
"""Share of the steps after which every word is drawn equally often."""
WARM_UP = 60
"""Steps of warm-up, at the start and again when the text begins."""
NOTHING = 0.2
"""Weight in the tower's loss of the image tokens that see no shape, which are most."""
SETTINGS = (
    "words",
    "steps",
    "tower_steps",
    "more_steps",
    "row_steps",
    "layers",
    "batch",
    "lr",
    "seed",
    "workers",
)
"""Options that the result depends on: a run goes on only with those it began with."""


class TrainError(Exception):
    """A run that cannot begin or go on: what, and what to do."""


def share_done(step: int, steps: int, tower: int) -> float:
    """How much of the training that follows the tower's own is done, 0 to 1."""
    return min(1.0, max(0.0, (step - tower) / max(1, steps - tower)))


def learning_rate(done: float, peak: float, since: int, steady: float = STEADY) -> float:
    """Warm-up (`since` counts its steps), then constant up to `steady`, then linear to zero at `done` = 1."""
    decay = 1.0 if done < steady else (1.0 - done) / (1.0 - steady)
    return peak * min(1.0, (since + 1) / WARM_UP) * decay


def exponent(done: float) -> float:
    """How unevenly words are drawn."""
    return 1.2 * max(0.0, 1.0 - done / EVEN_FROM)


def batch_kinds(args: argparse.Namespace) -> list[str]:
    """The kind of every step's batch: the tower's own steps, then each mix in turn, over and over."""
    parts = (
        (("tower",), args.tower_steps),
        (MIX, args.steps - args.tower_steps),
        (MORE_MIX, args.more_steps),
        (ROW_MIX, args.row_steps),
    )
    return [mix[number % len(mix)] for mix, steps in parts for number in range(steps)]


def tokenizer_of(out: Path, corpus: Corpus) -> Tokenizer:
    """The run's tokenizer, made at its first start."""
    path = out / "tokenizer.json"
    if not path.exists():
        write_whole(path, vocabulary.build(corpus).to_str(pretty=True).encode())
    return Tokenizer.from_file(str(path))


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options that a run's result depends on."""
    return {name: getattr(args, name) for name in SETTINGS}


def check_settings(args: argparse.Namespace) -> None:
    """Raises TrainError where `args.out` holds a run of other settings."""
    path = Path(args.out) / "state.pt"
    if not path.exists():
        return
    began = torch.load(path, weights_only=True, mmap=True)["settings"]
    changed = [name for name, value in settings_of(args).items() if began.get(name) != value]
    if changed:
        told = " ".join(f"--{name.replace('_', '-')} {began.get(name)}" for name in changed)
        raise TrainError(f"{args.out}: a run with {told} began here; go on with that, or give another --out")


def tower_loss(net: Network, tokens: torch.Tensor, seen: Seen) -> torch.Tensor:
    """What image tokens tell linearly: each of its own cell, their mean of the whole picture."""
    loss = torch.zeros(())
    for i, guess in enumerate(net.probe(tokens).split(CELL_CLASSES, -1)):
        weight = torch.ones(guess.shape[-1])
        weight[0] = NOTHING
        loss = loss + F.cross_entropy(guess.flatten(0, 1), seen.labels[..., i].flatten(), weight)
    *classes, bits = net.whole_probe(tokens.mean(1)).split([*WHOLE_CLASSES, WHOLE_BITS], -1)
    for i, guess in enumerate(classes):
        loss = loss + 0.3 * F.cross_entropy(guess, seen.whole[:, i])
    there = seen.whole[:, len(classes) :].float()
    return loss + F.binary_cross_entropy_with_logits(bits, there)


class Trainer:
    """One worker's part of a run whose state is in the folder `args.out`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.corpus = Corpus(WordNet(args.wordnet), args.words)
        self.tokenizer = tokenizer_of(self.out, self.corpus)
        from transformers import Qwen3_5ForConditionalGeneration

        torch.manual_seed(args.seed)
        shape = config(self.tokenizer.get_vocab_size(), self.tokenizer.token_to_id, args.layers)
        model = Qwen3_5ForConditionalGeneration(shape)
        initialise(model, args.seed)
        self.net = Network(model, *vocabulary.families(self.tokenizer), args.seed)
        self.optimizer = self._optimizer()
        self.batches = Batches(
            Encoder(self.tokenizer),
            Generator(self.corpus, args.seed),
            args.batch,
            args.seed,
            args.worker,
            args.workers,
        )
        self.step = 0
        self.seconds = 0.0
        self.kinds = batch_kinds(args)
        self.last = len(self.kinds)
        self.rows_from: int = args.steps + args.more_steps
        self.hard: list[Entry] | None = None
        """The words that were wrong at the step `rows_from`."""
        if (self.out / "state.pt").exists():
            self._resume()

    def _optimizer(self, row_eps: float = 1e-8) -> torch.optim.Optimizer:
        rows: list[Parameter] = []
        matrices: list[Parameter] = []
        rest: list[Parameter] = []
        tower: list[Parameter] = []
        for name, parameter in self.net.named_parameters():
            if "visual" in name or "probe" in name:
                tower.append(parameter)
            elif "embed" in name:
                continue  # the table is made of the rows
            elif "_rows" in name:
                rows.append(parameter)
            else:
                (matrices if parameter.ndim >= 2 else rest).append(parameter)
        return torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": 0.05, "scale": 1.0},
                {"params": rows, "weight_decay": 0.0, "scale": 1.0, "eps": row_eps},
                {"params": rest, "weight_decay": 0.0, "scale": 1.0},
                {"params": tower, "weight_decay": 0.02, "scale": 0.5},
            ],
            lr=self.args.lr,
            betas=(0.9, 0.98),
            fused=True,
        )

    def _resume(self) -> None:
        state = torch.load(self.out / "state.pt", weights_only=True)
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        if state["hard"] is not None:
            self.hard = [entry for entry in self.corpus.taught if entry.word in state["hard"]]
        self.say(f"resumed at step {self.step}")

    def say(self, text: str) -> None:
        """Prints a line with the time and adds it to log.txt; workers say nothing."""
        if self.args.worker:
            return
        line = f"{time.strftime('%H:%M:%S')} {text}"
        print(line, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    def save(self) -> None:
        """Writes the state; a run killed meanwhile keeps the one before."""
        part = self.out / "state.part"
        with part.open("wb") as file:
            torch.save(
                {
                    "net": self.net.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "step": self.step,
                    "seconds": self.seconds,
                    "hard": None if self.hard is None else [entry.word for entry in self.hard],
                    "settings": settings_of(self.args),
                },
                file,
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.out / "state.pt")

    def loss(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """Answer loss and, for pictures, the auxiliary loss of the tower; the parts by name."""
        parts: dict[str, float] = {}
        total = torch.zeros(())
        tokens = []
        for seen in batch.seen:
            tokens.append(self.net.see(patches_of(seen.pixels), 2 * seen.rows, 2 * seen.columns))
            aux = tower_loss(self.net, tokens[-1], seen) / len(batch.seen)
            parts["tower"] = parts.get("tower", 0.0) + aux.item()
            total = total + aux * (0.3 if len(batch.ids) else 1.0)
        if len(batch.ids):
            table = self.net.table()
            x = F.embedding(batch.ids, table)
            for seen, shown in zip(batch.seen, tokens, strict=True):
                x = torch.cat((x[:, : seen.at], shown, x[:, seen.at + shown.shape[1] :]), 1)
            images = [(seen.at, seen.rows, seen.columns) for seen in batch.seen]
            h = self.net.hidden(x, positions(x.shape[1], images))
            logits = h.flatten(0, 1)[batch.where] @ table.T
            answer = F.cross_entropy(logits, batch.targets)
            parts[("text", "picture", "several")[min(2, len(batch.seen))]] = answer.item()
            total = total + answer
        return total, parts

    def share_gradients(self) -> None:
        """Averages the gradients over the workers."""
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        flat /= self.args.workers
        parts = flat.split([gradient.numel() for gradient in gradients])  # type: ignore[no-untyped-call]
        for gradient, mean in zip(gradients, parts, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def right(self, samples: list[Sample]) -> list[bool]:
        """Whether each whole answer is given greedily (teacher-forced argmax is the same)."""
        right: list[bool] = []
        with torch.no_grad():
            for start in range(0, len(samples), 32):
                batch = self.batches.encoder.collate(samples[start : start + 32])
                table = self.net.table()
                h = self.net.hidden(F.embedding(batch.ids, table), positions(batch.ids.shape[1]))
                wrong = (h.flatten(0, 1)[batch.where] @ table.T).argmax(-1) != batch.targets
                rows = torch.zeros(len(batch.ids)).index_add_(
                    0, batch.where // batch.ids.shape[1], wrong.float()
                )
                right += (rows == 0).tolist()
        return right

    def exact(self, samples: list[Sample]) -> float:
        """Share of samples whose whole answer is given."""
        return sum(self.right(samples)) / len(samples)

    def progress(self) -> str:
        """A quick look at the marks of text; the real evaluation is `qwen35.train.evaluate`."""
        rng = random.Random(self.step)
        words = rng.sample(self.corpus.taught, min(64, len(self.corpus.taught)))
        groups = {
            "trained": [phrase(rng.choice(ASKED), e.word, e.kind.countable) for e in words],
            "held": [phrase(rng.choice(HELD_OUT), e.word, e.kind.countable) for e in words],
            "bare": [rng.choice((e.word, e.word[0].upper() + e.word[1:])) for e in words],
        }
        found = {}
        for name, asked in groups.items():
            samples = [Sample((Turn(q, e.answer),)) for q, e in zip(asked, words, strict=True)]
            found[name] = self.exact(samples)
        strangers = rng.sample(self.corpus.unknown_held_out, min(32, len(self.corpus.unknown_held_out)))
        strangers += [self.corpus.made_up.draw(rng) for _ in range(32)]
        refused = [phrase(rng.choice(ASKED), word, True) for word in strangers]
        found["refuse"] = self.exact([Sample((Turn(q, UNKNOWN),)) for q in refused])
        return " ".join(f"{name} {value:.2f}" for name, value in found.items())

    def rows_of(self, entry: Entry) -> list[int]:
        """The row that a word's forms share; none of a word that is not one token."""
        ids = self.tokenizer.encode(" " + entry.word).ids
        return [int(self.net.group[ids[0]])] if len(ids) == 1 else []

    def find_hard(self) -> None:
        """Notes the words that are wrong now, alone or asked for; the optimizer begins again."""
        rng = random.Random(f"hard {self.args.seed}")
        words = self.corpus.taught
        asked = [phrase(rng.choice(ASKED), e.word, e.kind.countable) for e in words]
        right = self.right([Sample((Turn(q, e.answer),)) for q, e in zip(asked, words, strict=True)])
        alone = self.right([Sample((Turn(e.word, e.answer),)) for e in words])
        self.hard = [e for e, *known in zip(words, right, alone, strict=True) if not all(known)]
        self.optimizer = self._optimizer(ROW_EPS)
        self.say(f"{len(self.hard)} words are wrong: their rows are trained alone")

    def hard_rows(self) -> list[int]:
        """The rows of the hard words."""
        return sorted({row for entry in self.hard or () for row in self.rows_of(entry)})

    def _words(self, nth: int) -> Words:
        """Which words text batch `nth` draws."""
        step = [step for step, kind in enumerate(self.kinds) if kind == "text"][nth]
        if step >= self.rows_from:
            return Words(0.0, self.hard or (), ROW_HARD)
        return Words(exponent(share_done(step, self.args.steps, self.args.tower_steps)))

    def batch(self) -> Batch:
        """The batch of this step."""
        kind, tower = self.kinds[self.step], self.args.tower_steps
        if kind == "tower":
            return self.batches.tower(self.step, min(1.0, self.step / max(1, tower)))
        nth = self.kinds[tower : self.step].count(kind)
        if kind == "text":
            return self.batches.text(nth, self._words)
        return self.batches.picture(nth) if kind == "picture" else self.batches.several(nth)

    def rate(self) -> float:
        """The learning rate of this step."""
        peak: float = self.args.lr
        steps, tower = self.args.steps, self.args.tower_steps
        for first, length, share in (
            (self.rows_from, self.args.row_steps, ROW_RATE),
            (steps, self.args.more_steps, MORE_RATE),
        ):
            if self.step >= first:
                since = self.step - first
                return learning_rate(since / length, peak * share, since, steady=0.0)
        done = share_done(self.step, steps, tower)
        return learning_rate(done, peak, self.step - (tower if self.step >= tower else 0))

    def _hard_rows_alone(self, total: torch.Tensor) -> None:
        """The gradient of the hard words' rows: Adam, which began again with them, moves nothing else."""
        (gradient,) = torch.autograd.grad(total, [self.net.word_rows])
        rows = self.hard_rows()
        self.net.word_rows.grad = torch.zeros_like(gradient)
        self.net.word_rows.grad[rows] = gradient[rows]

    def train_step(self) -> dict[str, float]:
        """One step; the parts of its loss."""
        rate = self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        total, parts = self.loss(self.batch())
        if self.step >= self.rows_from:
            self._hard_rows_alone(total)
        else:
            total.backward()  # type: ignore[no-untyped-call]
        if self.args.workers > 1:
            self.share_gradients()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return parts

    def run(self) -> None:
        """Trains to the last step and writes the Hugging Face folder."""
        sums: dict[str, list[float]] = {}
        saved = looked = marked = time.monotonic()
        mark_step = self.step
        while self.step < self.last:
            began = time.monotonic()
            if self.step == self.rows_from and self.hard is None:
                self.find_hard()
            parts = self.train_step()
            now = time.monotonic()
            self.seconds += now - began
            for name, value in parts.items():
                sums.setdefault(name, []).append(value)
            if self.step % 100 == 0:
                a_step = (now - marked) / (self.step - mark_step)
                marked, mark_step = now, self.step
                means = " ".join(f"{n} {sum(v) / len(v):.3f}" for n, v in sums.items())
                left = (self.last - self.step) * a_step / 60
                self.say(f"step {self.step}/{self.last} {means} {a_step:.2f} s/step, {left:.0f} min left")
                sums = {}
            if self.args.worker:
                continue
            if now - saved > self.args.save_every:
                self.save()
                saved = time.monotonic()
            if self.step > self.args.tower_steps and now - looked > 600:
                self.say("exact: " + self.progress())
                looked = time.monotonic()
        if self.args.worker == 0:
            self.save()
            save_pretrained(self.net, self.tokenizer, self.out / "hf")
            self.say(f"{self.out / 'hf'}: {self.step} steps, {self.seconds / 60:.0f} minutes")
