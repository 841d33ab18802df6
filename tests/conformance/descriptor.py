"""What only a real descriptor can do: kinds of mapping and reading that the seam has no call for."""

from __future__ import annotations

import errno
import mmap
import os
import resource

from amdxdna._native import lib

from .errnos import user_bo
from .kit import HEAP_BYTES, Client, Target, case, fails, join

WHY = "the in-process device has no descriptor"
PAGE = 4096
_LOCKED = 0x2000
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


def _number(client: Client) -> int:
    """The descriptor behind a client."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == client.node.path:
                return int(name)
        except OSError:
            continue
    raise AssertionError("the node is not open")


def _map(fd: int, size: int, flags: int, offset: int) -> None:
    value = lib.xdna_mmap(0, size, _READ_WRITE, flags, fd, offset)
    if value < 0:
        raise OSError(-value, os.strerror(-value))
    lib.xdna_munmap(value, size)


@case()
def reading(t: Target) -> None:
    """The node has no events to read."""
    t.needs_kernel(WHY)
    fd = os.open(t.client().node.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with fails(errno.EAGAIN):
            os.read(fd, 16)
    finally:
        os.close(fd)


@case()
def private_mapping(t: Target) -> None:
    """A BO is mapped shared or not at all."""
    t.needs_kernel(WHY)
    client = t.client()
    handle = client.create_bo(lib.AMDXDNA_BO_DEV_HEAP, HEAP_BYTES)
    offset = client.info(handle).map_offset
    with fails(errno.EINVAL):
        _map(_number(client), PAGE, mmap.MAP_PRIVATE, offset)
    _map(_number(client), PAGE, mmap.MAP_SHARED, offset)


@case()
def locked_mapping(t: Target) -> None:
    """MAP_LOCKED counts against the user's limit: EPERM at 0, EAGAIN above; without it no limit matters."""
    t.needs_kernel(WHY)
    os.chmod("/dev/accel/accel0", 0o666)
    for limit, expected, pinned in ((0, errno.EPERM, errno.EPERM), (PAGE, errno.EAGAIN, errno.ENOMEM)):

        def locked(inner: Target, expected: int = expected, pinned: int = pinned) -> None:
            client = inner.client()
            heap = client.create_bo(lib.AMDXDNA_BO_DEV_HEAP, HEAP_BYTES)
            with fails(expected):
                _map(_number(client), HEAP_BYTES, mmap.MAP_SHARED | _LOCKED, client.info(heap).map_offset)
            with fails(pinned):
                user_bo(size=2 * PAGE)(client)
            client.bo(1 << 20)
            client.map(client.info(heap).map_offset, HEAP_BYTES, align=HEAP_BYTES)
            client.context()

        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, PAGE))
        join(t.in_child(locked, user=1000))
