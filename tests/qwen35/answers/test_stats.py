"""qwen35.stats: rates, the line for a person, the values for a program; and what is never changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from qwen35 import AnswerOptions, Info, Sampling
from qwen35.bench.figures import Figure
from qwen35.sampling import TokenLogprob
from qwen35.stats import Stats
from qwen35.template import Control, Data, ImageSlot, ImageSpan, Prompt, Shared, Start, Tokens

BASE = {"prompt_tokens": 1500, "prefill_s": 0.25, "first_token_s": 0.5, "new_tokens": 1}


def test_rates_are_of_what_was_computed() -> None:
    stats = Stats(prompt_tokens=30, cached_tokens=10, prefill_s=0.5, new_tokens=5, decode_s=2.0)
    assert (stats.prompt_tokens_per_s, stats.tokens_per_s) == (40, 2)
    assert Stats(new_tokens=2, decode_s=0.25).tokens_per_s == 4
    for none in (Stats(new_tokens=1, decode_s=1.0), Stats(new_tokens=5), Stats(prompt_tokens=5)):
        assert (none.tokens_per_s, none.prompt_tokens_per_s) == (0, 0)


def test_values_for_a_program() -> None:
    assert Stats().as_dict() == {
        "prompt_tokens": 0, "cached_tokens": 0, "image_tokens": 0, "new_tokens": 0, "reasoning_tokens": 0,
        "draft_passes": 0, "drafted_tokens": 0, "accepted_tokens": 0, "vision_s": 0, "prefill_s": 0,
        "first_token_s": 0, "decode_s": 0, "swaps": 0, "loads": 0, "finish": "", "seed": 0, "tokens_per_s": 0,
        "prompt_tokens_per_s": 0,
    }  # fmt: skip
    made = Stats(4, 1, new_tokens=4, prefill_s=1 / 7, decode_s=7.0, vision_s=1 / 3, seed=2**63).as_dict()
    assert (made["prefill_s"], made["vision_s"], made["seed"]) == (0.142857, 0.333333, 2**63)
    assert (made["tokens_per_s"], made["prompt_tokens_per_s"]) == (0.429, 21)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, "prompt 1,500 tokens in 250 ms, first token 500 ms, answer 1 token"),
        ({"cached_tokens": 1200},
         "prompt 1,500 tokens (1,200 cached) in 250 ms, first token 500 ms, answer 1 token"),
        ({"prefill_s": 0.9994, "first_token_s": 0.9995},
         "prompt 1,500 tokens in 999 ms, first token 1.00 s, answer 1 token"),
        ({"new_tokens": 2001, "decode_s": 4.0},
         "prompt 1,500 tokens in 250 ms, first token 500 ms, answer 2,001 tokens (500.0/s)"),
        ({"new_tokens": 0, "vision_s": 1.5},
         "prompt 1,500 tokens in 250 ms, vision 1.50 s, first token 500 ms, answer 0 tokens"),
    ],
)  # fmt: skip
def test_the_line_for_a_person(change: dict[str, Any], line: str) -> None:
    assert Stats(**{**BASE, **change}).line() == line


@pytest.mark.parametrize(
    ("change", "end"),
    [
        (
            {"draft_passes": 1, "accepted_tokens": 1000, "drafted_tokens": 2000},
            "1,000 of 2,000 tokens of 1 draft",
        ),
        ({"draft_passes": 2, "accepted_tokens": 0, "drafted_tokens": 64}, "0 of 64 tokens of 2 drafts"),
        ({"swaps": 1}, "1 context swap"),
        ({"swaps": 2}, "2 context swaps"),
        ({"finish": "length"}, "cut at --max-new"),
        ({"finish": "context"}, "the context is full"),
        ({"finish": "cancel"}, "stopped by you"),
        ({"finish": "loop"}, "stopped: it repeated itself"),
        ({"finish": "error"}, "ended by an error"),
        ({"finish": "stop"}, "answer 1 token"),
    ],
)
def test_the_lines_end(change: dict[str, Any], end: str) -> None:
    assert Stats(**{**BASE, **change}).line().endswith(f", {end}")


@pytest.mark.parametrize(
    "kind",
    [
        AnswerOptions, Control, Data, Figure, ImageSlot, ImageSpan, Info, Prompt, Sampling, Shared, Start,
        TokenLogprob, Tokens,
    ],
)  # fmt: skip
def test_what_is_never_changed(kind: type) -> None:
    with pytest.raises(FrozenInstanceError):
        kind.__new__(kind).text = ""
