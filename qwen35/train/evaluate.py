"""The scored evaluation: `python -m qwen35.train.evaluate --wordnet DIR --checkpoint DIR [--bundle DIR]`.

Answers are greedy. With `--bundle` the same prompts also run through this package on an NPU device (emulated
unless one is there), and the two lists of token ids are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from amdxdna.output import write_whole

from . import cases as scored
from .cases import MARKS, Case
from .checkpoint import stop_ids
from .corpus import Corpus, prompt
from .network import pixels_of
from .pictures import CELL, draw
from .wordnet import WordNet

MAX_NEW = 80


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
        tokens = case.scene.width * case.scene.height // CELL**2 if case.scene else 0
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
        wanted = [self.tokenizer.encode(prompt(case.sample)[1]).ids for case in batch]
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
        if batch[0].scene is None:
            return {}
        pixels, grid = pixels_of([draw(case.scene) for case in batch if case.scene])
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
    groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        shape = (case.scene.width, case.scene.height) if case.scene else (0, 0)
        groups[(len(reference.prompt_ids(case)), shape[0], shape[1])].append(index)
    return [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]


def score(cases: Sequence[Case], texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Right answers and questions of each mark."""
    found: dict[str, tuple[int, int]] = {}
    for case, text in zip(cases, texts, strict=True):
        right, asked = found.get(case.mark, (0, 0))
        found[case.mark] = (right + case.right(text), asked + 1)
    return found


def table(found: dict[str, tuple[int, int]]) -> str:
    """The score as lines of text."""
    lines = []
    for mark in MARKS:
        if mark.name in found:
            right, asked = found[mark.name]
            share = right / asked
            wanted = ""
            if mark.wanted is not None:
                wanted = f"{mark.wanted:.0%} {'met' if share >= mark.wanted else 'MISSED'}"
            lines.append(f"{mark.name:<28} {share:6.1%}  {right:5}/{asked:<5} {wanted:<12} {mark.meaning}")
    return "\n".join(lines)


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


def main(argv: list[str] | None = None) -> int:
    made = argparse.ArgumentParser(
        prog="python -m qwen35.train.evaluate", description="Scores the default model."
    )
    made.add_argument("--wordnet", required=True, help="wordnet-base's dict folder, /usr/share/wordnet")
    made.add_argument("--checkpoint", required=True, type=Path, help="Hugging Face folder of the training")
    made.add_argument("--bundle", type=Path, help="also run this bundle and compare token ids")
    made.add_argument("--compared", type=int, default=200, help="questions put to the bundle (default 200)")
    made.add_argument("--device", default="auto", help="NPU device of --bundle")
    made.add_argument("--words", type=int, help="words taught (default all)")
    made.add_argument("--sample", type=int, help="ask about this many of the words only")
    made.add_argument("--pictures", type=int, default=200, help="pictures for each mark (default 200)")
    made.add_argument("--seed", type=int, default=7)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--json", type=Path, help="write the score here")
    made.add_argument("--wrong", action="store_true", help="print wrong answers")
    args = made.parse_args(argv)
    torch.set_num_threads(args.threads)
    corpus = Corpus(WordNet(args.wordnet), args.words)
    reference = Reference(args.checkpoint)
    cases = scored.words(corpus, args.sample, args.seed) + scored.looks(args.pictures, args.seed)
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
    print(table(found))
    if args.wrong:
        for case, text in zip(cases, texts, strict=True):
            if not case.right(text):
                print(f"{case.mark}: {case.sample.turns[-1].question!r} -> {text!r}")
    report: dict[str, Any] = {"float32": found}
    if args.bundle:
        from .npu import run_bundle

        step = max(1, len(cases) // args.compared)
        chosen = range(0, len(cases), step)
        prompts = [reference.prompt_ids(cases[i]) for i in chosen]
        images = [draw(scene) if (scene := cases[i].scene) else None for i in chosen]
        got = run_bundle(args.bundle, args.device, prompts, images, MAX_NEW)
        report["bundle"] = compare([cases[i] for i in chosen], [given[i] for i in chosen], got)
        told = report["bundle"]
        print(f"bundle: the same token ids in {told['same']} of {told['answers']} answers")
        for part in report["bundle"]["parted"]:
            print(f"  {part['question']!r}: token {part['token']}, float32 margin {part['margin']:.3f}")
        told_on_npu = [reference.text(cases[i], ids) for i, ids in zip(chosen, got, strict=True)]
        npu = score([cases[i] for i in chosen], told_on_npu)
        report["npu"] = npu
        print(table(npu))
    if args.json:
        write_whole(args.json, (json.dumps(report, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
