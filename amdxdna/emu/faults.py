"""Injected faults: which command hangs or fails, which context is refused.

A :class:`Fault` names the n-th event of its kind (counted from 1 over the device's life); the option syntax
is in :mod:`amdxdna.emu.options`. A test may also call the methods of a device's :class:`Faults`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

COMMAND_KINDS = ("hang", "fail", "slow", "corrupt", "skip")
CHAIN_KINDS = ("chain_hang", "chain_fail", "chain_skip", "chain_corrupt")
KINDS = (*COMMAND_KINDS, *CHAIN_KINDS, "refuse", "refuse_config", "open", "lose")


@dataclass(frozen=True)
class Fault:
    """Fault `kind` for events `first` to `last` (None: from `first` on).

    What each kind does with `value` is in :data:`amdxdna.emu.options.OPTIONS`.
    """

    kind: str
    first: int = 1
    last: int | None = None
    value: int = 0

    def matches(self, event: int) -> bool:
        """Whether event number `event` (from 1) is one of them."""
        return event >= self.first and (self.last is None or event <= self.last)


class Faults:
    """The faults of one device and its event counters. Thread-safe."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._faults = list(faults)
        self._events = {"command": 0, "chain": 0, "refuse": 0, "refuse_config": 0, "open": 0, "lose": 0}
        self.active = bool(faults)
        """False while no fault is set: lets the hot path skip the count."""

    @property
    def commands(self) -> int:
        """Commands counted so far (none are counted while no fault is set)."""
        return self._events["command"]

    @property
    def submits(self) -> int:
        """Submits counted so far (none are counted while no fault is set)."""
        return self._events["lose"]

    def add(self, fault: Fault) -> None:
        """Adds a fault to those that are set."""
        if fault.kind not in KINDS:
            raise ValueError(f"unknown fault {fault.kind!r}: one of {', '.join(KINDS)}")
        with self._lock:
            self._faults.append(fault)
            self.active = True

    def clear(self) -> None:
        """Takes every fault away."""
        with self._lock:
            self._faults.clear()
            self.active = False

    def counts(self, kind: str) -> bool:
        """Whether any fault of this kind is set."""
        return any(fault.kind == kind for fault in self._faults)

    def next(self, kind: str, value: int = 0, count: int | None = 1, after: int = 0) -> None:
        """Lets `count` events of `kind` (None: all) go wrong from now on, once `after` were well."""
        event = "command" if kind in COMMAND_KINDS else "chain" if kind in CHAIN_KINDS else kind
        first = self._events[event] + 1 + after
        self.add(Fault(kind, first, None if count is None else first + count - 1, value))

    def command(self) -> list[Fault]:
        """Counts one command; the faults that apply to it."""
        with self._lock:
            self._events["command"] += 1
            event = self._events["command"]
            return [f for f in self._faults if f.kind in COMMAND_KINDS and f.matches(event)]

    def chain(self) -> Fault | None:
        """Counts one chain; the fault that applies to it."""
        with self._lock:
            self._events["chain"] += 1
            event = self._events["chain"]
            return next((f for f in self._faults if f.kind in CHAIN_KINDS and f.matches(event)), None)

    def event(self, kind: str, default: int) -> int:
        """Counts one event of `kind` ("refuse", "refuse_config", "open", "lose"); 0, or what to fail with.

        `default` stands for a fault without a value.
        """
        with self._lock:
            self._events[kind] += 1
            event = self._events[kind]
            for fault in self._faults:
                if fault.kind == kind and fault.matches(event):
                    return fault.value or default
            return 0
