"""A process's memory, reached as the kernel's copy_from_user and copy_to_user do: EFAULT, never a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from amdxdna._native import ffi, lib

Fetch = Callable[[int, Any, int], int]
"""Fills a cffi object from an address, so many bytes; 0, or an errno, negative."""
WORDS, LONGS = ffi.typeof("uint32_t[]"), ffi.typeof("uint64_t[]")
_IN_MEMORY = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")


class UserMemory:
    """The memory of process (or of a thread's process) `pid`, which may be this one. Thread-safe.

    `otherwise` reads what cannot be read from outside, such as a mapping of a driver's pages.
    """

    _otherwise: Fetch | None = None

    def __init__(self, pid: int, otherwise: Fetch | None = None) -> None:
        self.pid = pid
        self._otherwise = otherwise

    def read_into(self, address: int, struct: Any, size: int) -> None:
        """Fills the first `size` bytes of a cffi object. Raises OSError(EFAULT)."""
        failed = -errno.EFAULT if address >> 64 else lib.xdna_vm_read(self.pid, address, struct, size)
        if failed == -errno.EFAULT and size and self._otherwise is not None:
            failed = self._otherwise(address, struct, size)
        if failed:
            raise OSError(-failed, os.strerror(-failed))

    def write_from(self, address: int, struct: Any, size: int) -> None:
        """Writes the first `size` bytes of a cffi object. Raises OSError(EFAULT)."""
        # No 64-bit address: such as a field of a struct that begins at the last one.
        failed = -errno.EFAULT if address >> 64 else lib.xdna_vm_write(self.pid, address, struct, size)
        if failed:
            raise OSError(-failed, os.strerror(-failed))

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes. Raises OSError(EFAULT)."""
        data = ffi.new("char[]", size)
        self.read_into(address, data, size)
        return bytes(ffi.buffer(data, size))

    def numbers(self, kind: Any, address: int, count: int) -> list[int]:
        """`count` numbers of a cffi array type, WORDS or LONGS. Raises OSError(EFAULT)."""
        data = ffi.new(kind, count)
        size = ffi.sizeof(data)
        if lib.xdna_vm_read(self.pid, address, data, size):  # a call less for what nearly always works
            self.read_into(address, data, size)
        return ffi.unpack(data, count)  # type: ignore[no-any-return]

    def write(self, address: int, data: bytes) -> None:
        """Writes `data` at `address`. Raises OSError(EFAULT)."""
        self.write_from(address, ffi.from_buffer(data), len(data))

    def writable(self, address: int, size: int) -> bool:
        """Whether pages of the range can be pinned for writing: mapped read-write, and no shared mapping of a
        file on disk (Linux refuses long-term pins of those)."""
        return self._mapped(address, size, "rw")

    def readable(self, address: int, size: int) -> bool:
        """Whether pages of the range can be pinned for reading."""
        return self._mapped(address, size, "r")

    def _mapped(self, address: int, size: int, wanted: str) -> bool:
        end = address + size
        with open(f"/proc/{self.pid}/maps") as maps:
            for line in maps:
                bounds, mode, _, _, inode, *name = line.split(maxsplit=5)
                low, high = (int(bound, 16) for bound in bounds.split("-"))
                if high <= address:
                    continue
                on_disk = mode[3] == "s" and inode != "0" and not name[0].startswith(_IN_MEMORY)
                if low > address or not mode.startswith(wanted) or (on_disk and wanted == "rw"):
                    return False
                address = high
                if address >= end:
                    return True
        return False
