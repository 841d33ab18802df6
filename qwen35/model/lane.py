"""A lane of a prompt: device buffers for some of its rows, and their walk through the layers.

Every projection is one dispatch over all chunks of the rows. Two device buffers alternate: one holds what a
projection reads (A), one what it writes (C), and a third the MLP's inner rows, which its second half reads in
place, K slice by K slice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35.model.attention import Attention
from qwen35.model.dispatch import Dispatch, Group

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.bundle.config import ModelConfig
    from qwen35.model.cache import StateCache
    from qwen35.model.layers import Layer
    from qwen35.model.projections import Projections
    from qwen35.model.recurrence import Recurrence
    from qwen35.model.timing import Timing

__all__ = ["Lane", "Watch"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
Watch = Callable[["Layer", U16, "F32 | None", U16], None]
"""Is shown what a layer's mixer has read and written: rows, gates (of DeltaNet) and rows, valid meanwhile."""


class Lane:
    """Not thread-safe. Buffers are sized by the most chunks so far and kept."""

    def __init__(
        self, config: ModelConfig, npu: Projections, layers: list[Layer], cache: StateCache, timing: Timing
    ) -> None:
        self._config, self._npu, self._layers, self._cache, self._timing = config, npu, layers, cache, timing
        keys = [*dict.fromkeys(config.layer_types), "o", "gu", "down"]
        self._specs = {key: npu.gemm_spec(key) for key in keys}
        self._chunks = 0
        self._padded = 0, 0, 0
        """Where A holds padding, for the device too: first element, the one behind the last, and bits."""

    @property
    def nbytes(self) -> int:
        """Bytes of the device buffers now."""
        return self._a.nbytes + self._c.nbytes + self._inner.nbytes if self._chunks else 0

    def walk(
        self,
        start: int,
        past: int,
        x: F32,
        tables: tuple[F32, F32],
        recurrence: Recurrence,
        padding: int,
        watch: Watch | None = None,
    ) -> Generator[None, None, tuple[F32, U16]]:
        """The rows of a prompt from its `start` on, which follows `past` cached tokens: x float32 [n, D]
        (overwritten), rotary tables [n, rope_dim/2]. `padding` are the bf16 bits of the rows that fill the
        last chunk. `watch` is shown each layer's rows.

        Yields after each submit, when the host has nothing left to do before that is over: three times a
        layer, in front of its mixer, its second norm and the next layer's first. Each yield leaves runs in
        flight. The last stage is the last layer's mixer.

        Returns the last row of x before the last layer's output projection, and that projection's input row
        (bf16): the rest concerns one row only.
        """
        n, config, lap = len(x), self._config, self._timing.lap
        chunks = -(-n // config.chunk)
        self._reserve(chunks)
        adds: list[U16] = []
        mixed = np.zeros((0, 0), np.uint16)
        project = self._gemm(self._layers[0].kind, n, chunks, self._layers[0].w_in)
        for layer in self._layers:
            kind = layer.kind
            layer.norm_in.rows(x, adds, self._input(kind, n, chunks, padding))
            self._written(kind, n)
            lap("host.norm")
            project.start()
            lap(f"gemm.{kind}", 0)
            gates = np.empty((n, layer.norm_in.proj_cols), np.float32)
            if gates.size:
                layer.norm_in.gates(x, gates)
                lap("host.gates")
            output = self._gemm("o", n, chunks, layer.w_o)
            yield
            project.finish()
            lap(f"gemm.{kind}")
            y = self._output(kind, n, config.n_lin if kind == "lin" else config.n_att)
            mixed = self._input("o", n, chunks, padding)
            if isinstance(layer.mixer, Attention):
                kv = self._cache.kv[layer.index]
                assert kv is not None
                layer.mixer.prefill(y, past + start, tables[0], tables[1], kv.keys, kv.values, mixed)
                lap("host.attention")
            else:
                recurrence.mix(layer, start, y, gates, mixed)
                lap("host.deltanet")
            if watch is not None:
                watch(layer, y, gates if gates.size else None, mixed)
            if layer is self._layers[-1]:
                break
            self._written("o", n)
            output.start()
            lap("gemm.o", 0)
            operands = self._part("gu", chunks), layer.w_gu, self._inner
            gate_up = self._npu.dispatch("gu", chunks, [operands], rows=0)
            down, firsts = self._slices(layer, n, chunks)
            yield
            output.finish()
            lap("gemm.o")
            rows = self._input("gu", n, chunks, padding)
            layer.norm_mlp.rows(x, [self._output("o", n, config.hidden_size)], rows)
            self._written("gu", n)
            lap("host.norm")
            gate_up.start()
            lap("gemm.gu", 0)
            down.start(behind=gate_up)
            lap("gemm.down", 0)
            following = self._layers[layer.index + 1]
            project = self._gemm(following.kind, n, chunks, following.w_in)
            yield
            gate_up.finish()
            lap("gemm.gu")
            down.finish()
            lap("gemm.down")
            stride = self._specs["down"].c_stride
            adds = [self._c_rows[at : at + n * stride].reshape(n, stride) for at in firsts]
        return x[n - 1], mixed[n - 1].copy()

    def _gemm(self, key: str, n: int, chunks: int, weights: Buffer) -> Dispatch:
        """A projection of the rows, of which the host reads the first `n`."""
        operands = self._part(key, chunks), weights, self._c.sub(0, self._npu.spans(key, chunks)[1] * 2)
        return self._npu.dispatch(key, chunks, [operands], rows=n)

    def _part(self, key: str, chunks: int) -> Buffer:
        """The part of A that a GEMM reads; `_written` flushes what changes in it."""
        part = self._a.sub(0, self._npu.spans(key, chunks)[0] * 2)
        part.clean = True
        return part

    def _slices(self, layer: Layer, n: int, chunks: int) -> tuple[Dispatch, range]:
        """The runs of down_proj's K slices, and where in C each one's result begins."""
        d = self._config.hidden_size
        reads, writes = self._npu.spans("down", chunks)
        operands = [
            (self._inner.sub(j * d * 2, reads * 2), w, self._c.sub(j * writes * 2, writes * 2))
            for j, w in enumerate(layer.w_down)
        ]
        dispatch = self._npu.dispatch("down", chunks, operands, rows=n)
        return dispatch, range(0, len(operands) * writes, writes)

    def _input(self, key: str, n: int, chunks: int, padding: int) -> U16:
        """A as rows of the GEMM's stride; the rows that fill the last chunk hold the padding."""
        spec = self._specs[key]
        first, end = n * spec.lda, chunks * spec.m * spec.lda
        start, stop, bits = self._padded
        if not (start <= first and end <= stop and bits == padding):
            self._a_rows[first:end] = padding
            self._a.to_device(first * 2, (end - first) * 2)
            stop = end
        self._padded = first, stop, padding
        return self._a_rows[:first].reshape(n, spec.lda)[:, : spec.k]

    def _written(self, key: str, n: int) -> None:
        """The host has written `n` rows of A: so that the device sees them."""
        self._a.to_device(0, n * self._specs[key].lda * 2)

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
        self._padded = 0, 0, 0

    def groups(self) -> list[Group]:
        """The group of several runs that a chunk of a prompt takes, for a trial of it. Makes the buffers."""
        self._reserve(1)
        dispatch, firsts = self._slices(self._layers[0], self._config.chunk, 1)
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
