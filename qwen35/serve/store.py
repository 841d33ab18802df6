"""Responses that a later request may go on from: the newest ones, within a bound of bytes."""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

__all__ = ["Store", "Stored"]


@dataclass(frozen=True)
class Stored:
    """One response: what it told its client, and the conversation up to it without instructions."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    calls: list[str]


class Store:
    """Of one event loop. Past `bound` bytes, or `most` responses, those go that were used longest ago.

    Messages that several responses of one conversation share count once.
    """

    def __init__(self, bound: int, most: int = 4096) -> None:
        self.bound, self.most = bound, most
        self.nbytes = 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._parts: dict[int, tuple[int, int]] = {}
        """id of a message or response -> by how many it is kept, and its bytes."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> Stored | None:
        """A response, None where it is not kept."""
        found = self._kept.get(name)
        if found is not None:
            self._kept.move_to_end(name)
        return found

    def add(self, name: str, stored: Stored) -> None:
        """Keeps a response; others make room. One that is larger than the bound is not kept."""
        self._kept[name] = stored
        for part in (stored.response, *stored.messages):
            count, size = self._parts.get(id(part), (0, 0))
            if not count:
                size = _size(part)
                self.nbytes += size
            self._parts[id(part)] = count + 1, size
        while self._kept and (self.nbytes > self.bound or len(self._kept) > self.most):
            self.remove(next(iter(self._kept)))

    def remove(self, name: str) -> bool:
        """Forgets a response; whether it was there."""
        stored = self._kept.pop(name, None)
        if stored is None:
            return False
        for part in (stored.response, *stored.messages):
            count, size = self._parts.pop(id(part))
            if count > 1:
                self._parts[id(part)] = count - 1, size
            else:
                self.nbytes -= size
        return True


def _size(value: Any) -> int:
    """Bytes of a JSON value with pictures in it."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.values()  # the names are the program's own, there once
    elif isinstance(value, list):
        inner = value
    return sys.getsizeof(value) + sum(map(_size, inner))
