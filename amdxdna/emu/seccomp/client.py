"""An open of the emulated device by another process.

Its memory is a memfd, of which the program holds a second open: BO map offsets are offsets in it, so mmap
needs no help. What is mapped where is read from /proc/PID/maps when an ioctl depends on it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from amdxdna import uapi
from amdxdna._native import ffi, lib
from amdxdna.emu.driver import drm, store
from amdxdna.emu.driver.bo import Bo
from amdxdna.emu.driver.device import EmuDriver
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.hwctx import MAX_JOBS
from amdxdna.emu.driver.memory import PAGE, page_align
from amdxdna.emu.driver.objects import Client
from amdxdna.emu.driver.store import Backing
from amdxdna.emu.seccomp.call import CLOSE, F_SETFD, FCNTL, Call
from amdxdna.emu.seccomp.files import MMAP, Caller
from amdxdna.usermem import UserMemory

EXPORT, WAIT = uapi.number("PRIME_HANDLE_TO_FD"), uapi.number("SYNCOBJ_TIMELINE_WAIT")
CREATE_BO, EXEC_CMD = uapi.number("CREATE_BO"), uapi.number("EXEC_CMD")
DESTROY_HWCTX = uapi.number("DESTROY_HWCTX")
HOT = {EXEC_CMD, WAIT}
"""What needs no context to come or go, and must be quick."""
_DEPENDS_ON_MAPPINGS = {EXPORT, CREATE_BO} | {
    uapi.number(name) for name in ("GEM_CLOSE", "PRIME_FD_TO_HANDLE", "CREATE_HWCTX", "GET_BO_INFO")
}
_HWCTX_OFFSET = ffi.offsetof("struct amdxdna_drm_exec_cmd", "hwctx")
_VADDR_OFFSET = ffi.offsetof("struct amdxdna_drm_create_bo", "vaddr")
_LAST = (1 << 63) - 1
USER_NAME = "amdxdna-user"
_FIXED, _MARK = 0x10, 0x1000
"""MAP_EXECUTABLE, which means nothing: the seccomp filter lets mappings with it pass."""
_STEP = 1 << 20
_ZEROS = bytes(_STEP)
_SLICE_NS = 20_000_000
"""How long a wait goes on before the caller's signals are looked at."""
_MAPPING = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) "
    rb"+/memfd:amdxdna-",
    re.MULTILINE,
)


class TaskMemory(UserMemory):
    """The memory of whichever thread's call is being handled on this thread: nobody else's.

    Raises Stale when that thread is gone: what was read may be another's memory, and nothing is written.
    """

    def __init__(self, pid: int) -> None:
        self._local = threading.local()
        self._process = pid

    @property
    def pid(self) -> int:
        """The thread whose memory is meant."""
        call = self.call
        return self._process if call is None else call.thread

    @pid.setter
    def pid(self, thread: int) -> None:
        raise AttributeError("the call says whose memory it is")

    @property
    def call(self) -> Call | None:
        """The call that is being handled on this thread."""
        return getattr(self._local, "call", None)

    @call.setter
    def call(self, call: Call | None) -> None:
        self._local.call = call

    def read_into(self, address: int, struct: Any, size: int) -> None:
        try:
            super().read_into(address, struct, size)
        finally:
            call = self.call
            if call is not None:
                call.check()

    def write_from(self, address: int, struct: Any, size: int) -> None:
        call = self.call
        if call is not None:
            call.check()
        super().write_from(address, struct, size)


