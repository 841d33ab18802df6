"""The in-process node: mappings, user memory, threads, signals."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import signal
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.seccomp.client import RemoteClient
from amdxdna.errors import Closed, NoDevice, OutOfMemory, PermissionDenied
from tests.conformance import kit
from tests.support.binding import adder
from tests.support.gate import Gate
from tests.support.threads import in_threads

PAGE = 4096
Open = Callable[..., kit.Ready]


@pytest.fixture(params=["pasid", "iova"])
def ready(request: pytest.FixtureRequest) -> Iterator[Open]:
    made: list[kit.Ready] = []

    def make(size: int = PAGE, **options: object) -> kit.Ready:
        values = {"threads": 1, "quiet": True, **options}
        made.append(kit.Ready(EmuNode(EmuOptions(address=request.param, **values)), size))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for client in made:
        client.close()


# -- mappings


def test_the_first_whole_mapping_is_the_models_own(ready: Open) -> None:
    client = ready()
    bo = client.bo(4 * PAGE)
    model = client.node.client.handles[bo.handle]  # type: ignore[attr-defined]
    assert bo.host == model.pointer
    second = client.map(bo.offset, 4 * PAGE)
    assert second != bo.host
    bo.view()[:4] = b"same"
    assert bytes(ffi.buffer(ffi.cast("char *", second), 4)) == b"same"


def test_weights_are_resident_once(ready: Open) -> None:
    def resident() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssShmem")) * 1024

    size = 8 << 20
    client = ready(size)
    before = resident()
    weights = client.bo(size)
    weights.view()[:] = b"w" * size
    assert client.run(stream.copy(size, 0), weights.device, client.destination.device) == kit.COMPLETED
    # The weights once, and the destination that the kernel wrote.
    assert resident() - before < 2.2 * size


def test_unmapped_memory_can_be_mapped_again(ready: Open) -> None:
    client = ready()
    handle = client.create_bo(lib.AMDXDNA_BO_SHARE, PAGE)
    offset = client.info(handle).map_offset
    first = client.node.mmap(PAGE, offset)
    ffi.buffer(ffi.cast("char *", first), 4)[:] = b"data"
    client.munmap(first, PAGE)
    second = client.node.mmap(PAGE, offset)
    assert bytes(ffi.buffer(ffi.cast("char *", second), 4)) == b"data"
    client.munmap(second, PAGE)


def test_a_mapping_is_cut_and_its_rest_still_counts(ready: Open) -> None:
    client = ready()
    bo = client.bo(4 * PAGE)
    bo.view()[:] = b"q" * (4 * PAGE)
    space = client.reserve(4 * PAGE)
    client.node.mmap(4 * PAGE, bo.offset, address=space)
    client.munmap(space + PAGE, PAGE)
    client.close_bo(bo.handle)
    client.munmap(bo.host, 4 * PAGE)
    assert bytes(ffi.buffer(ffi.cast("char *", space + 2 * PAGE), 4)) == b"qqqq"
    client.munmap(space, PAGE)
    assert bytes(ffi.buffer(ffi.cast("char *", space + 3 * PAGE), 4)) == b"qqqq"
    client.munmap(space + 2 * PAGE, 2 * PAGE)
    memory = client.node.driver.memory  # type: ignore[attr-defined]
    assert bo.offset not in memory.by_offset


def test_pasid_addresses_follow_the_mapping() -> None:
    client = kit.Ready(EmuNode(EmuOptions(threads=1, quiet=True)))
    space = client.reserve(2 * PAGE)
    handle = client.create_bo(lib.AMDXDNA_BO_SHARE, PAGE)
    client.node.mmap(PAGE, client.info(handle).map_offset, address=space)
    assert client.info(handle).vaddr == space
    assert client.run(stream.copy(PAGE, 0), client.source.device, space) == kit.COMPLETED
    client.munmap(space, PAGE)
    assert client.info(handle).vaddr == kit.INVALID
    assert client.run(stream.copy(PAGE, 0), client.source.device, space) == kit.ERROR
    client.close()


def test_mapping_over_another_mapping(ready: Open) -> None:
    client = ready()
    victim, other = client.bo(PAGE), client.bo(PAGE)
    victim.view()[:4], other.view()[:4] = b"vvvv", b"oooo"
    where = client.node.mmap(PAGE, other.offset, address=victim.host)
    assert where == victim.host
    assert bytes(ffi.buffer(ffi.cast("char *", where), 4)) == b"oooo"
    model = client.node.client.handles[victim.handle]  # type: ignore[attr-defined]
    assert bytes(ffi.buffer(ffi.cast("char *", model.pointer), 4)) == b"vvvv"


def test_munmap_waits_for_commands_that_list_the_bo_with_pasid() -> None:
    client = kit.Ready(EmuNode(EmuOptions(threads=1, quiet=True)))
    program = stream.program([stream.Delay(150_000), stream.Copy(PAGE, 1)])
    seq = client.start(
        program, client.source.device, client.destination.device, arguments=(client.destination.handle,)
    )
    client.munmap(client.destination.host, PAGE)
    assert kit.state(client.command) == kit.COMPLETED
    client.wait(client.syncobj, seq, 0)
    client.close()


def test_exported_memory_moves_with_its_mappings(ready: Open) -> None:
    client = ready()
    bo = client.bo(3 * PAGE)
    bo.view()[2 * PAGE : 2 * PAGE + 4] = b"kept"
    second = client.map(bo.offset, PAGE)
    fd = client.export(bo.handle)
    try:
        assert os.pread(fd, 4, 2 * PAGE) == b"kept"
        assert os.fstat(fd).st_size == 3 * PAGE
        bo.view()[:3] = b"new"
        assert os.pread(fd, 3, 0) == b"new"
        assert bytes(ffi.buffer(ffi.cast("char *", second), 3)) == b"new"
        with pytest.raises(OSError, match="Operation not permitted"):
            os.ftruncate(fd, PAGE)
    finally:
        os.close(fd)
    assert client.run(stream.copy(PAGE, 0), bo.device, client.destination.device) == kit.COMPLETED
    assert bytes(client.destination.view()[:3]) == b"new"


def test_a_bo_closed_during_its_export_stays_until_that_is_over(
    ready: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ready()
    node = client.node
    assert isinstance(node, EmuNode)
    memory = node.client.memory
    bo = client.create_bo(1, PAGE)
    before = len(memory.by_offset)

    def close_meanwhile(bos: object, seconds: float) -> None:
        monkeypatch.undo()
        node.client.drop_handle(bo)
        assert client.create_bo(1, PAGE) == bo  # the number has another owner now

    monkeypatch.setattr(memory, "wait_idle", close_meanwhile)
    fd = client.export(bo)
    os.pwrite(fd, b"still", 0)
    assert len(memory.by_offset) == before
    assert node.client.dmabufs == {}
    os.close(fd)


def test_two_exports_at_once_share_one_file(ready: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ready()
    node = client.node
    assert isinstance(node, EmuNode)
    bo = client.create_bo(1, PAGE)
    fds = []

    def export_meanwhile(seconds: float) -> bool:
        monkeypatch.undo()
        fds.append(client.export(bo))
        return True

    monkeypatch.setattr(node.client.memory, "quiet", export_meanwhile)
    fds.append(client.export(bo))
    os.pwrite(fds[0], b"same", 0)
    assert os.pread(fds[1], 4, 0) == b"same"
    for fd in fds:
        os.close(fd)


def test_freed_memory_goes_back(ready: Open) -> None:
    client = ready()
    store = client.node.client.store.file.fd  # type: ignore[attr-defined]
    size = 1 << 20
    before = os.fstat(store).st_blocks
    bo = client.bo(size)
    bo.view()[:] = b"x" * size
    assert os.fstat(store).st_blocks - before >= size // 512
    client.munmap(bo.host, size)
    client.close_bo(bo.handle)
    assert os.fstat(store).st_blocks - before < 64


# -- memory of the program's own


def user_bo(client: kit.Client, *ranges: tuple[int, int]) -> int:
    entries = b"".join(struct.pack("<QQ", *each) for each in ranges)
    table = ffi.from_buffer(struct.pack("<iI", -1, len(ranges)) + entries)
    size = sum(length for _, length in ranges)
    return client.create_bo(lib.AMDXDNA_BO_SHARE, size, vaddr=int(ffi.cast("uintptr_t", table)))


def pages(count: int, protection: int = 3, flags: int = 0x22, fd: int = -1) -> int:
    return int(lib.xdna_mmap(0, count * PAGE, protection, flags, fd, 0))


def address_of(client: kit.Client, handle: int, host: int) -> int:
    device = int(client.info(handle).xdna_addr)
    return host if device == kit.INVALID else device


def test_user_memory_in_adjacent_pieces(ready: Open) -> None:
    client = ready()
    host = pages(3)
    handle = user_bo(client, (host, PAGE), (host + PAGE, 2 * PAGE))
    target = address_of(client, handle, host) + 2 * PAGE
    assert client.run(stream.copy(PAGE, 0), client.source.device, target) == kit.COMPLETED
    assert bytes(ffi.buffer(ffi.cast("char *", host + 2 * PAGE), PAGE)) == bytes(client.source.view())
    with kit.fails(errno.EOPNOTSUPP):
        client.export(handle)


def test_user_memory_apart_is_not_supported(ready: Open) -> None:
    host = pages(3)
    with kit.fails(errno.EOPNOTSUPP):
        user_bo(ready(), (host, PAGE), (host + 2 * PAGE, PAGE))


def test_user_memory_that_was_unmapped_is_an_error_of_the_command(ready: Open) -> None:
    client = ready()
    host = pages(2)
    handle = user_bo(client, (host, 2 * PAGE))
    where = address_of(client, handle, host)
    assert client.run(stream.copy(PAGE, 0), client.source.device, where) == kit.COMPLETED
    lib.xdna_munmap(host, 2 * PAGE)
    assert client.run(stream.copy(PAGE, 0), client.source.device, where) == kit.ERROR
    client.close_bo(handle)


def test_mapping_user_memory_gives_the_memory_itself_and_unmapping_keeps_it(ready: Open) -> None:
    client = ready()
    host = pages(1)
    handle = user_bo(client, (host, PAGE))
    assert client.node.mmap(PAGE, client.info(handle).map_offset) == host
    assert client.info(handle).vaddr == host
    client.munmap(host, PAGE)
    client.node.munmap(host, PAGE)  # once more than it was mapped
    assert client.info(handle).vaddr == host
    where = address_of(client, handle, host)
    assert client.run(stream.copy(PAGE, 0), client.source.device, where) == kit.COMPLETED
    assert bytes(ffi.buffer(ffi.cast("char *", host), PAGE)) == bytes(client.source.view())
    ffi.buffer(ffi.cast("char *", host), 4)[:] = b"mine"
    client.close_bo(handle)
    assert bytes(ffi.buffer(ffi.cast("char *", host), 4)) == b"mine"


def mapped(host: int) -> bool:
    """Whether this process has memory there."""
    areas = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(start, 16) <= host < int(end, 16) for start, end in areas)


def test_user_memory_goes_with_the_unmap_behind_the_last_mapping(ready: Open) -> None:
    """It is mapped as a whole and where it is; its user still has it when all of those mappings are gone."""
    client = ready()
    host = pages(2)
    handle = user_bo(client, (host, 2 * PAGE))
    offset = client.info(handle).map_offset
    for size, place in ((PAGE, 0), (2 * PAGE, host)):
        with kit.fails(errno.EOPNOTSUPP):
            client.node.mmap(size, offset, address=place)
    assert [client.node.mmap(2 * PAGE, offset) for _ in range(3)] == [host] * 3
    client.close_bo(handle)
    for left in (True, True, True, False):
        client.node.munmap(host, 2 * PAGE)
        assert mapped(host) is left


def test_a_request_that_only_gives_is_not_written_back(ready: Open) -> None:
    """Its struct may lie in memory that cannot be written to; one that takes something may not."""
    client = ready()
    handle = client.create_bo(lib.AMDXDNA_BO_SHARE, PAGE)
    where = pages(1)
    close = ffi.cast("struct drm_gem_close *", where)
    close.handle, close.pad = handle, 0
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(where), PAGE, 1) == 0
    client.node.ioctl(lib.DRM_IOCTL_GEM_CLOSE, where)
    assert client.create_bo(lib.AMDXDNA_BO_SHARE, PAGE) == handle
    with kit.fails(errno.EFAULT):
        client.node.ioctl(lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO, where)


def test_what_is_no_mapping(ready: Open) -> None:
    """Of no bytes, or beside a page's beginning; a part of a page stands for all of it."""
    client = ready()
    node, host = client.node, client.source.host
    offset = client.info(client.create_bo(lib.AMDXDNA_BO_SHARE, PAGE)).map_offset
    for length, at, place in ((0, 0, 0), (-1, 0, 0), (PAGE, 1, 0), (PAGE, 0, host + 1)):
        with kit.fails(errno.EINVAL):
            node.mmap(length, offset + at, address=place)
    for length, at in ((0, 0), (-1, 0), (PAGE, 1)):
        with kit.fails(errno.EINVAL):
            node.munmap(host + at, length)
    first, second = node.mmap(1, offset), node.mmap(1, offset)
    node.munmap(second, 1)
    assert mapped(first) and not mapped(second)


