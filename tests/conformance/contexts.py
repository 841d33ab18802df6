"""Hardware contexts: slots, handles, sharing the device between contexts, clients and processes."""

from __future__ import annotations

import errno
import os
import signal
import time

from amdxdna._native import ffi, lib
from amdxdna.emu.kernels import stream

from .kit import COMPLETED, LIMIT, Client, Ready, Target, case, fails, join, state, until


def _fill(client: Client) -> list[int]:
    """Creates contexts until the device refuses; their handles."""
    handles = []
    while True:
        try:
            handles.append(client.context()[0])
        except OSError as error:
            assert error.errno == errno.EINVAL, f"out of contexts is {errno.errorcode[error.errno or 0]}"
            return handles
        assert len(handles) < 40, "the device takes contexts without end"


def _exhaust(t: Target, slots: int) -> None:
    client = t.client()
    client.heap()
    handles = _fill(client)
    assert len(handles) == slots
    assert len(client.contexts()) == slots
    client.destroy(handles[0])
    client.context()
    with fails(errno.EINVAL):
        client.context()


@case(slots=1)
def one_slot(t: Target) -> None:
    """With one slot the second context is EINVAL until the first is destroyed."""
    _exhaust(t, 1)


@case(slots=4)
def four_slots(t: Target) -> None:
    """The limit is the firmware's."""
    _exhaust(t, 4)


@case()
def sixteen_slots(t: Target) -> None:
    """The usual limit."""
    _exhaust(t, 16)


@case(slots=24)
def more_slots_than_the_driver_knows(t: Target) -> None:
    """The driver leaves the limit to the firmware, also where that has more slots than it reports."""
    client = t.client()
    client.heap()
    assert len(_fill(client)) == 24


@case(slots=4)
def task_limit_is_the_drivers(t: Target) -> None:
    """Resource info's task limit is the driver's number for the device, whatever the firmware has."""
    t.needs_kernel("the emulated device's slots are those of a device that the driver knows")
    info = t.client().get_info(lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO, "amdxdna_drm_get_resource_info")
    assert info.npu_task_max == 16


@case(slots=2)
def slots_are_shared_by_clients(t: Target) -> None:
    """Every open of the device draws from the same slots."""
    first, second = t.client(), t.client()
    first.heap()
    second.heap()
    first.context()
    second.context()
    with fails(errno.EINVAL):
        first.context()
    second.close()
    first.context()


@case(slots=2)
def closing_frees_slots(t: Target) -> None:
    """Closing the device destroys its contexts."""
    first = t.client()
    first.heap()
    assert len(_fill(first)) == 2
    first.close()
    second = t.client()
    second.heap()
    assert len(_fill(second)) == 2


@case()
def handles_are_cyclic(t: Target) -> None:
    """A context's handle is not given out again at once."""
    client = t.client()
    client.heap()
    first, _ = client.context()
    assert first == 1
    client.destroy(first)
    second, _ = client.context()
    assert second == 2


@case()
def resource_info(t: Target) -> None:
    """Resource info has the task limit and, while contexts exist, how many."""
    client = t.client()
    client.heap()
    info = client.get_info(lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO, "amdxdna_drm_get_resource_info")
    assert info.npu_task_max == 16
    assert info.npu_task_curr == 0
    client.context()
    client.context()
    info = client.get_info(lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO, "amdxdna_drm_get_resource_info")
    assert info.npu_task_curr == 2


@case()
def context_entries(t: Target) -> None:
    """GET_ARRAY names owner, columns, priority and counters of every context."""
    ready = t.ready()
    assert ready.copy() == COMPLETED
    (entry,) = ready.contexts()
    assert (entry.context_id, entry.start_col, entry.num_col) == (ready.hwctx, 0, 8)
    assert entry.pid == os.getpid()
    assert (entry.command_submissions, entry.command_completions) == (1, 1)
    assert entry.priority == 0x200


@case()
def interleaved(t: Target) -> None:
    """Several contexts run at the same time and do not mix up their results."""
    ready = t.ready()
    contexts = [(ready.hwctx, ready.syncobj), ready.new_context(), ready.new_context()]
    runs = []
    for number, context in enumerate(contexts):
        command, code = ready.bo(0x1000, lib.AMDXDNA_BO_CMD), ready.dev(0x1000)
        target = ready.bo(ready.source.size)
        seq = ready.start(
            stream.copy(ready.source.size, number + 1),
            ready.source.device,
            target.device,
            command=command,
            code=code,
            hwctx=context[0],
        )
        runs.append((context[1], seq, target))
    for number, (syncobj, seq, target) in enumerate(runs):
        ready.wait(syncobj, seq)
        target.flush()
        assert target.words()[0] == ready.source.words()[0] + number + 1


@case()
def two_clients(t: Target) -> None:
    """Two opens of the device have their own heaps, handles and contexts."""
    first, second = t.ready(), t.ready()
    assert first.hwctx == second.hwctx == 1
    assert first.instructions.device == second.instructions.device
    assert first.copy() == COMPLETED
    assert second.copy() == COMPLETED