class RemoteClient(Client):
    """State of one open by process `pid`. :meth:`handle` may be called from any thread."""

    user: TaskMemory

    def __init__(self, device: EmuDriver, pid: int) -> None:
        super().__init__(device, pid)
        self.user = TaskMemory(pid)
        self.remap = self._remap
        self.file = store.identity(self.store.file.fd)
        """Device and inode of the memory, which every descriptor of this open has."""
        self._local = threading.local()
        self._queue_lock = threading.Lock()
        self._awaited: dict[int, tuple[set[int], float]] = {}
        """Map offsets whose new mapping has not been seen yet: the starts before it, and until when."""
        self._queued: dict[int, int] = {}
        """Submits of each context that wait for room."""

    # -- who the caller is

    @property
    def memlock(self) -> int:
        given = self.device.options.memlock
        if given is not None:
            return given
        # Not prlimit(): that needs a capability for processes of other users.
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/limits") as file:
            for line in file:
                if line.startswith("Max locked memory"):
                    soft = line.split()[3]
                    return -1 if soft == "unlimited" else int(soft)
        return 0

    @property
    def privileged(self) -> bool:
        """Whether the caller acts as root."""
        given = self.device.options.privileged
        if given is not None:
            return given
        call = self._call
        if call is None:
            return False
        try:
            user = Caller.of(call.thread).user
        except OSError:
            return False
        call.check()
        return user == 0

    @privileged.setter
    def privileged(self, value: bool) -> None:
        pass

    @property
    def _call(self) -> Call | None:
        return self.user.call

    # -- ioctl

    def open_file(self, flags: int) -> int:
        """A second open of the memory, with the access mode of `flags`, for the program; the caller closes
        it.

        It stands at the last position there is, where reads and writes of any length fail with EINVAL
        (rw_verify_area of fs/read_write.c).
        """
        fd = os.open(
            f"/proc/self/fd/{self.store.file.fd}", flags & (os.O_ACCMODE | os.O_NONBLOCK) | os.O_CLOEXEC
        )
        try:
            os.lseek(fd, _LAST, os.SEEK_SET)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def may_block(self, call: Call) -> bool:
        """Whether the ioctl may have to wait for something: another thread must handle it then.

        A timeline wait that need not wait is over then: :meth:`handle` returns its outcome.
        """
        self.user.call = call
        try:
            return self._may_block(call)
        finally:
            self.user.call = None

    def _may_block(self, call: Call) -> bool:
        number = uapi.number_of(call.arguments[1])
        if number == WAIT:
            try:
                call.outcome = self._wait_once(call, 0)
            except OSError as failed:
                call.outcome = failed
                return failed.errno == errno.ETIME
            return False
        if number == EXEC_CMD:
            context = self.contexts.get(self._word(call, _HWCTX_OFFSET))
            with self._queue_lock:
                if context is None or (len(context.jobs) < MAX_JOBS and not self._queued.get(context.id)):
                    return False
                call.queued = context.id
                self._queued[context.id] = self._queued.get(context.id, 0) + 1
            return True
        if number in (EXPORT, DESTROY_HWCTX) or (number == CREATE_BO and self._word(call, _VADDR_OFFSET)):
            return True
        if self.device.lock.acquire(blocking=False):
            self.device.lock.release()
            return False
        return True

    def _word(self, call: Call, offset: int) -> int:
        """A 32-bit field of the ioctl's struct; 0 when it cannot be read."""
        try:
            return int.from_bytes(self.user.read(call.arguments[2] + offset, 4), "little")
        except OSError:
            return 0

    def handle(self, call: Call) -> int:
        """Runs the ioctl; its value. Raises OSError, or Stale."""
        request, address = call.arguments[1] & 0xFFFFFFFF, call.arguments[2]
        number = uapi.number_of(request)
        self.user.call = call
        self._local.moved = False
        schedule = self.device.npu.schedule
        if schedule is not None:
            schedule.enter()
        try:
            if number in _DEPENDS_ON_MAPPINGS or (self._awaited and number == EXEC_CMD):
                self.sync()
            if number == WAIT:
                return self._wait(call)
            value = self.ioctl(request, address)
            if self._local.moved:
                self.sync()
            return value
        finally:
            if schedule is not None:
                schedule.leave()
            self.user.call = None
            self.forget(call)

    def forget(self, call: Call) -> None:
        """The call is over, or nobody will handle it: it waits for room no more."""
        with self._queue_lock:
            if call.queued:
                self._queued[call.queued] -= 1
                call.queued = 0

    def _wait(self, call: Call) -> int:
        """SYNCOBJ_TIMELINE_WAIT in slices, so that signals of the caller end it with EINTR."""
        if isinstance(call.outcome, int):
            return call.outcome
        if call.outcome is not None and call.outcome.errno != errno.ETIME:
            raise call.outcome
        while True:
            try:
                return self._wait_once(call, time.monotonic_ns() + _SLICE_NS)
            except OSError as failed:
                if failed.errno != errno.ETIME or call.deadline <= time.monotonic_ns():
                    raise
            if not call.valid() or signal_pending(call.thread):
                raise error(errno.EINTR)

    def _wait_once(self, call: Call, until: int) -> int:
        """Waits until then, or until the caller's own deadline."""
        entry = self.device.entries[WAIT]
        args: Any = ffi.new(entry.struct)
        address, size = call.arguments[2], min(uapi.struct_size(call.arguments[1]), entry.size)
        self.user.read_into(address, args, size)
        deadline = call.deadline = int(args.timeout_nsec)
        args.timeout_nsec = min(deadline, until)
        try:
            drm.timeline_wait(self, args)
        finally:
            args.timeout_nsec = deadline
            self.user.write_from(address, args, size)
        return 0

    # -- mappings

    def moved(self, call: Call) -> bool:
        """Whether an mmap of the device's descriptor means a BO whose memory is in a file of its own."""
        with self.memory.lock:
            bo = self.memory.by_offset.get(call.arguments[5])
            return bo is not None and bo.backing is not None and bo.backing.owned

    def map(self, call: Call) -> int | None:
        """An mmap of the device's descriptor: None lets the kernel do it. Raises OSError, or Stale."""
        address, length, protection, flags, _, offset = call.arguments
        if not length or offset % PAGE:
            raise error(errno.EINVAL)
        size = page_align(length)
        bo = self.mappable(offset, size)
        if flags & (mmap.MAP_SHARED | mmap.MAP_PRIVATE) == mmap.MAP_PRIVATE:
            raise error(errno.EINVAL)
        with self.memory.lock:
            backing = bo.backing
            assert backing is not None
            if not backing.owned:
                starts = {r.start for r in self.space if r.bo is bo}
                self._awaited[offset] = starts, time.monotonic() + 1.0
                return None
            fd = call.give(backing.file.fd, True)
        where = call.inject(MMAP, address, length, protection, flags | _MARK, fd, 0)
        call.inject(CLOSE, fd)
        return where

    def sync(self) -> None:
        """Brings `space` up to date with what the process has mapped."""
        try:
            with open(f"/proc/{self.pid}/maps", "rb") as file:
                text = file.read()
        except OSError:
            return
        with self.memory.lock:
            seen: dict[tuple[int, int, int], Bo] = {}
            last = 0
            # Ascending; one that changes while they are listed may be listed again as part of another.
            for start, size, bo, offset in self._mapped(text):
                if start >= last:
                    seen[start, size, offset] = bo
                    last = start + size
            # Its last old mapping may go before the new one is added.
            held = [self.memory.get(bo) for bo in set(seen.values())]
            try:
                for r in list(self.space):
                    if not r.own and seen.get((r.start, r.end - r.start, r.offset)) is not r.bo:
                        self.unmapped(r.start, r.end - r.start)
                known = {(r.start, r.end - r.start, r.offset) for r in self.space}
                for (start, size, offset), bo in seen.items():
                    if (start, size, offset) not in known:
                        self._add(bo, start, size, offset)
            finally:
                for bo in held:
                    self.memory.put(bo)
            now = time.monotonic()
            for at, (starts, end) in list(self._awaited.items()):
                if now > end or any(r.bo.map_offset == at and r.start not in starts for r in self.space):
                    del self._awaited[at]

    def _mapped(self, text: bytes) -> Iterator[tuple[int, int, Bo, int]]:
        """(start, size, BO, offset in it) of everything mapped, as far as the BOs go."""
        mine = [bo for bo in self.memory.by_offset.values() if bo.client is self]
        apart = {store.identity(bo.backing.file.fd): bo for bo in mine if bo.backing and bo.backing.owned}
        inside = sorted(
            (bo for bo in mine if bo.backing and not bo.backing.owned), key=lambda bo: bo.map_offset
        )
        offsets = [bo.map_offset for bo in inside]
        for match in _MAPPING.finditer(text):
            start, end, offset = (int(value, 16) for value in match.group(1, 2, 3))
            file = os.makedev(int(match[4], 16), int(match[5], 16)), int(match[6])
            alone = apart.get(file)
            if alone is not None:
                size = min(end - start, alone.size - offset)
                if size > 0:
                    yield start, size, alone, offset
            elif file == self.file:
                # One mapping of the kernel's may be several neighbouring ones of the program's.
                while start < end:
                    at = bisect_right(offsets, offset) - 1
                    bo = inside[at] if at >= 0 else None
                    if bo is None or offset >= bo.map_offset + bo.size:
                        break
                    size = min(end - start, bo.map_offset + bo.size - offset)
                    yield start, size, bo, offset - bo.map_offset
                    start, offset = start + size, offset + size

    def _add(self, bo: Bo, start: int, size: int, offset: int) -> None:
        if not offset:
            self.mapped(bo, start, size, own=False)
            return
        self.memory.get(bo)
        self.space.add(start, size, bo, offset)

    # -- what only the process itself can do

    def give(self, fd: int, close_on_exec: bool) -> int:
        call = self._call
        assert call is not None
        try:
            given = getattr(self._local, "given", None)
            if given is not None:
                self._local.given = None
                if not close_on_exec:
                    call.inject(FCNTL, given, F_SETFD, 0)
                return int(given)
            return call.give(fd, close_on_exec)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def take(self, fd: int) -> Iterator[int]:
        call = self._call
        assert call is not None
        own = int(lib.xdna_take_fd(Caller.of(call.thread).process, call.thread, fd))
        if own < 0:
            raise error(-own if own in (-errno.EMFILE, -errno.ENFILE) else errno.EBADF)
        try:
            call.check()
            if fcntl.fcntl(own, fcntl.F_GETFL) & os.O_PATH:
                raise error(errno.EBADF)
            yield own
        finally:
            os.close(own)

    def _remap(self, bo: Bo) -> None:
        """Shows a BO's new backing wherever the process maps it. Holds the memory lock."""
        call = self._call
        backing = bo.backing
        assert call is not None and backing is not None
        ranges = [r for r in self.space if r.bo is bo]
        if ranges:
            fd = call.give(backing.file.fd, True)
            for r in ranges:
                _replace(call, r.start, r.end - r.start, fd, r.offset)
            self._local.given = fd
        store.map_shared(backing.file.fd, backing.offset, bo.size, bo.pointer)

    def shared(self, ranges: list[tuple[int, int]]) -> Backing:
        """Moves memory of the process to a file that is mapped in its place, so that the model sees it too.

        What other threads write to it meanwhile may be lost.
        """
        call = self._call
        assert call is not None
        with self.memory.lock:
            if any(self.space.overlapping(start, size) for start, size in ranges):
                raise error(errno.EFAULT)
        backing = store.apart(sum(size for _, size in ranges), USER_NAME)
        try:
            fd = call.give(backing.file.fd, True)
            at = 0
            for start, size in ranges:
                _copy(self.user, start, size, backing, at)
                _replace(call, start, size, fd, at)
                at += size
            call.inject(CLOSE, fd)
        except BaseException:
            backing.release()
            raise
        self._local.moved = True
        return backing


def _replace(call: Call, address: int, size: int, fd: int, offset: int) -> None:
    call.inject(
        MMAP, address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED | _MARK, fd, offset
    )


def _copy(user: UserMemory, address: int, size: int, backing: Backing, offset: int) -> None:
    """Copies a range of the process into the file, whose pages stay missing where there are only zeros."""
    for at in range(0, size, _STEP):
        data = user.read(address + at, min(_STEP, size - at))
        if data != _ZEROS[: len(data)]:
            os.pwrite(backing.file.fd, data, offset + at)


def signal_pending(thread: int) -> bool:
    """Whether a signal waits to be handled by the thread."""
    fields: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{thread}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("SigPnd", "ShdPnd", "SigBlk"):
                fields[name] = int(value, 16)
    return bool((fields.get("SigPnd", 0) | fields.get("ShdPnd", 0)) & ~fields.get("SigBlk", 0))
