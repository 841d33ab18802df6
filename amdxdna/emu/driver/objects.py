"""What the driver keeps of a device: its opens, their contexts, and their commands in flight.

The records refer to each other, as the structs of amdxdna_pci_drv.h and amdxdna_ctx.h do: that is why they
stand in one file. What the driver does with them is in the modules above (drm, gem, hwctx, jobs, queries).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from heapq import heappop, heappush
from typing import Any, NamedTuple

from amdxdna import uapi
from amdxdna._native import ffi
from amdxdna.emu.driver import clocks
from amdxdna.emu.driver.bo import DEV, INVALID_ADDR, SHARE, AddressMap, Bo
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.heap import DeviceHeap
from amdxdna.emu.driver.memory import DeviceMemory
from amdxdna.emu.driver.store import Backing, BackingStore
from amdxdna.emu.driver.timeline import Timeline
from amdxdna.emu.faults import Faults
from amdxdna.emu.npu import Npu
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.timing import MODELS
from amdxdna.text import printable
from amdxdna.usermem import UserMemory

DIR_TO_KERNEL, DIR_FROM_KERNEL = 1, 2


class Entry(NamedTuple):
    """One ioctl: its struct, and what handles it. `root`: only for the privileged."""

    struct: str
    size: int
    handler: Callable[[Client, Any], None]
    root: bool = False


class Device:
    """A device. `lock` is the driver's device lock: contexts, queries and power change under it.

    Lock order: device lock, context lock, memory lock. Thread-safe.
    """

    clock_max = clocks.LEVELS[clocks.TOP][1]

    def __init__(self, options: EmuOptions, clock: Callable[[], float], entries: dict[int, Entry]) -> None:
        self.options = options
        self.clock = clock
        self.entries = entries
        """By ioctl number, what the driver has; others are EINVAL."""
        self.kind = options.personality
        self.lock = threading.RLock()
        self.messages: deque[str] = deque(maxlen=256)
        """What a kernel log would show."""
        self._records: deque[tuple[float, str]] = deque(maxlen=32)
        self._told: set[str] = set()
        self.faults = Faults(options.faults)
        self.memory = DeviceMemory(options.address == "pasid")
        # Virtual contexts share the firmware's slots in time.
        slots = self.kind.context_limit or options.slots
        self.npu = Npu(
            self.memory,
            slots=slots,
            columns=options.columns,
            threads=options.threads,
            instant=options.instant,
            timing=None if options.timed is None else MODELS[options.timed],
            log=self.log,
            clock=lambda: self.clock(),
        )
        self.memory.computing = lambda: self.npu.computing
        self.clients: list[Client] = []
        self.power_mode = 0
        self.default_level = clocks.TOP
        self.level = clocks.TOP
        self.force_preempt = 0
        self.frame_boundary_preempt = 0
        self.last_async_error = bytes(24)
        self.progressed = 0.0
        """When a command was last sent or answered, on the whole device."""
        self.idle_wait = min(2.0, self.kind.tdr) if self.kind.tdr else 2.0

    def watch(self) -> None:
        """A command was sent: the watchdog must be awake."""
        raise NotImplementedError

    def end_contexts(self, client: Client) -> None:
        """Ends every context of an open. Holds the device's lock."""
        raise NotImplementedError

    def lose(self) -> None:
        """The device is removed, and there again for those that open it from now on."""
        raise NotImplementedError

    def wait_gone(self, bo: Bo) -> None:
        """Waits until nothing here touches the user's memory behind a BO whose handle is gone."""
        self.memory.wait_gone(bo, 2 * self.idle_wait)

    def log(self, line: str) -> None:
        """Keeps a line of the driver's log; on stderr the first time, unless the device is quiet."""
        self.messages.append(line)
        self._records.append((time.monotonic(), line))
        if not self.options.quiet and line not in self._told and len(self._told) < 50:
            self._told.add(line)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                print(f"amdxdna.emu: {printable(line)}", file=sys.stderr)

    def kernel_log(self) -> str:
        """The newest lines as :meth:`amdxdna.node.Node.text` gives a kernel's."""
        return "\n".join(f"{when:.6f} {line}" for when, line in self._records.copy())


