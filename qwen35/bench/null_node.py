"""A node that answers submits and waits at once: what the software above a device costs, without a device.

Everything else goes to the node behind it (an emulated or a real one), so buffers and contexts are real. In
`null` mode EXEC_CMD marks the packet completed and a wait returns; each still makes one system call, as on
the kernel's node, so what is measured is all the software of a dispatch but the driver's own.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from amdxdna._native import ffi, lib

if TYPE_CHECKING:
    from amdxdna.node import Node

__all__ = ["NullNode", "bare_seconds"]

_EXEC: int = lib.DRM_IOCTL_AMDXDNA_EXEC_CMD
_WAIT: int = lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT
_INFO: int = lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO
_COMPLETED = 4


class NullNode:
    """Wraps `node`, which it owns. `null` switches modes, `calls` counts ioctls. Not thread-safe."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.path, self.emulated = node.path, node.emulated
        self.null = False
        self.calls = 0
        self._fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._offsets: dict[int, int] = {}
        self._mapped: dict[int, int] = {}
        self._known: dict[int, tuple[Any, Any]] = {}
        self._sequence = 1 << 32

    def ioctl(self, request: int, address: int) -> int:
        """See amdxdna.node.Node.ioctl."""
        self.calls += 1
        if self.null and request == _WAIT:
            lib.xdna_ioctl(self._fd, request, address)
            return 0
        if self.null and request == _EXEC:
            lib.xdna_ioctl(self._fd, request, address)
            command, words = self._known.get(address) or self._learn(address)
            self._sequence += 1
            command.seq = self._sequence
            words[0] = words[0] & ~15 | _COMPLETED
            return 0
        value = self.node.ioctl(request, address)
        if request == _INFO:
            info = ffi.cast("struct amdxdna_drm_get_bo_info *", address)
            self._offsets[info.handle] = info.map_offset
        return value

    def _learn(self, address: int) -> tuple[Any, Any]:
        command = ffi.cast("struct amdxdna_drm_exec_cmd *", address)
        packet = self._mapped[self._offsets[command.cmd_handles]]
        found = self._known[address] = command, ffi.cast("uint32_t *", packet)
        return found

    def mmap(self, length: int, offset: int, *, address: int = 0) -> int:
        """See amdxdna.node.Node.mmap."""
        where = self.node.mmap(length, offset, address=address)
        self._mapped[offset] = where
        self._known.clear()
        return where

    def munmap(self, address: int, length: int) -> None:
        """See amdxdna.node.Node.munmap."""
        self._known.clear()
        self.node.munmap(address, length)

    def text(self, path: str) -> str | None:
        """See amdxdna.node.Node.text."""
        return self.node.text(path)

    def close(self) -> None:
        """See amdxdna.node.Node.close."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self.node.close()


def bare_seconds(count: int = 20000, repeats: int = 9) -> float:
    """Seconds of one submit and one wait as bare ioctls in a C loop, on a file that refuses them at once."""
    fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    command = ffi.new("struct amdxdna_drm_exec_cmd *")
    wait = ffi.new("struct drm_syncobj_timeline_wait *")
    addresses = [int(ffi.cast("uintptr_t", each)) for each in (command, wait)]
    try:
        best = float("inf")
        for _ in range(repeats):
            began = time.perf_counter()
            lib.xdna_ioctl_pairs(fd, _EXEC, addresses[0], _WAIT, addresses[1], count)
            best = min(best, (time.perf_counter() - began) / count)
        return best
    finally:
        os.close(fd)
