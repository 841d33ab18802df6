"""How much of the weights a format keeps: signal-to-noise of each layer, beside bfp16's.

The ratio is 10 log10(sum of squares / sum of squared errors), in dB, over at most 64 rows of each block that
is encoded, the same rows for both formats; the rows are spread over the block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle.schema import TensorSpec
from qwen35.export.rows import to_float32
from qwen35.formats import by_name

__all__ = ["Noise"]

_GROUPS = 8


class Noise:
    """Sums of squares by layer and part; `add` while a bundle is written, then `summary` and `lines`."""

    def __init__(self) -> None:
        self.format = ""
        # (layer, part) -> signal, noise of the format, noise of bfp16; the head is layer -1
        self._sums: dict[tuple[int, str], NDArray[np.float64]] = {}

    def add(
        self, item: TensorSpec, weights: NDArray[Any], stream: NDArray[np.uint8], gemv_format: str
    ) -> None:
        """Counts a block of `item`: its weights [rows, k] (float32 or bf16 bits) and their stream."""
        self.format = gemv_format
        rows, k = weights.shape
        groups = np.unique(np.linspace(0, rows // 8 - 1, _GROUPS).astype(np.int64))
        picked = (groups[:, None] * 8 + np.arange(8)).reshape(-1)
        exact = to_float32(weights[picked])
        kept = by_name(gemv_format).decode_rows(stream, k, picked)
        bfp16 = by_name("bfp16")
        other = kept if gemv_format == "bfp16" else bfp16.decode(bfp16.encode(exact), *exact.shape)
        part = "in" if item.part in ("lin", "att") else item.part
        sums = self._sums.setdefault((item.layer, part), np.zeros(3))
        sums += [_energy(exact), _energy(kept - exact), _energy(other - exact)]

    def decibels(self, layer: int | None = None, part: str | None = None) -> tuple[float, float]:
        """Of the format and of bfp16, over a layer (-1: the head) or all, and one of its parts or all."""
        found = [
            sums for (at, name), sums in self._sums.items() if layer in (None, at) and part in (None, name)
        ]
        signal, noise, other = np.sum(found, axis=0)
        return _ratio(signal, noise), _ratio(signal, other)

    @property
    def layers(self) -> list[int]:
        """The layers that were counted, the head (-1) last."""
        return sorted({layer for layer, _ in self._sums}, key=lambda layer: (layer < 0, layer))

    def summary(self) -> str:
        """One line over all layers."""
        own, other = self.decibels()
        low, high = (pick(self.decibels(layer)[0] for layer in self.layers) for pick in (min, max))
        text = f"weights in {self.format} have a signal-to-noise ratio of {own:.1f} dB "
        text += f"(layers {low:.1f} to {high:.1f})"
        return text if self.format == "bfp16" else f"{text}; bfp16 would have {other:.1f} dB"

    def lines(self) -> list[str]:
        """One line a layer: the layer as a whole, then its projections."""
        out = []
        for layer in self.layers:
            own, other = self.decibels(layer)
            beside = "" if self.format == "bfp16" else f" (bfp16 {other:.1f})"
            parts = sorted(part for at, part in self._sums if at == layer)
            each = ", ".join(f"{part} {self.decibels(layer, part)[0]:.1f}" for part in parts)
            name = f"layer {layer}" if layer >= 0 else "head"
            out.append(f"{name}: {own:.1f} dB{beside}" + (f"; {each}" if len(parts) > 1 else ""))
        return out


def _energy(values: NDArray[np.float32]) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def _ratio(signal: float, noise: float) -> float:
    return 10 * float(np.log10(signal / noise)) if signal and noise else float("inf")
