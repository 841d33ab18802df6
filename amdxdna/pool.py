"""Hardware contexts shared by the kernels of an xclbin, and given up when the device runs out of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from amdxdna.abandoned import collect_contexts, held
from amdxdna.allocation import allocate
from amdxdna.arguments import Uncopied, content, instance, text, whole
from amdxdna.chain import Call, start_chain
from amdxdna.client import Client
from amdxdna.create_hwctx import QoS
from amdxdna.errors import BadArgument, NoFreeContext, XdnaError, closed
from amdxdna.eviction import Eviction
from amdxdna.forklock import reentrant
from amdxdna.heap import Heap
from amdxdna.hwctx import HwContext
from amdxdna.kernel import Kernel
from amdxdna.pdis import load_pdis
from amdxdna.reaper import PATIENCE
from amdxdna.run import Run
from amdxdna.shared import SharedContext
from amdxdna.signals import POLL_SECONDS, acquire, interruptible, let_in, section
from amdxdna.xclbin import Xclbin

RECOVERY_SECONDS = 0.5
"""No command reaches the device in this time after a timeout: the driver re-creates contexts meanwhile."""

_MOST_OPS = 10**9 * ((1 << 32) - 1)
"""What a context's QoS can say."""
_EVICT_PATIENCE = 0.05
EVICT_SECONDS = 60.0
"""How long a busy context is waited for: several commands of the slowest (emulated) kind."""
_CLOSING_SECONDS = 10.0
"""How long a context that another thread is closing is waited for."""


@dataclass(frozen=True)
class PoolStats:
    """Counts since the pool was made.

    ``loads``: contexts created; ``swaps``: contexts given up to make room for another; ``recoveries``:
    contexts replaced after a failure; ``resident``: contexts open now.
    """

    loads: int
    swaps: int
    recoveries: int
    resident: int

    def __str__(self) -> str:
        return f"{self.resident} contexts open, {self.loads} loads, {self.swaps} swaps" + (
            f", {self.recoveries} recoveries" if self.recoveries else ""
        )


