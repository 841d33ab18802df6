"""Decode: one row through the layers, and the last rows of a prompt to its logits.

Everything a token needs is made once: buffers, runs, C pointers. K slices of down_proj and parts of the head
go to the device as one chain each, so a layer costs four submits and four waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qwen35._host import ffi, lib
from qwen35.host import Norm, check, pointer
from qwen35.model.attention import Attention
from qwen35.model.deltanet import DeltaNet
from qwen35.model.projections import Dispatch, Group

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.bundle.config import ModelConfig
    from qwen35.model.cache import StateCache
    from qwen35.model.layers import Layer
    from qwen35.model.projections import Projections
    from qwen35.model.timing import Timing

__all__ = ["Decoder"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]


@dataclass
class _Plan:
    """One layer's runs and host calls."""

    layer: Layer
    name: str
    project: Dispatch
    output: Dispatch
    gate_up: Dispatch
    down: Dispatch


class _RowNorm:
    """A Norm over the one row, its pointers prepared."""

    def __init__(self, norm: Norm, x: Any, adds: list[U16], out: Any, gates: Any) -> None:
        self._norm, self._x, self._out, self._gates = norm, x, out, gates
        self._adds = ffi.new("uint16_t *[]", [pointer(add) for add in adds])
        self._strides = ffi.new("int64_t[]", max(len(adds), 1))

    def run(self) -> None:
        norm = self._norm
        check(
            lib.host_norm_rows(
                norm.struct, self._x, 1, self._adds, self._strides, self._out, norm.dim, self._gates
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
        timing: Timing,
    ) -> None:
        self._config, self._cache, self._timing = config, cache, timing
        self._buffers: list[Buffer] = []
        self._keep: list[Any] = []
        self.x: F32 = np.zeros((1, config.hidden_size), np.float32)
        """The row, float32 [1, D]: put an embedding here, then `run`."""
        self.cosines, self.sines = (np.empty(config.rotary_dim // 2, np.float32) for _ in range(2))
        """The row's rotary tables, float32 [rope_dim/2]."""
        wide = max(npu.gemv_spec(kind).m for kind in set(config.layer_types))
        pairs = npu.gemv_spec("gu").m
        inner = max(pairs // 2, config.n_down * config.hidden_size)
        row, row_pointer, _ = self._input(npu, config.hidden_size)
        self._row = row
        mixed, self._mixed_pointer, self._mixed = self._input(npu, config.o_in)
        hidden, self._hidden_pointer, _ = self._input(npu, inner)
        self._hidden = hidden
        wide_out, self._y_pointer, _ = self._result(npu, wide)
        o_out, _, o_view = self._result(npu, npu.gemv_spec("o").m)
        pairs_out, self._pairs_pointer, _ = self._result(npu, pairs)
        slices = [self._result(npu, npu.gemv_spec("down").m) for _ in range(config.n_down)]
        logits, self._logits_pointer, _ = self._result(npu, config.n_head * config.head_rows)
        self._slices, self._logits_buffer = [buffer for buffer, _, _ in slices], logits
        self._swiglu = pairs // 2
        self._gates: F32 = np.zeros(max(layer.norm_in.proj_cols for layer in layers) or 1, np.float32)
        x, gates = pointer(self.x), pointer(self._gates)
        self._gates_pointer = gates
        self._tables = pointer(self.cosines), pointer(self.sines)
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
            into = gates if layer.norm_in.proj_cols else ffi.NULL
            self._norms.append(
                (
                    _RowNorm(layer.norm_in, x, adds, row_pointer, into),
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

    def run(self, past: int, sides: tuple[int, int]) -> F32:
        """The row `x` through every layer after `past` tokens: logits float32 [vocab].

        `sides`: the DeltaNet state read and the one written, which is another.
        """
        self.step(past, sides)
        self._rest(self._plans[-1], self._norms[-1][1])
        return self._logits()

    def step(self, past: int, sides: tuple[int, int]) -> None:
        """The row `x` into the state, as far as that takes: no further than the last layer's mixer."""
        lap = self._timing.lap
        for plan, (norm, _) in zip(self._plans, self._norms, strict=True):
            norm.run()
            lap("host.norm")
            plan.project.run()
            lap(plan.name)
            self._mix(plan.layer, past, sides)
            if plan is not self._plans[-1]:
                self._rest(plan, self._norms[plan.layer.index][1])

    def finish(self, x: F32, mixed: U16) -> F32:
        """What is left for a prompt's last row after the last layer's mixer: logits float32 [vocab]."""
        self.x[0] = x
        self._mixed[:] = mixed
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
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.close()

    def abandon(self) -> None:
        """Leaves the device buffers to the NPU, which may still write them, until the device closes."""
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.abandon()

    def _mix(self, layer: Layer, past: int, sides: tuple[int, int]) -> None:
        mixer = layer.mixer
        if isinstance(mixer, DeltaNet):
            states = self._cache.linear[layer.index]
            assert states is not None
            before, after = (states[side] for side in sides)
            mixer.step(self._y_pointer, self._gates_pointer, before, after, self._mixed_pointer)
            self._timing.lap("host.deltanet")
        else:
            assert isinstance(mixer, Attention)
            kv = self._cache.kv[layer.index]
            assert kv is not None
            mixer.step(
                self._y_pointer, past, *self._tables, kv.keys_pointer, kv.values_pointer, self._mixed_pointer
            )
            self._timing.lap("host.attention")

    def _rest(self, plan: _Plan, norm: _RowNorm) -> None:
        lap = self._timing.lap
        plan.output.run()
        lap("gemv.o")
        norm.run()
        lap("host.norm")
        plan.gate_up.run()
        lap("gemv.gu")
        lib.host_swiglu_pairs(self._pairs_pointer, self._swiglu, self._hidden_pointer)
        lap("host.swiglu")
        plan.down.run()
        lap("gemv.down")

    def _logits(self) -> F32:
        self._final.run()
        self._timing.lap("host.norm")
        self._head.run()
        self._timing.lap("gemv.head")
        out: F32 = np.empty(self._config.vocab_size, np.float32)
        lib.host_bf16_to_f32(self._logits_pointer, pointer(out), out.size)
        self._timing.lap("host.logits")
        return out

    def _input(self, npu: Projections, count: int) -> tuple[Buffer, Any, U16]:
        buffer = npu.alloc(count * 2)
        view: U16 = buffer.view(np.uint16)
        self._buffers.append(buffer)
        self._keep.append(view)
        return buffer, pointer(view), view

    def _result(self, npu: Projections, count: int) -> tuple[Buffer, Any, U16]:
        buffer = npu.alloc(count * 2)
        view: U16 = buffer.view(np.uint16, writable=False)
        self._buffers.append(buffer)
        self._keep.append(view)
        return buffer, pointer(view), view
