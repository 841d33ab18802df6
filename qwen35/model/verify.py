"""A token and what probably follows it, in one pass: a row's logits when asked for, the state at any row.

A pass over n rows costs about what a pass over one costs, but the head exists for one row at a time. So the
pass stops where a prompt's does, before the last layer's output projection, and each row's rest is done only
once the rows before it are known to count. A DeltaNet state cannot be shortened; of each such layer the pass
keeps what the recurrence reads, and the host runs it again up to the last row that counts, from the state
before the pass. KV rows behind the state's length mean nothing, so those need only be counted.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35.model.deltanet import DeltaNet

if TYPE_CHECKING:
    from qwen35.model.cache import StateCache
    from qwen35.model.layers import Layer

__all__ = ["Draft"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
I64 = NDArray[np.int64]


class Draft:
    """The rows of a pass over `ids` on the state that the cache held when it was made. Not thread-safe.

    `accepted` rows count, the first ones. While the cache holds that very state the draft is open; whatever
    changes the state closes it. Its arrays are its own, so it outlives the device's buffers.
    """

    def __init__(self, cache: StateCache, ids: I64, last: int) -> None:
        """`last` is the last layer's index."""
        self.ids, self.accepted, self._last = ids, 0, last
        self._base = cache.state
        self._ended = True
        """Whether the cache's other side is the state behind all rows."""
        self._inputs: dict[int, tuple[U16, F32]] = {}
        self._x: F32 = np.zeros((0, 0), np.float32)
        self._mixed: U16 = np.zeros((0, 0), np.uint16)
        self._kept: list[tuple[U16, U16]] = []

    def watch(self, layer: Layer, y: U16, gates: F32 | None, mixed: U16) -> None:
        """Takes a layer's rows from the pass (Prefill.run): the mixer's input and output."""
        if isinstance(layer.mixer, DeltaNet):
            assert gates is not None
            self._inputs[layer.index] = y.copy(), gates.copy()
        self._mixed = mixed.copy() if layer.index == self._last else self._mixed

    def end(self, x: F32) -> None:
        """The pass is over: x float32 [n, D] as it left it."""
        self._x = x

    def open(self, cache: StateCache) -> bool:
        """Whether the state is still the one it was made on."""
        return cache.state is self._base

    def follows(self, token: int) -> bool:
        """Whether `token` is the next row."""
        return self.accepted < len(self.ids) and int(self.ids[self.accepted]) == token

    def row(self) -> tuple[F32, U16]:
        """The next row, for Decoder.finish."""
        return self._x[self.accepted], self._mixed[self.accepted]

    def settle(self, layers: list[Layer], cache: StateCache) -> None:
        """Makes the state that behind the accepted rows. Interrupted, it can be done again."""
        count = self.accepted
        side, past, position = self._base
        if count < len(self.ids) or not self._ended:
            self._ended = False
            for index, (y, gates) in self._inputs.items():
                pair, mixer = cache.linear[index], layers[index].mixer
                assert pair is not None and isinstance(mixer, DeltaNet)
                out: U16 = np.empty((count, mixer.width), np.uint16)
                before = pair[side] if past else None
                mixer.prefill(y[:count], gates[:count], before, pair[1 - side], out)
        cache.commit(count, position + count)

    def keep(self, cache: StateCache) -> Draft:
        """A copy to be opened again once the cache has been used for something else."""
        kept = copy(self)
        past = self._base[1]
        stop = past + len(self.ids)
        kept._kept = [(kv.keys[past:stop].copy(), kv.values[past:stop].copy()) for kv in cache.kv if kv]
        return kept

    def reopen(self, cache: StateCache) -> Draft:
        """An open copy of a kept draft: the cache holds again what it held before the pass."""
        draft = copy(self)
        draft._base, draft._ended = cache.state, False
        past = draft._base[1]
        cache.reserve(len(self.ids))
        rows = (kv for kv in cache.kv if kv is not None)
        for kv, (keys, values) in zip(rows, self._kept, strict=True):
            kv.keys[past : past + len(keys)] = keys
            kv.values[past : past + len(values)] = values
        return draft
