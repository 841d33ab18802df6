"""MSI-X: the capability's bytes, and the eventfds through which the vfio-user client takes interrupts."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import threading

_CAPABILITY_ID = 0x11
_PBA_OFFSET = 0x8000


def capability(vectors: int, bar: int) -> bytes:
    """The 12 bytes of the MSI-X capability: table at the BAR's start, pending bits 32 KiB behind it."""
    return struct.pack("<BBHII", _CAPABILITY_ID, 0, vectors - 1, bar, _PBA_OFFSET | bar)


class Interrupts:
    """The eventfd of every vector, with a latch.

    Whenever the guest enables a new highest vector QEMU disables all of them and then sends every eventfd
    again: an interrupt raised in between would be lost, and with it the reply it announces. It is kept
    and delivered when the vector's eventfd arrives. Thread-safe.
    """

    def __init__(self, vectors: int) -> None:
        self.count = vectors
        self._fds: dict[int, int] = {}
        self._pending: set[int] = set()
        self._lock = threading.Lock()

    def connect(self, vector: int, fd: int) -> None:
        """Takes ownership of the eventfd of `vector`, and delivers what was latched for it."""
        with self._lock:
            self._close(vector)
            self._fds[vector] = fd
            if vector in self._pending:
                self._pending.discard(vector)
                self._signal(fd)

    def disconnect(self, vector: int | None = None) -> None:
        """Forgets the eventfd of one vector, or of all."""
        with self._lock:
            for each in [vector] if vector is not None else list(self._fds):
                self._close(each)

    def clear(self) -> None:
        """Drops latched interrupts, as a reset does."""
        with self._lock:
            self._pending.clear()

    def raise_vector(self, vector: int) -> None:
        """Interrupts the guest, now or as soon as it listens."""
        with self._lock:
            fd = self._fds.get(vector)
            if fd is None:
                self._pending.add(vector)
            else:
                self._signal(fd)

    @property
    def pending(self) -> frozenset[int]:
        """Vectors with a latched interrupt."""
        with self._lock:
            return frozenset(self._pending)

    def _signal(self, fd: int) -> None:
        # The descriptor is the client's, and may be of anything: what cannot be written to tells it nothing,
        # and an eventfd that would block has been signalled already.
        with contextlib.suppress(OSError):
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if any(events & select.POLLOUT for _, events in poll.poll(0)):
                os.write(fd, struct.pack("<Q", 1))

    def _close(self, vector: int) -> None:
        fd = self._fds.pop(vector, None)
        if fd is not None:
            os.close(fd)
