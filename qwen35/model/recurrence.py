"""The DeltaNet layers over a prompt whose rows come in parts: results do not depend on where the parts end.

A mixer takes chunks of rows, counted from where it is called. So of a part that ends inside a chunk those
rows are computed for their results, without the state, and kept: the next part begins with them again. A row
does not depend on the rows behind it, so its result is the whole chunk's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35._host import lib
from qwen35.model.deltanet import DeltaNet, LinearState

if TYPE_CHECKING:
    from qwen35.model.cache import Mark, StateCache
    from qwen35.model.layers import Layer

__all__ = ["Recurrence"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]

_CHUNK: int = lib.HOST_DELTA_CHUNK


class Recurrence:
    """One prompt's. Each layer is given the parts in the order of their rows. Not thread-safe."""

    def __init__(
        self,
        cache: StateCache,
        sides: tuple[int | None, int],
        cuts: Sequence[int],
        marks: Mapping[int, Mark],
    ) -> None:
        """`sides`: the state read (None: empty) and the one written. At the rows `cuts` (ascending, the
        prompt's end is the last) chunks begin anew; at some of them `marks` take the state.
        """
        self._cuts, self._marks = cuts, marks
        self._states: dict[int, tuple[LinearState | None, LinearState]] = {}
        """By layer, the state of the rows done and the one to write."""
        for index, pair in enumerate(cache.linear):
            if pair is not None:
                self._states[index] = None if sides[0] is None else pair[sides[0]], pair[sides[1]]
        self._held: dict[int, tuple[U16, F32]] = {}
        """By layer, the input of the last chunk, which has not ended."""
        self._spare: LinearState | None = None

    def mix(self, layer: Layer, start: int, y: U16, gates: F32, out: U16) -> None:
        """The rows from `start` on, as DeltaNet.prefill."""
        held, at = self._held.pop(layer.index, None), 0
        while at < len(gates):
            cut = self._cuts[bisect_right(self._cuts, start + at)] - start
            end = min(cut, len(gates))
            if held is not None:
                before = len(held[1])
                end = min(end, at + _CHUNK - before)
                block = np.concatenate((held[0], y[at:end])), np.concatenate((held[1], gates[at:end]))
                result = np.empty((len(block[1]), out.shape[1]), np.uint16)
                over = end == cut or len(result) == _CHUNK
                self._run(layer, *block, result, over)
                out[at:end] = result[before:]
            else:
                over = end == cut or end - at >= _CHUNK
                if over and end != cut:
                    end -= (end - at) % _CHUNK
                block = y[at:end], gates[at:end]
                self._run(layer, *block, out[at:end], over)
            held = None if over else (block[0].copy(), block[1].copy())
            if end == cut and start + cut in self._marks:
                self._marks[start + cut].take(layer.index, self._states[layer.index][1])
            at = end
        if held is not None:
            self._held[layer.index] = held

    def _run(self, layer: Layer, y: U16, gates: F32, out: U16, over: bool) -> None:
        """Whole chunks, or one that is not `over`: its state is not known yet."""
        assert isinstance(layer.mixer, DeltaNet)
        before, after = self._states[layer.index]
        if over:
            layer.mixer.prefill(y, gates, before, after, out)
            self._states[layer.index] = after, after
            return
        if self._spare is None:
            self._spare = _like(after)
        layer.mixer.prefill(y, gates, before, self._spare, out)


def _like(state: LinearState) -> LinearState:
    """A state of that shape, of any values."""
    flat = np.empty(state.matrices.size + 16, np.float32)
    first = -flat.ctypes.data % 64 // 4
    matrices = flat[first : first + state.matrices.size].reshape(state.matrices.shape)
    return LinearState(np.empty_like(state.conv), matrices)
