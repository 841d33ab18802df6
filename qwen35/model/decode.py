"""Decode: one row through the layers, and the last rows of a prompt to its logits.

Everything a token needs is made once: buffers, runs, C pointers. K slices of down_proj and parts of the head
go to the device as one chain each, so a layer costs four submits and four waits.

While the NPU works on a projection the host does what that projection does not need and what would keep the
next one waiting: the gates and the rotary tables, the DeltaNet state's new side, memory that is read next
into the caches. `timing` books such work as `beside.*`, the waits for the NPU as `gemv.*`, and what the NPU
waits for as `host.*`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qwen35._host import ffi, lib
from qwen35.host import Norm, check, pointer
from qwen35.model.attention import Attention
from qwen35.model.deltanet import DeltaNet
from qwen35.model.dispatch import Dispatch, Group

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.bundle.config import ModelConfig
    from qwen35.model.cache import KVRows, StateCache
    from qwen35.model.layers import Layer
    from qwen35.model.projections import Projections
    from qwen35.model.rope import Rope
    from qwen35.model.timing import Timing

__all__ = ["Decoder"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]


_FETCH = 1 << 20
"""Bytes of keys, and of values: what one thread reads while an NPU computes a projection, about; gate_up, the
largest, takes twice as long."""


@dataclass
class _Plan:
    """One layer's runs and host calls."""

    layer: Layer
    name: str
    project: Dispatch
    output: Dispatch
    gate_up: Dispatch
    down: Dispatch
    ahead: KVRows | None = None
    """The rows of the attention layer that follows: read into the caches beside gate_up and down, the first
    ones last. More than 8 MiB of a layer, or earlier, they hardly kept until then."""


class _RowNorm:
    """A Norm over the one row, its pointers prepared."""

    def __init__(self, norm: Norm, x: Any, adds: list[U16], out: Any, gates: Any) -> None:
        self._norm, self._x, self._out, self._gates = norm, x, out, gates
        self._adds = ffi.new("uint16_t *[]", [pointer(add) for add in adds])
        self._strides = ffi.new("int64_t[]", max(len(adds), 1))

    def run(self) -> None:
        """The row, without its gates."""
        norm = self._norm
        check(
            lib.host_norm_rows(
                norm.struct, self._x, 1, self._adds, self._strides, self._out, norm.dim, ffi.NULL
            )
        )

    def fetch(self) -> None:
        """Brings the weights and the row into the caches: `run` comes soon."""
        lib.host_fetch(self._norm.struct.weight, self._norm.weight.nbytes)
        lib.host_fetch(self._x, self._norm.weight.nbytes)

    def project(self) -> None:
        """The gates of the row that `run` has made, if there are any."""
        if self._norm.proj_cols:
            check(
                lib.host_norm_rows(
                    self._norm.projection, self._x, 1, ffi.NULL, ffi.NULL, ffi.NULL, 0, self._gates
                )
            )


