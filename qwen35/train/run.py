"""The training program: `python -m qwen35.train.run --wordnet /usr/share/wordnet --out DIR`.

Resumes from DIR by itself. The schedule depends on steps only: the share done after the tower's own steps
sets the learning rate (constant, then linear to zero) and the imbalance of words (1.2 falling to 0 at 0.6).
`--finish-in MINUTES` chooses the steps so that a run ends about then at the speed it measures.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch.nn import Parameter

from amdxdna.output import write_whole

from . import vocabulary
from .batches import Batch, Batches, Encoder
from .checkpoint import save_pretrained
from .corpus import Corpus, Generator, Sample, Turn, phrase
from .network import Network, config, initialise, patches_of, positions
from .phrases import ASKED, HELD_OUT, UNKNOWN
from .pictures import WHOLE
from .wordnet import WordNet

MIX = ("text", "picture", "text", "text", "picture", "text", "text", "tower")
"""Kinds of batches, in turn."""
STEADY = 0.35
"""Share of the steps at the full learning rate."""
EVEN_FROM = 0.6
"""Share of the steps after which every word is drawn equally often."""


def share_done(step: int, steps: int, tower: int) -> float:
    """How much of the training that follows the tower's own is done, 0 to 1."""
    return min(1.0, max(0.0, (step - tower) / max(1, steps - tower)))


def learning_rate(done: float, peak: float, since: int) -> float:
    """Warm-up over 60 steps (`since` counts them), then constant, then linear to zero at `done` = 1."""
    decay = 1.0 if done < STEADY else (1.0 - done) / (1.0 - STEADY)
    return peak * min(1.0, (since + 1) / 60) * decay


def exponent(done: float) -> float:
    """How unevenly words are drawn."""
    return 1.2 * max(0.0, 1.0 - done / EVEN_FROM)


