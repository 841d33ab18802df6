"""The end of a context: DESTROY_HWCTX, and close (aie2_hwctx_fini of aie2_ctx.c)."""

from __future__ import annotations

import errno
import time
from typing import Any

from amdxdna.emu.driver import hwctx as contexts
from amdxdna.emu.driver import jobs
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.objects import Client, Hwctx

LONGEST = 10.0
"""Seconds that the end of a context waits for its commands at most, however long they still compute."""


def destroy(client: Client, args: Any) -> None:
    """DESTROY_HWCTX: waits up to two seconds for commands in flight, then aborts them.

    Longer, up to ten, while any command computes: that takes longer here than on an array.
    """
    if args.pad:
        raise error(errno.EINVAL)
    with client.device.lock:
        hwctx = client.contexts.pop(args.handle, None)
        if hwctx is None:
            raise error(errno.EINVAL)
        finish(hwctx)


def flush(client: Client) -> None:
    """Ends every context of an open: at its close, and where a driver takes the closing of a duplicate for
    that (amdxdna_flush of Linux 6.14 to 6.18). What a signal handler raises comes when all are ended."""
    with client.device.lock:
        try:
            while client.contexts:
                _, hwctx = client.contexts.popitem()
                finish(hwctx)
        finally:
            if client.contexts:
                flush(client)


def finish(hwctx: Hwctx) -> None:
    """Ends a context that nobody can find any more. Holds the device's lock."""
    with hwctx.lock:
        hwctx.closing = True
        jobs.make_room(hwctx)
    try:
        if hwctx.sequence:
            device = hwctx.device
            end = time.monotonic() + LONGEST
            while (
                not hwctx.timeline.wait(hwctx.sequence - 1, device.idle_wait)
                and device.npu.computing
                and time.monotonic() < end
            ):
                pass
    finally:
        with hwctx.lock:
            contexts.disconnect(hwctx)
        jobs.abort_all(hwctx)
        contexts.release(hwctx)
