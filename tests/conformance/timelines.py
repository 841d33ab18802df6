"""Timeline syncobjs: what waiting for a point means."""

from __future__ import annotations

import errno
import time

from amdxdna._native import ffi, lib
from amdxdna.emu.kernels import stream

from .kit import COMPLETED, Bo, Ready, Target, case, fails, state

WAIT_ALL = lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL
FOR_SUBMIT = lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT


def _wait(client: Ready, waits: list[tuple[int, int]], seconds: float, flags: int) -> int:
    """TIMELINE_WAIT for several points; first_signaled."""
    handles = ffi.new("uint32_t[]", [syncobj for syncobj, _ in waits])
    points = ffi.new("uint64_t[]", [point for _, point in waits])
    args = ffi.new(
        "struct drm_syncobj_timeline_wait *",
        {
            "handles": int(ffi.cast("uintptr_t", handles)),
            "points": int(ffi.cast("uintptr_t", points)),
            "timeout_nsec": time.monotonic_ns() + int(seconds * 1e9),
            "count_handles": len(waits),
            "flags": flags,
        },
    )
    client.ioctl(lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, args)
    return int(args.first_signaled)


def _queue(ready: Ready, *delays: int) -> list[Bo]:
    """One command a delay, in microseconds, all in flight."""
    commands = []
    for delay in delays:
        command, code = ready.bo(0x1000, lib.AMDXDNA_BO_CMD), ready.dev(0x1000)
        ready.start(stream.delay(delay), command=command, code=code)
        commands.append(command)
    return commands


@case()
def point_zero_is_everything(t: Target) -> None:
    """Waiting for point 0, the first command's, waits for whatever was submitted last."""
    ready = t.ready()
    first, second = _queue(ready, 1000, 900_000)
    with fails(errno.ETIME):
        ready.wait(ready.syncobj, 0, 0.4)
    assert state(first) == COMPLETED
    ready.wait(ready.syncobj, 0)
    assert state(second) == COMPLETED


@case()
def a_later_point(t: Target) -> None:
    """Any other point is its own command's."""
    ready = t.ready()
    _, second, third = _queue(ready, 1000, 1000, 900_000)
    ready.wait(ready.syncobj, 1, 0.6)
    assert state(second) == COMPLETED
    with fails(errno.ETIME):
        ready.wait(ready.syncobj, 2, 0)
    ready.wait(ready.syncobj, 2)
    assert state(third) == COMPLETED


@case()
def several_syncobjs(t: Target) -> None:
    """Waiting for all of several points, or for any of them."""
    ready = t.ready()
    other, other_syncobj = ready.new_context()
    _queue(ready, 1000, 900_000)
    command, code = ready.bo(0x1000, lib.AMDXDNA_BO_CMD), ready.dev(0x1000)
    ready.start(stream.delay(1000), command=command, code=code, hwctx=other)
    waits = [(ready.syncobj, 1), (other_syncobj, 0)]
    assert _wait(ready, waits, 0.6, FOR_SUBMIT) == 1
    with fails(errno.ETIME):
        _wait(ready, waits, 0, WAIT_ALL)
    _wait(ready, waits, 5, WAIT_ALL)


@case()
def point_of_the_future(t: Target) -> None:
    """A point that no command has: EINVAL, or with WAIT_FOR_SUBMIT a wait that a later command ends."""
    ready = t.ready()
    with fails(errno.EINVAL):
        _wait(ready, [(ready.syncobj, 1)], 1, 0)
    with fails(errno.ETIME):
        _wait(ready, [(ready.syncobj, 1)], 0.05, FOR_SUBMIT)
    assert ready.copy() == COMPLETED
    with fails(errno.EINVAL):
        _wait(ready, [(ready.syncobj, 1)], 1, 0)
    assert ready.copy() == COMPLETED
    _wait(ready, [(ready.syncobj, 1)], 1, 0)
    with fails(errno.EINVAL):
        _wait(ready, [(ready.syncobj, 1)], 1, 1 << 31)


@case()
def syncobj_outlives_its_context(t: Target) -> None:
    """The syncobj handle is the program's: it goes with SYNCOBJ_DESTROY, not with the context."""
    ready = t.ready()
    assert ready.copy() == COMPLETED
    ready.destroy(ready.hwctx)
    ready.wait(ready.syncobj, 0, 1)
    args = ffi.new("struct drm_syncobj_destroy *", {"handle": ready.syncobj})
    ready.ioctl(lib.DRM_IOCTL_SYNCOBJ_DESTROY, args)
    with fails(errno.EINVAL):
        ready.ioctl(lib.DRM_IOCTL_SYNCOBJ_DESTROY, args)
    with fails(errno.ENOENT):
        ready.wait(ready.syncobj, 0, 1)
