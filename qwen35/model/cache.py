"""The model's state: the attention layers' KV cache, the DeltaNet layers' matrices and convolution inputs.

A call to the model is a transaction. It reads the DeltaNet state of one side and writes the other, and adds
KV rows behind the last; `commit` makes the result the state in one assignment. What ends early, for whatever
reason, leaves the state as it was. A DeltaNet state cannot be shortened: going back needs a snapshot.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qwen35._host import lib
from qwen35.errors import ModelError
from qwen35.host import pointer
from qwen35.model.deltanet import LinearState

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig

__all__ = ["KVRows", "Mark", "Snapshot", "StateCache"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]

_STEP = 256
"""Rows by which the KV cache's memory is counted; pages come as rows are written."""


BETWEEN = 2
"""The side that several steps of one call write beside the free one."""

_SPARE = 1024
"""Rows behind the last that a restored state keeps: answers that take turns write there again, and a page
that was given back is cleared anew, a huge one at a time."""


class KVRows:
    """One attention layer's cache rows [max_ctx, kv_heads * hd]: float16 keys and bf16 values, as bits."""

    def __init__(self, keys: U16, values: U16) -> None:
        self.keys, self.values = keys, values
        self.keys_pointer, self.values_pointer = pointer(keys), pointer(values)

    def fetch(self, rows: int, start: int, stop: int) -> None:
        """Brings what bytes [start, stop) of keys, and of values, hold of the first `rows` rows into the
        caches: a step that reads them comes soon."""
        size = min(rows * self.keys.strides[0], stop) - start
        if size > 0:
            lib.host_fetch(self.keys_pointer + start // 2, size)
            lib.host_fetch(self.values_pointer + start // 2, size)


class _Block:
    """An immutable copy of KV rows start..stop of every layer, shared by the snapshots that follow it."""

    def __init__(self, start: int, stop: int, rows: list[tuple[U16, U16]]) -> None:
        self.start, self.stop, self.rows = start, stop, rows
        self.nbytes = sum(keys.nbytes + values.nbytes for keys, values in rows)


class Snapshot:
    """A model's whole state at `length` tokens; `position` is the next token's rotary position. Immutable.

    KV rows that an earlier snapshot of the same token sequence already holds are shared with it and counted
    in its `nbytes`, not here.
    """

    def __init__(
        self,
        owner: object,
        length: int,
        position: int,
        conv: U16,
        matrices: F32,
        blocks: Sequence[_Block],
        own: int,
    ) -> None:
        self.owner, self.length, self.position = owner, length, position
        self.conv, self.matrices, self.blocks = conv, matrices, tuple(blocks)
        self.draft: Any = None
        """What was run ahead from there, and counts in part (qwen35.model.verify)."""
        self.nbytes = conv.nbytes + matrices.nbytes + own

    def parts(self) -> list[tuple[int, int]]:
        """(identity, bytes) of the memory it keeps; what snapshots share has the same identity in each."""
        fixed = id(self), self.conv.nbytes + self.matrices.nbytes
        return [fixed, *((id(block), block.nbytes) for block in self.blocks)]


class Mark:
    """The DeltaNet state at `length` tokens inside a prompt; `position` is the next rotary one.

    `layers` by layer index (None for attention), filled as the prompt passes there.
    """

    def __init__(self, length: int, position: int, conv: U16, matrices: F32, kinds: Sequence[str]) -> None:
        self.length, self.position, self.conv, self.matrices = length, position, conv, matrices
        order = iter(range(len(conv)))
        self.layers = [next(order) if kind == "lin" else None for kind in kinds]

    def take(self, layer: int, state: LinearState) -> None:
        """Copies one layer's state."""
        at = self.layers[layer]
        assert at is not None
        self.conv[at] = state.conv
        self.matrices[at] = state.matrices


def _anonymous(nbytes: int) -> mmap.mmap:
    """Private zero pages that exist once written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=flags)


def _advise_huge(memory: mmap.mmap) -> None:
    """Huge pages where the kernel has them to give: a step reads all of this memory, in order."""
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)


def _release(memory: mmap.mmap, start: int, stop: int) -> None:
    """Gives the pages from `start` on, up to and with the one of `stop - 1`, back; they read as zero then."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    if stop > first:
        memory.madvise(mmap.MADV_DONTNEED, first, stop - first)


class StateCache:
    """The state of one conversation. Not thread-safe.

    `kv` and `linear` are lists by layer index (None for the other kind of layer); `linear[i]` are the two
    sides and the one between them, `BETWEEN`, for calls of several steps. Memory: `max_ctx` rows of address
    space, of which written rows take pages; so does the side between.
    """

    def __init__(self, config: ModelConfig, max_ctx: int) -> None:
        self.max_ctx = max_ctx
        kinds = config.layer_types
        attention = [i for i, kind in enumerate(kinds) if kind == "att"]
        linear = [i for i, kind in enumerate(kinds) if kind == "lin"]
        wide = config.num_key_value_heads * config.head_dim
        self._row_bytes = 2 * wide
        self._region = -(-max_ctx * self._row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._kv_memory = _anonymous(2 * len(attention) * self._region)
        self.kv: list[KVRows | None] = [None] * len(kinds)
        for n, layer in enumerate(attention):
            keys, values = (
                np.frombuffer(self._kv_memory, np.uint16, max_ctx * wide, offset=at * self._region).reshape(
                    max_ctx, wide
                )
                for at in (2 * n, 2 * n + 1)
            )
            self.kv[layer] = KVRows(keys, values)
        self._kv = [rows for rows in self.kv if rows is not None]
        shape = (
            3,
            len(linear),
            config.linear_num_value_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
        )
        self._matrix_memory = _anonymous(4 * int(np.prod(shape)))
        for memory in (self._kv_memory, self._matrix_memory):
            _advise_huge(memory)
        flat = np.frombuffer(self._matrix_memory, np.float32, int(np.prod(shape)))
        self._matrices: F32 = flat.reshape(shape)
        self._conv: U16 = np.zeros(
            (3, len(linear), config.linear_conv_kernel_dim - 1, config.conv_dim), np.uint16
        )
        self.linear: list[tuple[LinearState, LinearState, LinearState] | None] = [None] * len(kinds)
        for n, layer in enumerate(linear):
            first, second, third = (LinearState(self._conv[i, n], self._matrices[i, n]) for i in range(3))
            self.linear[layer] = first, second, third
        self._sides = 2
        self._state = 0, 0, 0  # side, length, position: replaced whole, so never half changed
        self._blocks: list[_Block] = []
        self._touched = 0
        self._owner = object()
        """What its snapshots are known by."""

    @property
    def side(self) -> int:
        """Which of a layer's pair holds the state; the other is free to be written."""
        return self._state[0]

    @property
    def length(self) -> int:
        """Tokens the state holds."""
        return self._state[1]

    @property
    def position(self) -> int:
        """Rotary position of the next text token; less than `length` after images."""
        return self._state[2]

    @property
    def state(self) -> tuple[int, int, int]:
        """Side, length and position: another object after every change of the state."""
        return self._state

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache in use or kept for reuse, in steps of 256 rows."""
        rows = min(-(-self._touched // _STEP) * _STEP, self.max_ctx)
        return rows * self._row_bytes * 2 * len(self._kv)

    @property
    def linear_bytes(self) -> int:
        """Bytes of the DeltaNet layers' state, both sides, and the one between them once it was used."""
        return self._sides * int(self._matrices[0].nbytes + self._conv[0].nbytes)

    def walk(self, count: int) -> list[tuple[int, int]]:
        """The sides that each of `count` steps reads and writes; `commit` then makes the last the state.

        The side of the state itself is written by none, so that whatever ends them early leaves it.
        """
        if count > 1:
            self._sides = 3
        here = self.side
        into = [1 - here if (count - step) % 2 else BETWEEN for step in range(count)]
        return list(zip([here, *into], into, strict=False))

    def reserve(self, count: int) -> None:
        """Notes that `count` rows after the last are about to be written."""
        self._touched = max(self._touched, self.length + count)

    def commit(self, count: int, position: int) -> None:
        """The written side becomes the state, `count` tokens longer."""
        side, length, _ = self._state
        self._state = 1 - side, length + count, position

    def follow(self, other: StateCache) -> None:
        """Takes the other's snapshots from now on. Raises ModelError where the two differ in shape."""
        ours, theirs = ((c.max_ctx, c._region, c._matrices.shape, c._conv.shape) for c in (self, other))
        if ours != theirs:
            raise ModelError("the models' states differ in shape")
        self._owner = other._owner

    def reset(self) -> None:
        """Empties the state and gives the KV cache's memory back."""
        self._blocks = []
        self._state = 0, 0, 0
        self._sides = 2
        _release(self._matrix_memory, 0, len(self._matrix_memory))
        self._trim()

    def clear_side(self) -> None:
        """Zeroes the DeltaNet state that is read next: of an empty state it may hold anything."""
        self._conv[self.side] = 0
        self._matrices[self.side] = 0

    def mark(self, length: int, position: int) -> Mark:
        """Room for the DeltaNet state at `length` tokens; not zeroed."""
        conv, matrices = np.empty_like(self._conv[0]), np.empty_like(self._matrices[0])
        return Mark(length, position, conv, matrices, ["lin" if pair else "att" for pair in self.linear])

    def take(self, mark: Mark, side: int) -> None:
        """Fills a mark whole with the DeltaNet state of a side."""
        mark.conv[:] = self._conv[side]
        mark.matrices[:] = self._matrices[side]

    def snapshot(self, mark: Mark | None = None) -> Snapshot:
        """A copy of the state, sharing the KV rows that earlier snapshots of this sequence hold.

        With `mark` the state that was marked, which must lie behind every earlier snapshot of the sequence.
        """
        side, length, position = self._state
        if mark is not None:
            length, position = mark.length, mark.position
        held = self._blocks[-1].stop if self._blocks else 0
        own = 0
        if length > held:
            rows = [(kv.keys[held:length].copy(), kv.values[held:length].copy()) for kv in self._kv]
            block = _Block(held, length, rows)
            self._blocks.append(block)
            own = block.nbytes
        if mark is not None:
            conv, matrices = mark.conv, mark.matrices
        else:
            conv, matrices = self._conv[side].copy(), self._matrices[side].copy()
        return Snapshot(self._owner, length, position, conv, matrices, self._blocks, own)

    def check(self, snapshot: Snapshot) -> None:
        """Raises ModelError for another model's snapshot."""
        if snapshot.owner is not self._owner:
            raise ModelError("the snapshot belongs to another model's state")

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces the state by a snapshot taken here; an interruption leaves the old state or the empty one.

        Raises ModelError for another model's snapshot.
        """
        self.check(snapshot)
        old, side = self.side, 1 - self.side
        self._conv[side] = snapshot.conv
        self._matrices[side] = snapshot.matrices
        shared = 0
        for ours, theirs in zip(self._blocks, snapshot.blocks, strict=False):
            if ours is not theirs:
                break
            shared += 1
        if shared < len(snapshot.blocks):
            self._blocks = []
            self._state = old, 0, 0
            self._touched = max(self._touched, snapshot.length)
            for block in snapshot.blocks[shared:]:
                for kv, (keys, values) in zip(self._kv, block.rows, strict=True):
                    kv.keys[block.start : block.stop] = keys
                    kv.values[block.start : block.stop] = values
        self._blocks = list(snapshot.blocks)
        self._state = side, snapshot.length, snapshot.position
        if self._touched - self.length > _SPARE:
            self._trim()

    def _trim(self) -> None:
        """Gives back the pages behind the last row; a huge page may reach beyond the rows written."""
        for at in range(2 * len(self._kv)):
            begin = at * self._region
            _release(self._kv_memory, begin + self.length * self._row_bytes, begin + self._region)
        self._touched = self.length
