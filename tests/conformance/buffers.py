"""Buffer objects: addresses, lifetimes, sharing, and buffers made of a program's own memory."""

from __future__ import annotations

import errno
import mmap
import os
import struct

from amdxdna._native import ffi, lib
from amdxdna.emu.kernels import stream

from .kit import COMPLETED, HEAP_BYTES, HEAP_DEVICE, INVALID, Bo, Client, Target, case, fails

PAGE = 4096


@case()
def share_bo(t: Target) -> None:
    """A SHARE BO has a map offset; its host address is known once it is mapped."""
    client = t.client()
    handle = client.create_bo(lib.AMDXDNA_BO_SHARE, 4 * PAGE)
    before = client.info(handle)
    assert before.map_offset != INVALID and before.map_offset % PAGE == 0
    assert before.vaddr == INVALID
    bo = client.open_bo(handle, 4 * PAGE)
    assert client.info(handle).vaddr == bo.host
    assert bytes(bo.view()) == bytes(4 * PAGE), "a new BO is not zero"
    bo.view()[:4] = b"abcd"
    again = client.map(bo.offset, PAGE)
    assert bytes(ffi.buffer(ffi.cast("char *", again), 4)) == b"abcd"


@case()
def sizes_round_up(t: Target) -> None:
    """Any size is taken and rounded up to whole pages."""
    client = t.client()
    handle = client.create_bo(lib.AMDXDNA_BO_SHARE, 100)
    bo = client.open_bo(handle, PAGE)
    bo.view()[PAGE - 1] = 1


@case()
def handles_count_up(t: Target) -> None:
    """Handles are the lowest free numbers from 1, per open of the device."""
    first, second = t.client(), t.client()
    numbers = [first.create_bo(lib.AMDXDNA_BO_SHARE, PAGE) for _ in range(3)]
    assert numbers == [1, 2, 3]
    assert second.create_bo(lib.AMDXDNA_BO_SHARE, PAGE) == 1
    first.close_bo(2)
    assert first.create_bo(lib.AMDXDNA_BO_SHARE, PAGE) == 2


@case()
def dev_addresses(t: Target) -> None:
    """DEV BOs lie in the heap: device address and host address have the same distance from its start."""
    client = t.client()
    heap = client.heap()
    assert heap.device == HEAP_DEVICE
    bos = [client.dev(size) for size in (0x1000, 0x8000, 0x9000, 0x1000)]
    for bo in bos:
        assert bo.offset == INVALID, "a DEV BO has a map offset"
        assert bo.host - heap.host == bo.device - HEAP_DEVICE
        assert bo.device % 0x8000 == 0, "a PDI address loses its low 15 bits"
    assert [bo.device - HEAP_DEVICE for bo in bos] == [0, 0x8000, 0x10000, 0x20000]


@case()
def dev_space_is_reused(t: Target) -> None:
    """Closing a DEV BO gives its part of the heap back."""
    client = t.client()
    client.heap()
    whole = client.dev(HEAP_BYTES)
    with fails(errno.EAGAIN):
        client.dev(PAGE)
    client.close_bo(whole.handle)
    assert client.dev(PAGE).device == HEAP_DEVICE


