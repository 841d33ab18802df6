"""Every kernel of a bundle once, on known data, against a host computation.

A GEMV is held against the host's product with the weights it dequantises itself; a GEMM against the same, in
its first and last rows, and the rows between, which are fed zeros, must be zero. Of compiled kernels only the
head's stream has a layout the host knows: the others' products are compared where the layer streams turn out
to be in that layout too, and else a GEMM's rows with what the GEMV of the same weights gives. Each kernel
runs twice and must give the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from amdxdna.errors import Closed, DeviceLost, XdnaError
from qwen35 import formats
from qwen35.accept.item import Item, Verdict
from qwen35.bundle.validate import stream_bytes
from qwen35.errors import explain
from qwen35.formats import from_bf16, to_bf16

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.model.text import TextModel

__all__ = ["TOLERANCE", "text_kernels", "vision_kernels"]

F32 = NDArray[np.float32]
TOLERANCE = 0.05
"""Of an element's difference, relative to its size and the root mean square of its row: bf16 results and
block-float activations (8 bits of mantissa a block of 8) stay below; a wrong operand or stride does not."""
ROWS = 4
"""Rows of a GEMM's A that are not zero, at its beginning and at its end."""
HEAD_ROWS = 2048
"""Outputs of the head that are compared; all of them would take seconds of the host."""


def text_kernels(model: TextModel) -> Iterator[Item]:
    """An item for each GEMV, and for each GEMM over one chunk and over the most."""
    places = {kind: model.config.layer_types.index(kind) for kind in dict.fromkeys(model.config.layer_types)}
    tensors = {kind: f"l{index}.g.in" for kind, index in places.items()}
    tensors |= {"o": "l0.g.o", "gu": "l0.g.gu", "down": "l0.g.down0", "head": "head0"}
    for key, name in tensors.items():
        kernel = _Kernel(model, key, name)
        yield _tried(model, f"gemv {key}", kernel.gemv)
        if key != "head":
            for chunks in sorted({1, model.npu.gemm_spec(key).max_chunks}):
                yield _tried(model, f"gemm {key} x{chunks}", partial(kernel.gemm, chunks))


def _tried(model: TextModel, name: str, run: Callable[[], Item]) -> Item:
    """`run()`, or a FAIL for a command that fails; the next kernel finds a context that works."""
    try:
        return run()
    except XdnaError as error:
        if isinstance(error, (DeviceLost, Closed)) or not model.npu.drain():
            raise
        return Item(name, Verdict.FAIL, explain(error))


