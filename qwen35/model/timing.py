"""Where the time goes: calls and seconds by stage, cheap enough to be always on."""

from __future__ import annotations

from time import perf_counter

__all__ = ["Timing"]


class Timing:
    """Sums by stage name. `lap(name)` books the time since the last `start` or `lap`. Not thread-safe."""

    __slots__ = ("_last", "sums")

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}
        self._last = 0.0

    def start(self) -> None:
        """Begins a lap."""
        self._last = perf_counter()

    def lap(self, name: str) -> None:
        """Ends a lap as a call of `name`, and begins the next."""
        now = perf_counter()
        entry = self.sums.get(name)
        if entry is None:
            entry = self.sums[name] = [0, 0.0]
        entry[0] += 1
        entry[1] += now - self._last
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