@case()
def destroyed_context(t: Target) -> None:
    """A destroyed context takes no commands."""
    ready = t.ready()
    ready.destroy(ready.hwctx)
    with fails(errno.EINVAL):
        ready.start(stream.copy(4096, 1), ready.source.device, ready.destination.device)
    with fails(errno.EINVAL):
        ready.destroy(ready.hwctx)


@case()
def foreign_context(t: Target) -> None:
    """Context handles belong to one open of the device."""
    first, second = t.ready(), t.client()
    second.heap()
    with fails(errno.EINVAL):
        second.destroy(first.hwctx)
    with fails(errno.EINVAL):
        second.configure(first.hwctx, second.dev(0x1000).handle)


@case()
def priorities(t: Target) -> None:
    """Every priority of the interface is taken, and an unknown one is too."""
    client = t.client()
    client.heap()
    for priority in (0x100, 0x180, 0x200, 0x280, 0x777):
        client.destroy(client.context(priority=priority)[0])


@case()
def several_processes(t: Target) -> None:
    """Two processes use the device at once, each with its own numbers."""
    t.needs_kernel("an in-process device has one process")

    def work(inner: Target) -> None:
        ready = inner.ready()
        for _ in range(3):
            assert ready.copy() == COMPLETED

    children = [t.in_child(work) for _ in range(2)]
    for child in children:
        join(child)


@case(slots=1)
def killed_process_frees_its_slot(t: Target) -> None:
    """The contexts of a killed process are destroyed."""
    t.needs_kernel("an in-process device has one process")
    reader, writer = os.pipe()

    def hold(inner: Target) -> None:
        ready = inner.ready()
        os.write(writer, b"x")
        signal.pause()
        ready.close()

    child = t.in_child(hold)
    os.read(reader, 1)
    client = t.client()
    client.heap()
    with fails(errno.EINVAL):
        client.context()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    def free() -> bool:
        try:
            client.context()
        except OSError:
            return False
        return True

    until(free, LIMIT, "the killed process's slot coming free")


@case(slots=2, breaks="aie2_config_cu")
def killed_process_with_a_hung_command(t: Target) -> None:
    """A killed process's hung command holds its slot until the timeout, and no longer.

    The process's memory goes when the time-out ends the command. Then its handles go too, while the time-out
    looks one up to configure the context again: 7.3.4 was once seen to use a BO there that was freed.
    """
    t.needs_kernel("an in-process device has one process")
    reader, writer = os.pipe()

    def hang(inner: Target) -> None:
        ready = inner.ready()
        ready.start(stream.hang())
        os.write(writer, b"x")
        signal.pause()

    child = t.in_child(hang)
    os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    ready = t.ready()
    until(lambda: len(ready.contexts()) == 1, LIMIT, "the hung context going away")
    assert ready.copy() == COMPLETED


@case()
def inherited_by_a_child(t: Target) -> None:
    """A forked child that ends does not take the parent's contexts with it."""
    t.needs_kernel("an in-process device has one process")
    ready: Ready = t.ready()
    join(t.in_child(lambda inner: None))
    assert ready.copy() == COMPLETED


def _destroy_syncobj(client: Client, handle: int) -> None:
    client.ioctl(lib.DRM_IOCTL_SYNCOBJ_DESTROY, ffi.new("struct drm_syncobj_destroy *", {"handle": handle}))


@case()
def syncobj_outlives_its_context(t: Target) -> None:
    """A context's syncobj stays, with its points, until it is destroyed itself or the device is closed."""
    ready = t.ready()
    assert ready.copy() == COMPLETED
    ready.destroy(ready.hwctx)
    ready.wait(ready.syncobj, 0, 0.5)
    _destroy_syncobj(ready, ready.syncobj)
    with fails(errno.ENOENT):
        ready.wait(ready.syncobj, 0, 0.5)
    with fails(errno.EINVAL):
        _destroy_syncobj(ready, ready.syncobj)


@case()
def syncobj_destroyed_first(t: Target) -> None:
    """A context works on without its syncobj; there is only nothing to wait for."""
    ready = t.ready()
    _destroy_syncobj(ready, ready.syncobj)
    seq = ready.start(stream.copy(ready.source.size, 1), ready.source.device, ready.destination.device)
    with fails(errno.ENOENT):
        ready.wait(ready.syncobj, seq)
    until(lambda: state(ready.command) == COMPLETED, LIMIT, "the command's completion")
    ready.check_copy(ready.destination)


@case()
def older_wait(t: Target) -> None:
    """TIMELINE_WAIT in the size of headers before Linux 6.6, without the deadline."""
    ready = t.ready()
    seq = ready.start(stream.copy(ready.source.size, 1), ready.source.device, ready.destination.device)
    handles, points = ffi.new("uint32_t[]", [ready.syncobj]), ffi.new("uint64_t[]", [seq])
    args = ffi.new(
        "struct drm_syncobj_timeline_wait *",
        {
            "handles": int(ffi.cast("uintptr_t", handles)),
            "points": int(ffi.cast("uintptr_t", points)),
            "timeout_nsec": time.monotonic_ns() + int(LIMIT * 1e9),
            "count_handles": 1,
            "flags": lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT,
        },
    )
    ready.ioctl(lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT_V1, args)
    assert state(ready.command) == COMPLETED
