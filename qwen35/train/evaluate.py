"""The scored evaluation: `python -m qwen35.train.evaluate --wordnet DIR --checkpoint DIR [--bundle DIR]`.

Answers are greedy. With `--bundle` the same prompts also run through this package on an NPU device (emulated
unless one is there), and the two lists of token ids are compared.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from amdxdna.output import write_whole
from qwen35.train import cases as scored
from qwen35.train.cases import MARKS, Case
from qwen35.train.checkpoint import stop_ids
from qwen35.train.corpus import Corpus, Sample, prompt
from qwen35.train.network import pixels_of
from qwen35.train.scenes import CELL
from qwen35.train.wordnet import WordNet

MAX_NEW = 64


@dataclass(frozen=True)
class Answer:
    """The token ids given, without the stop token, and float32's margin between the first two choices."""

    ids: list[int]
    margins: list[float]


class Reference:
    """transformers' float32 model of a checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import Qwen3_5ForConditionalGeneration

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model: Any = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        self.stop = frozenset(stop_ids(self.tokenizer))
        self.image: int = self.tokenizer.token_to_id("<|image_pad|>") or 0

    def prompt_ids(self, case: Case) -> list[int]:
        """The token ids of a case's prompt."""
        tokens = [image.shape[0] * image.shape[1] // CELL**2 for image in case.images]
        ids: list[int] = self.tokenizer.encode(prompt(case.sample, tokens)[0]).ids
        return ids

    def answers(self, batch: Sequence[Case]) -> list[Answer]:
        """Greedy answers of cases whose prompts have one length (and pictures one size).

        One forward over prompt and wanted answer first: where each wanted token is the likeliest, it is the
        greedy answer. Only the others are generated.
        """
        found = self._forced(batch)
        rest = [i for i, answer in enumerate(found) if answer is None]
        for i, answer in zip(rest, self._generated([batch[i] for i in rest]) if rest else [], strict=True):
            found[i] = answer
        return [answer for answer in found if answer is not None]

    def _forced(self, batch: Sequence[Case]) -> list[Answer | None]:
        wanted = [self.tokenizer.encode(_wanted(case.sample)).ids for case in batch]
        prompts = [self.prompt_ids(case) for case in batch]
        length = max(map(len, wanted))
        pad = min(self.stop)
        rows = [a + b + [pad] * (length - len(b)) for a, b in zip(prompts, wanted, strict=True)]
        ids = torch.tensor(rows)
        with torch.no_grad():
            logits = self.model(input_ids=ids, **self._pictures(batch, ids)).logits
        top = logits[:, len(prompts[0]) - 1 : -1].float().topk(2)
        margins = (top.values[..., 0] - top.values[..., 1]).tolist()
        found: list[Answer | None] = []
        for row, gaps, answer in zip(top.indices[..., 0].tolist(), margins, wanted, strict=True):
            same = row[: len(answer)] == answer
            found.append(Answer(answer[:-1], gaps[: len(answer)]) if same else None)
        return found

    def _pictures(self, batch: Sequence[Case], ids: torch.Tensor) -> dict[str, Any]:
        if not batch[0].images:
            return {}
        pixels, grid = pixels_of([image for case in batch for image in case.images])
        kinds = torch.eq(ids, self.image).int()
        return {"pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": kinds}

    def _generated(self, batch: Sequence[Case]) -> list[Answer]:
        ids = torch.tensor([self.prompt_ids(case) for case in batch])
        extra = self._pictures(batch, ids)
        with torch.no_grad():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=MAX_NEW,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
                **extra,
            )
        top = torch.stack([logits.float().topk(2).values for logits in out.logits], 1)
        margins = (top[..., 0] - top[..., 1]).tolist()
        found = []
        for row, gaps in zip(out.sequences[:, ids.shape[1] :].tolist(), margins, strict=True):
            end = next((i for i, token in enumerate(row) if token in self.stop), len(row))
            found.append(Answer(row[:end], gaps[: end + 1]))
        return found

    def text(self, case: Case, ids: list[int]) -> str:
        """What an answer says after its thought, or with it where the case judges that."""
        whole: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return whole if case.whole else whole.rpartition("</think>")[2].strip()