class Trainer:
    """Model, optimizer and batches, with checkpoints in `out`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.corpus = Corpus(WordNet(args.wordnet), args.words)
        path = self.out / "tokenizer.json"
        if not path.exists():
            vocabulary.build(self.corpus).save(str(path))
        self.tokenizer = Tokenizer.from_file(str(path))
        from transformers import Qwen3_5ForConditionalGeneration

        shape = config(self.tokenizer.get_vocab_size(), self.tokenizer.token_to_id, args.layers)
        model = Qwen3_5ForConditionalGeneration(shape)
        initialise(model, args.seed)
        self.net = Network(model, *vocabulary.families(self.tokenizer), args.seed)
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
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": 0.05, "scale": 1.0},
                {"params": rows, "weight_decay": 0.0, "scale": 1.0},
                {"params": rest, "weight_decay": 0.0, "scale": 1.0},
                {"params": tower, "weight_decay": 0.02, "scale": 0.5},
            ],
            lr=args.lr,
            betas=(0.9, 0.98),
            fused=True,
        )
        self.batches = Batches(
            Encoder(self.tokenizer),
            Generator(self.corpus, args.seed),
            args.batch,
            args.seed,
            args.worker,
            args.workers,
        )
        self.step = 0
        self._steps = 0
        self.seconds = 0.0
        if (self.out / "state.pt").exists():
            state = torch.load(self.out / "state.pt", weights_only=True)
            self.net.load_state_dict(state["net"], strict=False)
            if "optimizer" in state:
                self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.seconds = state["step"], state["seconds"]
            self.say(f"resumed at step {self.step}")

    def say(self, text: str) -> None:
        if self.args.worker:
            return
        line = f"{time.strftime('%H:%M:%S')} {text}"
        print(line, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    def save(self) -> None:
        """Writes the state atomically."""
        part = self.out / "state.part"
        torch.save(
            {
                "net": self.net.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "seconds": self.seconds,
            },
            part,
        )
        os.replace(part, self.out / "state.pt")

    def loss(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """Answer loss and, for pictures, the auxiliary loss of the tower."""
        parts: dict[str, float] = {}
        total = torch.zeros(())
        seen = None
        if batch.pixels is not None:
            seen = self.net.see(patches_of(batch.pixels), *batch.grid)
            aux = self.tower_loss(seen, batch)
            parts["tower"] = aux.item()
            total = total + aux * (1.0 if not len(batch.ids) else 0.3)
        if len(batch.ids):
            table = self.net.table()
            x = F.embedding(batch.ids, table)
            rows, columns = batch.grid[0] // 2, batch.grid[1] // 2
            if seen is not None:
                at = batch.image_at
                x = torch.cat((x[:, :at], seen, x[:, at + rows * columns :]), 1)
            h = self.net.hidden(x, positions(x.shape[1], batch.image_at, rows, columns))
            logits = h.flatten(0, 1)[batch.where] @ table.T
            answer = F.cross_entropy(logits, batch.targets)
            parts["picture" if seen is not None else "text"] = answer.item()
            total = total + answer
        return total, parts

    def tower_loss(self, seen: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the image tokens tell linearly: each of its own cell, their mean of the whole picture."""
        assert batch.labels is not None and batch.whole is not None
        loss = torch.zeros(())
        for i, guess in enumerate(self.net.probe(seen).split([9, 7, 2], -1)):
            loss = loss + F.cross_entropy(guess.flatten(0, 1), batch.labels[..., i].flatten())
        for i, guess in enumerate(self.net.whole_probe(seen.mean(1)).split(WHOLE, -1)):
            loss = loss + 0.3 * F.cross_entropy(guess, batch.whole[:, i])
        return loss

    def share_gradients(self) -> None:
        """Averages the gradients over the workers."""
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        flat /= self.args.workers
        parts = flat.split([gradient.numel() for gradient in gradients])  # type: ignore[no-untyped-call]
        for gradient, mean in zip(gradients, parts, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def exact(self, samples: list[Sample]) -> float:
        """Share of samples whose whole answer is given greedily (teacher-forced argmax is the same)."""
        right = 0
        with torch.no_grad():
            for start in range(0, len(samples), 32):
                batch = self.batches.encoder.collate(samples[start : start + 32])
                table = self.net.table()
                h = self.net.hidden(F.embedding(batch.ids, table), positions(batch.ids.shape[1]))
                wrong = (h.flatten(0, 1)[batch.where] @ table.T).argmax(-1) != batch.targets
                rows = torch.zeros(len(batch.ids)).index_add_(
                    0, batch.where // batch.ids.shape[1], wrong.float()
                )
                right += int((rows == 0).sum())
        return right / len(samples)

    def progress(self) -> str:
        """A quick look at the marks; the real evaluation is `qwen35.train.evaluate`."""
        import random

        rng = random.Random(self.step)
        words = rng.sample(self.corpus.taught, 96)
        groups = {
            "trained": [phrase(rng.choice(ASKED), e.word, e.kind.countable) for e in words],
            "held": [phrase(rng.choice(HELD_OUT), e.word, e.kind.countable) for e in words],
            "bare": [rng.choice((e.word, e.word[0].upper() + e.word[1:])) for e in words],
        }
        found = {}
        for name, asked in groups.items():
            samples = [Sample((Turn(q, e.answer),)) for q, e in zip(asked, words, strict=True)]
            found[name] = self.exact(samples)
        refused = [phrase(rng.choice(ASKED), self.corpus.made_up.draw(rng), True) for _ in range(48)]
        refused += [phrase(rng.choice(ASKED), w, True) for w in rng.sample(self.corpus.unknown_held_out, 48)]
        found["refuse"] = self.exact([Sample((Turn(q, UNKNOWN),)) for q in refused])
        return " ".join(f"{name} {value:.2f}" for name, value in found.items())

    def batch(self) -> Batch:
        """The batch of this step: the tower alone at first, then `MIX` over and over."""
        number = self.step - self.args.tower_steps
        if number < 0:
            return self.batches.tower(self.step)
        cycle, place = divmod(number, len(MIX))
        kind = MIX[place]
        if kind == "tower":
            return self.batches.tower(self.step)
        nth = cycle * MIX.count(kind) + MIX[:place].count(kind)
        return self.batches.picture(nth) if kind == "picture" else self.batches.text(nth, exponent(self.done))

    @property
    def done(self) -> float:
        return share_done(self.step, self.steps, self.args.tower_steps)

    @property
    def steps(self) -> int:
        """Planned steps; `plan.json` in the folder changes them while a run goes on."""
        if self._steps == 0 or self.step % 20 == 0:
            plan = self.out / "plan.json"
            self._steps = int(json.loads(plan.read_text())["steps"] if plan.exists() else self.args.steps)
        return self._steps

    def plan(self, minutes: float, a_step: float) -> None:
        """Sets the planned steps so that the run ends in `minutes`."""
        planned = json.dumps({"steps": self.step + max(1, int(minutes * 60 / a_step))})
        write_whole(self.out / "plan.json", planned.encode())

    def finish(self) -> None:
        """Writes the Hugging Face folder of the state as it is."""
        save_pretrained(self.net, self.tokenizer, self.out / "hf")
        self.say(f"{self.out / 'hf'}: {self.step} steps, {self.seconds / 3600:.2f} hours")

    def run(self) -> None:
        """Trains to the last step."""
        sums: dict[str, list[float]] = {}
        begun = self.step
        deadline = time.time() + self.args.finish_in * 60 if self.args.finish_in else None
        saved = looked = marked = time.time()
        mark_step = self.step
        while self.step < self.steps:
            tower = self.args.tower_steps
            since = self.step - (tower if begun < tower <= self.step else begun)
            rate = learning_rate(self.done, self.args.lr, since)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            began = time.time()
            total, parts = self.loss(self.batch())
            total.backward()  # type: ignore[no-untyped-call]
            if self.args.workers > 1:
                self.share_gradients()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.seconds += time.time() - began
            self.step += 1
            for name, value in parts.items():
                sums.setdefault(name, []).append(value)
            if self.step % 100 == 0:
                now = time.time()
                a_step = (now - marked) / (self.step - mark_step)
                marked, mark_step = now, self.step
                if deadline and not self.args.worker and self.step > tower and (self.step // 100) % 5 == 0:
                    self.plan((deadline - now) / 60, a_step)
                means = " ".join(f"{n} {sum(v) / len(v):.3f}" for n, v in sums.items())
                left = (self.steps - self.step) * a_step / 60
                speed = f"lr {rate:.1e} {a_step:.2f} s/step, {left:.0f} min left"
                self.say(f"step {self.step}/{self.steps} {means} {speed}")
                sums = {}
            if self.args.worker:
                continue
            if time.time() - saved > 120:
                self.save()
                saved = time.time()
            if self.step > self.args.tower_steps and time.time() - looked > 400:
                self.say("exact: " + self.progress())
                looked = time.time()
        if self.args.worker == 0:
            self.save()
            self.say("exact: " + self.progress())
            self.finish()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m qwen35.train.run", description="Trains the default model on a CPU."
    )
    made.add_argument(
        "--wordnet", required=True, help="dict folder of Debian's wordnet-base, /usr/share/wordnet"
    )
    made.add_argument("--out", required=True, help="folder of the checkpoint, the log and the result")
    made.add_argument("--words", type=int, help="how many words to teach (default all)")
    made.add_argument("--steps", type=int, default=10500, help="planned steps in all (default 10500)")
    made.add_argument("--finish-in", type=float, help="minutes after which to end, instead of --steps")
    made.add_argument("--save-only", action="store_true", help="write the result of the saved state and stop")
    made.add_argument(
        "--tower-steps", type=int, default=2500, help="first steps that train the vision tower alone"
    )
    made.add_argument("--layers", type=int, default=4, help="layers, every fourth with softmax attention")
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--lr", type=float, default=2e-3)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--threads", type=int, default=1, help="threads of each worker (default 1)")
    made.add_argument("--workers", type=int, default=2, help="processes that share each batch (default 2)")
    return made


def main(argv: list[str] | None = None) -> None:
    args: Any = parser().parse_args(argv)
    if args.save_only:
        args.workers = 1
    if args.workers > 1:
        with tempfile.TemporaryDirectory() as folder:
            spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
            spawn(work, (args, folder), nprocs=args.workers)
    else:
        work(0, args, "")


def work(worker: int, args: Any, folder: str) -> None:
    """One worker; `folder` is where several find each other."""
    args.worker = worker
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.workers > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=worker, world_size=args.workers
        )
    trainer = Trainer(args)
    if args.save_only:
        trainer.finish()
    else:
        trainer.run()


if __name__ == "__main__":
    main()
