"""poll() and select() of descriptors among which is the emulated node, which has nothing to read, ever.

The memory behind the node would be ready at once. So this process waits for the others in the caller's place.
"""

from __future__ import annotations

import errno
import os
import select
import struct
import time
from collections.abc import Callable

from amdxdna._native import lib
from amdxdna.emu.driver.errors import error
from amdxdna.emu.seccomp.call import Call
from amdxdna.emu.seccomp.client import signal_pending
from amdxdna.emu.seccomp.files import Caller

# arch/x86/entry/syscalls/syscall_64.tbl
POLL, SELECT, PSELECT, PPOLL = 7, 23, 270, 271
CALLS = {POLL, SELECT, PSELECT, PPOLL}
_SLICE = 0.02
"""Seconds until the caller's signals are looked at."""
_POLLFD = struct.Struct("<ihh")
_PAIR = struct.Struct("<qq")
_READ, _WRITE, _EXCEPT = select.POLLIN, select.POLLOUT, select.POLLPRI
_SETS = (
    (_READ, _READ | select.POLLHUP | select.POLLERR),
    (_WRITE, _WRITE | select.POLLERR),
    (_EXCEPT, _EXCEPT),
)
"""What each set of select() waits for, and what puts a descriptor into the answer."""

Read = Callable[[int, int], bytes]
Write = Callable[[int, bytes], None]


def answer(call: Call, is_node: Callable[[int], bool], read: Read, write: Write) -> int:
    """Waits as the call asks to, and writes what it found; the call's value. Raises OSError."""
    if call.nr in (POLL, PPOLL):
        return _poll(call, is_node, read, write)
    return _select(call, is_node, read, write)


def _poll(call: Call, is_node: Callable[[int], bool], read: Read, write: Write) -> int:
    address, count, timeout = call.arguments[:3]
    polled = list(_POLLFD.iter_unpack(read(address, count * _POLLFD.size)))
    if call.nr == POLL:
        (milliseconds,) = struct.unpack("<i", struct.pack("<I", timeout & 0xFFFFFFFF))
        seconds = None if milliseconds < 0 else milliseconds / 1000
    else:
        seconds = _seconds(read, timeout, 1e-9)
    wanted = [(fd, events) for fd, events, _ in polled if fd >= 0]
    found = _wait(call, wanted, seconds, is_node)
    each = iter(found)
    results = [next(each) if fd >= 0 else 0 for fd, _, _ in polled]
    write(
        address,
        b"".join(
            _POLLFD.pack(fd, events, result) for (fd, events, _), result in zip(polled, results, strict=True)
        ),
    )
    return sum(map(bool, results))


def _select(call: Call, is_node: Callable[[int], bool], read: Read, write: Write) -> int:
    count = call.arguments[0]
    size = (count + 63) // 64 * 8
    bits = [int.from_bytes(read(at, size), "little") if at else 0 for at in call.arguments[1:4]]
    seconds = _seconds(read, call.arguments[4], 1e-6 if call.nr == SELECT else 1e-9)
    wanted = [
        (fd, sum(ask for (ask, _), one in zip(_SETS, bits, strict=True) if one >> fd & 1))
        for fd in range(count)
        if any(one >> fd & 1 for one in bits)
    ]
    began = time.monotonic()
    found = _wait(call, wanted, seconds, is_node)
    if any(result & select.POLLNVAL for result in found):
        raise error(errno.EBADF)
    total = 0
    for at, one, (_, told) in zip(call.arguments[1:4], bits, _SETS, strict=True):
        ready = sum(
            1 << fd for (fd, _), result in zip(wanted, found, strict=True) if result & told and one >> fd & 1
        )
        total += bin(ready).count("1")
        if at:
            write(at, ready.to_bytes(size, "little"))
    if call.nr == SELECT and seconds is not None:  # select(2): Linux says how much is left
        left = max(seconds - (time.monotonic() - began), 0.0)
        write(call.arguments[4], _PAIR.pack(int(left), int(left % 1 * 1e6)))
    return total


def _seconds(read: Read, address: int, unit: float) -> float | None:
    """A struct timespec or timeval; None, for ever, without one."""
    if not address:
        return None
    whole, part = _PAIR.unpack(read(address, _PAIR.size))
    if whole < 0 or not 0 <= part * unit < 1:
        raise error(errno.EINVAL)
    return float(whole + part * unit)


def _wait(
    call: Call, wanted: list[tuple[int, int]], seconds: float | None, is_node: Callable[[int], bool]
) -> list[int]:
    """Waits until a descriptor has an event, or `seconds`; each one's events, the node's being 0."""
    process = Caller.of(call.thread).process
    poll = select.poll()
    own: dict[int, int] = {}
    found = [0] * len(wanted)
    try:
        for index, (fd, events) in enumerate(wanted):
            if is_node(fd):
                continue
            copy = int(lib.xdna_take_fd(process, call.thread, fd))
            if copy < 0:
                found[index] = select.POLLNVAL
                continue
            own[copy] = index
            poll.register(copy, events & 0xFFFF)
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
            for copy, events in poll.poll(0 if any(found) else max(left, 0) * 1000):
                found[own[copy]] = events
            if any(found) or left <= 0:
                return found
            call.check()
            if signal_pending(call.thread):
                raise error(errno.EINTR)
    finally:
        for copy in own:
            os.close(copy)
