"""The seam: the only way from this package to a device.

A :class:`Node` opens, issues an ioctl, maps and closes; everything above it is the same for the kernel's
driver (:class:`KernelNode`) and for the emulated one (``amdxdna.emu.node.EmuNode``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Protocol

from amdxdna import sysfs
from amdxdna._native import lib
from amdxdna.arguments import Uncopied
from amdxdna.causes import from_errno
from amdxdna.errors import Closed, of_parent
from amdxdna.files import read_text
from amdxdna.forklock import mutex
from amdxdna.kmsg import KERNEL_LOG, as_text, records

PROT_READ_WRITE = 0x1 | 0x2
MAP_SHARED = 0x01
MAP_FIXED = 0x10


class Node(Protocol):
    """An open device node. Every method may be called from any thread."""

    path: str
    """``"/dev/accel/accel0"``, or ``"emu"``."""

    emulated: bool
    """Only for a one-line notice to the user: no logic above the seam may depend on it."""

    def ioctl(self, request: int, address: int) -> int:
        """Issues `request` on the struct at `address` in this process; returns a value >= 0.

        Raises OSError with the driver's errno. A signal's handlers run in Python while it blocks (EINTR is
        retried), so an exception raised by a handler comes out of it.
        """

    def mmap(self, length: int, offset: int, *, address: int = 0) -> int:
        """Maps `length` bytes of the node at `offset`, shared, read-write; returns the address.

        With `address` the mapping replaces what is there (MAP_FIXED). Raises OSError.
        """

    def munmap(self, address: int, length: int) -> None:
        """Undoes :meth:`mmap`. Works after :meth:`close` too: views of a buffer may outlive the device."""

    def text(self, path: str) -> str | None:
        """What a file of the machine says about the driver, without the space around it, by its path below
        the root: ``"sys/module/amdxdna/version"``, ``"proc/sys/kernel/osrelease"``.

        ``"dev/kmsg"`` gives what the driver said lately, "SECONDS TEXT" a line, in seconds since the boot.
        Empty when this process may not read it, None when there is none. Works on a closed node too.
        """

    def close(self) -> None:
        """Closes the node; later calls do nothing. In a forked child it leaves the parent's node alone."""


class KernelNode(Uncopied):
    """The kernel's node, opened O_RDWR | O_CLOEXEC.

    :meth:`close` closes it at once, also under calls of other threads: they end as the kernel ends them, or
    with Closed. Its number is not free for another file before the last of them has returned.

    A forked child inherits the object but not the right to use it: drivers up to 0.1 destroy every context
    when any duplicate of the descriptor is closed, so in a child every method but :meth:`munmap` is refused
    and :meth:`close` does nothing.
    """

    emulated = False

    def __init__(self, path: str | os.PathLike[str], sys: str | Path = "/sys") -> None:
        self.path = os.fspath(path)
        self._sys = Path(sys)
        self._pid = os.getpid()
        self._lock = mutex()
        self._fd = -1
        self._number = -1
        """The descriptor's number, as long as it is taken."""
        # One entry a call that may be using the number: list.append and pop are atomic, and cheap.
        self._inside: list[None] = []
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            number = error.errno or 0
            if number == errno.ENXIO and _is_socket(self.path):  # which says of a node that it is left over
                number = errno.ENOTTY
            raise from_errno("open", number, self.path) from None
        self._number = self._fd

    def _usable(self) -> int:
        if self._pid != os.getpid():
            raise of_parent(self.path)
        if self._fd < 0:
            raise Closed("the node is closed", call=self.path, remedy="Open the device again")
        return self._fd

    def ioctl(self, request: int, address: int) -> int:
        inside = self._inside
        try:
            inside.append(None)
            fd = self._usable()
            while True:
                value = lib.xdna_ioctl(fd, request, address)
                if value >= 0:
                    return value
                if value != -errno.EINTR:
                    break
        finally:
            inside.pop()
            if self._fd < 0:
                self._free_number()
        self._usable()
        raise OSError(-value, os.strerror(-value))

    def mmap(self, length: int, offset: int, *, address: int = 0) -> int:
        flags = MAP_SHARED | (MAP_FIXED if address else 0)
        try:
            self._inside.append(None)
            value = lib.xdna_mmap(address, length, PROT_READ_WRITE, flags, self._usable(), offset)
        finally:
            self._inside.pop()
            if self._fd < 0:
                self._free_number()
        if value < 0:
            self._usable()
            raise OSError(-value, os.strerror(-value))
        return value

    def munmap(self, address: int, length: int) -> None:
        value = lib.xdna_munmap(address, length)
        if value < 0:
            raise OSError(-value, os.strerror(-value))

    def text(self, path: str) -> str | None:
        top, _, rest = path.partition("/")
        try:
            if path == KERNEL_LOG:
                return as_text(records(Path("/", path)), sysfs.DRIVER)
            return read_text(self._sys / rest if top == "sys" else Path("/", path)).strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return ""

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0 and self._inside:
                # Another file in its place keeps the number from naming anything else meanwhile.
                with contextlib.suppress(OSError):
                    _occupy(fd)
        if fd >= 0:
            self._free_number()

    def _free_number(self) -> None:
        """Frees the number of a closed node, unless a call may still be using it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._number >= 0 and not self._inside:
                number, self._number = self._number, -1
                os.close(number)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _occupy(number: int) -> None:
    """Closes what has a descriptor's number, and gives the number to a file that knows no requests."""
    spare = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.dup2(spare, number, inheritable=False)
    finally:
        os.close(spare)
