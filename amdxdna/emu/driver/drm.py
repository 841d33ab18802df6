"""DRM core's ioctls: VERSION, GET_CAP, PRIME, syncobjs."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Any

from amdxdna.emu.driver import store
from amdxdna.emu.driver.bo import DEV, SHARE, Bo
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.objects import Client
from amdxdna.emu.driver.timeline import (
    WAIT_ALL,
    WAIT_AVAILABLE,
    WAIT_DEADLINE,
    WAIT_FOR_SUBMIT,
    wait_many,
)
from amdxdna.usermem import LONGS, WORDS

NAME = b"amdxdna_accel_driver"
DATE = b"0"
DESCRIPTION = b"AMD XDNA DRM implementation"
MAX_WAITS = 1 << 16
_CAPS = {0x5: 3, 0x6: 1, 0x13: 1, 0x14: 1}  # PRIME, monotonic timestamps, syncobj, timeline syncobj


def version(client: Client, args: Any) -> None:
    """VERSION: numbers, and texts cut to the buffers given; lengths are the whole texts' on return."""
    kind = client.device.kind
    args.version_major, args.version_minor, args.version_patchlevel = kind.major, kind.minor, 0
    for field, text in (("name", NAME), ("date", DATE), ("desc", DESCRIPTION)):
        room = min(getattr(args, f"{field}_len"), len(text))
        address = getattr(args, field)
        setattr(args, f"{field}_len", len(text))
        if room and address:
            client.user.write(address, text[:room])


def get_cap(client: Client, args: Any) -> None:
    """GET_CAP: capability in, value out; what an accel node answers."""
    value = _CAPS.get(args[0])
    if value is None:
        raise error(errno.EOPNOTSUPP)
    args[1] = value


def handle_to_fd(client: Client, args: Any) -> None:
    """PRIME_HANDLE_TO_FD: a dma-buf of a BO that is not in the heap. Fills in fd.

    The BO's memory moves to a file of its own; what other threads write to it meanwhile may be lost.
    """
    if args.flags & ~(os.O_CLOEXEC | os.O_RDWR):
        raise error(errno.EINVAL)
    memory = client.memory
    with memory.lock:
        bo = client.handles.get(args.handle)
        if bo is None:
            raise error(errno.ENOENT)
        memory.get(bo)
    try:
        memory.wait_idle([bo], client.device.idle_wait)
        with memory.lock:
            fd = _export(client, bo)
            key = store.identity(fd)
            if key is not None and client.handles.get(args.handle) is bo:
                client.dmabufs[key] = args.handle
    finally:
        memory.put(bo)
    args.fd = client.give(fd, bool(args.flags & os.O_CLOEXEC))


def _export(client: Client, bo: Bo) -> int:
    """A descriptor of the file that is the BO's alone from now on. Holds the memory lock."""
    if bo.kind == DEV or bo.private or bo.backing is None:
        raise error(errno.EOPNOTSUPP)
    if client.remap is None and not bo.backing.owned:
        raise error(errno.EOPNOTSUPP)
    if not bo.backing.owned:
        # A command may use a BO that it does not list; what it writes while the bytes move is lost.
        client.memory.quiet(client.device.idle_wait)
    if client.remap is not None and not bo.backing.owned:  # still: the wait lets the lock go
        old, bo.backing = bo.backing, store.dmabuf_of(bo.backing)
        try:
            client.remap(bo)
        except OSError:
            bo.backing.release()
            bo.backing = old
            raise
        old.release()
    return fcntl.fcntl(bo.backing.file.fd, fcntl.F_DUPFD_CLOEXEC, 3)


def fd_to_handle(client: Client, args: Any) -> None:
    """PRIME_FD_TO_HANDLE: a SHARE BO over a dma-buf; the handle it has, if this open knows it."""
    with client.take(args.fd) as fd, client.memory.lock:
        key = store.identity(fd)
        known = client.dmabufs.get(key) if key is not None else None
        if known is None:
            backing = store.import_dmabuf(fd)
            try:
                bo = client.memory.create(client, SHARE, backing.size, backing)
            except OSError:
                backing.release()
                raise
            known = client.add_handle(bo)
            if key is not None:
                client.dmabufs[key] = known
    args.handle = known


def syncobj_destroy(client: Client, args: Any) -> None:
    """SYNCOBJ_DESTROY. EINVAL for a handle that is not there."""
    if args.pad:
        raise error(errno.EINVAL)
    if client.syncobjs.pop(args.handle, None) is None:
        raise error(errno.EINVAL)


def timeline_wait(client: Client, args: Any) -> None:
    """SYNCOBJ_TIMELINE_WAIT with an absolute timeout. Fills in first_signaled."""
    flags, count = int(args.flags), int(args.count_handles)
    if flags & ~(WAIT_ALL | WAIT_FOR_SUBMIT | WAIT_AVAILABLE | WAIT_DEADLINE):
        raise error(errno.EINVAL)
    if not count:
        return
    if count > MAX_WAITS:
        raise error(errno.ENOMEM)
    user = client.user
    handles = user.numbers(WORDS, args.handles, count)
    try:
        timelines = [client.syncobjs[handle] for handle in handles]
    except KeyError:
        raise error(errno.ENOENT) from None
    points = user.numbers(LONGS, args.points, count)
    args.first_signaled = wait_many(list(zip(timelines, points, strict=True)), args.timeout_nsec, flags)
