"""Generation of token ids. Knows models and samplers, and nothing of text.

A `Session` brings a model's state to the end of a prompt, from the longest kept state that fits; `generate`
draws tokens from there.

Why an answer does not depend on what was kept: states are kept only at a prompt's own borders and only from
prefill, a recurrence is always cut at those borders, and passes end at the same tokens; so the same
arithmetic runs whether a part was kept or is computed again. (Not so with qwen35.model.steps, an option.)
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from amdxdna.arguments import Uncopied
from qwen35.drafts import Drafts
from qwen35.errors import Cancelled, PromptTooLong, UsageError
from qwen35.sampling import LoopDetector, Sampler
from qwen35.stats import Stats
from qwen35.turns import Turn, Turns

__all__ = ["Generation", "Input", "Model", "OneReader", "PrefixCache", "Session", "Snapshot", "generate"]

T = TypeVar("T")

Logits = Any  # NDArray[np.float32] [vocab]; numpy is not imported for the command line's sake


class Snapshot(Protocol):
    """A model's whole state at some length, as `Model.snapshot` made it."""

    def parts(self) -> Iterable[tuple[int, int]]:
        """(identity, bytes) of the memory it keeps; what snapshots share has the same identity in each."""


class Model(Protocol):
    """What the engine needs of a model. One call at a time: a model is not thread-safe, a Session is."""

    max_ctx: int
    """Tokens the state can hold."""
    draft_limit: int
    """Most tokens of a draft that `decode` takes; 0: it takes none."""

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
        marks: Sequence[int] = (),
    ) -> Logits:
        """Appends `ids` (at least one); the logits after the last, float32 [vocab].

        What comes before and after each border (a count of `ids`) must be as if calls were cut there. `marks`
        are those of the borders that `border_snapshot` will be asked for.
        """

    def decode(self, token: int, draft: Sequence[int] = ()) -> Logits:
        """Appends one token; the logits after it. `draft` are those that probably come next."""

    def snapshot(self) -> Snapshot:
        """A copy of the state."""

    def border_snapshot(self, mark: int) -> Snapshot:
        """The state at a mark of the prefill just done; asked for in ascending order."""

    def restore(self, snapshot: Any) -> None:
        """Replaces the state by a snapshot of this model."""


@dataclass
class Input:
    """A prompt for a session.

    `keys` name the tokens where `ids` do not: an image's tokens are all one id, so their keys are made from
    the image's content. `borders` are lengths at which a state may be kept: the last one is, and the one at
    `shared`, up to where prompts of other conversations may have the same tokens (0: nowhere).
    `part(start, stop)` gives the keyword arguments of `prefill` for that range (positions, embeddings); None
    where ids are all there is.
    """

    ids: Sequence[int]
    borders: Sequence[int] = ()
    keys: Sequence[int] | None = None
    part: Callable[[int, int], dict[str, Any]] | None = None
    shared: int = 0

    def __post_init__(self) -> None:
        if self.keys is not None and len(self.keys) != len(self.ids):
            raise ValueError(f"{len(self.keys)} keys for {len(self.ids)} tokens")

    @property
    def names(self) -> tuple[int, ...]:
        """The keys, or the ids where no keys were given."""
        return tuple(self.ids if self.keys is None else self.keys)


Prefix = tuple[tuple[int, ...], tuple[int, ...]]  # names of the tokens, and the borders among them


