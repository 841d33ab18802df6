"""The emulated device behind the seam, in this process; the kernel's is :class:`amdxdna.node.KernelNode`.

BO memory is mapped once: the first whole mapping of a BO is the model's own mapping of it, handed to the
user, so the user and the kernels see the same pages at the same address.

Calls are over, or were never begun, when a signal's handler runs, as a kernel's are: each is a section of
:mod:`amdxdna.signals`, in which only the waits for commands let handlers in.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading

from amdxdna.arguments import Uncopied
from amdxdna.causes import from_errno
from amdxdna.emu import children
from amdxdna.emu.driver import store
from amdxdna.emu.driver.bo import Bo
from amdxdna.emu.driver.device import EmuDriver, shutdown_all
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.memory import PAGE, page_align
from amdxdna.emu.driver.objects import Client
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.pci.sysfs import FUNCTION, attributes
from amdxdna.errors import Closed, of_parent
from amdxdna.kmsg import KERNEL_LOG
from amdxdna.signals import uninterrupted

_devices: dict[tuple[int, EmuOptions], tuple[EmuDriver, int]] = {}
"""By process id too: in a forked child the parent's devices have no threads, and locks that nobody opens."""
_FUNCTION = "sys/class/accel/emu/device/"
_devices_lock = threading.Lock()
atexit.register(shutdown_all)


_pid = os.getpid()


def _after_fork() -> None:
    global _devices_lock, _pid
    _devices_lock = threading.Lock()
    _pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


def _acquire(options: EmuOptions) -> EmuDriver:
    """The process's device of these options; made by the first open, gone with the last close."""
    key = os.getpid(), options
    with _devices_lock:
        if key not in _devices:
            _devices[key] = (EmuDriver(options), 0)
        device, opens = _devices[key]
        _devices[key] = (device, opens + 1)
        return device


def _release(options: EmuOptions) -> None:
    key = os.getpid(), options
    with _devices_lock:
        device, opens = _devices[key]
        if opens > 1 or device.faults.counts("open") or device.faults.counts("lose"):
            # These faults are counted over failed opens and lost ones too: such a device stays.
            _devices[key] = (device, opens - 1)
        else:
            del _devices[key]
            device.shutdown(0.0)


