"""BO ioctls: CREATE_BO, GET_BO_INFO, SYNC_BO, GEM_CLOSE (amdxdna_gem.c, amdxdna_ubuf.c)."""

from __future__ import annotations

import errno
import os
import struct
from itertools import pairwise
from typing import Any

from amdxdna._native import lib
from amdxdna.emu.driver import hwctx as contexts
from amdxdna.emu.driver.bo import CMD, DEV, DEV_HEAP, INVALID_ADDR, SHARE, Bo
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.memory import PAGE, page_align
from amdxdna.emu.driver.objects import Client
from amdxdna.emu.driver.store import Backing, apart, import_dmabuf

MAX_VA_ENTRIES = 1 << 16
_COPY = 16 << 20
_VA_TABLE = struct.Struct("<iI")
_VA_ENTRY = struct.Struct("<QQ")


def create_bo(client: Client, args: Any) -> None:
    """CREATE_BO. Fills in handle."""
    if args.flags:
        raise error(errno.EINVAL)
    size, kind = int(args.size), int(args.type)
    if kind in (SHARE, CMD):
        if args.vaddr:
            if client.device.kind.user_pointers == "none":
                raise error(errno.EINVAL)
            bo = _user_bo(client, args.vaddr)
        else:
            bo = client.memory.create(client, SHARE, page_align(size))
        bo.internal = kind == CMD
    elif kind == DEV_HEAP:
        bo = client.heap.create_chunk(size)
    elif kind == DEV:
        bo = client.heap.create_dev(size)
        try:
            with client.device.lock:
                for context in list(client.contexts.values()):
                    contexts.expand(context)
        except OSError:
            client.memory.put(bo)
            raise
    else:
        raise error(errno.EINVAL)
    args.handle = client.add_handle(bo)


def _user_bo(client: Client, table: int) -> Bo:
    """A SHARE BO over the client's memory, or over a dma-buf, named by a va table."""
    try:
        dmabuf, entries = _VA_TABLE.unpack(client.user.read(table, _VA_TABLE.size))
    except OSError:
        raise error(errno.EINVAL) from None
    if not entries:
        with client.take(dmabuf) as fd:
            return _over(client, import_dmabuf(fd))
    if entries > MAX_VA_ENTRIES:
        raise error(errno.ENOMEM)
    if client.memlock == 0 and not client.privileged:
        raise error(errno.EPERM)
    try:
        data = client.user.read(table + _VA_TABLE.size, _VA_ENTRY.size * entries)
    except OSError:
        raise error(errno.EINVAL) from None
    ranges = list(_VA_ENTRY.iter_unpack(data))
    if any(address % PAGE or length % PAGE for address, length in ranges):
        raise error(errno.EINVAL)
    start, size = ranges[0][0], sum(length for _, length in ranges)
    if not size or size >> 48:
        raise error(errno.EINVAL)
    if not client.privileged and 0 <= client.memlock < client.pinned + size:
        raise error(errno.ENOMEM)
    if size > client.memory.largest:
        raise error(errno.ENOMEM)
    # Kernels get one pointer to the whole BO, so no page can be in it twice.
    ordered = sorted(each for each in ranges if each[1])
    if any(address + length > after for (address, length), (after, _) in pairwise(ordered)):
        raise error(errno.EOPNOTSUPP)
    kind = client.device.kind
    if not all(client.user.writable(address, length) for address, length in ranges):
        if kind.user_pointers != "ro" or not all(client.user.readable(*each) for each in ranges):
            raise error(getattr(errno, kind.refused_pointer))
        return _read_only(client, ranges, size)
    shared = client.shared(ranges)
    if shared is not None:
        bo = _over(client, shared)
        bo.user_address = start
        with client.memory.lock:
            bo.pinned = size
            client.pinned += size
        return bo
    at = start
    for address, length in ranges:
        if address != at:
            # The model hands kernels one pointer; pages that are apart would have to be mapped together.
            raise error(errno.EOPNOTSUPP)
        at += length
    with client.memory.lock:
        if client.space.overlapping(start, size):
            raise error(errno.EFAULT)
        bo = client.memory.create(client, SHARE, size, vaddr=start)
        bo.private = True
        client.space.add(start, size, bo, 0, own=True)
    return bo


def _read_only(client: Client, ranges: list[tuple[int, int]], size: int) -> Bo:
    """A BO over read-only memory: over a copy, so that a kernel which writes to it does no harm."""
    copied = apart(size, "amdxdna-user")
    at = 0
    try:
        for address, length in ranges:
            while length:
                data = client.user.read(address, min(length, _COPY))
                os.pwrite(copied.file.fd, data, at)
                address, length, at = address + len(data), length - len(data), at + len(data)
    except OSError:
        copied.release()
        raise error(getattr(errno, client.device.kind.refused_pointer)) from None
    return _over(client, copied)


def _over(client: Client, backing: Backing) -> Bo:
    """A private BO over pages that exist already."""
    try:
        bo = client.memory.create(client, SHARE, backing.size, backing)
    except OSError:
        backing.release()
        raise
    bo.private = True
    return bo


def get_bo_info(client: Client, args: Any) -> None:
    """GET_BO_INFO. Fills in map_offset, vaddr, xdna_addr."""
    if args.ext or args.ext_flags or args.pad:
        raise error(errno.EINVAL)
    with client.memory.lock:
        bo = client.handles.get(args.handle)
        if bo is None:
            raise error(errno.ENOENT)
        args.vaddr = bo.user_address
        args.xdna_addr = bo.device_address(client.memory.pasid)
        args.map_offset = INVALID_ADDR if bo.kind == DEV else bo.map_offset


def sync_bo(client: Client, args: Any) -> None:
    """SYNC_BO. Memory here is coherent, so only the checks remain."""
    bo = client.handles.get(args.handle)
    if bo is None:
        raise error(errno.ENOENT)
    beyond = args.offset >= bo.size or args.offset + args.size >> 64
    if beyond and bo.kind != DEV and client.device.kind.checks_sync:
        raise error(errno.EINVAL)
    if args.direction == lib.SYNC_DIRECT_FROM_DEVICE and bo.assigned not in client.contexts:
        raise error(errno.EINVAL)


def gem_close(client: Client, args: Any) -> None:
    """GEM_CLOSE. Linux pins user pages while commands run; here closing waits for those commands."""
    bo = client.handles.get(args.handle)
    if bo is None or not client.drop_handle(args.handle):
        raise error(errno.EINVAL)
    if bo.user_memory:
        client.device.wait_gone(bo)
