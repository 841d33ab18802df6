"""What drafts of the prompt gain where they come true, and cost where nothing repeats.

Drafts are scripted, so how much of them comes true is known, on the timed device (qwen35.bench.timed): there
a pass and a token cost what they cost on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from qwen35.bench.figures import Printer, median
from qwen35.bench.text import Subject
from qwen35.drafts import LONGEST, Drafts
from qwen35.engine import Session, generate
from qwen35.stats import Stats

__all__ = ["draft_figures"]

SHARES = (0, 25, 50, 75, 100)
"""Per cent of a draft's tokens that come true, the first ones; the next draft begins behind them."""
_PROMPT = 64
LOOKED_AT = (1024, 8192, 32768)


def draft_figures(subject: Subject, out: Printer, context: int, count: int, repeats: int) -> None:
    """Tokens with drafts over plain ones at `context`, by acceptance; and answers that repeat nothing."""
    limit = min(LONGEST, subject.model.draft_limit)
    if subject.emulated:
        with subject.mode("timed"):
            for share in SHARES:
                _accepted(subject, out, context, limit, limit * share // 100, repeats)
            _overhead(subject, out, "timed", count, repeats)
    _overhead(subject, out, "real", count, repeats)
    for length in LOOKED_AT:
        out.add("draft_look", _look(length) * 1e6, "us", context=length, of="the search, a token")


def _accepted(subject: Subject, out: Printer, context: int, limit: int, accepted: int, repeats: int) -> None:
    """Wall time and the NPU's own; the state's way to the accepted token is in it, with the next draft."""
    pairs = []
    for _ in range(repeats):
        subject.fill(context)
        plain = [subject.timed(lambda t=token: subject.model.decode(t)) for token in range(6)]  # type: ignore[misc]
        subject.fill(context)
        drafted = [subject.timed(lambda t=turn: _draft(subject, limit, accepted, t)) for turn in range(3)]  # type: ignore[misc]
        pairs.append([median(run[kind] for run in runs[1:]) for kind in (0, 1) for runs in (plain, drafted)])
    each = accepted + 1
    where: dict[str, Any] = {
        "accepted": f"{round(100 * accepted / limit)}%",
        "draft": limit,
        "context": context,
    }
    out.add("timed_draft_token", 1e3 * median(pair[1] for pair in pairs) / each, "ms", **where)
    for name, at in (("timed_draft_speed", 0), ("timed_draft_speed_npu", 2)):
        ratio = median(each * pair[at] / pair[at + 1] for pair in pairs)
        out.add(name, ratio, "x", **where, pairs=repeats, of="plain tokens")


def _draft(subject: Subject, limit: int, accepted: int, turn: int) -> None:
    """A draft's pass, and what of it comes true."""
    ids = [(1 + turn * (limit + 1) + index) % subject.model.config.vocab_size for index in range(limit + 1)]
    subject.model.decode(ids[0], ids[1:])
    for token in ids[1 : accepted + 1]:
        subject.model.decode(token)


def _overhead(subject: Subject, out: Printer, device: str, count: int, repeats: int) -> None:
    """Answers of tokens that were never there, with and without drafts, in turns."""
    order = np.random.default_rng(1).permutation(subject.model.config.vocab_size)
    pairs = []
    for turn in range(2 * repeats + 1):
        seconds = {}
        for draft in (True, False) if turn % 2 else (False, True):
            script: Iterator[int] = iter(order[_PROMPT:].tolist())
            stats = Stats()
            run = generate(
                Session(subject.model, None),
                order[:_PROMPT].tolist(),
                lambda _, script=script: next(script),  # type: ignore[misc]
                max_new=count,
                stats=stats,
                draft=draft,
            )
            for _ in run:
                pass
            seconds[draft] = stats.decode_s
        pairs.append(seconds[True] / seconds[False])
    out.add(
        "draft_overhead",
        median(pairs),
        "x",
        "at most x 1.05",
        context=_PROMPT,
        device=device,
        pairs=len(pairs),
        of="an answer that repeats nothing",
    )


def _look(length: int) -> float:
    """Seconds of a search in a text of a language's shape: few tokens are frequent, and none is drafted."""
    ids = np.random.default_rng(2).zipf(1.3, length + 200) % 100_000
    drafts = Drafts(ids[:length].tolist(), LONGEST)
    answer = ids[length:].tolist()
    began = time.perf_counter()
    for token in answer:
        drafts.next(token, LONGEST)
    return (time.perf_counter() - began) / len(answer)
