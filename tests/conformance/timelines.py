"""Timeline syncobjs: what waiting for a point means."""

from __future__ import annotations

import errno
import time

from amdxdna._native import ffi, lib
from amdxdna.emu.kernels import stream

from .kit import COMPLETED, LIMIT, Bo, Ready, Target, case, fails, in_time, state, until

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


_SHORT = stream.delay(1000)


def _queue(ready: Ready, *programs: bytes) -> list[Bo]:
    """One command a program, all in flight."""
    commands = []
    for program in programs:
        command, code = ready.bo(0x1000, lib.AMDXDNA_BO_CMD), ready.dev(0x1000)
        ready.start(program, command=command, code=code)
        commands.append(command)
    return commands


@case()
def point_zero_is_everything(t: Target) -> None:
    """Waiting for point 0, the first command's, waits for whatever was submitted last."""
    commands: list[Bo] = []

    def second_one(ready: Ready, long: bytes) -> bool:
        """A wait for the first command goes on when only the second is under way."""
        commands[:] = _queue(ready, _SHORT, long)
        until(lambda: state(commands[0]) == COMPLETED, LIMIT, "the first command's completion")
        return not ready.over(0, 0.03)

    ready = in_time(t, second_one)
    ready.wait(ready.syncobj, 0)
    assert state(commands[1]) == COMPLETED


@case()
def a_later_point(t: Target) -> None:
    """Any other point is its own command's."""
    commands: list[Bo] = []

    def own(ready: Ready, long: bytes) -> bool:
        """The second command is over and the third is not."""
        commands[:] = _queue(ready, _SHORT, _SHORT, long)
        ready.wait(ready.syncobj, 1)
        assert state(commands[1]) == COMPLETED
        return not ready.over(2)

    ready = in_time(t, own)
    ready.wait(ready.syncobj, 2)
    assert state(commands[2]) == COMPLETED


@case()
def several_syncobjs(t: Target) -> None:
    """Waiting for all of several points, or for any of them."""
    waits: list[tuple[int, int]] = []

    def any_of_them(ready: Ready, long: bytes) -> bool:
        """One of two points is reached, and not both."""
        other, other_syncobj = ready.new_context()
        _queue(ready, _SHORT, long)
        command, code = ready.bo(0x1000, lib.AMDXDNA_BO_CMD), ready.dev(0x1000)
        ready.start(_SHORT, command=command, code=code, hwctx=other)
        waits[:] = (ready.syncobj, 1), (other_syncobj, 0)
        first = _wait(ready, waits, LIMIT, FOR_SUBMIT)
        try:
            _wait(ready, waits, 0, WAIT_ALL)
        except OSError as error:
            return error.errno == errno.ETIME and first == 1
        return False

    ready = in_time(t, any_of_them)
    _wait(ready, waits, LIMIT, WAIT_ALL)


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
