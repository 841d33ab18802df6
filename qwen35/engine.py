"""Generation of token ids. Knows models and samplers, and nothing of text.

A `Session` brings a model's state to the end of a prompt, from the longest kept state that fits; `generate`
draws tokens from there.

Why an answer does not depend on what was kept: states are kept only at a prompt's own borders and only from
prefill, a recurrence is always cut at those borders, and passes end at the same tokens; so the same
arithmetic runs whether a part was kept or is computed again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from qwen35.errors import Cancelled, PromptTooLong
from qwen35.sampling import LoopDetector, Sampler
from qwen35.stats import Stats

__all__ = ["Generation", "Input", "Model", "PrefixCache", "Session", "Snapshot", "generate"]

Logits = Any  # NDArray[np.float32] [vocab]; numpy is not imported for the command line's sake


class Snapshot(Protocol):
    """A model's whole state at some length, as `Model.snapshot` made it."""

    def parts(self) -> Iterable[tuple[int, int]]:
        """(identity, bytes) of the memory it keeps; what snapshots share has the same identity in each."""


class Model(Protocol):
    """What the engine needs of a model. One answer at a time: a model is not thread-safe."""

    max_ctx: int
    """Tokens the state can hold."""

    @property
    def length(self) -> int:
        """Tokens the state holds."""

    def reset(self) -> None:
        """Empties the state."""

    def prefill(
        self,
        ids: Sequence[int],
        *,
        positions: Any = None,
        embeddings: Any = None,
        borders: Sequence[int] = (),
    ) -> Logits:
        """Appends `ids` (at least one); the logits after the last, float32 [vocab].

        What comes before and after each border (a count of `ids`) must be as if calls were cut there.
        """

    def decode(self, token: int) -> Logits:
        """Appends one token; the logits after it."""

    def snapshot(self) -> Snapshot:
        """A copy of the state."""

    def border_snapshot(self) -> Snapshot:
        """The state at the last border of the prefill just done."""

    def restore(self, snapshot: Any) -> None:
        """Replaces the state by a snapshot of this model."""


@dataclass
class Input:
    """A prompt for a session.

    `keys` name the tokens where `ids` do not: an image's tokens are all one id, so their keys are made from
    the image's content. `borders` are lengths at which a state may be kept. `part(start, stop)` gives the
    keyword arguments of `prefill` for that range (positions, embeddings); None where ids are all there is.
    """

    ids: Sequence[int]
    borders: Sequence[int] = ()
    keys: Sequence[int] | None = None
    part: Callable[[int, int], dict[str, Any]] | None = None

    @property
    def names(self) -> tuple[int, ...]:
        """The keys, or the ids where no keys were given."""
        return tuple(self.ids if self.keys is None else self.keys)


Prefix = tuple[tuple[int, ...], tuple[int, ...]]  # names of the tokens, and the borders among them


