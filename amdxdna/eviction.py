"""Which context goes when the device has none left.

Least recently used is right while the contexts in use fit, or drift; under cyclic use of a few more than fit
it gives up exactly the one that is wanted next, every time. A second order looks at how soon each came back
before: the one with the longest time between uses goes (as in LIRS, Jiang and Zhang 2002, with the mean of
the last few times), which is nearly optimal for cycles and for stable popularity, and slow to notice a new
working set. Both orders are followed on paper, and the one that would have made fewer contexts lately
decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from amdxdna.forklock import mutex

MEMORY = 5
"""Uses that are remembered of each context."""
_TRUST = 16
"""By how many contexts one order can be ahead of the other: so much must speak against it before it goes."""


class Used(Protocol):
    """What is given up: its last uses, on the clock of :class:`Eviction`."""

    uses: deque[int]


Score = Callable[[Used, int], Any]


def _recency(entry: Used, now: int) -> int:
    return now - entry.uses[-1]


def _distance(entry: Used, now: int) -> tuple[float, int]:
    uses = entry.uses
    recency = now - uses[-1]
    between = (uses[-1] - uses[0]) / (len(uses) - 1) if len(uses) > 1 else float("inf")
    return max(recency, between), -recency  # of a cycle, all whose distances are equal, the latest


class _Shadow:
    """What would be on the device if one order alone decided."""

    def __init__(self, score: Score) -> None:
        self.score = score
        self.entries: set[Used] = set()

    def use(self, entry: Used, slots: int, now: int) -> bool:
        """True when it would have had to be made."""
        if entry in self.entries:
            return False
        self.trim(slots - 1, now)
        self.entries.add(entry)
        return True

    def trim(self, slots: int, now: int) -> None:
        while len(self.entries) > max(slots, 0):
            self.entries.remove(max(self.entries, key=lambda e: self.score(e, now)))


class Eviction:
    """The order in which contexts are given up. Thread-safe. Costs nothing until the first has to go."""

    def __init__(self) -> None:
        self._lock = mutex()
        self._now = 0
        self._slots = 0
        self._recent, self._distant = _Shadow(_recency), _Shadow(_distance)
        self._ahead = 0
        """How many contexts fewer the second order would have made lately."""

    def used(self, entry: Used) -> None:
        """Notes that `entry` is used now. Called when the one used before was another."""
        with self._lock:
            self._now += 1
            entry.uses.append(self._now)
            if self._slots:
                made = [shadow.use(entry, self._slots, self._now) for shadow in (self._recent, self._distant)]
                self._ahead = min(max(self._ahead + made[0] - made[1], -_TRUST), _TRUST)

    def order(self, entries: Iterable[Used], wanting: Used) -> list[Any]:
        """`entries`, all that are on the device, in the order in which they should go for `wanting`."""
        with self._lock:
            found = [entry for entry in entries if entry.uses]
            for shadow in (self._recent, self._distant):
                if self._slots:
                    shadow.trim(len(found), self._now)
                else:
                    shadow.entries.update(found)
                    shadow.use(wanting, len(found), self._now)
            self._slots = len(found)
            score = _distance if self._ahead > 0 else _recency
            return sorted(found, key=lambda e: score(e, self._now), reverse=True)

    def forget(self, entry: Used) -> None:
        """Forgets `entry`, which is no more."""
        with self._lock:
            self._recent.entries.discard(entry)
            self._distant.entries.discard(entry)
