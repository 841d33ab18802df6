"""What this machine can do at most, to hold the kernels' speed against: read bandwidth.

A GEMV reads every weight once, so a decode step cannot be faster than its bytes over this figure.
"""

from __future__ import annotations

import contextlib
import mmap
import time

from .. import _kernels

_PIECE = 1 << 20


def read_bandwidth(*, nbytes: int = 512 << 20, threads: int = 0, seconds: float = 0.5) -> float:
    """Best bytes per second of `threads` threads (0: one a core) reading memory, over about `seconds`.

    Fills `nbytes` of memory for it (several times the caches; huge pages where the kernel gives them) and
    gives them back. Raises OSError when they cannot be had. It takes the kernel threads while it runs.
    """
    pieces = max(1, nbytes // _PIECE)
    # Private memory: shared memory has huge pages only where the whole system is set to that.
    with mmap.mmap(-1, pieces * _PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        ones = b"\1" * _PIECE
        for _ in range(pieces):
            memory.write(ones)
        with _kernels.ffi.from_buffer(memory) as view:
            address = int(_kernels.ffi.cast("uintptr_t", view))
            best, end = 0.0, time.perf_counter() + seconds
            while True:
                start = time.perf_counter()
                _kernels.lib.emu_read(address, pieces * _PIECE, threads)
                now = time.perf_counter()
                best = max(best, pieces * _PIECE / (now - start))
                if now >= end:
                    return best
