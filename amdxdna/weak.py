"""Containers of weak references that run no Python when what they refer to goes.

Python drops what a signal handler raises in a callback that is written in Python, as those of weakref's own
WeakSet and dictionaries are: a Ctrl-C that comes then is lost. The callbacks here are methods of C types,
into which no handler breaks, and may come at any moment, in any thread; or there are none.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LiveSet(Generic[V]):
    """The objects of a set that somebody else still holds. Each is compared by identity. Thread-safe."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: set[weakref.ref[V]] = set()

    def add(self, value: V) -> None:
        """Adds an object whose hash and comparison are :class:`object`'s own. Does nothing twice."""
        # A dead reference has the hash that it had in the set, and equals itself alone.
        self._references.add(weakref.ref(value, self._references.discard))

    def clear(self) -> None:
        """Forgets all."""
        self._references.clear()

    def __bool__(self) -> bool:
        return bool(self._references)

    def __iter__(self) -> Iterator[V]:
        """Those there are at this moment."""
        # The copy is made in one step of the interpreter's.
        return iter([value for reference in self._references.copy() if (value := reference()) is not None])


class LiveKeys(Generic[K, V]):
    """What belongs to objects, while somebody else holds those. The caller serialises calls."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[weakref.ref[K], V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self._values[weakref.ref(key, self._values.pop)] = value  # a key that is there keeps its reference

    def setdefault(self, key: K, value: V) -> V:
        """What `key` has; `value`, which it gets, where it has nothing. As for :meth:`LiveSet.add`."""
        return self._values.setdefault(weakref.ref(key, self._values.pop), value)


class LiveValues(Generic[K, V]):
    """A dictionary of objects that somebody else still holds. The caller serialises calls."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: dict[K, weakref.ref[V]] = {}

    def get(self, key: K) -> V | None:
        """The object; None when there is none, or it is gone."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def __setitem__(self, key: K, value: V) -> None:
        self.discard(None)
        self._references[key] = weakref.ref(value)

    def discard(self, value: V | None) -> set[K]:
        """Forgets an object; the keys it had. None: what is gone."""
        keys = {key for key, reference in self._references.items() if reference() is value}
        for key in keys:
            del self._references[key]
        return keys

    def clear(self) -> None:
        """Forgets all."""
        self._references.clear()