class ContextPool(Uncopied):
    """Kernels over shared contexts. One a device: :attr:`amdxdna.device.Device.pool`.

    A context is made when a kernel of its xclbin first starts, and kept. When the device has none left, an
    idle one of this pool is given up (which: :mod:`amdxdna.eviction`), one at a time, only as many as needed;
    its buffers (PDIs, instruction streams, data) stay while the heap has room, and it comes back at its next
    use. Where the driver cannot tell a
    full device from another refusal, one is given up to find out. Contexts of other processes are never
    touched. Should none of the pool's own be idle, one is waited for.

    `max_contexts` limits how many this pool keeps open (None: what the device allows). It is never exceeded:
    a start that needs one more waits up to a minute for another to be idle, and then raises NoFreeContext.
    Thread-safe.
    """

    def __init__(self, client: Client, max_contexts: int | None = None) -> None:
        if max_contexts is not None:
            max_contexts = whole("pool", "max_contexts", max_contexts, 1)
        self._client = client
        self.max_contexts = max_contexts
        self.numbers: Iterator[int] = count(1)
        self.current = 0
        """The number of the entry that was used last."""
        self.eviction = Eviction()
        self._entries: dict[bytes, SharedContext] = {}
        self._lock = reentrant()
        self._load_lock = reentrant()
        # Contexts that other threads are closing, and how many they have closed: their slots become free.
        self._change = threading.Condition(self._lock)
        self._closing = self._closings = 0
        self._loads = self._swaps = self._recoveries = 0
        self._closed = False
        self._strangers = 0
        self.most_buffers = client.profile.single_buffers
        client.pools.add(self)

    @property
    def loads(self) -> int:
        """Contexts created so far."""
        return self._loads

    @property
    def swaps(self) -> int:
        """Contexts given up so far to make room for another."""
        return self._swaps

    @property
    def resident(self) -> int:
        """Contexts open now."""
        return sum(entry.context is not None for entry in self._listed())

    def contexts(self) -> list[HwContext]:
        """The contexts open now."""
        return [context for entry in self._listed() if (context := entry.context) is not None]

    def in_flight(self) -> set[tuple[int, int]]:
        """The commands in flight, each by an identity of its submit. Does not block."""
        return {each for context in self.contexts() for each in context.unfinished()}

    @property
    def stats(self) -> PoolStats:
        """All counts."""
        return PoolStats(self._loads, self._swaps, self._recoveries, self.resident)

    @section
    def kernel(self, xclbin: Xclbin, insts: bytes, *, name: str | None = None, ops: int = 0) -> Kernel:
        """A kernel that runs the instruction stream `insts` on a compute unit of `xclbin`.

        `name` chooses the unit (a DPU kernel's name; None: the file's only one). `ops` is the operations of
        one run: the largest of an xclbin's kernels becomes its context's QoS. Xclbins with the same content
        share a context, whatever their path. Raises BadXclbin for an unknown name, OutOfHeap when the
        instructions do not fit, BadArgument when they are empty or no whole 32-bit words, or the unit is past
        the 32 that a packet can name.
        """
        instance("kernel", "xclbin", xclbin, Xclbin, "Give Xclbin.read(path)")
        insts = bytes(content("kernel", "insts", insts, "Give the stream's file contents, as bytes"))
        if name is not None:
            text("kernel", "name", name, "Give a kernel's name, or None")
        ops = whole("kernel", "ops", ops, 0, _MOST_OPS)
        if not insts or len(insts) % 4:
            raise BadArgument(
                f"an instruction stream of {len(insts)} bytes",
                call="kernel",
                remedy="Pass the stream's file contents: whole 32-bit words",
            )
        cu = xclbin.cu_index(name)
        buffer = allocate(self._client, len(insts), "dev")
        try:
            buffer.write(insts)
            with self._lock:
                if self._closed:
                    raise closed("context pool")
                shared = self._entries.get(xclbin.digest) or SharedContext(self, xclbin)
                kernel = Kernel(shared, buffer, cu, name or xclbin.cus[cu].kernel, ops)
                self._entries[xclbin.digest] = shared
                shared.kernels += 1
                shared.gops = max(shared.gops, -(-ops // 10**9))
            return kernel
        except BaseException:
            buffer.close()
            raise

    def chain(self, calls: Sequence[Call], *, flush: bool = True) -> Run:
        """Starts [(kernel, buffers), ...], all of one xclbin, as one command; see :func:`start_chain`."""
        return start_chain(calls, flush)

    @section
    def unload(self) -> int:
        """Gives up every idle context, for other programs to use; returns how many. They come back on use."""
        freed = 0
        acquire(self._load_lock)
        try:
            for entry in self._listed():
                freed += self._give_up(entry, 0.0)
        finally:
            self._load_lock.release()
        return freed

    @section
    def abort(self) -> int:
        """Ends every context that has commands in flight, and them with it, without waiting for them first;
        returns how many. It takes the driver some two seconds each. Their runs end as aborted or timed out;
        kernels find a fresh context at their next start. Raises the first failure, at the end.
        """
        ended = 0
        failed: XdnaError | None = None
        for entry in self._listed():
            acquire(entry.lock)
            try:
                context = entry.context
                if context is None or context.idle():
                    continue
                entry.context = None
                context.give_up()
                context.close()
                ended += 1
            except XdnaError as error:
                failed = failed or error
            finally:
                entry.lock.release()
        if failed is not None:
            raise failed
        return ended

    def shed_pdis(self, nbytes: int) -> int:
        """Gives `nbytes` of the heap back, if there are as many: PDIs of xclbins that have no context now,
        the least recently used first. Returns how many bytes. They come back on use."""
        freed = 0
        for entry in sorted(self._listed(), key=_last_use):
            if freed >= nbytes:
                break
            if entry.context is not None or not entry.pdis or not entry.lock.acquire(blocking=False):
                continue
            try:
                if entry.context is None and not entry.loading:
                    pdis, entry.pdis = entry.pdis, ()
                    for buffer in pdis:
                        freed += Heap.taken(buffer.nbytes)
                        buffer.close()
            finally:
                entry.lock.release()
        return freed

    def shed_context(self) -> bool:
        """Gives up one idle context with its PDIs; false when there is none."""
        return any(
            self._give_up(entry, 0.0) and self.shed_pdis(1) for entry in sorted(self._listed(), key=_last_use)
        )

    @section
    def close(self) -> None:
        """Waits for the runs in flight and closes every context and PDI. Kernels are unusable then.

        Every context is tried; the first failure is raised at the end.
        """
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
            self._entries.clear()
            self._closing += len(entries)
        failed: XdnaError | None = None
        for entry in entries:
            acquire(entry.lock)
            try:
                self.forget(entry)
            except XdnaError as error:
                failed = failed or error
            finally:
                entry.lock.release()
        if failed is not None:
            raise failed

    def _listed(self) -> list[SharedContext]:
        with self._lock:
            return list(self._entries.values())

    def release(self, entry: SharedContext) -> bool:
        """Counts one kernel of `entry` less; true when it was the last and :meth:`forget` must follow."""
        with self._lock:
            entry.kernels -= 1
            last = entry.kernels == 0 and self._entries.get(entry.xclbin.digest) is entry
            if last:
                del self._entries[entry.xclbin.digest]
                self._closing += 1
                self.eviction.forget(entry)
            return last

    def forget(self, entry: SharedContext) -> None:
        """Closes the context and PDIs of an xclbin that :meth:`release` counted out. Its lock is held."""
        try:
            context, entry.context = entry.context, None
            if context is not None:
                context.close()
            pdis, entry.pdis = entry.pdis, ()
            for buffer in pdis:
                buffer.close()
        finally:
            self._forgotten()

    def let_go(self, entry: SharedContext) -> None:
        """:meth:`forget` without waiting: a context with commands in flight is left to its finalizer."""
        locked = entry.lock.acquire(blocking=False)  # else it is being given up at this moment
        try:
            idle = False
            with contextlib.suppress(XdnaError):
                idle = locked and (entry.context is None or entry.context.idle())
            if idle:
                self.forget(entry)
            else:
                entry.context = None
                entry.pdis = ()
                self._forgotten()
        finally:
            if locked:
                entry.lock.release()

    def _forgotten(self) -> None:
        with self._change:
            self._closing -= 1
            self._closings += 1
            self._change.notify_all()

    @section
    def load(self, entry: SharedContext) -> HwContext:
        """Makes the context of `entry`, in place of a broken one too. Its lock is held."""
        acquire(self._load_lock)
        try:
            broken = entry.context
            if self._closed or not entry.kernels:
                raise closed("context pool" if self._closed else "kernel")
            if broken is not None:
                pause = broken.broken_at + RECOVERY_SECONDS - time.monotonic()
                if pause > 0:
                    interruptible(time.sleep, pause)
                entry.context = None
                # Whether the driver can end it or not: the new one shows what can be had.
                with contextlib.suppress(XdnaError):
                    broken.close()
                self._recoveries += 1
            entry.loading = True
            try:
                return self._fill(entry)
            finally:
                entry.loading = False
        finally:
            self._load_lock.release()

    def _fill(self, entry: SharedContext) -> HwContext:
        """Makes PDIs and context of `entry`, in place of another context if need be. Both locks are held."""
        if not entry.pdis:
            entry.pdis = load_pdis(self._client, entry.xclbin)
        while self.max_contexts is not None and self.resident >= self.max_contexts:
            if not self._evict(entry) and self.resident >= self.max_contexts:
                raise NoFreeContext(
                    f"this pool may have {self.max_contexts} contexts (max_contexts), and none of them "
                    f"became idle",
                    call="pool",
                    remedy="Raise max_contexts, or wait for runs in flight before others start",
                )
        tried = False
        while True:
            closings = self._closings
            try:
                context = HwContext(
                    self._client, entry.xclbin, QoS(gops=entry.gops), entry.pdis, patient=False
                )
                break
            except NoFreeContext as error:
                if self._collect_garbage():
                    continue
                # Where it is not certain that the device is full, giving up one context settles it.
                if not tried or error.certain:
                    if self._evict(entry, error.columns):
                        tried = True
                        continue
                    if self._await_closing(closings):
                        continue
                if not collect_contexts(PATIENCE):
                    raise
        self._loads += 1
        entry.context = context
        return context

    def _collect_garbage(self) -> bool:
        """Before a good context goes: true when garbage of this process went instead.

        The cycle collector is slow, so only when the process has contexts that are not this pool's, and more
        than at its last run in vain.
        """
        strangers = held() - self.resident
        if strangers <= self._strangers:
            self._strangers = strangers
            return False
        self._strangers = strangers
        return collect_contexts()

    def _await_closing(self, seen: int) -> bool:
        """True when another thread has closed a context since `_closings` was `seen`, or is about to."""
        end = time.monotonic() + _CLOSING_SECONDS
        with self._change:
            while self._closings == seen and self._closing and time.monotonic() < end:
                let_in()
                self._change.wait(POLL_SECONDS)
            return self._closings != seen

    def _evict(self, wanting: SharedContext, columns: int | None = None) -> bool:
        """Gives up one context, an idle one if there is such; false when none can go.

        `columns`: one of another width than that.
        """
        end = time.monotonic() + EVICT_SECONDS
        patience = 0.0
        while True:
            others = [e for e in self._listed() if e.context is not None and e is not wanting]
            others = [
                e for e in self.eviction.order(others, wanting) if e.xclbin.partition.column_width != columns
            ]
            for entry in others:
                if self._give_up(entry, patience):
                    self._swaps += 1
                    return True
            left = end - time.monotonic()
            if not others or left <= 0:
                return False
            patience = min(max(_EVICT_PATIENCE, 4 * patience), left)

    def _give_up(self, entry: SharedContext, patience: float) -> bool:
        """Closes the context of `entry` unless it stays busy, or being submitted to, for `patience` seconds.

        Never blocks on the lock for good: its holder may be waiting to load a context itself.
        """
        if not acquire(entry.lock, patience):
            return False
        try:
            context = entry.context
            if context is None or not (context.drain(patience) if patience else context.idle()):
                return False
            entry.context = None
            context.close()
            return True
        finally:
            entry.lock.release()


def _last_use(entry: SharedContext) -> int:
    return entry.uses[-1] if entry.uses else 0