class EmuNode(Uncopied):
    """An open emulated device. Nodes with equal options share one device. Every method is thread-safe.

    `driver` and `client` are the model's, for tests (``node.driver.faults.next("hang")``). As with the
    kernel's node, a forked child may unmap what it inherited and nothing else.
    """

    path = "emu"
    emulated = True

    def __init__(self, options: EmuOptions | None = None) -> None:
        """Raises what opening a node raises when an option injects that fault."""
        self.options = EmuOptions.parse() if options is None else options
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        # Mappings of user-pointer BOs: the user's own pages, which must outlive their munmap.
        self._borrowed: dict[tuple[int, int], int] = {}
        self.driver: EmuDriver
        self.client: Client
        uninterrupted(self._open)

    def _open(self) -> None:
        self.driver = _acquire(self.options)
        try:
            self.client = self.driver.open(self._pid)
        except OSError as refused:
            _release(self.options)
            raise from_errno("open", refused.errno or 0, self.path) from None
        self.client.remap = self._remap
        if self.driver.kind.flush_destroys:
            children.watch(self.client)

    def _usable(self) -> Client:
        if self._pid != _pid:
            raise of_parent(self.path)
        if self._closed:
            raise Closed("the node is closed", call=self.path, remedy="Open the device again")
        return self.client

    def ioctl(self, request: int, address: int) -> int:
        """See :meth:`amdxdna.node.Node.ioctl`."""
        client = self._usable()
        schedule = client.device.npu.schedule
        if schedule is None:
            return uninterrupted(client.ioctl, request, address)
        schedule.enter()
        try:
            return uninterrupted(client.ioctl, request, address)
        finally:
            schedule.leave()

    def mmap(self, length: int, offset: int, *, address: int = 0) -> int:
        """See :meth:`amdxdna.node.Node.mmap`. Mapping a BO over another one needs that one idle."""
        return uninterrupted(self._mmap, self._usable(), length, offset, address)

    def _mmap(self, client: Client, length: int, offset: int, address: int) -> int:
        if length <= 0 or offset % PAGE or address % PAGE:
            raise error(errno.EINVAL)
        size = page_align(length)
        with client.memory.lock:
            bo = client.mappable(offset, size)
            if bo.user_memory:
                if address or size != bo.size:
                    raise error(errno.EOPNOTSUPP)
                bo.user_address = bo.pointer
                self._borrowed[bo.pointer, size] = self._borrowed.get((bo.pointer, size), 0) + 1
                return bo.pointer
            if address:
                self._vacate(client, address, size)
            elif size == bo.size and not bo.handed_out:
                client.mapped(bo, bo.pointer, size, own=True)
                return bo.pointer
            assert bo.backing is not None
            where = bo.backing.map(size, address)
            client.mapped(bo, where, size, own=False)
            return where

    def munmap(self, address: int, length: int) -> None:
        """See :meth:`amdxdna.node.Node.munmap`. With PASID it waits for commands that list the BO, as the
        kernel does; memory that the model itself still maps stays until the BO is gone."""
        if length <= 0 or address % PAGE:
            raise error(errno.EINVAL)
        size = page_align(length)
        if self._pid != os.getpid():
            store.unmap(address, size)
        else:
            uninterrupted(self._munmap, self.client, address, size)

    def _munmap(self, client: Client, address: int, size: int) -> None:
        if client.memory.pasid:
            with client.memory.lock:
                bos = {r.bo for r in client.space.overlapping(address, size)}
            client.memory.wait_idle(bos, 2 * self.driver.idle_wait)
        with client.memory.lock:
            borrowed = self._borrowed.pop((address, size), 0)
            if borrowed > 1:
                self._borrowed[address, size] = borrowed - 1
            if not borrowed:
                self._unmap(client, address, size)

    def _unmap(self, client: Client, address: int, size: int) -> None:
        """Forgets the mappings of a range, and unmaps what is not the model's own. Holds the memory lock."""
        at, end = address, address + size
        for start, length in sorted(client.unmapped(address, size)):
            if start > at:
                store.unmap(at, start - at)
            at = start + length
        if at < end:
            store.unmap(at, end - at)

    def _vacate(self, client: Client, address: int, size: int) -> None:
        """Makes room for a mapping at a fixed address. Holds the memory lock.

        A mapping of the model's own that is there moves away first: its BO must be idle (EBUSY).
        """
        own = {r.bo for r in client.space.overlapping(address, size) if r.own}
        if any(bo.user_memory for bo in own):
            raise error(errno.EBUSY)
        own |= {
            bo
            for bo in client.memory.by_offset.values()
            if not bo.user_memory and bo.pointer < address + size and address < bo.pointer + bo.size
        }
        if own and not client.memory.quiet(self.driver.idle_wait):
            raise error(errno.EBUSY)
        client.unmapped(address, size)
        for bo in own:
            assert bo.backing is not None
            if bo.handed_out:
                raise error(errno.EBUSY)
            old, bo.pointer, bo.view = bo.pointer, bo.backing.map(bo.size), None
            client.memory.moved()
            store.unmap(old, bo.size)

    def _remap(self, bo: Bo) -> None:
        """Shows a BO's new backing at every address where it is mapped. Holds the memory lock."""
        assert bo.backing is not None
        store.map_shared(bo.backing.file.fd, bo.backing.offset, bo.size, bo.pointer)
        for r in self.client.space:
            if r.bo is bo and not r.own:
                store.map_shared(bo.backing.file.fd, bo.backing.offset + r.offset, r.end - r.start, r.start)

    def text(self, path: str) -> str | None:
        """See :meth:`amdxdna.node.Node.text`: the machine and module that the options say it is."""
        if path == KERNEL_LOG:
            return self.driver.kernel_log()
        if path.startswith(_FUNCTION):
            return attributes(FUNCTION).get(path.removeprefix(_FUNCTION))
        return self.driver.kind.text(path, self.client.privileged)

    def close(self) -> None:
        """See :meth:`amdxdna.node.Node.close`. A hung command delays it by up to two seconds."""
        if self._pid == os.getpid():
            uninterrupted(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self.client.close()
        finally:
            _release(self.options)
