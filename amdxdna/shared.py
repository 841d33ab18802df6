"""The context that the kernels of one xclbin share, there or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from amdxdna.arguments import Uncopied
from amdxdna.buffer import Buffer
from amdxdna.chain import Call, start_chain
from amdxdna.errors import BadArgument, DeviceLost, XdnaError
from amdxdna.eviction import MEMORY, Eviction
from amdxdna.forklock import reentrant
from amdxdna.hwctx import HwContext
from amdxdna.run import Run
from amdxdna.signals import acquire
from amdxdna.xclbin import Xclbin


class Pool(Protocol):
    """What makes the contexts and gives them up (:class:`amdxdna.pool.ContextPool`)."""

    numbers: Iterator[int]
    current: int
    eviction: Eviction
    most_buffers: int

    def load(self, entry: SharedContext) -> HwContext:
        """Makes the context, in place of a broken one too. The entry's lock is held."""

    def release(self, entry: SharedContext) -> bool:
        """Counts one kernel less; true when it was the last."""

    def forget(self, entry: SharedContext) -> None:
        """Closes context and PDIs. The entry's lock is held."""

    def let_go(self, entry: SharedContext) -> None:
        """The same without waiting."""


class SharedContext(Uncopied):
    """The context of one xclbin, there or not. Internal to the pool.

    ``lock`` is held while a command is submitted, so that the context is not given up in between.
    """

    def __init__(self, pool: Pool, xclbin: Xclbin) -> None:
        self.pool = pool
        self.xclbin = xclbin
        self.lock = reentrant()
        self.context: HwContext | None = None
        self.number = next(pool.numbers)
        self.uses: deque[int] = deque(maxlen=MEMORY)
        self.gops = 0
        self.kernels = 0
        self.pdis: tuple[Buffer, ...] = ()
        self.loading = False
        self.most_buffers = pool.most_buffers
        """A single command with more buffers is sent as a chain of one."""

    def ready(self) -> HwContext:
        """A context that works; made when there is none. The lock is held."""
        pool = self.pool
        if pool.current != self.number:
            pool.current = self.number
            pool.eviction.used(self)
        context = self.context
        if context is None or context.broken:
            context = pool.load(self)
        return context

    def replace(self) -> None:
        """Makes the next command run in a fresh context."""
        with self.lock:
            if self.context is not None and not self.context.broken:
                self.context.broken, self.context.broken_at = True, 0.0

    def settle(self) -> bool:
        """Waits until nothing is in flight; a context that stays busy is destroyed, which ends its commands.

        False where the driver could not destroy it, or its commands did not end with it: they may still use
        their buffers.
        """
        context = self.context
        if context is None:
            return True
        try:
            if not context.hung and context.drain():
                return True
        except XdnaError:
            pass  # the driver knows it no more
        with self.lock:
            if self.context is context:
                self.context = None
        context.give_up()  # it has been waited for
        try:
            context.close()
        except (BadArgument, DeviceLost):
            pass  # a context or device that is gone has nothing in flight
        except XdnaError:
            return False
        return not context.unended

    @property
    def path(self) -> str:
        """The xclbin's name, for messages."""
        return self.xclbin.path

    def chain(self, calls: Sequence[Call], flush: bool) -> Run:
        """Submits runs as one command."""
        return start_chain(calls, flush)

    def lost(self) -> bool:
        """After a refused submit: whether the driver has dropped the context, so that a new one will do."""
        return self.context is not None and self.context.lost

    def drop_kernel(self) -> None:
        """One kernel less; with the last, context and PDIs go."""
        if self.pool.release(self):
            acquire(self.lock)
            try:
                self.pool.forget(self)
            finally:
                self.lock.release()

    def kernel_dropped(self) -> None:
        """Counts one kernel less, which was dropped and never closed. Waits for no command in flight."""
        if self.pool.release(self):
            self.pool.let_go(self)