class _Kernel:
    """The kernels of one packed tensor. `vector` is what they are given, the same in each."""

    def __init__(self, model: TextModel, key: str, name: str) -> None:
        self.model, self.key, self.name = model, key, name
        self.spec = model.npu.gemv_spec(key)
        self.format = formats.by_name(model.config.gemv_format)
        self.weights = model.weights[name]
        rng = np.random.default_rng(3)
        self.vectors: F32 = from_bf16(to_bf16(rng.standard_normal((2 * ROWS, self.spec.k), np.float32)))
        self.known: NDArray[np.float64] | None = None
        """GEMV results [2 * ROWS, M] by host, or by the device where only it knows the layout."""
        self.by = "host"

    def gemv(self) -> Item:
        npu, spec = self.model.npu, self.spec
        x, y = npu.alloc(spec.k * 2), npu.alloc(spec.m * 2)
        try:
            dispatch = npu.dispatch(self.key, 0, [(x, self.weights, y)])
            rows: list[F32] = []
            seconds: list[float] = []
            same = True
            for vector in self.vectors:
                x.write(to_bf16(vector))
                for again in range(2):
                    _poison(y)
                    began = time.perf_counter()
                    dispatch.run()
                    seconds.append(time.perf_counter() - began)
                    found = from_bf16(np.frombuffer(y.read(), np.uint16))
                    if again:
                        same = same and np.array_equal(found, rows[-1], equal_nan=True)
                    else:
                        rows.append(found)
        finally:
            x.close()
            y.close()
        got = np.stack(rows).astype(np.float64)
        best = min(seconds)
        values = {"kernel": f"gemv {self.key}", "ms": best * 1e3,
                  "gb_s": self.weights.nbytes / best / 1e9, "repeatable": same}
        chosen = self._chosen()
        want = self._product(chosen)
        known = want is not None and (self.key == "head" or self.model.bundle.emulated
                                      or _difference(got[:, chosen], want) < TOLERANCE)
        if want is None or not known:
            self.known, self.by = got, "the GEMV"
            text = "repeatable; only its kernel knows the weights' layout" if same else "two runs differ"
            finite = bool(np.isfinite(got).all())
            verdict = Verdict.OK if same and finite else Verdict.FAIL
            return Item(f"gemv {self.key}", verdict, text if finite else "results are no numbers", values)
        self.known = want if self.key != "head" else None
        return self._judged(f"gemv {self.key}", got[:, chosen], want, same, values)

    def gemm(self, chunks: int) -> Item:
        npu, key = self.model.npu, self.key
        spec = npu.gemm_spec(key)
        reads, writes = npu.spans(key, chunks)
        a, c = npu.alloc(reads * 2), npu.alloc(writes * 2)
        try:
            rows = chunks * spec.m
            view = a.view(np.uint16)[: rows * spec.lda].reshape(rows, spec.lda)
            filled = [*range(ROWS), *range(rows - ROWS, rows)]
            view[filled, : spec.k] = to_bf16(self.vectors)
            dispatch = npu.dispatch(key, chunks, [(a, self.weights, c)])
            found, seconds = [], []
            for _ in range(2):
                _poison(c)
                began = time.perf_counter()
                dispatch.run()
                seconds.append(time.perf_counter() - began)
                found.append(np.frombuffer(c.read(), np.uint16)[: rows * spec.c_stride])
        finally:
            a.close()
            c.close()
        columns = npu.columns(key)
        got = from_bf16(found[0]).reshape(rows, spec.c_stride)[:, :columns]
        again = from_bf16(found[1]).reshape(rows, spec.c_stride)[:, :columns]
        same = bool(np.array_equal(got, again, equal_nan=True))
        name = f"gemm {key} x{chunks}"
        values = {"kernel": name, "ms": min(seconds) * 1e3, "repeatable": same,
                  "gflop_s": 2 * rows * spec.k * self.spec.m / min(seconds) / 1e9}
        if self.known is None:
            return Item(name, Verdict.SKIP, "there is no result of the GEMV to compare with", values)
        want = self._epilogue(self.known)[:, :columns]
        between = np.delete(got, filled, axis=0)
        if between.any() and not np.isnan(between).any():
            return Item(name, Verdict.FAIL, "rows of zeros gave results that are not zero", values)
        if np.isnan(between).any():
            return Item(name, Verdict.FAIL, "rows between the first and the last were not written", values)
        return self._judged(name, got[filled].astype(np.float64), want, same, values)

    def _judged(
        self, name: str, got: NDArray[np.float64], want: NDArray[np.float64], same: bool,
        values: dict[str, Any],
    ) -> Item:
        worst = _difference(got, want)
        values["largest_difference"] = worst if np.isfinite(worst) else None
        rate = f"{values['gb_s']:.1f} GB/s" if "gb_s" in values else f"{values['gflop_s']:,.0f} GFLOP/s"
        text = f"differs from {self.by} by {worst:.2%} at most, {values['ms']:.2f} ms, {rate}"
        if not same:
            return Item(name, Verdict.FAIL, f"two runs differ; {text}", values)
        return Item(name, Verdict.OK if worst < TOLERANCE else Verdict.FAIL, text, values)

    def _epilogue(self, products: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the GEMM makes of its products: gu's are 32 gate | 32 up, and C gets silu(gate) * up."""
        if self.key != "gu":
            return products
        pairs = products.reshape(len(products), -1, 2, 32)
        gate, up = pairs[:, :, 0], pairs[:, :, 1]
        columns: NDArray[np.float64] = (gate / (1 + np.exp(-gate)) * up).reshape(len(products), -1)
        return columns

    def _chosen(self) -> NDArray[np.int64]:
        rows = np.arange(self.spec.m)
        if self.key != "head" or len(rows) <= HEAD_ROWS:
            return rows
        return np.unique(np.linspace(0, len(rows) - 1, HEAD_ROWS).astype(np.int64))

    def _product(self, chosen: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """x W^T by dequantised weights; None where the stream is no stream of the host's layout."""
        config, spec = self.model.config, self.spec
        stream = self.model.bundle.tensors.bytes(self.name)
        if stream.nbytes < stream_bytes(spec.m, spec.k, config.gemv_format):
            return None
        parts = []
        for at in range(0, len(chosen), 4096):
            weights = self.format.decode_rows(stream, spec.k, chosen[at:at + 4096])
            parts.append(self.vectors.astype(np.float64) @ weights.astype(np.float64).T)
        return np.concatenate(parts, axis=1)


def _poison(buffer: Buffer) -> None:
    clean = buffer.clean
    buffer.write(np.full(buffer.nbytes // 2, 0x7FC1, np.uint16))
    buffer.clean = clean


def _difference(got: NDArray[np.float64], want: NDArray[np.float64]) -> float:
    """The largest difference, over the element's size and its row's root mean square together; infinite for
    what is no number."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    scale = np.sqrt((want**2).mean(axis=1, keepdims=True)) + np.abs(want) + 1e-30
    return float((np.abs(got - want) / scale).max())


def vision_kernels(model: TextModel) -> Iterator[Item]:
    """An item for each GEMM of the tower: finite and repeatable. `check`'s references compare the tower."""
    vision = model.config.vision
    if vision is None:
        return
    names = {"v_patch": "patch", "v_qkv": "b0.qkv", "v_proj": "b0.proj", "v_fc1": "b0.fc1",
             "v_fc2": "b0.fc2.0", "v_m1": "m1.0", "v_m2": "m2.0"}
    npu, rng = model.npu, np.random.default_rng(4)
    for key, name in names.items():
        spec = npu.gemm_spec(key)
        reads, writes = npu.spans(key, 1)
        data = model.bundle.tensors.bytes(f"vis.{name}")
        a, b, c = npu.alloc(reads * 2), npu.alloc(data.nbytes), npu.alloc(writes * 2)
        try:
            b.write(data)
            a.view(np.uint16)[: spec.m * spec.lda].reshape(spec.m, spec.lda)[:ROWS, : spec.k] = to_bf16(
                rng.standard_normal((ROWS, spec.k), np.float32))
            dispatch = npu.dispatch(key, 1, [(a, b, c)])
            found, seconds = [], []
            for _ in range(2):
                _poison(c)
                began = time.perf_counter()
                dispatch.run()
                seconds.append(time.perf_counter() - began)
                flat = np.frombuffer(c.read(), np.uint16)[: spec.m * spec.c_stride]
                found.append(from_bf16(flat).reshape(spec.m, spec.c_stride)[:, : spec.n])
        finally:
            for buffer in (a, b, c):
                buffer.close()
        same = bool(np.array_equal(found[0], found[1], equal_nan=True))
        finite = bool(np.isfinite(found[0]).all())
        text = f"{min(seconds) * 1e3:.2f} ms" + ("" if same else "; two runs differ") + (
            "" if finite else "; results are no numbers")
        yield Item(f"gemm {key} x1", Verdict.OK if same and finite else Verdict.FAIL, text,
                   {"kernel": f"gemm {key} x1", "ms": min(seconds) * 1e3, "repeatable": same})
