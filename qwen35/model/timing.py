"""Where the time goes: calls and seconds by stage, cheap enough to be always on."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter

from amdxdna.trace import ENVIRONMENT

__all__ = ["Timing"]


class Timing:
    """Sums by stage name. `lap(name)` books the time since the last `start` or `lap`. Not thread-safe.

    `observer(name, began, ended)`, in seconds of CLOCK_MONOTONIC, is called for every lap, for tracing.
    """

    __slots__ = ("_last", "observer", "sums")

    def __init__(self, observer: Callable[[str, float, float], None] | None = None) -> None:
        self.sums: dict[str, list[float]] = {}
        self.observer = observer
        self._last = 0.0

    @classmethod
    def traced(cls) -> Timing:
        """A Timing that also records its laps in the trace, where AMDXDNA_TRACE is set."""
        if not os.environ.get(ENVIRONMENT):
            return cls()
        from amdxdna.trace.node import stages

        return cls(stages())

    def start(self) -> None:
        """Begins a lap."""
        self._last = perf_counter()

    def lap(self, name: str, calls: int = 1) -> None:
        """Ends a lap as a call of `name` (or as part of one: 0 `calls`), and begins the next."""
        now = perf_counter()
        entry = self.sums.get(name)
        if entry is None:
            entry = self.sums[name] = [0, 0.0]
        entry[0] += calls
        entry[1] += now - self._last
        if self.observer is not None:
            self.observer(name, self._last, now)
        self._last = now

    def reset(self) -> None:
        """Forgets everything."""
        self.sums.clear()

    def items(self) -> list[tuple[str, int, float]]:
        """(stage, calls, seconds), the longest first."""
        found = [(name, int(calls), seconds) for name, (calls, seconds) in self.sums.items()]
        return sorted(found, key=lambda item: -item[2])

    def seconds(self, prefix: str = "") -> float:
        """Seconds of the stages whose names begin with `prefix`."""
        return sum(seconds for name, (_, seconds) in self.sums.items() if name.startswith(prefix))