def batches(reference: Reference, cases: Sequence[Case], size: int = 32) -> list[list[int]]:
    """Indices of cases that can run together."""
    groups: dict[tuple[int, tuple[tuple[int, ...], ...]], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        shapes = tuple(image.shape for image in case.images)
        groups[(len(reference.prompt_ids(case)), shapes)].append(index)
    return [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]


def score(cases: Sequence[Case], texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Right answers and questions of each mark."""
    found: dict[str, tuple[int, int]] = {}
    for case, text in zip(cases, texts, strict=True):
        right, asked = found.get(case.mark, (0, 0))
        found[case.mark] = (right + case.right(text), asked + 1)
    return found


def before(score_file: Path) -> dict[str, float]:
    """Each mark's share in the float32 table of an earlier score.txt; empty where there is none."""
    found: dict[str, float] = {}
    names = sorted((mark.name for mark in MARKS), key=len, reverse=True)
    for line in score_file.read_text().splitlines() if score_file.exists() else ():
        name = next((n for n in names if line.startswith(n + " ")), None)
        share = re.match(r" +(\d+\.\d)% ", line[len(name) :]) if name else None
        if name and share:
            found.setdefault(name, float(share[1]) / 100)  # the bundle's table comes second
    return found


def table(found: dict[str, tuple[int, int]], was: dict[str, float] | None = None) -> str:
    """The score as lines of text; with an earlier score, what was and whether it fell by over a point."""
    lines = []
    rows = [(mark.name, mark.wanted, mark.meaning) for mark in MARKS]
    every = [counts for name, counts in found.items() if name.startswith("drawings: ")]
    if every:
        found = {**found, "drawings": (sum(a for a, _ in every), sum(b for _, b in every))}
        rows.append(("drawings", 0.85, "all of the independent generator's"))
    for name, wanted, meaning in rows:
        if name not in found:
            continue
        right, asked = found[name]
        share = right / asked
        met = "" if wanted is None else f"{wanted:.0%} {'met' if share >= wanted else 'MISSED'}"
        then = ""
        if was is not None:
            then = (
                f"was {was[name]:6.1%}{' WORSE' if share < was[name] - 0.01 else ''}"
                if name in was
                else "new"
            )
        told = f"{name:<32} {share:6.1%}  {right:5}/{asked:<5} {met:<12} "
        lines.append(told + (f"{then:<18} " if was is not None else "") + meaning)
    if was is not None:
        lines += [f"{name:<32} not scored; was {was[name]:.1%}" for name in was if name not in found]
    return "\n".join(lines)


def _wanted(sample: Sample) -> str:
    """What the model should answer with, of a sample with or without pictures."""
    return prompt(replace(sample, images=0))[1]


def compare(cases: Sequence[Case], wanted: Sequence[Answer], got: Sequence[list[int]]) -> dict[str, Any]:
    """Where two runs' greedy ids part, and how close float32's first two choices were there."""
    parted = []
    for case, answer, ids in zip(cases, wanted, got, strict=True):
        if answer.ids != ids:
            place = next((i for i, (a, b) in enumerate(zip(answer.ids, ids, strict=False)) if a != b), None)
            place = min(len(answer.ids), len(ids)) if place is None else place
            question = case.sample.turns[-1].question
            parted.append({"question": question, "token": place, "margin": answer.margins[place]})
    return {"answers": len(cases), "same": len(cases) - len(parted), "parted": parted}


SCORE = Path(__file__).with_name("score.txt")
"""The score of the default bundle."""


def every_case(corpus: Corpus, args: argparse.Namespace) -> list[Case]:
    """All that is asked."""
    share = min(1.0, args.pictures / 200)
    return [
        *scored.words(corpus, args.sample, args.seed),
        *scored.looks(args.pictures, args.seed),
        *scored.hand_written(corpus, args.seed),
        *scored.drawings(args.seed, share),
    ]


def evaluate(args: argparse.Namespace) -> Iterator[str]:
    """Scores a checkpoint, then a bundle where one is given: the parts of the report as they are known."""
    torch.set_num_threads(args.threads)
    corpus = Corpus(WordNet(args.wordnet), args.words)
    reference = Reference(args.checkpoint)
    cases = every_case(corpus, args)
    answers: list[Answer | None] = [None] * len(cases)
    begun = time.time()
    groups = batches(reference, cases)
    for done, group in enumerate(groups):
        for index, answer in zip(group, reference.answers([cases[i] for i in group]), strict=True):
            answers[index] = answer
        print(f"\r{done + 1}/{len(groups)} batches, {time.time() - begun:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    given = [answer for answer in answers if answer is not None]
    texts = [reference.text(case, answer.ids) for case, answer in zip(cases, given, strict=True)]
    found = score(cases, texts)
    lines = ["float32 (transformers):", table(found, before(args.before))]
    phrasings = len(scored.unseen()[0])
    if phrasings < scored.HAND_WRITTEN:
        lines.append(f"hand-written phrasings: {phrasings} of {scored.HAND_WRITTEN} are in data/unseen.txt")
    if args.wrong:
        for case, text in zip(cases, texts, strict=True):
            if not case.right(text):
                print(f"{case.mark}: {case.sample.turns[-1].question!r} -> {text!r}")
    report: dict[str, Any] = {"float32": found}
    yield "\n".join(lines) + "\n"
    if args.bundle:
        yield "\n".join(_of_bundle(args, reference, cases, given, report)) + "\n"
    if args.json:
        write_whole(args.json, (json.dumps(report, indent=1) + "\n").encode())


def _of_bundle(
    args: argparse.Namespace,
    reference: Reference,
    cases: Sequence[Case],
    given: Sequence[Answer],
    report: dict[str, Any],
) -> list[str]:
    """The same of a bundle on a device, for every so many questions."""
    from qwen35.train.npu import run_bundle

    step = max(1, len(cases) // args.compared)
    chosen = range(0, len(cases), step)
    prompts = [reference.prompt_ids(cases[i]) for i in chosen]
    got = run_bundle(args.bundle, args.device, prompts, [cases[i].images for i in chosen], MAX_NEW)
    told = report["bundle"] = compare([cases[i] for i in chosen], [given[i] for i in chosen], got)
    lines = ["", f"The bundle on the NPU or the emulated one, every {step}th question:"]
    lines.append(f"bundle: the same token ids in {told['same']} of {told['answers']} answers")
    for part in told["parted"]:
        lines.append(f"  {part['question']!r}: token {part['token']}, float32 margin {part['margin']:.3f}")
    texts = [reference.text(cases[i], ids) for i, ids in zip(chosen, got, strict=True)]
    report["npu"] = score([cases[i] for i in chosen], texts)
    return [*lines, table(report["npu"])]


def add_options(made: argparse.ArgumentParser) -> None:
    """What `evaluate` takes besides the training's own options."""
    made.add_argument("--compared", type=int, default=200, help="questions put to the bundle (default 200)")
    made.add_argument("--device", default="auto", help="NPU device of the bundle")
    made.add_argument("--sample", type=int, help="ask about this many of the words only")
    made.add_argument("--pictures", type=int, default=200, help="pictures for each mark (default 200)")
    made.add_argument(
        "--before", type=Path, default=SCORE, help="the score to compare with (default score.txt)"
    )
    made.add_argument("--json", type=Path, help="write the score here")
    made.add_argument("--wrong", action="store_true", help="print wrong answers")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    made = argparse.ArgumentParser(
        prog="python -m qwen35.train.evaluate", description="Scores the default model."
    )
    made.add_argument("--wordnet", required=True, help="wordnet-base's dict folder, /usr/share/wordnet")
    made.add_argument("--checkpoint", required=True, type=Path, help="Hugging Face folder of the training")
    made.add_argument("--bundle", type=Path, help="also run this bundle and compare token ids")
    made.add_argument("--words", type=int, help="words taught (default all)")
    made.add_argument("--seed", type=int, default=7)
    made.add_argument("--threads", type=int, default=2)
    add_options(made)
    for part in evaluate(made.parse_args(argv)):
        print(part, end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