class Client:
    """State of one open. :meth:`ioctl` may be called from any thread.

    The front end owns mapping: it finds a BO by :meth:`mappable`, maps it, and says so with
    :meth:`mapped` and :meth:`unmapped`; `space` is the client's address space as the device sees it.
    """

    def __init__(self, device: Device, pid: int) -> None:
        self.device = device
        self.memory = device.memory
        self.pid = pid
        self.user = UserMemory(pid)
        self.store = BackingStore(own=pid == os.getpid())
        self.space = AddressMap()
        self.heap = DeviceHeap(self, device.memory, device.kind)
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
        self.lost = False
        """Whether the device was removed. DRM's core then refuses every ioctl and mmap with ENODEV
        (drm_dev_is_unplugged in drm_ioctl of drm_ioctl.c and drm_gem_mmap of drm_gem.c); closing goes on."""

    @property
    def memlock(self) -> int:
        """The locked-memory limit in bytes; -1 for none."""
        given = self.device.options.memlock
        return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if given is None else given

    # -- ioctl

    def ioctl(self, request: int, address: int) -> int:
        """Issues `request` on the struct at `address` of the client's process. Raises OSError."""
        if self.lost:
            raise error(errno.ENODEV)
        entry = self.device.entries.get(uapi.number_of(request))
        if entry is None:
            raise error(errno.EINVAL)
        if entry.root and not self.privileged:
            raise error(errno.EACCES)
        direction = request >> 30
        size = min(uapi.struct_size(request), entry.size)
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
        another open's; ENODEV: the device was removed.
        """
        if self.lost:
            raise error(errno.ENODEV)
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
        """Ends the open: contexts (two seconds each if a command hangs), handles, heap. Idempotent.

        What a signal handler raises meanwhile ends the wait for one context, and comes when all is ended.
        """
        device = self.device
        with device.lock:
            if self.closed:
                return
            self.closed = True
            if self in device.clients:
                device.clients.remove(self)
            try:
                device.end_contexts(self)
            finally:
                self._give_back()

    def _give_back(self) -> None:
        """What a close does when there are no contexts any more. Holds the device's lock."""
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
            self.device.wait_gone(bo)


class Hwctx:
    """One context. `lock` guards its jobs; the rest changes under the device's lock."""

    def __init__(self, client: Client, qos: Any, num_tiles: int) -> None:
        self.client = client
        self.device = client.device
        self.id = 0
        self.gops, self.fps = int(qos.gops), int(qos.fps)
        self.dma_bandwidth, self.latency = int(qos.dma_bandwidth), int(qos.latency)
        self.frame_exec_time, self.priority = int(qos.frame_exec_time), int(qos.priority)
        self.num_tiles = num_tiles
        self.start_col = 0
        self.num_col = 0
        self.heap: list[Bo] = []
        """Chunks that the firmware context has mapped."""
        self.command_buffers: list[Bo] = []
        self.cus: list[tuple[int, int]] | None = None
        """(BO handle, function) of each CU: looked up again whenever the context is made anew."""
        self.firmware: int | None = None
        """Firmware context id; None when there is no channel to it."""
        self.broken = False
        """The channel is dead: commands complete unread."""
        self.configure_at = 0.0
        """When a context made anew gets its CUs; 0 when it has them."""
        self.timeline = Timeline(self.run_inline)
        self.syncobj = 0
        self.lock = threading.Lock()
        self.jobs: deque[Job] = deque()
        self.sequence = 0
        self.completions = 0
        self.head_since = 0.0
        """When the oldest command in flight began to count against the timeout."""
        self.room: deque[threading.Lock] = deque()
        """Submitters that wait for one of the four places."""
        self.closing = False

    def run_inline(self, seconds: float) -> bool:
        """Executes the oldest command on this thread, which would wait `seconds` for it; false: it cannot.

        Holds no lock.
        """
        number = self.firmware
        return number is not None and self.device.npu.run_inline(number, seconds)


class Job:
    """One command in flight: it keeps its BOs until it is over."""

    __slots__ = ("bos", "command", "done", "hwctx", "queued", "sequence")

    def __init__(self, hwctx: Hwctx, command: Bo, bos: list[Bo]) -> None:
        self.hwctx = hwctx
        self.command = command
        self.bos = bos
        self.done = False
        self.queued = False
        self.sequence = 0

    def settle(self) -> None:
        """Gives the BOs back, once."""
        memory = self.hwctx.device.memory
        with memory.lock:
            bos, self.bos = self.bos, []
            memory.end(bos)
