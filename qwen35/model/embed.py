"""Embedding rows on demand: no vocabulary-sized table exists on the host.

Tied models decode a token's row from the head's packed stream; untied ones have a bf16 table in the bundle's
mapping. Rows of a prompt are hinted to the OS first, so that one slow disk read does not follow another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qwen35 import formats
from qwen35._host import ffi, lib
from qwen35.errors import ModelError

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig

__all__ = ["Embedding"]

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class Embedding:
    """Rows of the embedding table, float32 [n, D].

    `streams` are the head's parts, uint8, `head_rows` rows each (a mapping of the file or of the device's
    buffers); `table` is the bf16 [vocab, D] tensor of an untied model. Thread-safe.
    """

    def __init__(
        self, config: ModelConfig, streams: Sequence[U8] = (), table: NDArray[np.uint16] | None = None
    ) -> None:
        self.vocab, self.dim = config.vocab_size, config.hidden_size
        self._streams, self._table, self._rows = list(streams), table, config.head_rows
        self._format = formats.by_name(config.gemv_format)
        self._group = 0 if table is not None else int(self._format.nbytes(8, self.dim))

    def rows(self, ids: Sequence[int] | NDArray[Any]) -> F32:
        """The rows of token ids. Raises ModelError for an id outside the vocabulary."""
        tokens = self._checked(ids)
        if self._table is not None:
            return formats.from_bf16(self._table[tokens])
        out = np.empty((tokens.size, self.dim), np.float32)
        parts = tokens // self._rows
        for part in _distinct(parts).tolist():
            mine = np.flatnonzero(parts == part)
            rows = tokens[mine] - part * self._rows
            if mine.size == tokens.size:
                self._format.decode_rows(self._streams[part], self.dim, rows, out=out)
            else:
                out[mine] = self._format.decode_rows(self._streams[part], self.dim, rows)
        return out

    def row(self, token: int, out: F32) -> None:
        """One row to float32 [D]; the cheap way for one token."""
        if not 0 <= token < self.vocab:
            self._checked([token])
        if self._table is not None:
            out[:] = formats.from_bf16(self._table[token])
        else:
            part, row = divmod(token, self._rows)
            self._format.decode_rows(self._streams[part], self.dim, [row], out=out.reshape(1, -1))

    def hint(self, ids: Sequence[int] | NDArray[Any]) -> None:
        """Tells the OS which pages `rows(ids)` will read; returns at once, whatever the OS makes of it."""
        tokens = _distinct(self._checked(ids))
        if self._table is not None:
            base, row = self._table.__array_interface__["data"][0], self._table.strides[0]
            starts, count = base + tokens * row, row
        else:
            bases = np.array([part.__array_interface__["data"][0] for part in self._streams], np.int64)
            starts = bases[tokens // self._rows] + tokens % self._rows // 8 * self._group
            starts, count = _distinct(starts), self._group
        found = np.ascontiguousarray(starts, np.int64)
        lib.host_will_need(ffi.cast("int64_t *", found.__array_interface__["data"][0]), found.size, count)

    def close(self) -> None:
        """Lets go of streams and table, whose memory ends with the last reference."""
        self._streams, self._table = [], None

    def _checked(self, ids: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        tokens = np.asarray(ids, np.int64).reshape(-1)
        if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab:
            worst = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
            raise ModelError(f"token id {worst} is outside the vocabulary of {self.vocab:,}")
        return tokens


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values in order, each once: np.unique, which loads numpy.ma (20 ms) when it is first called."""
    ordered: NDArray[np.int64] = np.sort(values)
    first: NDArray[np.bool_] = np.diff(ordered, prepend=ordered[:1] - 1) != 0
    return ordered[first]
