"""Prefill: the rows of a prompt through the layers, a pass of at most `max_prompt` rows at a time.

Every projection is one dispatch over all chunks of the pass. Two device buffers alternate: one holds what a
projection reads (A), one what it writes (C), and a third the MLP's inner rows, which its second half reads in
place, K slice by K slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35.model.attention import Attention
from qwen35.model.deltanet import DeltaNet
from qwen35.model.projections import Dispatch, Group

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.bundle.config import ModelConfig
    from qwen35.model.cache import Mark, StateCache
    from qwen35.model.layers import Layer
    from qwen35.model.projections import Projections
    from qwen35.model.timing import Timing

__all__ = ["Prefill"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
Watch = Callable[["Layer", U16, "F32 | None", U16], None]
"""Is shown what a layer's mixer has read and written: rows, gates (of DeltaNet) and rows, valid meanwhile."""


class Prefill:
    """The device buffers and the walk of a prefill pass. Not thread-safe.

    Buffers are sized by the longest pass so far and kept. `padding` are the bf16 bits that the rows behind a
    pass's last hold, up to a whole chunk: no result depends on them, but the emulated NPU skips rows of zeros
    and hardware does not, which the benchmark looks at.
    """

    def __init__(
        self, config: ModelConfig, npu: Projections, layers: list[Layer], cache: StateCache, timing: Timing
    ) -> None:
        self._config, self._npu, self._layers, self._cache, self._timing = config, npu, layers, cache, timing
        keys = [*dict.fromkeys(config.layer_types), "o", "gu", "down"]
        self._specs = {key: npu.gemm_spec(key) for key in keys}
        self._chunks = self.padding = 0
        self._gates = max((layer.norm_in.proj_cols for layer in layers), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of the device buffers now."""
        return self._a.nbytes + self._c.nbytes + self._inner.nbytes if self._chunks else 0

    def run(
        self,
        x: F32,
        tables: tuple[F32, F32],
        past: int,
        sides: tuple[int | None, int],
        last: bool,
        borders: Sequence[int] = (),
        marks: Mapping[int, Mark] = {},
        watch: Watch | None = None,
    ) -> tuple[F32, U16]:
        """One pass: x float32 [n, D] (overwritten) after `past` cached tokens, rotary tables [n, rope_dim/2].

        `sides`: the DeltaNet state read (None: empty) and the one written. The recurrence is cut at the rows
        `borders` (ascending, in 1..n), and `marks` take the state at some of them. `watch` is for passes of
        one chunk: it is shown each layer's rows, and x then ends as every row before the last layer's output
        projection.

        Returns the last row of x before the last layer's output projection, and that projection's input row
        (bf16): the rest concerns one row only, and nothing at all of a pass that is not the `last` (the rows
        are then meaningless).
        """
        n = len(x)
        chunks = -(-n // self._config.chunk)
        self._reserve(chunks)
        lap = self._timing.lap
        gates = np.empty((n, self._gates), np.float32) if self._gates else None
        adds: list[U16] = []
        mixed = np.zeros((0, 0), np.uint16)
        for layer in self._layers:
            rows = self._input(layer.kind, n, chunks)
            layer.norm_in.rows(x, adds, rows, gates if layer.norm_in.proj_cols else None)
            lap("host.norm")
            self._gemm(layer.kind, chunks, layer.w_in)
            y = self._output(layer.kind, n, self._config_columns(layer.kind))
            mixed = self._input("o", n, chunks)
            self._mix(layer, y, gates, tables, past, sides, mixed, borders, marks)
            if watch is not None:
                watch(layer, y, gates if layer.norm_in.proj_cols else None, mixed)
            if layer is self._layers[-1]:
                break
            self._gemm("o", chunks, layer.w_o)
            rows = self._input("gu", n, chunks)
            layer.norm_mlp.rows(x, [self._output("o", n, self._config.hidden_size)], rows)
            lap("host.norm")
            operands = self._part("gu", chunks), layer.w_gu, self._inner
            self._npu.dispatch("gu", chunks, [operands], read=False).run()
            lap("gemm.gu")
            adds = self._down(layer, n, chunks)
            lap("gemm.down")
        return x[n - 1], mixed[n - 1].copy() if last else mixed[:0]

    def _gemm(self, key: str, chunks: int, weights: Buffer) -> None:
        span = self._npu.spans(key, chunks)[1]
        self._npu.gemm(key, chunks, self._part(key, chunks), weights, self._c.sub(0, span * 2))
        self._timing.lap(f"gemm.{key}")

    def _part(self, key: str, chunks: int) -> Buffer:
        """The part of A that a GEMM reads, so that no more of it is flushed."""
        return self._a.sub(0, self._npu.spans(key, chunks)[0] * 2)

    def _config_columns(self, kind: str) -> int:
        return self._config.n_lin if kind == "lin" else self._config.n_att

    def _mix(
        self,
        layer: Layer,
        y: U16,
        gates: F32 | None,
        tables: tuple[F32, F32],
        past: int,
        sides: tuple[int | None, int],
        out: U16,
        borders: Sequence[int],
        marks: Mapping[int, Mark],
    ) -> None:
        if isinstance(layer.mixer, DeltaNet):
            pair = self._cache.linear[layer.index]
            assert pair is not None and gates is not None
            before, after = None if sides[0] is None else pair[sides[0]], pair[sides[1]]
            start = 0
            for stop in [*borders, len(gates)]:
                if stop > start:
                    layer.mixer.prefill(y[start:stop], gates[start:stop], before, after, out[start:stop])
                    before, start = after, stop
                if stop in marks:
                    marks[stop].take(layer.index, after)
            self._timing.lap("host.deltanet")
        else:
            assert isinstance(layer.mixer, Attention)
            kv = self._cache.kv[layer.index]
            assert kv is not None
            layer.mixer.prefill(y, past, tables[0], tables[1], kv.keys, kv.values, out)
            self._timing.lap("host.attention")

    def _down(self, layer: Layer, n: int, chunks: int) -> list[U16]:
        """All K slices, submitted before any is waited for; their results one behind the other in C."""
        stride = self._specs["down"].c_stride
        dispatch, firsts = self._slices(layer, chunks)
        dispatch.run()
        return [self._c_rows[at : at + n * stride].reshape(n, stride) for at in firsts]

    def _slices(self, layer: Layer, chunks: int) -> tuple[Dispatch, range]:
        """The runs of down_proj's K slices, and where in C each one's result begins."""
        d = self._config.hidden_size
        reads, writes = self._npu.spans("down", chunks)
        operands = [
            (self._inner.sub(j * d * 2, reads * 2), w, self._c.sub(j * writes * 2, writes * 2))
            for j, w in enumerate(layer.w_down)
        ]
        return self._npu.dispatch("down", chunks, operands), range(0, len(operands) * writes, writes)

    def _input(self, key: str, n: int, chunks: int) -> U16:
        """A as rows of the GEMM's stride; the rows that fill the last chunk hold the padding."""
        spec = self._specs[key]
        rows = self._a_rows[: chunks * spec.m * spec.lda].reshape(-1, spec.lda)
        rows[n:] = self.padding
        return rows[:n, : spec.k]

    def _output(self, key: str, n: int, columns: int) -> U16:
        spec = self._specs[key]
        return self._c_rows[: n * spec.c_stride].reshape(n, spec.c_stride)[:, :columns]

    def _reserve(self, chunks: int) -> None:
        if chunks <= self._chunks:
            return
        self.close()
        slices, width = self._config.n_down, self._config.hidden_size
        spans = {key: self._npu.spans(key, chunks) for key in self._specs}
        a = max(reads for key, (reads, _) in spans.items() if key != "down")
        c = max(
            writes * (slices if key == "down" else 1) for key, (_, writes) in spans.items() if key != "gu"
        )
        # one spare row: the last K slice's view begins inside the first row and must end inside the buffer
        inner = max(spans["gu"][1] + self._specs["gu"].c_stride, spans["down"][0] + (slices - 1) * width)
        self._a, self._c, self._inner = (self._npu.alloc(size * 2) for size in (a, c, inner))
        self._a_rows: U16 = self._a.view(np.uint16)
        self._c_rows: U16 = self._c.view(np.uint16, writable=False)
        self._chunks = chunks

    def groups(self) -> list[Group]:
        """The group of several runs that a chunk of a prompt takes, for a trial of it. Makes the buffers."""
        self._reserve(1)
        dispatch, firsts = self._slices(self._layers[0], 1)
        if dispatch.runs < 2:
            return []
        # a few rows say as much as a chunk, and the emulated NPU skips rows of zeros
        rows = self._inner.sub(0, min(8, self._config.chunk) * self._specs["down"].lda * 2)
        return [Group("gemm down", dispatch, [rows], [self._c.sub(0, (firsts[-1] + firsts.step) * 2)])]

    def close(self) -> None:
        """Gives the device buffers back. Idempotent."""
        for buffer in self._take():
            buffer.close()

    def abandon(self) -> None:
        """Leaves the device buffers to the NPU, which may still write them, until the device closes."""
        for buffer in self._take():
            buffer.abandon()

    def _take(self) -> list[Buffer]:
        chunks, self._chunks = self._chunks, 0
        return [self._a, self._c, self._inner] if chunks else []
