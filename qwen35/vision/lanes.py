"""Lanes: rows of pictures on their way through the tower, so that the host works beside the NPU.

A lane is a generator that yields where it could wait: a group of runs that it has started, a gate (a
function that tells whether it may go on), or nothing, between pieces of work that need not come soon.
`advance` resumes lanes, those first for which the NPU is done. One thread does all host work, so a lane needs
no lock; in what order lanes come depends on the clock, what they compute must not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qwen35.model.dispatch import Dispatch, Operands

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.model.projections import Projections

__all__ = ["Lane", "Steps", "Slot", "advance"]

U16 = NDArray[np.uint16]
Steps: TypeAlias = Generator[Dispatch | Callable[[], bool] | None, None, None]


class Lane:
    """A generator and what it waits for. `urgency`: of work that need not come soon the lower comes first."""

    _turns = count(1)

    def __init__(self) -> None:
        self._steps: Steps
        self._waits: Dispatch | Callable[[], bool] | None = None
        self.urgency = 0
        self.ended = False
        self.turn = 0
        """Of all lanes' pieces, the number of its last."""

    def begin(self, steps: Steps) -> None:
        """Gives the lane its generator."""
        self._steps = steps

    @property
    def flying(self) -> bool:
        """Whether it waits for the NPU."""
        return isinstance(self._waits, Dispatch)

    @property
    def landed(self) -> bool:
        """Whether the NPU is done with what it waits for."""
        return isinstance(self._waits, Dispatch) and self._waits.over

    @property
    def free(self) -> bool:
        """Whether it has work that waits for nothing."""
        return not self.flying and (self._waits is None or self._waits())  # type: ignore[operator]

    def go_on(self) -> None:
        """Goes on to where it could wait next, once the NPU is done. Raises the binding's errors."""
        if isinstance(self._waits, Dispatch):
            self._waits.finish()
        self.turn = next(self._turns)
        try:
            self._waits = next(self._steps)
        except StopIteration:
            self.ended = True

    def close(self) -> None:
        """Ends the generator where it is."""
        self._steps.close()


def advance(lanes: Sequence[Lane]) -> None:
    """Does the next piece of some lane's work.

    Raises RuntimeError where all of them wait for each other, and the binding's errors.
    """
    chosen = next((lane for lane in lanes if lane.landed), None)
    if chosen is None:
        chosen = min((lane for lane in lanes if lane.free), key=lambda lane: lane.urgency, default=None)
    if chosen is None:
        chosen = min((lane for lane in lanes if lane.flying), key=lambda lane: lane.turn, default=None)
    if chosen is None:
        raise RuntimeError("no lane can go on")
    chosen.go_on()


class Slot:
    """Device buffers of one lane at a time, by name; each as large as the largest lane so far needed."""

    def __init__(self, npu: Projections) -> None:
        self._npu = npu
        self._buffers: dict[str, Buffer] = {}
        self._groups: dict[str, tuple[tuple[int, int], Dispatch, list[Buffer]]] = {}
        """By weight: of how many chunks and rows, the group, and the parts of buffers that it reads and
        writes."""
        self.chunks = 0
        """Of patches that the buffers hold."""

    def __getitem__(self, name: str) -> Buffer:
        return self._buffers[name]

    @property
    def merges(self) -> bool:
        """Whether it has the merger's buffers."""
        return "joined" in self._buffers

    def reserve(self, chunks: int, sizes: dict[str, int]) -> None:
        """Makes each buffer hold the bf16 elements that `sizes` names. What the slot held is lost."""
        self.chunks = max(chunks, self.chunks)
        for name, elements in sizes.items():
            held = self._buffers.get(name)
            if held is None or held.nbytes < elements * 2:
                if held is not None:
                    self._forget(*self._groups)
                    del self._buffers[name]
                    held.close()
                self._buffers[name] = self._npu.alloc(elements * 2)

    def rows(self, name: str, stride: int, columns: int) -> U16:
        """A buffer's rows, bf16 bits [rows, columns]."""
        flat: U16 = self._buffers[name].view("u2")
        return flat[: flat.size // stride * stride].reshape(-1, stride)[:, :columns]

    def group(
        self, weight: str, key: str, chunks: int, rows: int, operands: Sequence[tuple[str, int, Buffer, str]]
    ) -> Dispatch:
        """The group of GEMM `key`'s runs over a weight, kept for the next picture of so many rows.

        `operands`: the name of A and the element at which it begins, B, the name of C. No start flushes A
        or C: who has written A calls `written`. Of C the host reads `rows` rows.
        """
        held = self._groups.get(weight)
        if held is not None and held[0] == (chunks, rows):
            return held[1]
        self._forget(weight)
        reads, writes = self._npu.spans(key, chunks)
        calls: list[Operands] = []
        parts: list[Buffer] = []
        for a, at, b, c in operands:
            pair = self._buffers[a].sub(2 * at, 2 * reads), self._buffers[c].sub(0, 2 * writes)
            parts += pair
            for part in pair:
                part.to_device()  # clean from here on
            calls.append((pair[0], b, pair[1]))
        group = self._npu.dispatch(key, chunks, calls, rows=rows)
        self._groups[weight] = (chunks, rows), group, parts
        return group

    def written(self, name: str, elements: int) -> None:
        """Makes the first elements of a buffer, which the host has written, visible to the NPU."""
        self._buffers[name].to_device(0, 2 * elements)

    def interrupted(self) -> None:
        """Forgets the groups: the host may have written what no `written` followed; new ones flush all."""
        self._forget(*self._groups)

    def _forget(self, *weights: str) -> None:
        for weight in weights:
            for part in self._groups.pop(weight, (None, None, []))[2]:
                part.close()

    def release(self) -> None:
        """Gives the buffers back."""
        self._forget(*self._groups)
        buffers, self._buffers, self.chunks = self._buffers, {}, 0
        for buffer in buffers.values():
            buffer.close()

    def abandon(self) -> None:
        """Lets go of buffers that a command may still write."""
        self._groups = {}
        buffers, self._buffers, self.chunks = self._buffers, {}, 0
        for buffer in buffers.values():
            buffer.abandon()
