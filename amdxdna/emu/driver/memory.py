"""The device's view of memory: BO lifetimes, map offsets, IOVAs, and what the NPU reaches through them."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable

from amdxdna.emu.driver import store
from amdxdna.emu.driver.bo import DEV, DEV_HEAP, INVALID_ADDR, AddressMap, Bo, Owner
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.ranges import RangeAllocator
from amdxdna.emu.npu import BadAddress

PAGE = 4096
_IOVA_START, _IOVA_END = 1 << 32, 1 << 48


def page_align(size: int) -> int:
    """`size` rounded up to whole pages, as 64-bit arithmetic has it."""
    return (size + PAGE - 1 & ~(PAGE - 1)) & 0xFFFFFFFFFFFFFFFF


class DeviceMemory:
    """Implements the NPU's Memory. Thread-safe: `lock` guards every BO and address map of the device.

    A BO's mapping outlives it until no command that might hold a pointer into it is running.
    """

    def __init__(self, pasid: bool) -> None:
        self.pasid = pasid
        self.lock = threading.RLock()
        self.contexts: dict[int, Owner] = {}
        """Firmware context id -> whose address space its addresses belong to."""
        self.by_offset: dict[int, Bo] = {}
        self._offsets = RangeAllocator(store.OFFSET_START, store.OFFSET_END)
        self._iovas = RangeAllocator(_IOVA_START, _IOVA_END)
        self._iova_map = AddressMap()
        self.largest = os.sysconf("SC_PHYS_PAGES") * PAGE
        """Bytes of the largest BO."""
        self._moves = 0
        self._active: dict[int, int] = {}
        self._epoch = 0
        self._retired: list[tuple[int, Bo]] = []
        self._idle = threading.Condition(self.lock)
        self._waiting = 0
        self.computing: Callable[[], bool] = lambda: False
        """Whether a command computes: waits for commands are not over meanwhile."""

    # -- BOs

    def create(
        self, client: Owner, kind: int, size: int, backing: store.Backing | None = None, vaddr: int = 0
    ) -> Bo:
        """A SHARE or DEV_HEAP BO of `size` whole pages: fresh, over an imported `backing`, or over the
        client's own memory at `vaddr`. ENOSPC: no map offset (size 0 or over 1 TiB); ENOMEM."""
        with self.lock:
            offset = self._offsets.lowest(size) if 0 < size <= store.OFFSET_END else None
            if offset is None:
                raise error(errno.ENOSPC)
            bo = Bo(kind, size, client)
            try:
                if vaddr:
                    bo.user_memory = True
                    bo.pointer = vaddr
                    bo.pinned = size
                    client.pinned += size
                    client.borrowed += size
                else:
                    if size > self.largest:
                        raise error(errno.ENOMEM)
                    bo.backing = backing or client.store.backing(offset, size)
                    bo.pointer = bo.backing.map(size)
                if not self.pasid:
                    self._map_iova(bo)
            except OSError:
                if bo.user_memory:
                    client.pinned -= size
                    client.borrowed -= size
                elif bo.pointer:
                    store.unmap(bo.pointer, size)
                self._offsets.free(offset, size)
                raise
            bo.map_offset = offset
            self.by_offset[offset] = bo
            return bo

    def _map_iova(self, bo: Bo) -> None:
        align = 1 << (bo.size - 1).bit_length() if bo.kind == DEV_HEAP else PAGE
        iova = self._iovas.highest(bo.size, align)
        if iova is None:
            raise error(errno.ENOMEM)
        bo.iova = iova
        self._iova_map.add(iova, bo.size, bo)

    def get(self, bo: Bo) -> Bo:
        """Adds a reference to `bo` and returns it."""
        with self.lock:
            bo.refs += 1
        return bo

    def put(self, bo: Bo) -> None:
        """One reference less; the last one frees the BO, unless a job in flight lists it."""
        with self.lock:
            bo.refs -= 1
            if not bo.refs and not bo.busy:
                self._free(bo)

    def _free(self, bo: Bo) -> None:
        """Ends a BO without references and jobs. Its memory stays while a command may hold pointers to it."""
        if bo.kind == DEV:
            bo.client.heap.free(bo)
            for chunk in bo.chunks:
                self.put(chunk)
            return
        del self.by_offset[bo.map_offset]
        if bo.iova != INVALID_ADDR:
            self._iova_map.remove(bo.iova, bo.size)
            self._iovas.free(bo.iova, bo.size)
        bo.client.pinned -= bo.pinned
        if bo.user_memory:
            bo.client.space.discard(bo)
            bo.client.borrowed -= bo.size
        self._retired.append((self._epoch, bo))
        self._epoch += 1
        self._reclaim()

    def _reclaim(self) -> None:
        """Unmaps the freed BOs that no running command can hold a pointer into."""
        oldest = min(self._active.values(), default=self._epoch)
        while self._retired and self._retired[0][0] < oldest:
            _, bo = self._retired.pop(0)
            bo.view = None
            if not bo.user_memory:
                store.unmap(bo.pointer, bo.size)
            if bo.backing is not None:
                bo.backing.release()
            self._offsets.free(bo.map_offset, bo.size)

    # -- commands

    def begin(self, bos: Iterable[Bo]) -> None:
        """A job that lists these BOs was accepted: it keeps them."""
        with self.lock:
            for bo in bos:
                bo.busy += 1

    def end(self, bos: Iterable[Bo]) -> None:
        """Takes back what :meth:`begin` did for a job that is over; frees BOs that nothing names any more."""
        with self.lock:
            for bo in bos:
                bo.busy -= 1
                if not bo.refs and not bo.busy:
                    self._free(bo)
            if self._waiting:
                self._idle.notify_all()

    def wait_idle(self, bos: Iterable[Bo], seconds: float) -> None:
        """Waits until no job lists any of the BOs; see `_await` for `seconds`."""
        with self.lock:
            self._await(lambda: any(bo.busy for bo in bos), seconds)

    def wait_gone(self, bo: Bo, seconds: float) -> None:
        """Waits until a BO without handles is freed and no command holds a pointer into it; see `_await`."""
        with self.lock:
            self._await(lambda: bool(bo.refs or bo.busy) or any(r is bo for _, r in self._retired), seconds)

    def quiet(self, seconds: float) -> bool:
        """Waits until no command holds pointers; true then. See `_await`. Holds the lock, which is let go
        meanwhile."""
        self._await(lambda: bool(self._active), seconds)
        return not self._active

    def _await(self, busy: Callable[[], bool], seconds: float) -> None:
        """Waits while `busy()`, at most `seconds`, which begin anew while commands compute: kernels take
        longer here than on an array, and what hangs writes nothing any more. Holds the lock, which is let go.
        """
        end = time.monotonic() + seconds
        self._waiting += 1
        try:
            while busy():
                if self.computing():
                    end = time.monotonic() + seconds
                left = end - time.monotonic()
                if left <= 0:
                    return
                self._idle.wait(min(left, 0.5))
        finally:
            self._waiting -= 1

    # -- the NPU's Memory

    def bind(self, context: int, client: Owner) -> None:
        """From now on the addresses of firmware context `context` are the client's."""
        with self.lock:
            self.contexts[context] = client
            self._moves += 1

    def unbind(self, context: int) -> None:
        """The firmware context is gone."""
        with self.lock:
            self.contexts.pop(context, None)
            self._moves += 1

    def moved(self) -> None:
        """Some BO's memory is now elsewhere in this process."""
        with self.lock:
            self._moves += 1

    def pointer(self, context: int, address: int, size: int) -> int:
        with self.lock:
            client = self.contexts.get(context)
            if client is None:
                raise BadAddress(address, size)
            found = (client.space if self.pasid else self._iova_map).find(address, size)
            if found is None:
                raise BadAddress(address, size)
            if context not in self._active:
                self._active[context] = self._epoch
            bo, offset = found
            # A map of the client's may be larger than the BO; the mapping here is not.
            if offset < 0 or size < 0 or offset + size > bo.size:
                raise BadAddress(address, size)
            pointer = bo.pointer + offset
        if bo.user_memory and not store.is_mapped(pointer, size):
            raise BadAddress(address, size)
        return pointer

    def stamp(self, context: int) -> object:
        with self.lock:
            client = self.contexts.get(context)
            # The user may unmap memory of his own at any time.
            if client is None or client.borrowed:
                return None
            if context not in self._active:
                self._active[context] = self._epoch
            return self._moves, (client.space if self.pasid else self._iova_map).changes

    def release(self, context: int) -> None:
        if context in self._active:
            with self.lock:
                del self._active[context]
                if self._retired:
                    self._reclaim()
                if self._waiting:
                    self._idle.notify_all()
