"""Commands in flight, and waiting for what garbage collection does."""

from __future__ import annotations

import time

import numpy as np

from amdxdna import packet
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.stream import Copy, Delay
from amdxdna.reaper import reap

LIMIT = 30.0
"""Seconds after which a test gives up waiting."""


def until(true) -> None:
    """Reaps until `true()`."""
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
        reap()


def begin(device, context, delay_us: int, addend: int = 1):
    """Starts source + addend on a context; (run, source, target)."""
    insts = stream.program([Delay(delay_us), Copy(4096, addend)])
    code, source, target = device.alloc(len(insts), "dev"), device.alloc(4096), device.alloc(4096)
    code.write(insts)
    source.view("u4")[:] = np.arange(1024)
    words = packet.start_cu(0, code.address, len(insts), (source.address, target.address))
    return context.run(words, [code, source, target]), source, target