class Decoder:
    """The buffers and the walk of one row. Not thread-safe."""

    def __init__(
        self,
        config: ModelConfig,
        npu: Projections,
        layers: list[Layer],
        final: Norm,
        heads: list[Buffer],
        cache: StateCache,
        rope: Rope,
        timing: Timing,
    ) -> None:
        self._config, self._cache, self._rope, self._timing = config, cache, rope, timing
        self._buffers: list[Buffer] = []
        self._keep: list[Any] = []
        self.x: F32 = np.zeros((1, config.hidden_size), np.float32)
        """The row, float32 [1, D]: put an embedding here, then `run`."""
        self._cosines, self._sines = (np.empty(config.rotary_dim // 2, np.float32) for _ in range(2))
        wide = max(npu.gemv_spec(kind).m for kind in set(config.layer_types))
        pairs = npu.gemv_spec("gu").m
        inner = max(pairs // 2, config.n_down * config.hidden_size)
        row, row_pointer, _ = self._vector(npu, config.hidden_size)
        self._row = row
        mixed, self._mixed_pointer, self._mixed = self._vector(npu, config.o_in)
        hidden, self._hidden_pointer, _ = self._vector(npu, inner)
        self._hidden = hidden
        wide_out, self._y_pointer, _ = self._vector(npu, wide, False)
        o_out, _, o_view = self._vector(npu, npu.gemv_spec("o").m, False)
        pairs_out, self._pairs_pointer, _ = self._vector(npu, pairs, False)
        slices = [self._vector(npu, npu.gemv_spec("down").m, False) for _ in range(config.n_down)]
        logits, self._logits_pointer, _ = self._vector(npu, config.n_head * config.head_rows, False)
        self._slices, self._logits_buffer = [buffer for buffer, _, _ in slices], logits
        self._swiglu = pairs // 2
        self._gates: F32 = np.zeros(max(layer.norm_in.proj_cols for layer in layers) or 1, np.float32)
        x, gates = pointer(self.x), pointer(self._gates)
        self._gates_pointer = gates
        self._tables = pointer(self._cosines), pointer(self._sines)
        mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, DeltaNet)]
        self._left: F32 = np.empty(max((mixer.rest for mixer in mixers), default=0), np.float32)
        self._rest_pointer = pointer(self._left)
        down_views = [view for _, _, view in slices]
        self._plans: list[_Plan] = []
        self._norms: list[tuple[_RowNorm, _RowNorm]] = []
        for layer in layers:
            size = config.hidden_size * 2
            parts = [
                (self._part(hidden, j * size, size), w, slices[j][0]) for j, w in enumerate(layer.w_down)
            ]
            self._plans.append(
                _Plan(
                    layer,
                    f"gemv.{layer.kind}",
                    npu.dispatch(layer.kind, 0, [(row, layer.w_in, wide_out)]),
                    npu.dispatch("o", 0, [(mixed, layer.w_o, o_out)]),
                    npu.dispatch("gu", 0, [(row, layer.w_gu, pairs_out)]),
                    npu.dispatch("down", 0, parts),
                )
            )
            adds = down_views if layer.norm_in.adds else []
            self._norms.append(
                (
                    _RowNorm(layer.norm_in, x, adds, row_pointer, gates),
                    _RowNorm(layer.norm_mlp, x, [o_view], row_pointer, ffi.NULL),
                )
            )
        self._final = _RowNorm(final, x, down_views, row_pointer, ffi.NULL)
        size = config.head_rows * 2
        self._npu = npu
        self._head_operands = [
            (row, weights, self._part(logits, j * size, size)) for j, weights in enumerate(heads)
        ]
        self._head = npu.dispatch("head", 0, self._head_operands)
        self._next = [
            *((plan.project, norm) for plan, (norm, _) in zip(self._plans[1:], self._norms[1:], strict=True)),
            (self._head, self._final),
        ]
        """What follows each layer, and its norm."""
        for index, kv in enumerate(cache.kv):
            if kv is not None and index:
                self._plans[index - 1].ahead = kv
        self._slept = False
        """Whether this process slept while the device computed the last head, a token's longest wait."""

    def run(self, past: int, sides: tuple[int, int], position: int) -> F32:
        """The row `x` at a rotary `position` through every layer after `past` tokens: logits float32 [vocab].

        `sides`: the DeltaNet state read and the one written, which is another.
        """
        self._walk(past, sides, position)
        self._rest(self._plans[-1], self._norms[-1][1], sides)
        return self._logits()

    def step(self, past: int, sides: tuple[int, int], position: int) -> None:
        """The row `x` into the state, as far as that takes: no further than the last layer's mixer."""
        self._walk(past, sides, position)
        self._write(self._plans[-1].layer, sides)
        self._timing.lap("host.deltanet")

    def _walk(self, past: int, sides: tuple[int, int], position: int) -> None:
        """Up to the last layer's mixer; what that leaves to be written is not yet."""
        lap = self._timing.lap
        for plan, (norm, norm_mlp) in zip(self._plans, self._norms, strict=True):
            norm.run()
            lap("host.norm")
            plan.project.start()
            lap("host.submit")
            if not plan.layer.index:
                self._rope.row(position, self._cosines, self._sines)
            norm.project()
            self._fetch(plan.layer, past, sides[0])
            lap("beside.gates")
            plan.output.ready()
            lap("beside.ready")
            plan.project.finish()
            lap(plan.name)
            self._mix(plan.layer, past, sides[0])
            if plan is not self._plans[-1]:
                self._rest(plan, norm_mlp, sides, past)

    def finish(self, x: F32, mixed: U16) -> F32:
        """What is left for a prompt's last row after the last layer's mixer: logits float32 [vocab]."""
        self.x[0] = x
        self._mixed[:] = mixed
        self._plans[-1].output.unready()  # what a step that was interrupted has left
        self._rest(self._plans[-1], self._norms[-1][1])
        return self._logits()

    def groups(self) -> list[Group]:
        """The groups of several runs that a token takes, for a trial of them."""
        down = Group("gemv down", self._plans[0].down, [self._hidden], self._slices, rounds=3)
        # two parts of the head: all of it would be the largest read of the whole load
        size = self._config.head_rows * 2
        parts = self._head_operands[:2]
        head = Group(
            "gemv head",
            self._npu.dispatch("head", 0, parts),
            [self._row],
            [self._logits_buffer.sub(0, len(parts) * size)],
        )
        return [group for group in (down, head) if group.dispatch.runs > 1]

    def _part(self, buffer: Buffer, at: int, size: int) -> Buffer:
        """A part of a buffer, given back with it: the memory is there until both are."""
        part = buffer.sub(at, size)
        self._buffers.append(part)
        return part

    def close(self) -> None:
        """Gives the device buffers back. Idempotent."""
        self._unready()
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.close()

    def abandon(self) -> None:
        """Leaves the device buffers to the NPU, which may still write them, until the device closes."""
        self._unready()
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.abandon()

    def _unready(self) -> None:
        for plan in self._plans:
            for dispatch in (plan.project, plan.output, plan.gate_up, plan.down):
                dispatch.unready()
        self._head.unready()

    def _fetch(self, layer: Layer, past: int, side: int) -> None:
        """The state that the layer's mixer reads, into the caches."""
        pair, kv = self._cache.linear[layer.index], self._cache.kv[layer.index]
        if pair is not None:
            assert isinstance(layer.mixer, DeltaNet)
            pair[side].fetch()
            layer.mixer.fetch()
        elif kv is not None:
            kv.fetch(past, 0, _FETCH)

    def _fetch_ahead(self, plan: _Plan, past: int, start: int, stop: int) -> None:
        """The same for the attention layer that follows; not where this process computes the commands, which
        take the caches."""
        if plan.ahead is not None and self._slept:
            plan.ahead.fetch(past, start, stop)
            self._timing.lap("beside.fetch")

    def _mix(self, layer: Layer, past: int, side: int) -> None:
        mixer = layer.mixer
        if isinstance(mixer, DeltaNet):
            pair = self._cache.linear[layer.index]
            assert pair is not None
            mixer.step(
                self._y_pointer, self._gates_pointer, pair[side], self._mixed_pointer, self._rest_pointer
            )
            self._timing.lap("host.deltanet")
        else:
            assert isinstance(mixer, Attention)
            kv = self._cache.kv[layer.index]
            assert kv is not None
            mixer.step(
                self._y_pointer, past, *self._tables, kv.keys_pointer, kv.values_pointer, self._mixed_pointer
            )
            self._timing.lap("host.attention")

    def _write(self, layer: Layer, sides: tuple[int, int]) -> None:
        """The new side of the DeltaNet state that the layer's mixer has read, if it is one."""
        states = self._cache.linear[layer.index]
        if states is not None:
            assert isinstance(layer.mixer, DeltaNet)
            before, after = (states[side] for side in sides)
            layer.mixer.write(self._y_pointer, before, after, self._rest_pointer)

    def _rest(self, plan: _Plan, norm: _RowNorm, sides: tuple[int, int] | None = None, past: int = 0) -> None:
        """What follows a layer's mixer. `sides`: of the state that the mixer has read and that is written;
        `past`: rows that an attention layer behind it reads."""
        lap = self._timing.lap
        plan.output.start()
        lap("host.submit")
        if sides is not None:
            self._write(plan.layer, sides)
            lap("beside.deltanet")
        plan.gate_up.ready()
        norm.fetch()
        lap("beside.ready")
        plan.output.finish()
        lap("gemv.o")
        norm.run()
        lap("host.norm")
        plan.gate_up.start()
        lap("host.submit")
        plan.down.ready()
        lap("beside.ready")
        self._fetch_ahead(plan, past, 2 * _FETCH, 4 * _FETCH)
        plan.gate_up.finish()
        lap("gemv.gu")
        lib.host_swiglu_pairs(self._pairs_pointer, self._swiglu, self._hidden_pointer)
        lap("host.swiglu")
        plan.down.start()
        lap("host.submit")
        following, norm = self._next[plan.layer.index]
        following.ready()
        lap("beside.ready")
        self._fetch_ahead(plan, past, _FETCH, 2 * _FETCH)
        norm.fetch()
        plan.down.finish()
        lap("gemv.down")

    def _logits(self) -> F32:
        lap = self._timing.lap
        self._final.run()
        lap("host.norm")
        self._head.start()
        lap("host.submit")
        # Written, so that no page has to be made when the NPU is done.
        out: F32 = np.empty(self._config.vocab_size, np.float32)
        out[:: mmap.PAGESIZE // 4] = 0
        self._plans[0].project.ready()
        lap("beside.logits")
        self._slept = _sleeps(self._head.finish)
        lap("gemv.head")
        lib.host_bf16_to_f32(self._logits_pointer, pointer(out), out.size)
        lap("host.logits")
        return out

    def _vector(self, npu: Projections, count: int, writable: bool = True) -> tuple[Buffer, Any, U16]:
        buffer = npu.alloc(count * 2)
        view: U16 = buffer.view(np.uint16, writable=writable)
        self._buffers.append(buffer)
        self._keep.append(view)
        return buffer, pointer(view), view


def _sleeps(wait: Callable[[], None]) -> bool:
    """Whether this process does nothing in most of a wait, as for what some other processor computes."""
    began, busy = perf_counter(), process_time()
    wait()
    return process_time() - busy < (perf_counter() - began) / 2
