"""Commands in flight, and waiting for what garbage collection does."""

from __future__ import annotations

import time

import numpy as np

from amdxdna import packet
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.stream import Copy, Delay
from amdxdna.reaper import reap

LIMIT = 120.0
"""Seconds after which a test gives up waiting."""


def until(true) -> None:
    """Reaps until `true()`."""
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
        reap()


def time_out(device) -> None:
    """Has the driver's time for commands that hang pass, on a device whose own is long."""
    driver, ahead = device.node.driver, 0.0

    def over() -> bool:
        nonlocal ahead
        ahead += 2 * driver.kind.tdr
        now = ahead
        driver.clock = lambda: time.monotonic() + now
        driver.look()
        return not any(context.jobs for client in driver.clients for context in client.contexts.values())

    until(over)


def begin(device, context, delay_us: int, addend: int = 1):
    """Starts source + addend on a context; (run, source, target)."""
    insts = stream.program([Delay(delay_us), Copy(4096, addend)])
    code, source, target = device.alloc(len(insts), "dev"), device.alloc(4096), device.alloc(4096)
    code.write(insts)
    source.view("u4")[:] = np.arange(1024)
    words = packet.start_cu(0, code.address, len(insts), (source.address, target.address))
    return context.run(words, [code, source, target]), source, target