class PrefixCache:
    """Snapshots by the prefix they stand for; the least recently used are dropped beyond `budget` bytes."""

    def __init__(self, budget: int = 512 << 20) -> None:
        self.budget = budget
        self._entries: OrderedDict[Prefix, Snapshot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes the kept snapshots hold, shared memory counted once, their keys not at all."""
        return _nbytes(self._entries.values())

    def find(self, names: tuple[int, ...], borders: Sequence[int]) -> tuple[int, Snapshot] | None:
        """The longest prefix of a prompt, up to one of its borders, that is kept: its length and snapshot."""
        for count in range(len(borders), 0, -1):
            at = borders[count - 1]
            snapshot = self._entries.get((names[:at], tuple(borders[:count])))
            if snapshot is not None and at < len(names):
                self._entries.move_to_end((names[:at], tuple(borders[:count])))
                return at, snapshot
        return None

    def add(self, names: tuple[int, ...], borders: Sequence[int], snapshot: Snapshot) -> None:
        """Keeps the state at the last of `borders`, unless it alone is over the budget."""
        if _nbytes([snapshot]) > self.budget:
            return
        key = names[: borders[-1]], tuple(borders)
        self._entries[key] = snapshot
        self._entries.move_to_end(key)
        while self.nbytes > self.budget:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Drops everything."""
        self._entries.clear()


def _nbytes(snapshots: Iterable[Snapshot]) -> int:
    return sum(dict(part for snapshot in snapshots for part in snapshot.parts()).values())


@dataclass
class Session:
    """A model and the states kept of it. Not thread-safe.

    `cache` None keeps nothing: every prompt is computed from its first token, with the same result.
    `pass_tokens` is the most one prefill call takes (0 = no limit).
    """

    model: Model
    cache: PrefixCache | None = field(default_factory=PrefixCache)
    pass_tokens: int = 0

    def prime(
        self,
        prompt: Input,
        stats: Stats | None = None,
        *,
        cancel: Callable[[], bool] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Logits:
        """Brings the model to the end of `prompt`; the logits after its last token.

        `progress(done, total)` is called before each pass and at the end, `cancel()` before each pass.
        Raises PromptTooLong, Cancelled, ValueError for an empty prompt, and what the model raises; the state
        is then undefined until the next `prime`.
        """
        names, total = prompt.names, len(prompt.ids)
        if not total:
            raise ValueError("a prompt needs at least one token")
        if total > self.model.max_ctx:
            raise PromptTooLong(total, self.model.max_ctx)
        began, seeing = time.perf_counter(), stats.vision_s if stats is not None else 0.0
        borders = [b for b in sorted(set(prompt.borders)) if 0 < b < total]
        kept = self.cache.find(names, borders) if self.cache is not None else None
        if kept is not None:
            start, snapshot = kept
            self.model.restore(snapshot)
        else:
            start = 0
            self.model.reset()
        if stats is not None:
            stats.prompt_tokens, stats.cached_tokens = total, start
        logits: Logits = None
        for stop in self._cuts(start, total):
            if cancel is not None and cancel():
                raise Cancelled("stopped before the answer began")
            if progress is not None:
                progress(start, total)
            extra = prompt.part(start, stop) if prompt.part is not None else {}
            inside = [b - start for b in borders if start < b < stop]
            logits = self.model.prefill(prompt.ids[start:stop], borders=inside, **extra)
            if self.cache is not None and borders and start < borders[-1] <= stop:
                at_end = borders[-1] == stop
                self.cache.add(
                    names, borders, self.model.snapshot() if at_end else self.model.border_snapshot()
                )
            start = stop
        if progress is not None:
            progress(total, total)
        if stats is not None:
            stats.prefill_s = time.perf_counter() - began - (stats.vision_s - seeing)
        return logits

    def _cuts(self, start: int, total: int) -> list[int]:
        """Where passes end: at whole multiples of a pass from the prompt's first token."""
        cuts = range(self.pass_tokens, total, self.pass_tokens) if self.pass_tokens else ()
        return [*(cut for cut in cuts if cut > start), total]


class Generation:
    """Iterates over the ids of an answer.

    `finish` is set when it ends: stop (a stop token, not yielded), length (`max_new` reached), context (the
    state is full), loop (the last `period` tokens repeat), cancel. `error` is what the model raised.
    """

    def __init__(self, tokens: Callable[[Generation], Iterator[int]], stats: Stats) -> None:
        self.finish = ""
        self.period = 0
        self.error: Exception | None = None
        self.stats = stats
        self._tokens = tokens(self)

    def __iter__(self) -> Iterator[int]:
        return self._tokens

    def __next__(self) -> int:
        return next(self._tokens)

    def close(self) -> None:
        """Ends the answer early."""
        self._tokens.close()  # type: ignore[attr-defined]


def generate(
    model: Model | Session,
    ids: Sequence[int] | Input,
    sampler: Callable[[Any], int] | None = None,
    stop: Sequence[int] = (),
    max_new: int = 512,
    *,
    stats: Stats | None = None,
    loops: LoopDetector | None = None,
    cancel: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Generation:
    """Up to `max_new` token ids after the prompt `ids`, as they are made; greedy without a sampler.

    A bare model is run from an empty state. Ends at a token of `stop`, at a repetition that `loops` notices,
    when the state is full, or when `cancel()` is true between two tokens. The prompt runs at the first
    `next`; what it raises is told at `Session.prime`.
    """
    session = model if isinstance(model, Session) else Session(model, cache=None)
    prompt = ids if isinstance(ids, Input) else Input(ids)
    stats = stats if stats is not None else Stats()
    choose = sampler if sampler is not None else Sampler()

    def tokens(run: Generation) -> Iterator[int]:
        try:
            yield from made(run)
        except Exception as error:
            run.error = error
            raise

    def made(run: Generation) -> Iterator[int]:
        began = time.perf_counter()
        logits = session.prime(prompt, stats, cancel=cancel, progress=progress)
        first = 0.0
        for _ in range(max_new):
            token = choose(logits)
            now = time.perf_counter()
            if not stats.new_tokens:
                first = now
                stats.first_token_s = now - began
            if token in stop:
                run.finish = "stop"
                break
            stats.new_tokens += 1
            stats.decode_s = now - first
            yield token
            run.period = loops.feed(token) if loops is not None else 0
            if run.period:
                run.finish = "loop"
            elif cancel is not None and cancel():
                run.finish = "cancel"
            elif stats.new_tokens == max_new:
                run.finish = "length"
            elif session.model.length >= session.model.max_ctx:
                run.finish = "context"
            if run.finish:
                break
            logits = session.model.decode(token)
        stats.finish = run.finish = run.finish or "length"

    return Generation(tokens, stats)