def test_what_user_memory_may_be(ready: Open, tmp_path: Path) -> None:
    client = ready()
    (tmp_path / "file").write_bytes(bytes(PAGE))
    memfd = os.memfd_create("tmpfs")
    os.ftruncate(memfd, PAGE)
    with open(tmp_path / "file", "r+b") as file:
        user_bo(client, (pages(1, flags=0x02, fd=file.fileno()), PAGE))
        user_bo(client, (pages(1, flags=0x01, fd=memfd), PAGE))
        with kit.fails(errno.EFAULT):
            user_bo(client, (pages(1, flags=0x01, fd=file.fileno()), PAGE))
        with kit.fails(errno.EFAULT):
            user_bo(client, (pages(1, protection=1), PAGE))
        with kit.fails(errno.EFAULT):
            user_bo(client, (client.source.host, PAGE))
    os.close(memfd)


def test_pinned_memory_adds_up(ready: Open) -> None:
    client = ready(privileged=False, memlock=2 * PAGE)
    handle = user_bo(client, (pages(1), PAGE))
    with kit.fails(errno.ENOMEM):
        user_bo(client, (pages(2), 2 * PAGE))
    client.close_bo(handle)
    user_bo(client, (pages(2), 2 * PAGE))


# -- threads and signals


def test_contexts_of_several_threads(ready: Open) -> None:
    client = ready()

    def work(number: int) -> None:
        context, syncobj = client.new_context()
        command, code, target = client.bo(PAGE, lib.AMDXDNA_BO_CMD), client.dev(PAGE), client.bo(PAGE)
        operands = (client.source.device, target.device)
        for turn in range(30):
            program = stream.copy(PAGE, number + 1)
            seq = client.start(program, *operands, command=command, code=code, hwctx=context)
            client.wait(syncobj, seq)
            assert seq == turn
            assert kit.state(command) == kit.COMPLETED
            assert target.words()[0] == client.source.words()[0] + number + 1

    in_threads(4, work)


