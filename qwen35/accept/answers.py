"""Whole answers: the bundle's recorded references, speed, and the ids of ten prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qwen35.accept.item import Item, Verdict
from qwen35.check.proof import checks
from qwen35.sampling import GREEDY

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.bundle import Bundle

__all__ = ["PROMPTS", "prompts", "references", "speed"]

PROMPTS = (
    "What is a whale?", "Why is the sky blue?", "Name three rivers.", "What is 17 plus 25?",
    "Write a line about rain.", "What is the capital of France?", "Translate to German: good morning.",
    "What is a hammer for?", "List two colours.", "Say hello.",
)
NEW = 16


def references(model: Qwen35, bundle: Bundle, told: Callable[[str, int, int], None] | None) -> Iterator[Item]:
    """What `check` finds, an item each."""
    verdicts = {True: Verdict.OK, False: Verdict.FAIL, None: Verdict.NOTE}
    for finding in checks(model, bundle, told):
        yield Item(f"check: {finding.name}", verdicts[finding.passed], finding.text, finding.values)


def prompts(model: Qwen35, chains: bool) -> Item:
    """Greedy ids of ten prompts, as single commands and, where chains are to be used, as chains too."""
    ids = _ids(model)
    values = {"ids": ids}
    if chains:
        npu = model.model.npu  # type: ignore[attr-defined]
        npu.chains = True
        try:
            again = _ids(model)
            failed = not npu.chains
        finally:
            npu.chains = False
        if again != ids or failed:
            text = "with chains the ids of ten prompts differ, or a chain failed"
            return Item("prompts", Verdict.FAIL, text, values)
    elif _ids(model) != ids:
        return Item("prompts", Verdict.FAIL, "the ids of ten prompts differ from run to run", values)
    return Item("prompts", Verdict.OK, f"ids of {len(PROMPTS)} prompts, twice the same"
                + (", singly and as chains" if chains else ""), values)


def _ids(model: Qwen35) -> list[list[int]]:
    replies = (model.chat(text, max_new=NEW, sampling=GREEDY, loops=False).result() for text in PROMPTS)
    return [[int(token) for token in reply.tokens] for reply in replies]


def speed(model: Qwen35) -> Item:
    """Seconds of a prompt of 256 rows that all hold something, and tokens a second after it."""
    text = model.model
    rows = min(256, text.max_ctx - 40)
    vocab = model.info.vocab
    ids = [(37 * place + 11) % vocab for place in range(rows)]
    began = time.perf_counter()
    model.prefill(ids)
    prompt = time.perf_counter() - began
    began = time.perf_counter()
    for token in ids[:32]:
        model.decode(token)
    token_ms = (time.perf_counter() - began) / 32 * 1e3
    return Item("speed", Verdict.NOTE, f"a prompt of {rows} tokens {prompt:.2f} s, a token {token_ms:.1f} ms",
                {"prompt_tokens": rows, "prompt_s": prompt, "token_ms": token_ms})
