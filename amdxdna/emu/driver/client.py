"""One open of the device: its handles, and the ioctl entry (drm_ioctl.c, amdxdna_pci_drv.c)."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import AbstractContextManager, nullcontext
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from amdxdna._native import ffi
from amdxdna.emu.driver.bo import DEV, INVALID_ADDR, SHARE, Bo
from amdxdna.emu.driver.heap import DeviceHeap
from amdxdna.emu.driver.ranges import AddressMap
from amdxdna.emu.driver.store import Backing, BackingStore, error
from amdxdna.usermem import UserMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from amdxdna.emu.driver.device import EmuDriver
    from amdxdna.emu.driver.hwctx import Hwctx
    from amdxdna.emu.driver.timeline import Timeline

DIR_TO_KERNEL, DIR_FROM_KERNEL = 1, 2


class Entry(NamedTuple):
    """One ioctl: its struct, and what handles it. `root`: only for the privileged."""

    struct: str
    size: int
    handler: Callable[[Client, Any], None]
    root: bool = False


class Client:
    """State of one open. :meth:`ioctl` may be called from any thread.

    The front end owns mapping: it finds a BO by :meth:`mappable`, maps it, and says so with
    :meth:`mapped` and :meth:`unmapped`; `space` is the client's address space as the device sees it.
    """

    def __init__(self, device: EmuDriver, pid: int) -> None:
        self.device = device
        self.memory = device.memory
        self.pid = pid
        self.user = UserMemory(pid)
        self.store = BackingStore(own=pid == os.getpid())
        self.space = AddressMap()
        self.heap = DeviceHeap(self)
        self.handles: dict[int, Bo] = {}
        self._freed: list[int] = []
        self.contexts: dict[int, Hwctx] = {}
        self.next_context = 1
        self.syncobjs: dict[int, Timeline] = {}
        self.dmabufs: dict[tuple[int, int], int] = {}
        """Handle of each dma-buf this open exported or imported."""
        self.remap: Callable[[Bo], None] | None = None
        """How the front end moves mappings of a BO to its new backing; None: it cannot."""
        self.total_usage = 0
        self.pinned = 0
        """Bytes of user memory in BOs, against the locked-memory limit."""
        self.borrowed = 0
        """Bytes of user memory that the model uses where the user mapped it."""
        self.internal_usage = 0
        options = device.options
        self.pasid = 1 if self.memory.pasid else 0xFFFFFFFF
        self.privileged = os.geteuid() == 0 if options.privileged is None else options.privileged
        self.closed = False
        from amdxdna.emu.driver.table import entries

        self._entries = entries(device.kind.level)

    @property
    def memlock(self) -> int:
        """The locked-memory limit in bytes; -1 for none."""
        given = self.device.options.memlock
        return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if given is None else given

    # -- ioctl

    def ioctl(self, request: int, address: int) -> int:
        """Issues `request` on the struct at `address` of the client's process. Raises OSError."""
        entry = self._entries.get(request & 0xFF)
        if entry is None:
            raise error(errno.EINVAL)
        if entry.root and not self.privileged:
            raise error(errno.EACCES)
        direction = request >> 30
        size = min(request >> 16 & 0x3FFF, entry.size)
        args = ffi.new(entry.struct)
        user = self.user
        if direction & DIR_TO_KERNEL:
            user.read_into(address, args, size)
        if not direction & DIR_FROM_KERNEL:
            entry.handler(self, args)
            return 0
        # The struct goes back whether or not the call succeeded.
        try:
            entry.handler(self, args)
        finally:
            user.write_from(address, args, size)
        return 0

    # -- BOs

    def add_handle(self, bo: Bo) -> int:
        """Publishes a BO: the lowest free handle takes over the caller's reference."""
        with self.memory.lock:
            handle = heappop(self._freed) if self._freed else len(self.handles) + 1
            self.handles[handle] = bo
            self._account(bo, 1)
            return handle

    def _account(self, bo: Bo, sign: int) -> None:
        """BO usage counts from a BO's first handle to its last; DEV BOs are part of the heap's."""
        bo.opens += sign
        if bo.kind == DEV or bo.opens != (1 if sign > 0 else 0):
            return
        bo.client.total_usage += sign * bo.size
        if bo.internal:
            bo.client.internal_usage += sign * bo.size

    def drop_handle(self, handle: int) -> bool:
        """Forgets a handle; False when there is none."""
        with self.memory.lock:
            bo = self.handles.pop(handle, None)
            if bo is None:
                return False
            for key in [key for key, known in self.dmabufs.items() if known == handle]:
                del self.dmabufs[key]
            heappush(self._freed, handle)
            self._account(bo, -1)
            self.memory.put(bo)
            return True

    def command_bo(self, handle: int) -> Bo | None:
        """A BO that may hold a command packet. Holds the memory lock."""
        bo = self.handles.get(handle)
        return bo if bo is not None and bo.kind == SHARE else None

    def add_syncobj(self, timeline: Timeline) -> int:
        """The lowest free syncobj handle."""
        handle = next(h for h in range(1, len(self.syncobjs) + 2) if h not in self.syncobjs)
        self.syncobjs[handle] = timeline
        return handle

    # -- what belongs to the client's process; a front end for another process overrides these

    def give(self, fd: int, close_on_exec: bool) -> int:
        """Hands a descriptor to the client; its number there."""
        if not close_on_exec:
            os.set_inheritable(fd, True)
        return fd

    def take(self, fd: int) -> AbstractContextManager[int]:
        """A client's descriptor, as a number in this process."""
        return nullcontext(fd)

    def shared(self, ranges: list[tuple[int, int]]) -> Backing | None:
        """A file through which the client's memory ranges, (address, size), are shared with the model; None:
        the model is in the same process and needs none."""
        return None

    # -- what the front end maps

    def mappable(self, offset: int, size: int) -> Bo:
        """The BO whose map offset is `offset`, for a mapping of its first `size` bytes.

        EOPNOTSUPP: below the first map offset; EINVAL: no BO starts there, or it is smaller; EACCES: it is
        another open's.
        """
        with self.memory.lock:
            if offset < 1 << 32:
                raise error(errno.EOPNOTSUPP)
            bo = self.memory.by_offset.get(offset)
            if bo is None or size > bo.size:
                raise error(errno.EINVAL)
            if not any(each is bo for each in self.handles.values()):
                raise error(errno.EACCES)
            return bo

    def mapped(self, bo: Bo, address: int, size: int, own: bool) -> None:
        """The client now has the BO's first `size` bytes at `address` (where nothing else is known)."""
        with self.memory.lock:
            self.memory.get(bo)
            self.space.add(address, size, bo, 0, own)
            if own:
                bo.handed_out += size
            if bo.user_address == INVALID_ADDR or not self.memory.pasid:
                bo.user_address = address

    def unmapped(self, address: int, size: int) -> list[tuple[int, int]]:
        """The client unmaps a range; those parts of it, (address, size), whose memory must stay mapped: the
        model's own mappings, and memory that user-pointer BOs are made of."""
        keep = []
        end = address + size
        with self.memory.lock:
            for r in self.space.overlapping(address, size):
                low, high = max(r.start, address), min(r.end, end)
                bo = r.bo
                if bo.user_memory:
                    keep.append((low, high - low))
                    continue
                self.space.remove(low, high - low)
                if r.own:
                    keep.append((low, high - low))
                    bo.handed_out -= high - low
                # Every range holds a reference; this one has become none, one or two.
                left = (r.start < low) + (r.end > high)
                if left == 2:
                    self.memory.get(bo)
                if self.memory.pasid:
                    # Without PASID the driver never learns that a mapping is gone.
                    bo.user_address = next((o.start for o in self.space if o.bo is bo), INVALID_ADDR)
                if not left:
                    self.memory.put(bo)
        return keep

    # -- the end

    def close(self) -> None:
        """Ends the open: contexts (two seconds each if a command hangs), handles, heap. Idempotent."""
        from amdxdna.emu.driver.teardown import finish

        device = self.device
        with device.lock:
            if self.closed:
                return
            self.closed = True
            if self in device.clients:
                device.clients.remove(self)
            while self.contexts:
                _, context = self.contexts.popitem()
                finish(context)
        wrapped = [bo for bo in list(self.handles.values()) if bo.user_memory]
        with self.memory.lock:
            for handle in list(self.handles):
                self.drop_handle(handle)
            for chunk in self.heap.chunks:
                self.memory.put(chunk)
            self.heap.chunks = []
            self.syncobjs.clear()
            self.store.close()
        for bo in wrapped:
            device.wait_gone(bo)
