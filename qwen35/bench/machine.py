"""The machine beside the figures: float32 GEMM rate, and a process's memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qwen35.threads import Threads

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.device import Device

__all__ = [
    "Memory",
    "cores",
    "cpu_name",
    "fma_rate",
    "fresh_pages",
    "gemm_rate",
    "memory",
    "reset_peak",
]

_GEMM = 1536


class Memory:
    """Bytes of this process; `shared` are mapped files and the buffers of an emulated device."""

    def __init__(self, anonymous: int, shared: int, resident: int, peak: int) -> None:
        self.anonymous, self.shared, self.resident, self.peak = anonymous, shared, resident, peak


def memory() -> Memory:
    """This process's memory now; the peak is since its start or the last `reset_peak`."""
    found = _status()
    kilobytes = [found.get(key, 0) for key in ("RssAnon", "RssShmem", "RssFile", "VmRSS", "VmHWM")]
    anonymous, shm, file, resident, peak = (1024 * value for value in kilobytes)
    return Memory(anonymous, shm + file, resident, peak)


def reset_peak() -> None:
    """Makes the peak count from now on, where the kernel allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status() -> dict[str, int]:
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[key] = int(number[0])
    return found


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """The processor's name, as the kernel tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def fresh_pages(nbytes: int, device: Device, threads: int) -> float:
    """Bytes a second at which `threads` threads get the pages of fresh buffers: what a load cannot beat.

    In a virtual machine the first touch of a page may also be the host's; then this is far below bandwidth.
    """
    from qwen35._host import ffi, lib

    piece = 16 << 20
    count = max(nbytes // piece, 1)
    buffers = [device.alloc(piece, flush=False) for _ in range(count)]

    def touch(buffer: Buffer) -> None:
        lib.host_populate(ffi.cast("void *", buffer.host_address), piece)

    try:
        with Threads(threads) as pool:
            return count * piece / _seconds(lambda: list(pool.map(touch, buffers)))
    finally:
        for buffer in buffers:
            buffer.close()


def gemm_rate(repeats: int = 4) -> float:
    """Float32 operations a second of numpy's matrix product, on as many threads as it takes; the best run."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((_GEMM, _GEMM), np.float32) for _ in range(2))
    return max(2 * _GEMM**3 / _seconds(lambda: a @ b) for _ in range(repeats + 1))


def fma_rate(repeats: int = 3) -> float:
    """Float32 operations a second of FMAs in registers, on the host's threads and vectors; the best run."""
    from qwen35._host import lib

    rounds = 1_000_000
    best = 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        operations = lib.host_fma(rounds)
        best = max(best, operations / (time.perf_counter() - began))
    return best


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
