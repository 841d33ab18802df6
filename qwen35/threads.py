"""Thread pools whose threads start whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from amdxdna.signals import uninterrupted

__all__ = ["Threads"]

P = ParamSpec("P")
T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """A pool into whose submit no signal handler breaks.

    What a handler raises within Thread.start comes out of it as a KeyError about the thread, which takes
    itself off the list of those that start.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As ThreadPoolExecutor's; a handler's exception comes when the task is in the queue."""
        return uninterrupted(super().submit, fn, *args, **kwargs)
