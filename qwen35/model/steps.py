"""A few tokens after a kept state: by steps of decode, or by a pass as a longer prompt.

A pass computes whole chunks of rows, so one token of a prompt costs what a chunk does; a step reads every
weight for one row. `--steps N` runs up to N new tokens by steps, `auto` measures at load which N pays.

The two round differently: a chunk's recurrence, GEMM and GEMV kernels, where the MLP rounds. So with steps
an answer may depend, near a tie of two tokens, on whether a prompt's beginning was kept, and `auto` on a
stopwatch besides. That is why neither is the default: without them an answer is the same whatever was kept,
on every start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

__all__ = ["LONGEST_TRIAL", "MOST", "Steps", "chosen", "measured"]

MOST = 64
"""The most new tokens that may go by steps."""
_GAIN = 0.9
"""Steps are taken where they cost at most this share of a pass: what is even goes as a prompt does."""
_CEILING = 16
"""The most tokens that `auto` chooses: beyond them a stopwatch that erred is likelier than so dear a pass."""
_ROUNDS = 2


@dataclass(frozen=True)
class Steps:
    """Up to how many new tokens of a prompt are run by steps, and why so many."""

    count: int
    why: str

    def line(self) -> str:
        """For a person, on one line."""
        if not self.count:
            return f"new tokens of a prompt by passes alone: {self.why}"
        return f"up to {self.count} new token{'s' * (self.count != 1)} of a prompt by steps: {self.why}"


def chosen(
    wanted: int | str,
    prefill: Callable[[int], object],
    step: Callable[[int], object],
    reset: Callable[[], None],
) -> Steps:
    """What `--steps` says, or for auto what `prefill(tokens)` and `step(tokens)` cost on an empty state."""
    if isinstance(wanted, int):
        return Steps(wanted, "as asked" if wanted else "an answer does not depend on what was kept")

    def timed(run: Callable[[int], object]) -> Callable[[int], float]:
        def seconds(count: int) -> float:
            began = perf_counter()
            run(count)
            taken = perf_counter() - began
            reset()
            return taken

        return seconds

    return measured(timed(prefill), timed(step))


LONGEST_TRIAL = 3
"""Tokens of the longest trial."""


def measured(by_pass: Callable[[int], float], by_steps: Callable[[int], float]) -> Steps:
    """The largest count whose steps cost less than a pass by a tenth, by the better of two trials each.

    Both give the seconds that a prompt of so many tokens takes; a step without logits is the difference of
    one and three.
    """
    trials = [(by_pass(2), by_steps(1), by_steps(LONGEST_TRIAL)) for _ in range(_ROUNDS)]
    whole, one, three = (min(times) for times in zip(*trials, strict=True))
    step, count = max((three - one) / 2, one / 4), 0
    if one <= whole * _GAIN:
        count = min(1 + math.floor((whole * _GAIN - one) / step), _CEILING)
    times = f"a pass {whole * 1e3:.1f} ms, one token {one * 1e3:.1f} ms, each before it {step * 1e3:.1f} ms"
    return Steps(count, f"measured at load: {times}")
