"""Measurements: what calls cost, how fast commands go, how fast data does."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amdxdna import query
from amdxdna.selftest.probes import WrongData, copy_kernel, make_context, pattern
from amdxdna.selftest.stopping import stopping

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.device import Device
    from amdxdna.kernel import Kernel
    from amdxdna.run import Run
    from amdxdna.selftest.program import Program

IN_FLIGHT = 4
CHAIN = 16
BULK = 16 << 20
_SMALL = 4
_AT_LEAST = 5


@dataclass(frozen=True)
class Measure:
    """One measurement. ``value`` is in ``unit``; ``p99`` too, where single times were taken; of ``count``."""

    name: str
    value: float
    unit: str
    count: int
    p99: float | None = None


def percentile(times: Sequence[float], fraction: float) -> float:
    """The smallest time that is not less than this fraction of all."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(len(ordered) * fraction) - 1)]


def timed(name: str, action: Callable[[], object], seconds: float) -> Measure:
    """Median and 99th percentile of `action`'s time, over `seconds` but at least five times."""
    action()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _AT_LEAST or time.perf_counter() < end:
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return Measure(name, percentile(times, 0.5) * 1e6, "us", len(times), percentile(times, 0.99) * 1e6)


def calls(device: Device, seconds: float) -> list[Measure]:
    """What needs no program: a query, a small and a large buffer, a context, the cache flush."""
    client = device.client
    found = [
        timed("query", lambda: query.firmware_version(client), seconds),
        timed("buffer of 4 KiB, made and closed", lambda: device.alloc(4096).close(), seconds),
        timed("buffer of 16 MiB, made and closed", lambda: device.alloc(BULK).close(), seconds),
        timed("context, made and destroyed", lambda: make_context(device), seconds),
    ]
    with device.alloc(BULK) as buffer:
        flush = timed("", buffer.to_device, seconds)
    found.append(Measure("cache flush", BULK / flush.value * 1e6 / (1 << 30), "GiB/s", flush.count))
    return found


def commands(name: str, kernel: Kernel, sets: Sequence[Sequence[Buffer]], seconds: float) -> list[Measure]:
    """Latency of `kernel` one at a time, and how many a second go with four in flight.

    `sets`: the buffers of each run in flight.
    """
    latency = timed(f"{name}, one at a time", lambda: kernel.run(*sets[0]), seconds)
    runs: deque[Run] = deque()
    count = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or count < _AT_LEAST:
        if len(runs) == IN_FLIGHT:
            runs.popleft().wait()
        runs.append(kernel.start(*sets[count % len(sets)]))
        count += 1
    while runs:
        runs.popleft().wait()
    took = time.perf_counter() - began
    return [latency, Measure(f"{name}, {IN_FLIGHT} in flight", count / took, "1/s", count)]


def chains(name: str, kernel: Kernel, pairs: Sequence[Sequence[Buffer]], seconds: float) -> Measure:
    """Commands a second in chains, two chains in flight."""
    calls_ = [(kernel, tuple(pairs[i % len(pairs)])) for i in range(CHAIN)]
    runs: deque[Run] = deque()
    count = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or count < _AT_LEAST:
        if len(runs) == 2:
            runs.popleft().wait()
        runs.append(kernel.shared.chain(calls_, True))
        count += 1
    while runs:
        runs.popleft().wait()
    return Measure(
        f"{name}, in chains of {CHAIN}", count * CHAIN / (time.perf_counter() - began), "1/s", count * CHAIN
    )


def copies(device: Device, seconds: float, check: bool = True) -> list[Measure]:
    """Commands that copy four bytes (latency, throughput, chains), and 16 MiB (bandwidth).

    With `check` the large copy's data is compared. Raises WrongData.
    """
    found = []
    with contextlib.ExitStack() as stack:
        kernel = stack.enter_context(contextlib.closing(copy_kernel(device, _SMALL)))
        sets = [[stack.enter_context(device.alloc(_SMALL)) for _ in range(2)] for _ in range(IN_FLIGHT)]
        stack.enter_context(stopping(device))
        found += commands("command", kernel, sets, seconds)
        found.append(chains("command", kernel, sets, seconds))
    with contextlib.ExitStack() as stack:
        kernel = stack.enter_context(contextlib.closing(copy_kernel(device, BULK)))
        source, target = (stack.enter_context(device.alloc(BULK)) for _ in range(2))
        data = pattern(BULK)
        source.write(data)
        stack.enter_context(stopping(device))
        each = timed("", lambda: kernel.run(source, target), seconds)
        if check and target.read() != data:
            raise WrongData(
                f"a copy of {BULK} bytes that the NPU completed has wrong data",
                call="EXEC_CMD",
                remedy="Run `python -m amdxdna selftest --loop` to see how often",
            )
        found.append(Measure("copy of 16 MiB", BULK / each.value * 1e6 / (1 << 30), "GiB/s", each.count))
    return found


def own(device: Device, program: Program, seconds: float) -> list[Measure]:
    """The user's program: latency and throughput. All runs in flight share its buffers."""
    with program.opened(device) as (kernel, buffers), stopping(device):
        return commands(kernel.name, kernel, [buffers], seconds)
