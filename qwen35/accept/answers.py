"""Whole answers: the bundle's recorded references, speed, and the ids of ten prompts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qwen35.accept.item import BUNDLE_FAULT, Item, Verdict
from qwen35.check.proof import checks
from qwen35.options import StepProgress
from qwen35.sampling import GREEDY

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.bundle import Bundle

__all__ = ["PROMPTS", "prompts", "references", "singly", "speed"]

PROMPTS = (
    "What is a whale?",
    "Why is the sky blue?",
    "Name three rivers.",
    "What is 17 plus 25?",
    "Write a line about rain.",
    "What is the capital of France?",
    "Translate to German: good morning.",
    "What is a hammer for?",
    "List two colours.",
    "Say hello.",
)
NEW = 16


def references(model: Qwen35, bundle: Bundle, progress: StepProgress | None) -> Iterator[Item]:
    """What `check` finds, an item each."""
    if model.vision is not None:
        model.vision.forget()
    verdicts = {True: Verdict.OK, False: Verdict.FAIL, None: Verdict.NOTE}
    for finding in checks(model, bundle, progress):
        damaged = finding.passed is False and finding.name in ("checksums", "tokenizer")
        values = {**finding.values, **(BUNDLE_FAULT if damaged else {})}
        yield Item(f"check: {finding.name}", verdicts[finding.passed], finding.text, values)


def prompts(model: Qwen35, chains: bool) -> Iterator[Item]:
    """Greedy ids and all logits of ten prompts, as single commands, and twice the same.

    Where chains are to be used, an item more: with chains they are the same too.
    """
    answers, logits = _answers(model)
    values = {"ids": answers}
    several = f"ids of {len(PROMPTS)} prompts"
    chained, why = _chained(model) if chains else (None, "")
    if chained != (answers, logits):  # or no chains: then this is the second time
        again = _answers(model)
        if again != (answers, logits):
            what = "ids" if again[0] != answers else "logits"
            text = f"the {what} of {len(PROMPTS)} prompts differ from run to run"
            yield Item("prompts", Verdict.FAIL, text, values)
            return
    yield Item("prompts", Verdict.OK, f"{several}, twice the same logits", values)
    if chains and (why or chained != (answers, logits)):
        what = "ids" if chained is not None and chained[0] != answers else "logits"
        yield Item("prompts in chains", Verdict.OFF, why or f"the {what} of {len(PROMPTS)} prompts differ")
    elif chains:
        yield Item("prompts in chains", Verdict.OK, f"{several}, with the logits of single commands")


Answers = tuple[list[list[int]], list[bytes]]


def _chained(model: Qwen35) -> tuple[Answers, str]:
    """The answers with chains, and why chains were given up meanwhile."""
    npu = model.model.npu  # type: ignore[attr-defined]
    npu.chains = True
    try:
        answers = _answers(model)
        return answers, "" if npu.chains else f"a chain failed: {npu.chains_why}"
    finally:
        npu.chains = False


def _answers(model: Qwen35) -> Answers:
    """Ids and a digest of all logits, by prompt."""
    ids: list[list[int]] = []
    digests: list[bytes] = []
    for text in PROMPTS:
        with _watched(model.model) as digest:
            reply = model.chat(text, max_new=NEW, sampling=GREEDY, loops=False, keep=False).result()
        ids.append([int(token) for token in reply.tokens])
        digests.append(digest.digest())
    return ids, digests


@contextmanager
def _watched(text: Any) -> Iterator[Any]:
    """Adds all logits that the model gives meanwhile to a digest."""
    digest = hashlib.blake2b(digest_size=16)

    def seen(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **more: Any) -> Any:
            logits = call(*given, **more)
            digest.update(logits)
            return logits

        return called

    for name in ("prefill", "decode"):
        setattr(text, name, seen(getattr(text, name)))
    try:
        yield digest
    finally:
        del text.prefill, text.decode


def singly(model: Qwen35) -> None:
    """What `prompts` does as single commands, once more."""
    _answers(model)


def speed(model: Qwen35, spent: Callable[[], float] = lambda: 0.0) -> Item:
    """Seconds of a prompt of 256 rows that all hold something, and of tokens after it; what `spent` counts
    meanwhile is no part of either."""
    text = model.model
    rows = min(256, text.max_ctx - 40)
    vocab = model.info.vocab
    ids = [(37 * place + 11) % vocab for place in range(rows)]
    began = time.perf_counter() - spent()
    model.prefill(ids)
    prompt = time.perf_counter() - spent() - began
    began = time.perf_counter() - spent()
    for token in ids[:32]:
        model.decode(token)
    token_ms = (time.perf_counter() - spent() - began) / 32 * 1e3
    return Item(
        "speed",
        Verdict.NOTE,
        f"a prompt of {rows} tokens {prompt:.2f} s, a token {token_ms:.1f} ms",
        {"prompt_tokens": rows, "prompt_s": prompt, "token_ms": token_ms},
    )
