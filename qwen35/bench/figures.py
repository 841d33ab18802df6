"""Figures: what the benchmark says, one line each for a program and one table for a person.

Shape 1: a JSON object a line. `bench` is the shape's version (1), `figure` a name, `value` a number and
`unit` its unit; `limit`, where there is one, is what the figure should reach, as text; every other key is a
condition of the measurement, a number or a text. New figures and conditions may appear without a new version;
the meaning of a key does not change.

===================  ==========================================================================
`threads`            threads of host and peers, with the instruction sets in use
`bandwidth`          memory read by `threads` threads; `gemm_float32`: numpy's product
`import_amdxdna`     user time of the import; `first_token`: the whole command, built-in model
`first_token_*`      its parts: `import` until the loader is called, `load` of device and model, and
                     `prompt` until the answer of one token is out
`load`               weights to the device's buffers, page cache warm; `way` as Weights says
`load_model`         the whole model, kernels included
`load_command`       from the command to its first token, a process of its own; `cache` warm, or cold: the
                     model's files dropped from the page cache
`fresh_pages`        pages of fresh device buffers, untouched otherwise: the floor of a load
`host_token`         seconds of a token when commands complete at once; `device` null: no driver
                     either, instant: with the emulated driver
`host_prompt`        the same for a prompt
`dispatch`           packet, flushes, submit and wait on the null device, over two bare ioctls
`emulated_dispatch`  the same on the emulated driver, without kernels
`ioctls_token`       ioctls of a token, `dispatches` its kernel runs (a chain is one)
`chains`             a token with command chains over one of single commands, in turns
`prompt_filled`      `prompt` with something in the rows that fill its last chunk: the emulated NPU
                     skips rows of zeros, hardware computes them
`prompt`             seconds of a prompt of `tokens` tokens; `decode`: tokens a second at `context`
`decode_bandwidth`   weight bytes a second of a token over the bandwidth measured beside it
`decode_ratio_limit` the ratio to a peer that tokens at all of that bandwidth would have
`context_growth`     time a token at the longest context over the shortest
`memory_*`           after a chat that fills `context` tokens, in a process of its own
`cold_embedding`     embedding rows of a prompt out of the mapped file, page cache dropped
`vision`             seconds of a picture; `vision_npu` what of it was waiting for the NPU, `vision_host`
                     the host's work
`timed_*`            a token, a prompt, a picture where commands take the time of a Ryzen AI 9 HX 370, by a
                     model, and compute nothing; `_npu` the NPU's own time of it, `_ratio` the one over the
                     other: what the host adds; `timed_token_host` the difference, the host's work that
                     the NPU waits for and the software of its dispatches
`long_prompt`        `prompt` at lengths where attention and DeltaNet are most of the host's work, and as
                     `timed_long_prompt` on the timed NPU
`host_attention`     seconds of these layers' arithmetic in such a prompt, on the host alone, and as
                     `host_deltanet`; `_peak`: operations by their count over the seconds, as a share of
                     `peak_float32`, FMAs in registers measured beside
`timed_draft_*`      with drafts from the prompt of which `accepted` percent are right, on the timed NPU;
                     `draft_overhead`: with drafts over without where nothing repeats, on the device at
                     hand; `draft_look`: the search a token
`serve_*`            of an answer over HTTP, by a client in another process: `first_token` and `token`,
                     `_ratio` over the same answer in process, `_overhead` beyond the engine's own times;
                     `serve_cached`: share of the prompts of several conversations that is not computed
`*_peer`, `*_ratio`  the peer's figure, and the median of ours / theirs over `pairs` pairs
===================  ==========================================================================
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

__all__ = ["SHAPE", "Figure", "Printer", "median", "ratios"]

SHAPE = 1


@dataclass(frozen=True)
class Figure:
    """One measured number. `limit` is what it should reach, as text; `where` are its conditions."""

    name: str
    value: float
    unit: str
    where: dict[str, Any] = field(default_factory=dict)
    limit: str = ""

    def line(self) -> str:
        """The figure as a line of JSON."""
        value = self.value if isinstance(self.value, int) else float(f"{self.value:.6g}")
        record = {"bench": SHAPE, "figure": self.name, "value": value, "unit": self.unit, **self.where}
        if self.limit:
            record["limit"] = self.limit
        return json.dumps(record)

    def row(self) -> str:
        """The figure as a row of the table."""
        where = ", ".join(f"{key} {value}" for key, value in self.where.items())
        text = f"{self.name:<28} {_number(self.value):>10} {self.unit:<10} {where}"
        return f"{text}  [{self.limit}]" if self.limit else text.rstrip()


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"


class Printer:
    """Writes figures as they come: rows, or with `lines` JSON lines. Keeps them all."""

    def __init__(self, lines: bool = False, stream: TextIO | None = None) -> None:
        self._lines, self._stream = lines, stream or sys.stdout
        self.figures: list[Figure] = []

    def add(self, name: str, value: float, unit: str, limit: str = "", **where: Any) -> Figure:
        """Writes one figure."""
        figure = Figure(name, value, unit, where, limit)
        self.figures.append(figure)
        print(figure.line() if self._lines else figure.row(), file=self._stream, flush=True)
        return figure

    def write(self, text: str) -> None:
        """Figures that another process has printed in this form."""
        self._stream.write(text)
        self._stream.flush()

    def title(self, text: str) -> None:
        """A heading of the table."""
        if not self._lines:
            print(f"\n{text}", file=self._stream, flush=True)

    def text(self, lines: Iterable[str]) -> None:
        """Lines that only a person reads."""
        if not self._lines:
            print("\n".join(lines), file=self._stream, flush=True)


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle. Raises ValueError for none."""
    order = sorted(values)
    if not order:
        raise ValueError("the median of nothing")
    half = len(order) // 2
    return order[half] if len(order) % 2 else (order[half - 1] + order[half]) / 2


def ratios(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """The median of ours / theirs over pairs measured one after the other. Raises ValueError for none."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))
