"""Where BO memory lives: a sparse memfd of each client, in which a BO lies at its map offset.

A process that holds the memfd maps a BO with an ordinary mmap at that offset. A BO that is exported moves to
a memfd of its own, because a dma-buf is mapped from offset 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
from typing import Any

from amdxdna._native import lib
from amdxdna.emu import identity as names
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.huge import HUGE_PAGE, huge_file

OFFSET_START = 1 << 32
"""First map offset: below it DRM serves no BO (DRM_FILE_PAGE_OFFSET_START)."""
OFFSET_END = OFFSET_START + (1 << 40)
DMABUF_NAME = "amdxdna-dmabuf"
_READ_WRITE = 0x3
_SHARED = 0x01
_FIXED = 0x10
_PUNCH_KEEP_SIZE = 0x03
_MS_ASYNC = 1
_MADV_HUGEPAGE = 14
_HUGE = 2 << 20
_PAGE = 4096
_NO_WRITES = fcntl.F_SEAL_WRITE | 0x10  # F_SEAL_FUTURE_WRITE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_shared(fd: int, offset: int, size: int, address: int = 0) -> int:
    """Maps `size` bytes of `fd` shared, read-write (over what is at `address`, if given); the address."""
    value = lib.xdna_mmap(address, size, _READ_WRITE, _SHARED | (_FIXED if address else 0), fd, offset)
    if -4096 < value < 0:
        raise error(-value)
    if size >= _HUGE:  # weights: filled with fewer faults, and read faster by a tenth or more
        _libc.madvise(value, size, _MADV_HUGEPAGE)
    return value


def unmap(address: int, size: int) -> None:
    """munmap; raises OSError."""
    value = lib.xdna_munmap(address, size)
    if value < 0:
        raise error(-value)


def is_mapped(address: int, size: int) -> bool:
    """Whether every page of the range is mapped in this process."""
    page = address & ~4095
    return bool(_libc.msync(page, address + size - page, _MS_ASYNC) == 0)


@functools.cache
def memfd_device() -> int:
    """The device number that every memfd of ordinary pages has."""
    probe = os.memfd_create("amdxdna-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(probe).st_dev
    finally:
        os.close(probe)


def _memfd(name: str, size: int) -> int:
    """A memfd that nobody can shrink, or seal against writing: whoever maps it must not meet SIGBUS."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class File:
    """A descriptor that may be closed while ranges of it are still to be given back."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Closes it: pages stay as long as something maps them. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Backing:
    """`size` bytes at `offset` of a file. `owned`: the file is this BO's alone and closed with it."""

    def __init__(self, file: File, offset: int, size: int, owned: bool) -> None:
        self.file = file
        self.offset = offset
        self.size = size
        self.owned = owned

    def map(self, size: int, address: int = 0) -> int:
        """Maps the first `size` bytes; see map_shared."""
        return map_shared(self.file.fd, self.offset, size, address)

    def release(self) -> None:
        """Gives the pages back; they are gone for every mapping of this range."""
        if self.owned:
            self.file.close()
        elif self.file.fd >= 0:
            _libc.fallocate(self.file.fd, _PUNCH_KEEP_SIZE, self.offset, self.size)


class BackingStore:
    """The memory of one client's BOs. Its file may be handed to the process the client stands for.

    Large BOs of a client in this process, which needs no file to map them, are in a file of huge pages
    instead, one behind the other, where there is such a file. Guarded by the device's memory lock.
    """

    def __init__(self, own: bool = False) -> None:
        """`own`: the client is this process."""
        self.file = File(_memfd("amdxdna-memory" if own else names.NODE_FILE, OFFSET_END))
        self._own = own
        self._large: File | None = None
        self._next = 0

    def backing(self, offset: int, size: int) -> Backing:
        """The zero-filled bytes for a BO at map offset `offset`."""
        if self._own and size >= HUGE_PAGE:
            if self._large is None:
                found = huge_file()
                self._large = self.file if found is None else File(found)
            if self._large is not self.file:
                at = self._next
                self._next += -(-size // HUGE_PAGE) * HUGE_PAGE
                return Backing(self._large, at, size, owned=False)
        return Backing(self.file, offset, size, owned=False)

    def close(self) -> None:
        """Closes the files: pages stay as long as something maps them."""
        self.file.close()
        if self._large is not None:
            self._large.close()


def apart(size: int, name: str) -> Backing:
    """`size` zero-filled bytes in a file of their own."""
    return Backing(File(_memfd(name, size)), 0, size, owned=True)


def dmabuf_of(source: Backing) -> Backing:
    """A memfd of its own with the bytes of `source`, which keeps them too; holes stay holes."""
    fd = _memfd(DMABUF_NAME, source.size)
    try:
        _copy(source, fd)
    except BaseException:
        os.close(fd)
        raise
    return Backing(File(fd), 0, source.size, owned=True)


def _copy(source: Backing, fd: int) -> None:
    at, end = source.offset, source.offset + source.size
    while at < end:
        try:
            at = os.lseek(source.file.fd, at, os.SEEK_DATA)
        except OSError as missing:
            if missing.errno == errno.ENXIO:
                break
            raise
        stop = min(os.lseek(source.file.fd, at, os.SEEK_HOLE), end)
        os.lseek(fd, at - source.offset, os.SEEK_SET)
        while at < stop:
            at += os.sendfile(fd, source.file.fd, at, min(stop - at, 1 << 28))


def import_dmabuf(fd: int) -> Backing:
    """A descriptor of a dma-buf that some emulated device exported. EBADF, or EINVAL for other files.

    Whoever has the descriptor may have made the file: what is mapped here must not shrink under a command, be
    anything but whole pages, or be of a kind whose pages may be missing (huge ones).
    """
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")
        own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except (OSError, OverflowError):
        raise error(errno.EBADF) from None
    try:
        seals = fcntl.fcntl(own, fcntl.F_GET_SEALS) if name.startswith(f"/memfd:{DMABUF_NAME}") else 0
    except OSError:
        seals = 0
    status = os.fstat(own)
    if (
        seals & (_SEALS | _NO_WRITES) != _SEALS
        or not status.st_size
        or status.st_size % _PAGE
        or status.st_dev != memfd_device()
        or fcntl.fcntl(own, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR
    ):
        os.close(own)
        raise error(errno.EINVAL)
    return Backing(File(own), 0, status.st_size, owned=True)


def identity(fd: int) -> tuple[int, int] | None:
    """What tells one dma-buf from another, whatever the descriptor; None for a bad descriptor."""
    with contextlib.suppress(OSError, OverflowError):
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    return None
