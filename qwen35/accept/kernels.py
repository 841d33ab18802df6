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
from qwen35.bundle.schema import stream_bytes
from qwen35.errors import explain
from qwen35.formats import from_bf16, to_bf16
from qwen35.model.probe import poison

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.model.dispatch import Dispatch
    from qwen35.model.text import TextModel

__all__ = ["TOLERANCE", "Kept", "text_kernels", "vision_kernels"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
TOLERANCE = 0.05
"""Of an element's difference, relative to its size and the root mean square of its row: bf16 results and
block-float activations (8 bits of mantissa a block of 8) stay below; a wrong operand or stride does not."""
ROWS = 4
"""Rows of a GEMM's A that are not zero, at its beginning and at its end."""
HEAD_ROWS = 2048
"""Outputs of the head that are compared; all of them would take seconds of the host."""


class Kept:
    """Results that were found right, to see later whether the same runs still give the same bits."""

    def __init__(self) -> None:
        self._results: dict[str, tuple[bytes, Callable[[], bytes]]] = {}

    def keep(self, item: Item, result: bytes, again: Callable[[], bytes]) -> Item:
        """Keeps the result of an item that is OK; `again` runs it once more."""
        if item.verdict is Verdict.OK:
            self._results[item.name] = result, again
        return item

    def __len__(self) -> int:
        return len(self._results)

    def differing(self) -> list[str]:
        """Runs each again; the names of those whose results differ. Raises what a run raises."""
        return [name for name, (result, again) in self._results.items() if again() != result]


def text_kernels(model: TextModel, kept: Kept | None = None) -> Iterator[Item]:
    """An item for each GEMV, and for each GEMM over one chunk and over the most."""
    kept = Kept() if kept is None else kept
    places = {kind: model.config.layer_types.index(kind) for kind in dict.fromkeys(model.config.layer_types)}
    tensors = {kind: f"l{index}.g.in" for kind, index in places.items()}
    tensors |= {"o": "l0.g.o", "gu": "l0.g.gu", "down": "l0.g.down0", "head": "head0"}
    for key, name in tensors.items():
        kernel = _Kernel(model, key, name, kept)
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

    def __init__(self, model: TextModel, key: str, name: str, kept: Kept) -> None:
        self.model, self.key, self.name, self.kept = model, key, name, kept
        self.spec = model.npu.gemv_spec(key)
        self.format = formats.by_name(model.config.gemv_format)
        self.weights = model.weights[name]
        rng = np.random.default_rng(3)
        self.vectors: F32 = from_bf16(to_bf16(rng.standard_normal((2 * ROWS, self.spec.k), np.float32)))
        self.known: NDArray[np.float64] | None = None
        """GEMV results [2 * ROWS, M] by host, or by the device where only it knows the layout."""
        self.by = "host"

    def gemv(self) -> Item:
        results, seconds = self._gemv_runs(self.vectors, 2)
        return self.kept.keep(
            self._gemv_item(results, min(seconds)),
            results[0][0].tobytes(),
            lambda: self._gemv_runs(self.vectors[:1], 1)[0][0][0].tobytes(),
        )

    def _gemv_runs(self, vectors: F32, times: int) -> tuple[list[list[U16]], list[float]]:
        """Results [M] by vector and time, and the seconds of each."""
        npu, spec = self.model.npu, self.spec
        x, y = npu.alloc(spec.k * 2), npu.alloc(spec.m * 2)
        results: list[list[U16]] = []
        seconds: list[float] = []
        try:
            dispatch = npu.dispatch(self.key, 0, [(x, self.weights, y)])
            for vector in vectors:
                x.write(to_bf16(vector))
                results.append([_timed(dispatch, y, seconds) for _ in range(times)])
        finally:
            x.close()
            y.close()
        return results, seconds

    def _gemv_item(self, results: list[list[U16]], best: float) -> Item:
        same = all(np.array_equal(first, other) for first, *others in results for other in others)
        got = np.stack([from_bf16(first) for first, *_ in results]).astype(np.float64)
        values = {
            "kernel": f"gemv {self.key}",
            "ms": best * 1e3,
            "gb_s": self.weights.nbytes / best / 1e9,
            "repeatable": same,
        }
        chosen = self._chosen()
        want = self._product(chosen)
        known = want is not None and (
            self.key == "head" or self.model.bundle.emulated or _difference(got[:, chosen], want) < TOLERANCE
        )
        if want is None or not known:
            self.known, self.by = got, "the GEMV"
            text = "repeatable; only its kernel knows the weights' layout" if same else "two runs differ"
            finite = bool(np.isfinite(got).all())
            verdict = Verdict.OK if same and finite else Verdict.FAIL
            return Item(f"gemv {self.key}", verdict, text if finite else "results are no numbers", values)
        self.known = want if self.key != "head" else None
        return self._judged(f"gemv {self.key}", got[:, chosen], want, same, values)

    def gemm(self, chunks: int) -> Item:
        results, seconds = self._gemm_runs(chunks, 2)
        return self.kept.keep(
            self._gemm_item(chunks, results, min(seconds)),
            results[0].tobytes(),
            lambda: self._gemm_runs(chunks, 1)[0][0].tobytes(),
        )

    def _gemm_runs(self, chunks: int, times: int) -> tuple[list[U16], list[float]]:
        """Results [rows, columns that mean something] and the seconds of each."""
        npu, key = self.model.npu, self.key
        spec = npu.gemm_spec(key)
        rows = chunks * spec.m
        reads, writes = npu.spans(key, chunks)
        a, c = npu.alloc(reads * 2), npu.alloc(writes * 2)
        seconds: list[float] = []
        try:
            view = a.view(np.uint16)[: rows * spec.lda].reshape(rows, spec.lda)
            view[self._filled(rows), : spec.k] = to_bf16(self.vectors)
            dispatch = npu.dispatch(key, chunks, [(a, self.weights, c)])
            flat = [_timed(dispatch, c, seconds) for _ in range(times)]
        finally:
            a.close()
            c.close()
        return [
            each[: rows * spec.c_stride].reshape(rows, spec.c_stride)[:, : npu.columns(key)] for each in flat
        ], seconds

    def _filled(self, rows: int) -> list[int]:
        return [*range(ROWS), *range(rows - ROWS, rows)]

    def _gemm_item(self, chunks: int, results: list[U16], best: float) -> Item:
        spec = self.model.npu.gemm_spec(self.key)
        got = from_bf16(results[0])
        rows, columns = got.shape
        filled = self._filled(rows)
        same = bool(np.array_equal(results[0], results[1]))
        name = f"gemm {self.key} x{chunks}"
        values = {
            "kernel": name,
            "ms": best * 1e3,
            "repeatable": same,
            "gflop_s": 2 * rows * spec.k * self.spec.m / best / 1e9,
        }
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
        self,
        name: str,
        got: NDArray[np.float64],
        want: NDArray[np.float64],
        same: bool,
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
        for rows in np.array_split(chosen, 1 + len(chosen) // 4096):  # which bounds the memory
            weights = self.format.decode_rows(stream, spec.k, rows)
            parts.append(self.vectors.astype(np.float64) @ weights.astype(np.float64).T)
        return np.concatenate(parts, axis=1)


def _timed(dispatch: Dispatch, result: Buffer, seconds: list[float]) -> U16:
    """Runs and adds to `seconds`; the bits of `result`, NaN where nothing was written."""
    poison(result)
    began = time.perf_counter()
    dispatch.run()
    seconds.append(time.perf_counter() - began)
    return np.frombuffer(result.read(), np.uint16)


def _difference(got: NDArray[np.float64], want: NDArray[np.float64]) -> float:
    """The largest difference, over the element's size and its row's root mean square together; infinite for
    what is no number."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    scale = np.sqrt((want**2).mean(axis=1, keepdims=True)) + np.abs(want) + 1e-30
    return float((np.abs(got - want) / scale).max())


def vision_kernels(model: TextModel, kept: Kept) -> Iterator[Item]:
    """An item for each GEMM of the tower: finite and repeatable. `check`'s references compare the tower."""
    if model.config.vision is None:
        return
    names = {
        "v_patch": "patch",
        "v_qkv": "b0.qkv",
        "v_proj": "b0.proj",
        "v_fc1": "b0.fc1",
        "v_fc2": "b0.fc2.0",
        "v_m1": "m1.0",
        "v_m2": "m2.0",
    }
    for key, name in names.items():
        yield _tried(model, f"gemm {key} x1", partial(_vision_item, model, key, name, kept))


def _vision_item(model: TextModel, key: str, name: str, kept: Kept) -> Item:
    found, seconds = _vision_runs(model, key, name, 2)
    same = bool(np.array_equal(found[0], found[1]))
    finite = bool(np.isfinite(from_bf16(found[0])).all())
    text = (
        f"{min(seconds) * 1e3:.2f} ms"
        + ("" if same else "; two runs differ")
        + ("" if finite else "; results are no numbers")
    )
    item = Item(
        f"gemm {key} x1",
        Verdict.OK if same and finite else Verdict.FAIL,
        text,
        {"kernel": f"gemm {key} x1", "ms": min(seconds) * 1e3, "repeatable": same},
    )
    return kept.keep(item, found[0].tobytes(), lambda: _vision_runs(model, key, name, 1)[0][0].tobytes())


def _vision_runs(model: TextModel, key: str, name: str, times: int) -> tuple[list[U16], list[float]]:
    npu, rng = model.npu, np.random.default_rng(4)
    spec = npu.gemm_spec(key)
    reads, writes = npu.spans(key, 1)
    data = model.bundle.tensors.bytes(f"vis.{name}")
    a, b, c = npu.alloc(reads * 2), npu.alloc(data.nbytes), npu.alloc(writes * 2)
    seconds: list[float] = []
    try:
        b.write(data)
        a.view(np.uint16)[: spec.m * spec.lda].reshape(spec.m, spec.lda)[:ROWS, : spec.k] = to_bf16(
            rng.standard_normal((ROWS, spec.k), np.float32)
        )
        dispatch = npu.dispatch(key, 1, [(a, b, c)])
        flat = [_timed(dispatch, c, seconds) for _ in range(times)]
    finally:
        for buffer in (a, b, c):
            buffer.close()
    return [
        each[: spec.m * spec.c_stride].reshape(spec.m, spec.c_stride)[:, : spec.n] for each in flat
    ], seconds