class PrefixCache:
    """Snapshots by the prefix they stand for; the least recently used are dropped beyond `budget` bytes.

    A conversation that grows leaves a snapshot a turn, of which the last is what its next turn needs: the
    earlier ones count as least recently used, so that many conversations find room.

    Figures may be asked for by any thread; the rest is the session's, inside its steps.
    """

    def __init__(self, budget: int = 512 << 20) -> None:
        self.budget = budget
        self._entries: OrderedDict[Prefix, Snapshot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes the kept snapshots hold, shared memory counted once, their keys not at all."""
        return _nbytes(list(self._entries.values()))

    def find(self, names: tuple[int, ...], borders: Sequence[int]) -> tuple[int, Snapshot] | None:
        """The longest prefix of a prompt, up to one of its borders, that is kept: its length and snapshot."""
        for count in range(len(borders), 0, -1):
            at = borders[count - 1]
            snapshot = self._entries.get((names[:at], tuple(borders[:count])))
            if snapshot is not None and at < len(names):
                self._entries.move_to_end((names[:at], tuple(borders[:count])))
                return at, snapshot
        return None

    def add(
        self, names: tuple[int, ...], borders: Sequence[int], snapshot: Snapshot, shared: int = 0
    ) -> None:
        """Keeps the state at the last of `borders`, unless it alone is over the budget.

        The one at `shared`, if it is a border, serves other conversations, too.
        """
        if _nbytes([snapshot]) > self.budget:
            return
        key = names[: borders[-1]], tuple(borders)
        self._entries[key] = snapshot
        self._entries.move_to_end(key)
        for count in range(len(borders) - 1, 0, -1):
            earlier = names[: borders[count - 1]], tuple(borders[:count])
            if borders[count - 1] != shared and earlier in self._entries:
                self._entries.move_to_end(earlier, last=False)
        while self.nbytes > self.budget:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Drops everything."""
        self._entries.clear()


def _nbytes(snapshots: Iterable[Snapshot]) -> int:
    return sum(dict(part for snapshot in snapshots for part in snapshot.parts()).values())


@dataclass
class Session:
    """A model and the states kept of it. Thread-safe: answers take turns (qwen35.turns).

    `cache` None keeps nothing: every prompt is computed from its first token, with the same result.
    `pass_tokens` is the most one prefill call takes (0 = no limit). `failed(error)` is told of what a step
    raised; it may set `mend`, which is then called before the next step.
    """

    model: Model
    cache: PrefixCache | None = field(default_factory=PrefixCache)
    pass_tokens: int = 0
    failed: Callable[[Exception], None] | None = None
    mend: Callable[[], None] | None = field(default=None, init=False)
    turns: Turns = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.turns = Turns.of(self.model)

    def use(self, model: Model) -> None:
        """Goes on with another model, which takes the snapshots of the one before; inside `turns.alone`."""
        self.model = model
        self.turns.serve(model)

    def prime(
        self,
        prompt: Input,
        stats: Stats | None = None,
        *,
        turn: Turn | None = None,
        cancel: Callable[[], bool] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Logits:
        """Brings the model to the end of `prompt`; the logits after its last token.

        `turn` is the answer's; without one the state belongs to nobody, and the next answer replaces it.
        `progress(done, total)` is called before each pass and at the end, `cancel()` before each pass.
        Raises PromptTooLong, Cancelled, ValueError for an empty prompt, Closed, and what the model raises;
        the turn's state is then undefined until its next `prime`.
        """
        names, total = prompt.names, len(prompt.ids)
        if not total:
            raise ValueError("a prompt needs at least one token")
        if total > self.model.max_ctx:
            raise PromptTooLong(total, self.model.max_ctx)
        turn = turn if turn is not None else Turn()
        turn.primed, turn.kept = False, None  # an earlier prompt's state is not to be restored
        began, seeing = time.perf_counter(), stats.vision_s if stats is not None else 0.0
        borders = [b for b in sorted(set(prompt.borders)) if 0 < b < total]
        start: int = self._step(turn, self._begin, names, borders)
        if stats is not None:
            stats.prompt_tokens, stats.cached_tokens = total, start
        logits: Logits = None
        for stop in self._cuts(start, total):
            if cancel is not None and cancel():
                raise Cancelled("stopped before the answer began")
            if progress is not None:
                progress(start, total)
            logits = self._step(turn, self._pass, prompt, names, borders, start, stop)
            start = stop
        if progress is not None:
            progress(total, total)
        if stats is not None:
            stats.prefill_s = time.perf_counter() - began - (stats.vision_s - seeing)
        turn.primed = True
        return logits

    def decode(self, turn: Turn, token: int, draft: Sequence[int] = ()) -> Logits:
        """The logits after one more token of the turn's answer; `draft` are those that probably follow.

        Raises PromptTooLong when the context is full, UsageError before any prompt, Closed, and what the
        model raises; the state is then as before.
        """
        if not turn.primed:
            raise UsageError("there is no prompt to go on from", "decode", "call prefill first")
        return self._step(turn, self._decode, token, draft)

    def _step(self, turn: Turn, action: Callable[..., T], *arguments: Any) -> T:
        if self.mend is not None:
            self.mend()
        found: T = self.turns.run(turn, self._model, self._watched, action, *arguments)
        return found

    def _watched(self, action: Callable[..., T], *arguments: Any) -> T:
        try:
            return action(*arguments)
        except Exception as error:
            if self.failed is not None:
                self.failed(error)
            raise

    def _model(self) -> Model:
        return self.model

    def _decode(self, token: int, draft: Sequence[int]) -> Logits:
        if self.model.length >= self.model.max_ctx:
            raise PromptTooLong(self.model.length + 1, self.model.max_ctx)
        return self.model.decode(token, draft) if draft else self.model.decode(token)

    def _begin(self, names: tuple[int, ...], borders: Sequence[int]) -> int:
        """The state of the longest kept prefix, or the empty one; its length."""
        kept = self.cache.find(names, borders) if self.cache is not None else None
        if kept is None:
            self.model.reset()
            return 0
        self.model.restore(kept[1])
        return kept[0]

    def _pass(
        self, prompt: Input, names: tuple[int, ...], borders: Sequence[int], start: int, stop: int
    ) -> Logits:
        extra = prompt.part(start, stop) if prompt.part is not None else {}
        inside = [b - start for b in borders if start < b < stop]
        last = len(borders) - 1
        kept = [
            (n, b)
            for n, b in enumerate(borders)
            if start < b <= stop and (n == last or b == prompt.shared) and self.cache is not None
        ]
        marks = [b - start for _, b in kept if b < stop]
        logits = self.model.prefill(prompt.ids[start:stop], borders=inside, marks=marks, **extra)
        for n, border in kept:
            at_end = border == stop
            state = self.model.snapshot() if at_end else self.model.border_snapshot(border - start)
            if self.cache is not None:
                self.cache.add(names, borders[: n + 1], state, prompt.shared)
        return logits

    def _cuts(self, start: int, total: int) -> list[int]:
        """Where passes end: at whole multiples of a pass from the prompt's first token."""
        cuts = range(self.pass_tokens, total, self.pass_tokens) if self.pass_tokens else ()
        return [*(cut for cut in cuts if cut > start), total]


class OneReader(Uncopied, Generic[T]):
    """A generator whose second reader at a time gets a UsageError. What it raised it raises again."""

    __slots__ = ("_error", "_made")

    def __init__(self, made: Generator[T, None, None]) -> None:
        self._made = made
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return next(self._made)
        except StopIteration:
            if self._error is None:
                raise
        except Exception as error:
            if not isinstance(error, ValueError) or error.args != (_EXECUTING,):
                self._error = _bare(error)
                raise
        if self._error is not None:
            raise _bare(self._error)
        raise UsageError("this answer is being read elsewhere", "", "read an answer in one place at a time")

    def close(self) -> bool:
        """Ends it where it is; False when it is being read at this moment, and is not ended."""
        try:
            self._made.close()
        except ValueError as error:
            if error.args != (_EXECUTING,):
                raise
            return False
        return True


def _bare(error: Exception) -> Exception:
    """A copy without its traceback, whose frames would keep what was dropped."""
    try:
        return copy(error)
    except Exception:
        return error


#: What CPython says to the second user of a running generator.
_EXECUTING = "generator already executing"


class _Outcome:
    """What a generation's tokens tell beside themselves. Apart from it, so that none keeps the other."""

    def __init__(self) -> None:
        self.finish = ""
        self.period = 0
        self.error: Exception | None = None
        self.cancelled = False


class Generation(Uncopied):
    """Iterates over the ids of an answer; from any thread, one at a time.

    `finish` is set when it ends: stop (a stop token, not yielded), length (`max_new` reached), context (the
    state is full), loop (the last `period` tokens repeat), cancel. `error` is what the model raised.
    Dropped or closed half-way it keeps nothing of the model.
    """

    def __init__(self, tokens: Callable[[_Outcome], Generator[int, None, None]], stats: Stats) -> None:
        self.stats = stats
        self._outcome = _Outcome()
        self._tokens = OneReader(tokens(self._outcome))

    @property
    def finish(self) -> str:
        """Why it ended; empty while it runs."""
        return self._outcome.finish

    @property
    def period(self) -> int:
        """Tokens of the pattern that repeats, where `finish` is loop."""
        return self._outcome.period

    @property
    def error(self) -> Exception | None:
        """What the model raised."""
        return self._outcome.error

    def __iter__(self) -> Iterator[int]:
        return self._tokens

    def __next__(self) -> int:
        return next(self._tokens)

    def cancel(self) -> None:
        """Ends the answer before its next token or pass, whoever draws it."""
        self._outcome.cancelled = True

    def close(self) -> None:
        """Ends the answer early: at once, or as `cancel` where another thread is drawing a token."""
        self.cancel()
        self._tokens.close()


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
    draft: bool = False,
) -> Generation:
    """Up to `max_new` token ids after the prompt `ids`, as they are made; greedy without a sampler.

    A bare model is run from an empty state. Ends at a token of `stop`, at a repetition that `loops` notices,
    when the state is full, or when `cancel()` is true between two tokens. With `draft` tokens
    that stood in the context after the same ones run ahead (qwen35.drafts). The prompt runs at the first
    `next`; what it raises is told at `Session.prime`. Generations of one model may be drawn in any order and
    from any threads: they take turns, and each gives the tokens it gives alone.
    """
    session = model if isinstance(model, Session) else Session(model, cache=None)
    prompt = ids if isinstance(ids, Input) else Input(ids)
    stats = stats if stats is not None else Stats()
    choose = sampler if sampler is not None else Sampler()

    def tokens(run: _Outcome) -> Generator[int, None, None]:
        try:
            yield from made(run)
        except Exception as error:
            run.error = error
            raise

    def made(run: _Outcome) -> Generator[int, None, None]:
        began, turn = time.perf_counter(), Turn()

        def cancelled() -> bool:
            return run.cancelled or (cancel is not None and cancel())

        logits = session.prime(prompt, stats, turn=turn, cancel=cancelled, progress=progress)
        first, room = 0.0, session.model.max_ctx - len(prompt.ids)
        drafts = Drafts(prompt.ids, session.model.draft_limit, stop) if draft else None
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
            elif cancelled():
                run.finish = "cancel"
            elif stats.new_tokens == max_new:
                run.finish = "length"
            elif stats.new_tokens > room:
                run.finish = "context"
            if run.finish:
                break
            ahead: Sequence[int] = ()
            if drafts is not None:
                ahead = drafts.next(token, min(max_new - 1, room) - stats.new_tokens)
                stats.draft_passes, stats.drafted_tokens = drafts.passes, drafts.drafted
                stats.accepted_tokens = drafts.accepted
            logits = session.decode(turn, token, ahead)
        stats.finish = run.finish = run.finish or "length"

    return Generation(tokens, stats)
