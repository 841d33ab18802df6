"""Counts over a trace."""

from __future__ import annotations

import statistics
from array import array
from collections import Counter
from typing import Any

from amdxdna.trace.packets import instruction_bytes

_MOST = 1 << 20
"""Durations kept of each kind: beyond that percentiles are those of the first million."""


class Durations:
    """Durations in seconds, and their percentiles in microseconds."""

    def __init__(self) -> None:
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values)

    def add(self, seconds: float) -> None:
        """Adds one duration; past the most that are kept it is dropped."""
        if len(self._values) < _MOST:
            self._values.append(seconds)

    def percentiles(self) -> dict[str, float] | None:
        """p50 (the median), p90 and p99 (the smallest not less than these), max; None without values."""
        if not self._values:
            return None
        ordered = sorted(self._values)
        nearest = {f"p{p}": ordered[-(-len(ordered) * p // 100) - 1] for p in (90, 99)}
        result = {"p50": statistics.median(ordered), **nearest, "max": ordered[-1]}
        return {name: round(value * 1e6, 1) for name, value in result.items()}


class Summary:
    """Not thread-safe: the recorder's lock guards it."""

    def __init__(self) -> None:
        self._durations: dict[str, Durations] = {}
        self._count: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._states: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._latency = Durations()
        self.opens = 0
        self.contexts = 0
        self.submits = 0
        self.unobserved = 0

    def call(self, name: str, seconds: float, error: str | None) -> None:
        """A call is over; `error` is its errno's name."""
        self._count[name] += 1
        self._durations.setdefault(name, Durations()).add(seconds)
        if error:
            self._failed[name] += 1
            self._errors[f"{name} {error}"] += 1

    def add_bytes(self, kind: str, count: int) -> None:
        """`kind`: allocated, listed, instructions or synced."""
        self._bytes[kind] += count

    def submitted(self, packet: dict[str, Any] | None, listed: int) -> None:
        """Counts a submit that was accepted."""
        self.submits += 1
        self.add_bytes("listed", listed)
        self.add_bytes("instructions", instruction_bytes(packet))

    def completed(self, command: dict[str, Any]) -> None:
        """A command is known to be over."""
        self._states[command["state"] or "unobserved"] += 1
        if command["state"] == "COMPLETED":  # how long a hung one took is the driver's patience
            self._latency.add(command["us"] * 1e-6)

    def document(self, seconds: float) -> dict[str, Any]:
        """The summary as the last line of the trace has it."""
        states = dict(self._states)
        if self.unobserved:
            states["unobserved"] = states.get("unobserved", 0) + self.unobserved
        calls = {
            name: {"count": count, "errors": self._failed[name], "us": self._durations[name].percentiles()}
            for name, count in sorted(self._count.items())
        }
        total = sum(self._count.values())
        return {
            "seconds": round(seconds, 6),
            "calls": calls,
            "calls_per_second": round(total / seconds, 1) if seconds > 0 else 0.0,
            "opens": self.opens,
            "contexts": self.contexts,
            "submits": self.submits,
            "submit_to_complete_us": self._latency.percentiles(),
            "states": states,
            "errors": dict(sorted(self._errors.items())),
            "bytes": {kind: self._bytes[kind] for kind in ("allocated", "listed", "instructions", "synced")},
        }


def lines(summary: dict[str, Any]) -> list[str]:
    """The summary for a person."""
    total = sum(call["count"] for call in summary["calls"].values())
    text = [
        f"{total} calls in {summary['seconds']:.2f} s ({summary['calls_per_second']:.0f} a second), "
        f"{summary['opens']} opens, {summary['contexts']} contexts, {summary['submits']} submits"
    ]
    latency = summary["submit_to_complete_us"]
    if latency:
        text.append(
            "submit to complete: " + ", ".join(f"{name} {value:.0f} us" for name, value in latency.items())
        )
    if summary["states"]:
        states = (f"{count} {state}" for state, count in summary["states"].items())
        text.append("commands: " + ", ".join(states))
    counts = summary["bytes"]
    text.append(
        f"memory: {_size(counts['allocated'])} allocated, {_size(counts['listed'])} listed by "
        f"submits, {_size(counts['instructions'])} of instructions, {_size(counts['synced'])} synced"
    )
    width = max([len(name) for name in summary["calls"]] or [0])
    for name, call in summary["calls"].items():
        us = call["us"]
        errors = f"  {call['errors']} failed" if call["errors"] else ""
        text.append(
            f"  {name:<{width}} {call['count']:>7}  p50 {us['p50']:>9.1f} us  "
            f"p99 {us['p99']:>9.1f} us{errors}"
        )
    text += [f"  failed: {what} x {count}" for what, count in summary["errors"].items()]
    return text


def _size(count: float) -> str:
    for unit in ("bytes", "KiB"):
        if count < 10240:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.0f} MiB"
