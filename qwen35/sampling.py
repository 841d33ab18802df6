"""Choosing the next token from logits, and noticing that an answer has begun to repeat itself.

The filters are applied in this order: penalties, temperature, top-k, top-p, min-p; each works on what the one
before left, renormalised (the order of transformers' logits processors).
"""

from __future__ import annotations

import math
import numbers
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from qwen35.arguments import stop_strings
from qwen35.errors import NoNumbers, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "GREEDY",
    "Constraint",
    "LoopDetector",
    "Sampler",
    "Sampling",
    "StopStrings",
    "TokenLogprob",
    "candidates",
    "card_sampling",
]


_WHOLE = ("top_k", "seed", "logprobs")


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    temperature         0 takes the most probable token (greedy), whatever the other filters say
    top_k               keep the k most probable; 0 keeps all
    top_p               keep the smallest set of most probable tokens whose mass reaches p; 1 keeps all
    min_p               keep tokens at least this fraction as probable as the most probable one
    repetition_penalty  divides positive and multiplies negative logits of tokens in the prompt or the answer
    presence_penalty    subtracted from the logits of tokens already in the answer
    frequency_penalty   subtracted once for every time a token is already in the answer
    seed                reproduces an answer; None draws one
    logprobs            how many alternatives to report beside each chosen token; None reports nothing

    Raises UsageError for a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, rule: str) -> None:
            if not ok:
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{name} is {getattr(self, name)!r}", option, f"it must be {rule}")

        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if field.name in _WHOLE:
                need(isinstance(value, numbers.Integral), field.name, "a whole number")
            else:
                need(isinstance(value, numbers.Real), field.name, "a number")
            if isinstance(value, float) and not math.isfinite(value):
                need(False, field.name, "a finite number")
        need(self.temperature >= 0, "temperature", "0 or more")
        need(self.top_k >= 0, "top_k", "0 (all) or more")
        need(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        need(0 <= self.min_p <= 1, "min_p", "between 0 and 1")
        need(self.repetition_penalty > 0, "repetition_penalty", "above 0")
        need(-100 <= self.presence_penalty <= 100, "presence_penalty", "between -100 and 100")
        need(-100 <= self.frequency_penalty <= 100, "frequency_penalty", "between -100 and 100")
        need(self.seed is None or 0 <= self.seed < 2**64, "seed", "a whole number from 0 to 2^64 - 1")
        need(self.logprobs is None or 0 <= self.logprobs <= 100, "logprobs", "from 0 to 100")

    @property
    def greedy(self) -> bool:
        """Whether every choice is the most probable token (after penalties)."""
        return self.temperature == 0

    def updated(self, **changes: Any) -> Sampling:
        """A copy with the changes that are not None."""
        return replace(self, **{key: value for key, value in changes.items() if value is not None})

    def describe(self) -> str:
        """One short phrase, as `--chat` shows it: the values that do something."""
        if self.greedy:
            return "greedy"
        default = asdict(Sampling())
        parts = [f"temperature {self.temperature:g}"]
        for name, value in asdict(self).items():
            if name not in ("temperature", "seed", "logprobs") and value != default[name]:
                parts.append(f"{name.replace('_', '-')} {value:g}")
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        return ", ".join(parts)

    @classmethod
    def parse(cls, text: str) -> Sampling:
        """From `greedy` or `temperature=0.7 top_k=20 ...` (a bundle's optional `sampling` param)."""
        if text.strip() == "greedy":
            return GREEDY
        known = {field.name: int if field.name in _WHOLE else float for field in fields(cls)}
        values: dict[str, Any] = {}
        for word in text.split():
            name, equals, value = word.partition("=")
            if not equals or name not in known:
                names = ", ".join(known)
                raise UsageError(f"{word!r:.80} is no sampling value", "sampling", f"use greedy or {names}")
            try:
                values[name] = known[name](value)
            except ValueError:
                raise UsageError(f"{word!r:.80} is no number", "sampling") from None
        return cls(**values)


#: The most probable token each time, nothing else.
GREEDY = Sampling(temperature=0.0)


def card_sampling(hidden: int, *, thinking: bool, images: bool = False) -> Sampling:
    """The values that the Qwen3.5 model cards recommend, by hidden size and mode.

    From the "Best Practices" of the Qwen3.5-0.8B and -2B cards (text and picture tasks differ) and of the -4B
    and -9B cards (general tasks).
    """
    if hidden >= 2560:
        if thinking:
            return Sampling(temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5)
        return Sampling(temperature=0.7, top_p=0.8, top_k=20, presence_penalty=1.5)
    if thinking:
        if images:
            return Sampling(temperature=0.6, top_p=0.95, top_k=20)
        return Sampling(temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5)
    if images:
        return Sampling(temperature=0.7, top_p=0.8, top_k=20, presence_penalty=1.5)
    return Sampling(temperature=1.0, top_k=20, presence_penalty=2.0)


@dataclass(frozen=True)
class TokenLogprob:
    """Natural log of the model's own probability (before penalties and filters) of a chosen token, and the
    most probable alternatives as (token, logprob), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Constraint(Protocol):
    """What restricts the choice of tokens (qwen35.structured)."""

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""

    @property
    def closed(self) -> bool:
        """Whether the answer is complete and nothing could follow."""

    def mask(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores, those of tokens that are not allowed at -inf; the argument is left as it is."""

    def accept(self, token: int) -> None:
        """Notes the chosen token."""


class Sampler:
    """Chooses the tokens of one answer. Not thread-safe: it counts what it has chosen.

    Same settings, seed and logits give the same tokens. Without a seed one is drawn; `seed` tells which.
    """

    def __init__(
        self, sampling: Sampling = GREEDY, prompt: Iterable[int] = (), constraint: Constraint | None = None
    ) -> None:
        """`prompt` are the tokens that the repetition penalty sees beside the answer's."""
        import numpy as np

        self.sampling = sampling
        self.constraint = constraint
        self.seed = sampling.seed if sampling.seed is not None else secrets.randbits(32)
        self.logprobs: list[TokenLogprob] = []
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._counts: dict[int, int] = {}
        self._prompt = np.unique(np.fromiter(prompt, np.int64)) if sampling.repetition_penalty != 1 else None

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """The chosen token of `logits`, float32 [vocab], which are left as they are.

        Raises NoNumbers when no logit is a number (a broken bundle or a failing device).
        """
        import numpy as np

        scores = self._penalised(logits)
        if self.constraint is not None:
            scores = self.constraint.mask(scores)
        if self.sampling.greedy:
            token = int(np.argmax(scores))
            if math.isnan(scores[token]):
                if np.isnan(scores).all():
                    raise NoNumbers
                token = int(np.nanargmax(scores))
        else:
            token = self._draw(scores)
        self._counts[token] = self._counts.get(token, 0) + 1
        if self.constraint is not None:
            self.constraint.accept(token)
        if self.sampling.logprobs is not None:
            self.logprobs.append(_logprob(logits, token, self.sampling.logprobs))
        return token

    def _penalised(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        import numpy as np

        s = self.sampling
        repetition = s.repetition_penalty != 1
        if not (repetition or ((s.presence_penalty or s.frequency_penalty) and self._counts)):
            return logits
        scores: NDArray[np.float32] = logits.copy()
        chosen = np.fromiter(self._counts, np.int64, len(self._counts))
        if repetition and self._prompt is not None:
            seen = np.union1d(self._prompt, chosen)
            seen = seen[seen < len(scores)]
            scores[seen] = np.where(
                scores[seen] > 0, scores[seen] / s.repetition_penalty, scores[seen] * s.repetition_penalty
            )
        if len(chosen) and (s.presence_penalty or s.frequency_penalty):
            times = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            scores[chosen] -= np.float32(s.presence_penalty) + np.float32(s.frequency_penalty) * times
        return scores

    def _draw(self, scores: NDArray[np.float32]) -> int:
        ids, weights = candidates(scores, self.sampling)
        sums = weights.cumsum()
        index = int(sums.searchsorted(self._random.random() * sums[-1], side="right"))
        return int(ids[min(index, len(ids) - 1)])


def _best(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The ids of the `count` highest scores, highest first, the lower id first among equals."""
    import numpy as np

    if count < len(scores):
        floor = np.partition(scores, len(scores) - count)[len(scores) - count]
        ids = np.flatnonzero(scores >= floor)
    else:
        ids = np.arange(len(scores))
    return ids[np.argsort(-scores[ids], kind="stable")][:count]


def candidates(
    scores: NDArray[np.float32], sampling: Sampling
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Token ids that temperature, top-k, top-p and min-p leave, and their weights (not normalised).

    Where top-k or top-p cut, the most probable come first (the lower id first among equals), else ids ascend.
    Raises NoNumbers when no score is a number.
    """
    import numpy as np

    if np.isnan(scores).any():
        scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    top = float(scores.max())
    if top == -math.inf:
        raise NoNumbers
    if top == math.inf:
        ids = np.flatnonzero(scores == np.inf)
        return ids, np.ones(len(ids))

    def weigh(kept: NDArray[np.float32]) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = np.exp((kept.astype(np.float64) - top) / sampling.temperature)
        return weights

    if sampling.top_k and sampling.top_k < len(scores):
        ids = _best(scores, sampling.top_k)
        weights = weigh(scores[ids])
        need = sampling.top_p * float(weights.sum())
    else:
        ids, weights = np.arange(len(scores)), weigh(scores)
        need = sampling.top_p * float(weights.sum())
        if sampling.top_p < 1:
            # Sorting a whole vocabulary is slow, and the mass is nearly always in its first few tokens.
            ids = _best(scores, _FEW)
            if float(weights[ids].sum()) < need:
                ids = _best(scores, len(scores))
            weights = weights[ids]
    if sampling.top_p < 1:
        keep = int(weights.cumsum().searchsorted(need)) + 1
        ids, weights = ids[:keep], weights[:keep]
    if sampling.min_p > 0:
        probable = weights >= sampling.min_p * weights.max()
        ids, weights = ids[probable], weights[probable]
    return ids, weights


_FEW = 16_384


def _logprob(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    import numpy as np

    if np.isnan(logits).any():
        logits = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    wide = logits.astype(np.float64)
    highest = float(wide.max())
    total = highest + math.log(float(np.exp(wide - highest).sum()))
    best = _best(logits, top).tolist() if top else []
    return TokenLogprob(token, float(wide[token]) - total, tuple((i, float(wide[i]) - total) for i in best))


class LoopDetector:
    """Notices an answer that repeats the same tokens for ever.

    The rule: the last `span` tokens (1,024 unless told otherwise) are one pattern over and over, token for
    token, and at least `repeats` times (4), so that a pattern longer than a quarter of `span` takes four
    times its length. Patterns have up to `longest` tokens (512). What is shorter is never cut: a table of
    equal rows, zeros, a line that was asked for a hundred times look no different from a loop, but end. What
    changes, be it one digit of a counter a line, is no repetition.
    """

    def __init__(self, span: int = 1024, repeats: int = 4, longest: int = 512) -> None:
        import numpy as np

        if span < 1 or repeats < 2 or longest < 1:
            raise ValueError(f"a loop of {span} tokens, {repeats} repeats, a pattern of {longest}")
        self._tokens = np.full(longest, -1, np.int64)  # the last `longest` tokens, newest first
        self._runs = np.zeros(longest, np.int64)  # how long tokens have equalled those `lag` before, a lag
        lags = np.arange(1, longest + 1)
        self._need = np.maximum(span, repeats * lags) - lags

    def feed(self, token: int) -> int:
        """The pattern's length in tokens once it counts as a loop, else 0."""
        self._runs += 1
        self._runs[self._tokens != token] = 0
        self._tokens[1:] = self._tokens[:-1].copy()
        self._tokens[0] = token
        looping = self._runs >= self._need
        return int(looping.argmax()) + 1 if looping.any() else 0


class StopStrings:
    """Ends an answer at whichever of some strings is complete first, wherever token borders fall.

    Text that may be the start of a stop string is held back until the next piece decides.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(dict.fromkeys(stop_strings(tuple(strings))))
        self._held = ""
        #: The stop string that ended the answer, or None.
        self.found: str | None = None

    def feed(self, piece: str) -> str:
        """What of `piece` and of the text held back can be shown; sets `found` at a stop string."""
        if self.found is not None or not self.strings:
            return "" if self.found is not None else piece
        text = self._held + piece
        hits = [(at, s) for s in self.strings if (at := text.find(s)) >= 0]
        if hits:
            at, self.found = min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            self._held = ""
            return text[:at]
        keep = max(
            (n for s in self.strings for n in range(1, min(len(s), len(text) + 1)) if text.endswith(s[:n])),
            default=0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text still held back, once no more will come."""
        held, self._held = self._held, ""
        return held