@case()
def heap_grows(t: Target) -> None:
    """Another heap chunk continues the device addresses, also of a context that exists already."""
    ready = t.ready()
    chunk = ready.heap(at=ready.heap_bo.host + HEAP_BYTES)
    assert chunk.device == HEAP_DEVICE + HEAP_BYTES
    # The fourth lies across the two chunks.
    code = [ready.dev(HEAP_BYTES // 4) for _ in range(5)][-1]
    assert code.device >= chunk.device
    assert code.host - chunk.host == code.device - chunk.device
    ready.start(stream.copy(PAGE, 1), ready.source.device, ready.destination.device, code=code)
    ready.wait(ready.syncobj, 0)
    ready.check_copy(ready.destination)


@case()
def dev_bo_across_chunks(t: Target) -> None:
    """A DEV BO may cross heap chunks where the program mapped these one behind the other."""
    client = t.client()
    base = client.reserve(2 * HEAP_BYTES)
    client.heap(at=base)
    client.heap(at=base + HEAP_BYTES)
    big = client.dev(HEAP_BYTES + PAGE)
    assert (big.device, big.host) == (HEAP_DEVICE, base)


@case()
def dev_bo_across_scattered_chunks(t: Target) -> None:
    """It may not where they lie apart: its host address would not be one range."""
    client = t.client()
    base = client.reserve(3 * HEAP_BYTES)
    client.heap(at=base)
    client.heap(at=base + 2 * HEAP_BYTES)
    with fails(errno.EINVAL):
        client.dev(HEAP_BYTES + PAGE)


@case()
def heap_limit(t: Target) -> None:
    """The heap of one client ends at 512 MiB."""
    client = t.client()
    client.create_bo(lib.AMDXDNA_BO_DEV_HEAP, HEAP_BYTES)
    with fails(errno.ENOSPC):
        client.create_bo(lib.AMDXDNA_BO_DEV_HEAP, 8 * HEAP_BYTES)


@case()
def command_outlives_its_handle(t: Target) -> None:
    """A submitted command keeps its buffers: closing their handles at once does not disturb it."""
    ready = t.ready()
    source = ready.bo(PAGE)
    source.view()[:] = bytes(ready.source.view())
    source.flush()
    seq = ready.start(
        stream.program([stream.Delay(100_000), stream.Copy(PAGE, 1)]),
        source.device,
        ready.destination.device,
        arguments=(source.handle, ready.destination.handle),
    )
    ready.close_bo(source.handle)
    ready.close_bo(ready.command.handle)
    ready.wait(ready.syncobj, seq)
    ready.check_copy(ready.destination)


@case()
def mapping_outlives_handle(t: Target) -> None:
    """A mapping stays valid, and holds its data, after GEM_CLOSE and after the device is closed."""
    client = t.client()
    bo = client.bo(PAGE)
    bo.view()[:4] = b"kept"
    client.close_bo(bo.handle)
    assert bytes(bo.view()[:4]) == b"kept"
    client.node.close()
    bo.view()[4:8] = b"here"
    assert bytes(bo.view()[:8]) == b"kepthere"


@case()
def closed_handle(t: Target) -> None:
    """Nothing works on a closed handle."""
    client = t.client()
    bo = client.bo(PAGE)
    client.close_bo(bo.handle)
    with fails(errno.ENOENT):
        client.info(bo.handle)
    with fails(errno.ENOENT):
        client.export(bo.handle)
    with fails(errno.ENOENT):
        client.sync(bo.handle)
    with fails(errno.EINVAL):
        client.close_bo(bo.handle)


@case()
def closed_offset(t: Target) -> None:
    """The map offset of a closed BO cannot be mapped."""
    client = t.client()
    handle = client.create_bo(lib.AMDXDNA_BO_SHARE, PAGE)
    offset = client.info(handle).map_offset
    client.close_bo(handle)
    with fails(errno.EINVAL):
        client.map(offset, PAGE)


@case()
def foreign_offset(t: Target) -> None:
    """Another open of the device may not map this one's BO."""
    first, second = t.client(), t.client()
    bo = first.bo(PAGE)
    with fails(errno.EACCES):
        second.map(bo.offset, PAGE)


@case()
def heap_handle_closed_first(t: Target) -> None:
    """DEV BOs, and commands in them, keep the heap alive when its handle is closed before theirs."""
    ready = t.ready()
    ready.close_bo(ready.heap_bo.handle)
    assert ready.copy() == COMPLETED


def _dmabuf_view(fd: int, size: int) -> mmap.mmap:
    return mmap.mmap(fd, size)


@case()
def export_import(t: Target) -> None:
    """A dma-buf shares pages: within a client it is the same handle, in another client another one."""
    first, second = t.client(), t.client()
    bo = first.bo(PAGE)
    fd = first.export(bo.handle)
    try:
        with _dmabuf_view(fd, PAGE) as view:
            view[:5] = b"hello"
            assert bytes(bo.view()[:5]) == b"hello"
        assert first.import_fd(fd) == bo.handle
        handle = second.import_fd(fd)
        assert second.import_fd(fd) == handle, "a second import is another handle"
        imported = second.open_bo(handle, PAGE)
        assert bytes(imported.view()[:5]) == b"hello"
        imported.view()[:5] = b"there"
        assert bytes(bo.view()[:5]) == b"there"
    finally:
        os.close(fd)


@case()
def export_outlives_everything(t: Target) -> None:
    """An exported dma-buf keeps the pages after the BO's handle and its client are gone."""
    first = t.client()
    bo = first.bo(PAGE)
    bo.view()[:4] = b"stay"
    fd = first.export(bo.handle)
    try:
        first.close_bo(bo.handle)
        first.close()
        with _dmabuf_view(fd, PAGE) as view:
            assert view[:4] == b"stay"
        second = t.client()
        assert bytes(second.open_bo(second.import_fd(fd), PAGE).view()[:4]) == b"stay"
    finally:
        os.close(fd)


@case()
def imported_bo_runs(t: Target) -> None:
    """A command reads and writes BOs imported from another client."""
    owner, ready = t.client(), t.ready()
    theirs = owner.bo(PAGE)
    theirs.view()[:] = bytes(ready.source.view())
    theirs.flush()
    fd = owner.export(theirs.handle)
    try:
        mine = ready.open_bo(ready.import_fd(fd), PAGE)
    finally:
        os.close(fd)
    assert ready.run(stream.copy(PAGE, 1), mine.device, ready.destination.device) == COMPLETED
    ready.check_copy(ready.destination)


@case()
def import_of_something_else(t: Target) -> None:
    """Only a dma-buf can be imported."""
    client = t.client()
    fd = os.memfd_create("not a dma-buf")
    try:
        with fails(errno.EINVAL):
            client.import_fd(fd)
    finally:
        os.close(fd)
    with fails(errno.EBADF):
        client.import_fd(fd)


@case()
def dev_bo_is_not_exported(t: Target) -> None:
    """A DEV BO cannot leave its heap."""
    client = t.client()
    client.heap()
    bo = client.dev(PAGE)
    with fails(errno.EOPNOTSUPP):
        client.export(bo.handle)


@case()
def sub_buffers(t: Target) -> None:
    """A packet may name any address inside a BO."""
    ready = t.ready()
    big = ready.bo(8 * PAGE)
    part = Bo(big.handle, PAGE, big.device + 3 * PAGE, big.host + 3 * PAGE, 0)
    part.view()[:] = bytes(ready.source.view())
    big.flush()
    assert ready.run(stream.copy(PAGE, 1), part.device, big.device + 5 * PAGE) == COMPLETED
    big.flush()
    ready.check_copy(Bo(big.handle, PAGE, 0, big.host + 5 * PAGE, 0))
    assert bytes(big.view()[4 * PAGE : 5 * PAGE]) == bytes(PAGE), "the kernel wrote beside its destination"
    assert bytes(big.view()[6 * PAGE : 7 * PAGE]) == bytes(PAGE), "the kernel wrote beside its destination"


@case()
def large_bo(t: Target) -> None:
    """A BO of several huge pages is one range for the device, from its first byte to its last."""
    ready = t.ready()
    size = 9 << 20
    big = ready.bo(size)
    big.words()[0] = 11
    big.words()[size // 4 - 1] = 12
    big.words()[size // 8] = 13
    target = ready.bo(size)
    big.flush()
    target.flush()
    assert ready.run(stream.copy(size, 1), big.device, target.device) == COMPLETED
    target.flush()
    assert [target.words()[i] for i in (0, 1, size // 8, size // 4 - 1)] == [12, 1, 14, 13]


def _user_bo(client: Client, address: int, length: int) -> int:
    table = ffi.from_buffer(struct.pack("<iIQQ", -1, 1, address, length))
    return client.create_bo(lib.AMDXDNA_BO_SHARE, length, vaddr=int(ffi.cast("uintptr_t", table)))


@case()
def user_memory(t: Target) -> None:
    """A BO made of the program's own memory is that memory: a command reads what lies there."""
    ready = t.ready()
    memory = mmap.mmap(-1, 2 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
    memory[:PAGE] = bytes(ready.source.view())
    handle = _user_bo(ready, address, 2 * PAGE)
    device = ready.info(handle).xdna_addr
    lib.xdna_flush(address, PAGE)
    where = address if device == INVALID else device
    assert ready.run(stream.copy(PAGE, 1), where, ready.destination.device) == COMPLETED
    ready.check_copy(ready.destination)


@case()
def user_memory_refused(t: Target) -> None:
    """Read-only, unaligned or absent memory is refused."""
    client = t.client()
    readable = lib.xdna_mmap(0, PAGE, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    with fails(errno.EFAULT):
        _user_bo(client, readable, PAGE)
    with fails(errno.EFAULT):
        _user_bo(client, 0x1000, PAGE)
    writable = lib.xdna_mmap(
        0, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
    )
    with fails(errno.EINVAL):
        _user_bo(client, writable + 16, PAGE)


@case()
def bo_usage(t: Target) -> None:
    """BO_USAGE sums the buffers of a process."""
    client = t.client()
    client.heap()
    client.dev(0x8000)
    client.bo(16 * PAGE)
    usage = ffi.new("struct amdxdna_drm_bo_usage *", {"pid": os.getpid()})
    args = ffi.new(
        "struct amdxdna_drm_get_array *",
        {
            "param": lib.DRM_AMDXDNA_BO_USAGE,
            "element_size": ffi.sizeof("struct amdxdna_drm_bo_usage"),
            "num_element": 1,
            "buffer": int(ffi.cast("uintptr_t", usage)),
        },
    )
    client.ioctl(lib.DRM_IOCTL_AMDXDNA_GET_ARRAY, args)
    assert usage.pid == os.getpid()
    assert usage.total_usage == HEAP_BYTES + 16 * PAGE
    assert usage.heap_usage == 0x8000
