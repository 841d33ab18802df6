"""Prefill: the rows of a prompt through the layers, so that the host works beside the NPU.

A prompt runs in passes of at most `max_prompt` rows, and the rows of a pass in two parts of whole chunks. The
parts take turns on two lanes, one a stage behind the other, so that the NPU has one part's projections while
the host norms and mixes the other's: in the order of the NPU, A's `o`, B's `in`, A's `gu` and `down`, B's
`o`, A's next `in`, B's `gu` and `down`, and so on. A part's mixer comes after that of the part before it in
the same layer. One thread does all of it, in an order that no timing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain, cycle
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35.model.dispatch import Group
from qwen35.model.lane import Lane, Watch
from qwen35.model.recurrence import Recurrence

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig
    from qwen35.model.cache import Mark, StateCache
    from qwen35.model.layers import Layer
    from qwen35.model.projections import Projections
    from qwen35.model.timing import Timing

__all__ = ["Prefill"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
Rows = Callable[[int, int], tuple[F32, tuple[F32, F32]]]
"""The rows [start, stop) of a prompt: x float32 [n, D] and its rotary tables [n, rope_dim/2]."""
Walk = Generator[None, None, tuple[F32, U16]]


class Prefill:
    """The lanes of a prompt. Not thread-safe.

    `padding` are the bf16 bits that the rows behind a part's last hold, up to a whole chunk: no result
    depends on them, but the emulated NPU skips rows of zeros and hardware does not, which the benchmark
    looks at.
    """

    def __init__(
        self,
        config: ModelConfig,
        npu: Projections,
        layers: list[Layer],
        cache: StateCache,
        timing: Timing,
    ) -> None:
        self._config, self._cache = config, cache
        # A model of one layer mixes a part and begins the lane's next in one turn: the order would be lost.
        lanes = npu.options.lanes if len(layers) > 1 else 1
        self._lanes = [Lane(config, npu, layers, cache, timing) for _ in range(lanes)]
        self.padding = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the device buffers now."""
        return sum(lane.nbytes for lane in self._lanes)

    def run(
        self,
        count: int,
        rows: Rows,
        past: int,
        sides: tuple[int | None, int],
        borders: Sequence[int] = (),
        marks: Mapping[int, Mark] = {},
        watch: Watch | None = None,
    ) -> tuple[F32, U16]:
        """`count` rows after `past` cached tokens; `rows` is called for each part, whose x is overwritten.

        `sides`: the DeltaNet state read (None: empty) and the one written. The recurrence is cut at the rows
        `borders` and where a pass ends, and `marks` take the state at some of the borders. `watch` is for
        prompts of one chunk: it is shown each layer's rows, and their x then ends as every row before the
        last layer's output projection.

        Returns the last row of x before the last layer's output projection, and that projection's input row
        (bf16): the rest concerns one row only.
        """
        cuts = sorted({*borders, *range(self._config.max_prompt, count, self._config.max_prompt), count})
        recurrence = Recurrence(self._cache, sides, cuts, marks)
        parts = list(self._parts(count))
        waiting: dict[int, Walk] = {
            index: self._walk(lane, parts[index :: len(self._lanes)], rows, past, recurrence, watch)
            for index, lane in enumerate(self._lanes)
        }
        last = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.uint16)
        try:
            # at first the second lane's input projection, then the first lane is a stage ahead for good
            turns = chain((0, 1, 0), cycle((0, 1)))
            while waiting:
                index = next(turns)
                if index not in waiting:
                    continue
                try:
                    next(waiting[index])
                except StopIteration as end:
                    del waiting[index]
                    if index == (len(parts) - 1) % len(self._lanes):
                        last = end.value
        finally:
            for walk in waiting.values():
                walk.close()
        return last

    def _walk(
        self,
        lane: Lane,
        parts: Sequence[tuple[int, int]],
        rows: Rows,
        past: int,
        recurrence: Recurrence,
        watch: Watch | None,
    ) -> Walk:
        """A lane's parts, one after the other; the last one's result."""
        result = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.uint16)
        for start, stop in parts:
            x, tables = rows(start, stop)
            result = yield from lane.walk(start, past, x, tables, recurrence, self.padding, watch)
        return result

    def _parts(self, count: int) -> Iterator[tuple[int, int]]:
        """Where parts begin and end."""
        config = self._config
        for start in range(0, count, config.max_prompt):
            stop = min(start + config.max_prompt, count)
            chunks = -(-(stop - start) // config.chunk)
            middle = start + -(-chunks // len(self._lanes)) * config.chunk
            if middle < stop:
                yield start, middle
                start = middle
            yield start, stop

    def groups(self) -> list[Group]:
        """The group of several runs that a chunk of a prompt takes, for a trial of it. Makes the buffers."""
        return self._lanes[0].groups()

    def close(self) -> None:
        """Gives the device buffers back. Idempotent."""
        for lane in self._lanes:
            lane.close()

    def abandon(self) -> None:
        """Leaves the device buffers to the NPU, which may still write them, until the device closes."""
        for lane in self._lanes:
            lane.abandon()
