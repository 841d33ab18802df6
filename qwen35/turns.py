"""Answers of one model take turns: who holds the model's state, and what becomes of it for the others.

A model has one state. The answer that used the model last owns it; a step of another answer (a prompt's pass,
one token) first takes a snapshot for the owner, then restores its own. So an answer's tokens are those it
would have alone, however steps of different answers follow each other, in one thread or in many. An owner
that goes on alone pays for one lock a step. An answer that is dropped owns nothing: turns hold it weakly.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from amdxdna.forklock import mutex
from amdxdna.weak import LiveKeys
from qwen35.errors import Closed, UsageError

__all__ = ["Turn", "Turns"]

T = TypeVar("T")

TURN_SECONDS = 0.25
"""Seconds that an answer keeps the model while others wait: a switch copies the state, a few ms at 2B."""


_of: LiveKeys[Any, Turns] = LiveKeys()
_making = mutex()


class Stateful(Protocol):
    """What is needed of a model here (engine.Model)."""

    def snapshot(self) -> Any:
        """A copy of the state."""

    def restore(self, snapshot: Any) -> None:
        """Replaces the state."""


class Turn:
    """One answer's place. `kept` is its state while another answer has the model, else None; `primed` whether
    its prompt has run.

    A snapshot is at most one state of the model (KV rows up to the answer's length and the DeltaNet layers'
    matrices) and goes with the turn, that is with the answer's generator.
    """

    __slots__ = ("__weakref__", "kept", "primed")

    def __init__(self) -> None:
        self.kept: Any = None
        self.primed = False


class Turns:
    """The turns of one model. Thread-safe; of no use in a forked child, where every call raises Closed.

    Callbacks and signal handlers that run inside a step cannot start another: UsageError instead of a wait
    for oneself.
    """

    def __init__(self) -> None:
        self.closed = False
        self._pid = os.getpid()
        # Both are entered by `with` alone, which no exception of a signal handler can part from its exit.
        self._lock = threading.RLock()
        self._door = threading.RLock()
        self._waiting: set[int] = set()
        """Threads that wait for the model; only a hint, which makes an owner queue once its slice is over."""
        self._until = 0.0
        self._owner: weakref.ref[Turn] | None = None

    @classmethod
    def of(cls, model: Any) -> Turns:
        """The turns of a model, the same object each time."""
        with _making:
            return _of.setdefault(model, cls())

    def serve(self, model: Any) -> None:
        """Goes on with another model, which takes the snapshots of the one before."""
        with _making:
            _of[model] = self

    def run(self, turn: Turn, model: Callable[[], Stateful], step: Callable[..., T], *arguments: Any) -> T:
        """Runs a step of an answer on its own state. Raises Closed, UsageError, and what the step raises.

        `model()` is asked once it is this turn's. What fails leaves every other answer's state as it was.
        """
        self._check()
        if self._owns(turn) and (not self._waiting or time.monotonic() < self._until):
            with self._lock:
                if self._owns(turn) and not self.closed:
                    return step(*arguments)
        me = threading.get_ident()
        self._waiting.add(me)
        try:
            with self._door, self._lock:
                self._waiting.discard(me)
                self.require_open()
                self._take(turn, model())
                return step(*arguments)
        finally:
            self._waiting.discard(me)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the model between two steps, for what uses it or its device otherwise. Raises as `run`."""
        self._check()
        with self._door, self._lock:
            self.require_open()
            yield

    def suspend(self, model: Stateful) -> None:
        """Takes the owner's state out of the model, which may then be replaced; only inside `alone`."""
        self._keep(model)
        self._owner = None

    def close(self) -> None:
        """Waits for the step that runs; every later one raises Closed. In a forked child it does not wait."""
        if not self.closed and self._pid == os.getpid():
            self._check()
            with self._door, self._lock:
                self.closed = True
        self.closed = True

    def _owns(self, turn: Turn) -> bool:
        return self._owner is not None and self._owner() is turn

    def _keep(self, model: Stateful) -> None:
        owner = self._owner() if self._owner is not None else None
        if owner is not None:
            owner.kept = model.snapshot()

    def _take(self, turn: Turn, model: Stateful) -> None:
        """Each line leaves every turn with a state: in the model for its owner, else kept."""
        self._until = time.monotonic() + TURN_SECONDS
        if self._owns(turn):
            return
        self._keep(model)
        self._owner = None
        if turn.kept is not None:
            model.restore(turn.kept)
        self._owner = weakref.ref(turn)
        turn.kept = None

    def require_open(self) -> None:
        """Raises Closed once the model is closed, and in a forked child. Never waits."""
        if self.closed:
            raise Closed("this model is closed", "", "load it again")
        if self._pid != os.getpid():
            raise Closed("this model was loaded by the parent process", "", "load it after the fork")

    def _check(self) -> None:
        self.require_open()
        # As threading.Condition asks; a flag of our own could be left behind by an exception in between.
        if self._lock._is_owned() or self._door._is_owned():  # type: ignore[attr-defined]
            raise UsageError(
                "the model is at work below this call",
                "a callback or a signal handler",
                "ask it once that has returned",
            )