HELD = stream.program([stream.Delay(1), stream.Copy(PAGE, 1)])
"""It waits at the gate."""


def operands(client: kit.Ready) -> tuple[int, int]:
    return client.source.device, client.destination.device


def _blocked(name: str, within: types.ModuleType) -> bool:
    """Whether the main thread is in the function `name` of `within`."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_code.co_filename == within.__file__:
            return True
        frame = frame.f_back
    return False


def _once(blocked: Callable[[], bool], number: int = signal.SIGINT) -> threading.Thread:
    """Sends a signal once the main thread is where it is meant to be."""

    def send() -> None:
        kit.until(blocked, 60, "the main thread blocking")
        time.sleep(0.02)
        os.kill(os.getpid(), number)

    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job
        signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_ctrl_c_ends_a_wait_at_once(ready: Open, gate: Gate) -> None:
    client = ready()
    seq = client.start(HELD, *operands(client))
    _once(lambda: _blocked("wait", kit))
    with pytest.raises(KeyboardInterrupt):
        client.wait(client.syncobj, seq, 60)
    assert kit.state(client.command) == kit.NEW
    gate.open()
    client.wait(client.syncobj, seq)
    assert kit.state(client.command) == kit.COMPLETED


def test_ctrl_c_ends_a_blocked_submit(ready: Open, gate: Gate) -> None:
    client = ready()
    commands = [client.bo(PAGE, lib.AMDXDNA_BO_CMD) for _ in range(5)]
    code = client.dev(PAGE)
    for command in commands[:4]:
        seq = client.start(HELD, *operands(client), command=command, code=code)
    client.pack(HELD, *operands(client), command=commands[4], code=code)
    context = client.node.client.contexts[client.hwctx]  # type: ignore[attr-defined]
    _once(lambda: bool(context.room))
    with pytest.raises(KeyboardInterrupt):
        client.submit(client.hwctx, commands[4].handle)
    gate.open()
    client.wait(client.syncobj, seq)
    assert [kit.state(command) for command in commands] == [kit.COMPLETED] * 4 + [kit.NEW]
    assert client.submit(client.hwctx, commands[4].handle) == seq + 1


def test_a_signal_handler_that_returns_does_not_end_a_wait(ready: Open, gate: Gate) -> None:
    client = ready()
    hits: list[int] = []

    def handler(number: int, frame: object) -> None:
        hits.append(number)
        assert kit.state(client.command) == kit.NEW
        gate.open(after=0.1)

    old = signal.signal(signal.SIGUSR1, handler)
    try:
        seq = client.start(HELD, *operands(client))
        _once(lambda: _blocked("wait", kit), signal.SIGUSR1)
        client.wait(client.syncobj, seq, 60)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert hits == [signal.SIGUSR1]
    assert kit.state(client.command) == kit.COMPLETED


def test_destroying_a_context_frees_a_blocked_submit(ready: Open, gate: Gate) -> None:
    client = ready(tdr=0.3)
    other, _ = client.new_context()
    client.start(HELD, *operands(client), hwctx=other)  # nothing times out while it computes
    assert gate.reached.wait(60)
    commands = [client.bo(PAGE, lib.AMDXDNA_BO_CMD) for _ in range(5)]
    code = client.dev(PAGE)
    for command in commands[:4]:
        client.start(stream.hang(), command=command, code=code)
    client.pack(stream.hang(), command=commands[4], code=code)
    failures: list[int | None] = []

    def submit() -> None:
        try:
            client.submit(client.hwctx, commands[4].handle)
        except OSError as error:
            failures.append(error.errno)

    thread = threading.Thread(target=submit)
    thread.start()
    context = client.node.client.contexts[client.hwctx]  # type: ignore[attr-defined]
    kit.until(lambda: bool(context.room), 60, "the submit blocking")

    def freed() -> None:  # before anything times out
        thread.join(60)
        gate.open()

    opener = threading.Thread(target=freed)
    opener.start()
    client.destroy(client.hwctx)
    opener.join(60)
    assert failures == [22]


# -- time


@pytest.mark.parametrize("remote", [False, True])
def test_a_timed_device_knows_when_a_call_began_and_that_it_is_over(remote: bool) -> None:
    """By a clock that goes on by a second whenever somebody looks at it."""
    node = EmuNode(EmuOptions(quiet=True, timed="hx370", instant=True))
    driver, ticks = node.driver, itertools.count(100)
    driver.clock = lambda: float(next(ticks))
    schedule = driver.npu.schedule
    assert schedule is not None
    asked: list[float] = []
    number = lib.DRM_IOCTL_VERSION & 0xFF
    driver.entries[number] = driver.entries[number]._replace(
        handler=lambda client, args: asked.extend(schedule.asks(7) for _ in range(2))
    )
    version = ffi.new("struct drm_version *")
    address = int(ffi.cast("uintptr_t", version))
    if remote:
        arguments = (3, lib.DRM_IOCTL_VERSION, address)
        call = SimpleNamespace(arguments=arguments, thread=os.getpid(), queued=0, check=lambda: None)
        client = RemoteClient(driver, os.getpid())
        client.handle(call)  # type: ignore[arg-type]
        client.close()
    else:
        node.ioctl(lib.DRM_IOCTL_VERSION, address)
    over = driver.clock()
    assert asked[0] == asked[1] < over < schedule.asks(7)
    node.close()


# -- one device for a process


def test_equal_options_are_one_device() -> None:
    first, second, other = (EmuNode(EmuOptions(slots=slots, quiet=True)) for slots in (3, 3, 4))
    assert first.driver is second.driver
    assert other.driver is not first.driver
    assert first.driver.clients == [first.client, second.client]
    first.close()
    first.close()
    assert first.driver.clients == [second.client]
    version = ffi.new("struct drm_version *")
    second.client.ioctl(lib.DRM_IOCTL_VERSION, int(ffi.cast("uintptr_t", version)))
    second.close()
    third = EmuNode(EmuOptions(slots=3, quiet=True))
    assert third.driver is not first.driver
    third.close()
    other.close()


def test_a_closed_node_refuses(ready: Open) -> None:
    client = ready()
    client.node.close()
    with pytest.raises(Closed):
        client.create_bo(lib.AMDXDNA_BO_SHARE, PAGE)
    with pytest.raises(Closed):
        client.node.mmap(PAGE, 1 << 32)


def test_open_faults() -> None:
    options = EmuOptions.parse("open=1:ENOENT,open=2,quiet", {})
    with pytest.raises(NoDevice):
        EmuNode(options)
    with pytest.raises(PermissionDenied):
        EmuNode(options)
    EmuNode(options).close()


@pytest.mark.parametrize("thread", ["watchdog", "context"])
def test_a_thread_that_cannot_start_is_one_error(monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
    """A limit of memory or of processes: the command is refused, and nothing waits for it later."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name.startswith(f"amdxdna-emu {thread}"):
            raise RuntimeError("can't start new thread")
        start(self)

    with Device.open("emu:quiet,threads=1") as device:
        kernel = adder(device, 64, 1)
        a, b = device.alloc(64), device.alloc(64)
        a.view("u4")[:] = range(16)
        monkeypatch.setattr(threading.Thread, "start", refused)
        for _ in range(6):  # more than a context takes at once
            with pytest.raises(OutOfMemory, match="EXEC_CMD"):
                kernel.run(a, b)
        monkeypatch.undo()
        kernel.run(a, b, outputs=[b], timeout=60)
        assert b.view("u4").tolist() == list(range(1, 17))
