"""The text model: a bundle, a device and a state, and what a caller does with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qwen35 import host
from qwen35.bundle.schema import packed_kernels, text_schema
from qwen35.errors import ModelError, PromptTooLong
from qwen35.host import Norm
from qwen35.model.cache import Mark, Snapshot, StateCache
from qwen35.model.decode import Decoder
from qwen35.model.dispatch import Group
from qwen35.model.embed import Embedding
from qwen35.model.layers import build_layers, check_dims
from qwen35.model.prefill import Prefill
from qwen35.model.probe import probe_chains, probe_mapped, run_singly
from qwen35.model.projections import Projections
from qwen35.model.rope import Rope, text_positions
from qwen35.model.steps import LONGEST_TRIAL, Steps, chosen
from qwen35.model.timing import Timing
from qwen35.model.verify import Draft
from qwen35.model.weights import Progress, Weights
from qwen35.threads import Threads

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.device import Device
    from qwen35.bundle.bundle import Bundle
    from qwen35.model.options import Options

__all__ = ["TextModel"]

KEYS = ("o", "gu", "down", "head")
"""The kernels of every layer, whatever its kind, and the head's."""

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class TextModel:
    """A Qwen3.5 text model whose projections run on the NPU.

    `prefill` and `decode` are transactions: an exception out of them, Ctrl-C too, leaves the state as it was
    before the call. A state cannot be shortened (DeltaNet keeps no history); `snapshot` and `restore` go
    back. Not thread-safe: one call at a time.

    `config`, `max_ctx`, `npu` (shared with a vision tower), `weights` (its `report`), `timing` (per
    projection and host stage). The caller keeps bundle and device open for the model's life.
    """

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        max_ctx: int = 8192,
        *,
        threads: int | None = None,
        options: Options | None = None,
        release: bool | None = None,
        progress: Progress | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """Uploads the weights, makes the kernels, and tries what `options` leave to a trial.

        `threads` sets the host threads of the process (None: as they are). `options` say how the device is
        used (None: Options()), `release` is Weights.load's, `progress(done, total)` is in bytes, `note(line)`
        is told what a user should know. Raises ModelError for a model this program cannot run, BundleError,
        and the binding's errors.
        """
        if max_ctx < 1:
            raise ModelError(f"a context of {max_ctx} tokens", remedy="give at least 1")
        self.bundle, self.device, self.max_ctx = bundle, device, max_ctx
        self.config = config = bundle.config
        check_dims(config)
        if threads is not None:
            host.set_threads(threads)
        self.timing = Timing.traced()
        self.npu = Projections(bundle, device, options, note)
        self.npu.retries_at_load = 1
        packed = packed_kernels(config)
        heads = [name for name, (_, gemv) in packed.items() if gemv == "head"]
        specs = {spec.part: spec for spec in text_schema(config) if not spec.rows and spec.layer < 0}
        with Threads(1) as beside:
            warming = beside.submit(self.npu.warm, [*dict.fromkeys(config.layer_types), *KEYS])

            def trial(mapped: dict[str, Buffer]) -> str:
                warming.result()
                return self._probe_mapped(mapped)

            self.weights = Weights.load(
                bundle,
                device,
                list(packed),
                way=self.npu.options.weights,
                trial=trial,
                release=release,
                progress=progress,
            )
            warming.result()
        table = bundle.tensors.of(specs["embed"]) if "embed" in specs else None
        streams = [self.weights.bytes(name) for name in heads] if config.tie_word_embeddings else []
        self.embedding = Embedding(config, streams, table)
        self._cache = StateCache(config, max_ctx)
        self.steps = Steps(0, "not chosen yet")
        self._marks: dict[int, Mark] = {}
        self._draft: Draft | None = None
        self.draft_limit = min(config.chunk, config.max_prompt) - 1
        """Most tokens of a draft (`decode`): what a pass of one chunk has room for."""
        self._rope = Rope(config)
        self._layers = build_layers(config, bundle.tensors, self.weights.__getitem__)
        self._final = Norm(bundle.tensors.of(specs["ln_f"]), config.rms_norm_eps, config.n_down)
        self._heads = heads
        self._prefill, self._decoder = self._make_passes()
        self._probe_chains()
        self.steps = self._choose_steps()
        """Up to how many new tokens of a prompt go by steps."""
        self.npu.retries_at_load = 0

    def _make_passes(self) -> tuple[Prefill, Decoder]:
        """Prefill and decode over new device buffers."""
        config, weights = self.config, self.weights
        return (
            Prefill(config, self.npu, self._layers, self._cache, self.timing),
            Decoder(
                config,
                self.npu,
                self._layers,
                self._final,
                [weights[name] for name in self._heads],
                self._cache,
                self._rope,
                self.timing,
            ),
        )

    def _probe_mapped(self, mapped: dict[str, Buffer]) -> str:
        keys = {name: gemv for name, (_, gemv) in packed_kernels(self.config).items()}
        wrong = probe_mapped(self.npu, keys, mapped)
        if wrong:
            self.npu.note(f"weights are copied, user memory is not used: {wrong}")
        return wrong

    def _probe_chains(self) -> None:
        """Decides about command chains and opens the contexts, so that no first prompt waits for it."""
        npu = self.npu
        if npu.options.chains != "auto":
            if npu.chains and not self.device.profile.chains_trusted:
                npu.note(
                    "command chains are on, as asked, though this driver's word on a chain's end cannot "
                    "be trusted (--chains auto leaves them off)"
                )
            self._first()
            return
        if not self.device.profile.chains_trusted:
            npu.chains, npu.chains_why = False, "this driver's word on a chain's end cannot be trusted"
            self._first()
            return
        began = perf_counter()
        groups = self.probe_groups()
        wrong = probe_chains(npu, groups)
        npu.chains, npu.chains_why = (
            not wrong,
            wrong
            or (
                f"{len(groups)} groups gave the results of single commands, tried in "
                f"{(perf_counter() - began) * 1e3:.0f} ms"
            ),
        )
        if wrong:
            npu.note(f"command chains are off: {wrong}")
        if not groups:
            npu.open_contexts()

    def _first(self) -> None:
        """The first commands where no trial makes them, and the contexts: what fails once runs again."""
        run_singly(self.probe_groups())
        self.npu.open_contexts()

    def probe_groups(self) -> list[Group]:
        """The groups of several runs that tokens and prompts are made of, for qwen35.model.probe."""
        return [*self._decoder.groups(), *self._prefill.groups()]

    @property
    def ways(self) -> list[str]:
        """Lines for a person: how the device is used, and why so."""
        npu, weights, limit = self.npu, self.weights, self.device.wait_seconds
        return [
            f"chains {'on' if npu.chains else 'off'}: {npu.chains_why}",
            f"weights {weights.way}: {weights.why}",
            f"waits end after {limit:g} s without progress, and later for long kernels"
            if limit
            else "waits are without a limit",
            self.steps.line(),
        ]

    def __enter__(self) -> TextModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def length(self) -> int:
        """Tokens the state holds."""
        return self._cache.length + self._ahead

    @property
    def position(self) -> int:
        """Rotary position of the next text token; less than `length` after images."""
        return self._cache.position + self._ahead

    @property
    def state_bytes(self) -> int:
        """Bytes of host memory the state takes now: KV cache and DeltaNet state."""
        return self._cache.kv_bytes + self._cache.linear_bytes

    def prefill(
        self,
        ids: Sequence[int] | NDArray[Any],
        *,
        positions: I64 | None = None,
        embeddings: F32 | None = None,
        borders: Sequence[int] = (),
        marks: Sequence[int] = (),
    ) -> F32:
        """Appends `ids` (at least one) and returns the logits after the last, float32 [vocab].

        `positions` int64 [n] or [3, n] (t, h, w) are rotary positions; None counts on from `position`.
        `embeddings` float32 [m, D] replace the rows of the m image tokens among `ids`, in order. Prompts
        longer than the bundle's max_prompt run in passes, up to `steps.count` tokens of text as `decode` runs
        them. `borders` are counts of `ids`, ascending, at which the DeltaNet recurrence is cut, as if calls
        ended there (the projections are not: that costs next to nothing). `marks` are borders, too, and
        `border_snapshot` then gives the state at them.

        Raises PromptTooLong past `max_ctx`, ModelError for ids, positions or embeddings that do not fit, and
        the binding's errors.
        """
        tokens = np.asarray(ids, np.int64).reshape(-1)
        if not tokens.size:
            raise ModelError("a prompt needs at least one token")
        self._settle()
        if self.length + tokens.size > self.max_ctx:
            raise PromptTooLong(self.length + tokens.size, self.max_ctx)
        where = text_positions(tokens.size, self.position) if positions is None else np.asarray(positions)
        if where.shape not in ((tokens.size,), (3, tokens.size)):
            raise ModelError(f"positions {where.shape} for {tokens.size} tokens: give [n] or [3, n]")
        rows = self._image_rows(tokens, embeddings)
        self.embedding.hint(tokens if rows is None else tokens[rows < 0])
        timing, past = self.timing, self.length
        wanted = sorted({int(b) for b in marks if 0 < b < tokens.size})
        cuts = sorted({*(int(b) for b in borders if 0 < b < tokens.size), *wanted})
        self._marks = {}
        made = {cut: self._cache.mark(past + cut, int(where[..., :cut].max()) + 1) for cut in wanted}
        if tokens.size <= self.steps.count and self._plain(where, rows):
            return self._by_steps(tokens, made)
        side = None if past == 0 else self._cache.side
        target = 1 - self._cache.side

        def part(start: int, stop: int) -> tuple[F32, tuple[F32, F32]]:
            x = self._rows(tokens[start:stop], None if rows is None else rows[start:stop], embeddings)
            timing.lap("host.embed")
            tables = self._rope.tables(where[..., start:stop])
            timing.lap("host.rope")
            return x, tables

        with self._transaction(tokens.size):
            timing.start()
            row, mixed = self._prefill.run(tokens.size, part, past, (side, target), cuts, made)
            logits = self._decoder.finish(row, mixed)
        self._cache.commit(tokens.size, int(where.max()) + 1)
        self._marks = made
        return logits

    def decode(self, token: int, draft: Sequence[int] = ()) -> F32:
        """Appends one token and returns the logits after it, float32 [vocab].

        `draft` are tokens that probably follow, at most `draft_limit`. They run in the same pass, and as long
        as the next calls give them, one by one, each costs its head alone; another token ends that. A pass
        costs about what six tokens do, and rounds as a prompt's does.

        Raises PromptTooLong when the context is full (a draft has to fit, too), ModelError for an id outside
        the vocabulary or a longer draft, and the binding's errors.
        """
        self._marks = {}
        ahead = self._open_draft
        if ahead is not None and ahead.follows(token):
            return self._go_on(ahead)
        self._settle()
        if draft:
            return self._run_ahead([token, *draft])
        if self._cache.length >= self.max_ctx:
            raise PromptTooLong(self._cache.length + 1, self.max_ctx)
        return self._by_steps([token], {})

    def _row(self, token: int) -> None:
        """A token's embedding, to where the decoder takes it."""
        decoder, timing = self._decoder, self.timing
        timing.start()
        self.embedding.row(int(token), decoder.x[0])
        timing.lap("host.embed")

    def _plain(self, where: I64, rows: I64 | None) -> bool:
        """Whether tokens are text alone, whose positions count on from the state's."""
        if rows is not None and (rows >= 0).any():
            return False
        return bool((where == text_positions(where.shape[-1], self.position)).all())

    def _by_steps(self, tokens: Sequence[int] | I64, made: dict[int, Mark]) -> F32:
        """A few tokens one by one, without the logits that nobody asks for."""
        cache, decoder = self._cache, self._decoder
        length, position, count = cache.length, cache.position, len(tokens)
        if not length:
            cache.clear_side()
        with self._transaction(count):
            for at, sides in enumerate(cache.walk(count)):
                self._row(tokens[at])
                if at == count - 1:
                    logits = decoder.run(length + at, sides, position + at)
                else:
                    decoder.step(length + at, sides, position + at)
                if at + 1 in made:
                    cache.take(made[at + 1], sides[1])
        cache.commit(count, position + count)
        self._marks = made
        return logits

    def _choose_steps(self) -> Steps:
        """How many new tokens go by steps: as told, or as trials on an empty state show."""
        if self.npu.options.steps == "auto" and self.max_ctx < LONGEST_TRIAL:
            return Steps(0, f"{self.max_ctx} tokens of context are too few to measure")
        steps = chosen(
            self.npu.options.steps,
            lambda count: self.prefill([0] * count),
            lambda count: self._by_steps([0] * count, {}),
            self.reset,
        )
        self.timing.reset()
        return steps

    def _run_ahead(self, ids: Sequence[int]) -> F32:
        """A pass over a token and its draft; the logits after the token."""
        tokens, cache, timing = np.asarray(ids, np.int64), self._cache, self.timing
        past, side, count = cache.length, cache.side, len(ids)
        if count - 1 > self.draft_limit:
            raise ModelError(f"a draft of {count - 1} tokens", remedy=f"give at most {self.draft_limit}")
        if past + count > self.max_ctx:
            raise PromptTooLong(past + count, self.max_ctx)
        draft = Draft(cache, tokens, len(self._layers) - 1)
        with self._transaction(count):
            timing.start()
            x = self.embedding.rows(tokens)
            timing.lap("host.embed")
            tables = self._rope.tables(text_positions(count, cache.position))
            timing.lap("host.rope")
            sides = side if past else None, 1 - side
            self._prefill.run(count, lambda start, stop: (x, tables), past, sides, watch=draft.watch)
            draft.end(x)
            logits = self._decoder.finish(*draft.row())
        draft.accepted = 1
        self._draft = draft
        return logits

    def _go_on(self, draft: Draft) -> F32:
        """The logits after the next row of a draft."""
        with self._transaction(len(draft.ids)):
            self.timing.start()
            logits = self._decoder.finish(*draft.row())
        draft.accepted += 1
        return logits

    @property
    def _open_draft(self) -> Draft | None:
        """The draft whose rows count in part and are not yet in the cache's state."""
        draft = self._draft
        return draft if draft is not None and draft.open(self._cache) else None

    @property
    def _ahead(self) -> int:
        """Rows of an open draft that count."""
        draft = self._open_draft
        return 0 if draft is None else draft.accepted

    def _settle(self) -> None:
        """Brings what counts of an open draft into the state, and closes it."""
        if (draft := self._open_draft) is not None:
            self.timing.start()
            draft.settle(self._layers, self._cache)
            self.timing.lap("host.draft")
        self._draft = None

    def reset(self) -> None:
        """Empties the state and gives its memory back."""
        self._marks, self._draft = {}, None
        self._cache.reset()

    def snapshot(self) -> Snapshot:
        """A copy of the state; KV rows are shared with earlier snapshots of the same sequence."""
        made = self._cache.snapshot()
        if (draft := self._open_draft) is not None:
            made.draft = draft.keep(self._cache)
        return made

    def border_snapshot(self, mark: int) -> Snapshot:
        """The state at a mark of the prefill just done, once; several in ascending order.

        Raises ModelError where there is none.
        """
        if mark not in self._marks or mark != min(self._marks):
            raise ModelError(f"the last call was no prefill with {mark} as its next mark")
        return self._cache.snapshot(self._marks.pop(mark))

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces the state by a snapshot of this model. Raises ModelError for another model's."""
        self._cache.check(snapshot)
        self._marks, self._draft = {}, None
        self._cache.restore(snapshot)
        if snapshot.draft is not None:
            self._draft = snapshot.draft.reopen(self._cache)

    def follow(self, other: TextModel) -> None:
        """Takes `other`'s snapshots from now on; a model of the same bundle and `max_ctx`, perhaps closed."""
        self._cache.follow(other._cache)

    def close(self) -> None:
        """Gives kernels, buffers and weights back to the device. Idempotent."""
        self._prefill.close()
        self._decoder.close()
        self.embedding.close()
        self.npu.close()
        self.weights.close()

    @contextmanager
    def _transaction(self, count: int) -> Iterator[None]:
        """Nothing is in flight when it ends, or else no buffer that a command may write is used again."""
        self._cache.reserve(count)
        try:
            yield
        except BaseException:
            over = False  # an exception out of the drain itself leaves that open
            try:
                over = self.npu.drain()
            finally:
                if not over:
                    self._leave_buffers()
            raise

    def _leave_buffers(self) -> None:
        """New device buffers for what follows; a command that never ended may write into the old ones."""
        self._prefill.abandon()
        self._decoder.abandon()
        self._prefill, self._decoder = self._make_passes()
        self.npu.note(
            "a command never ended: its buffers are left to the NPU and new ones are used; their "
            "memory comes back when the device is closed"
        )

    def _image_rows(self, tokens: I64, embeddings: F32 | None) -> I64 | None:
        """For each token the row of `embeddings` that replaces it, or -1."""
        if embeddings is None:
            return None
        if self.config.vision is None:
            raise ModelError("this bundle has no vision tower", str(self.bundle.path))
        is_image = tokens == self.config.vision.image_token_id
        count = int(is_image.sum())
        if embeddings.shape != (count, self.config.hidden_size):
            raise ModelError(
                f"{count} image tokens take [{count}, {self.config.hidden_size}] embedding rows, "
                f"not {list(embeddings.shape)}"
            )
        return np.where(is_image, np.cumsum(is_image) - 1, -1)

    def _rows(self, tokens: I64, rows: I64 | None, embeddings: F32 | None) -> F32:
        if rows is None or embeddings is None:
            return self.embedding.rows(tokens)
        x = np.empty((tokens.size, self.config.hidden_size), np.float32)
        image = rows >= 0
        x[image] = embeddings[rows[image]]
        x[~image] = self.embedding.rows(tokens[~image])
        return x
