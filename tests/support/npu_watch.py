"""What a program has an emulated NPU do, seen from the NPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from amdxdna._native import ffi
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import Slot


@contextmanager
def submits(device: Device, saw: Callable[[Any, Slot], None]) -> Iterator[None]:
    """Calls `saw(context, slot)` with each command that reaches the NPU, before it can begin."""
    npu = device.node.driver.npu  # type: ignore[attr-defined]
    submit = npu.submit

    def watched(number: int, slots: Any, *rest: Any) -> int:
        listed = list(slots)
        for slot in listed:
            saw(npu.context(number), slot)
        return int(submit(number, listed, *rest))

    npu.submit = watched
    try:
        yield
    finally:
        del npu.submit


def memory(device: Device, context: Any, address: int, size: int) -> np.ndarray:
    """Bytes of the context's memory, as bf16 bits that can be written."""
    npu = device.node.driver.npu  # type: ignore[attr-defined]
    pointer = npu.resolve(context, address, size)
    return np.frombuffer(ffi.buffer(ffi.cast("char *", pointer), size), np.uint16)


def op(device: Device, context: Any, slot: Slot) -> stream.Op:
    """The only operation of a command."""
    _, program, _ = device.node.driver.npu.fetch(context, slot)  # type: ignore[attr-defined]
    (found,) = stream.parse(program)
    return found


class GemmRows:
    """Goes to :func:`submits`: `each(rows, first)` with the rows of A that a GEMM reads, bf16 bits [rows, K],
    and which row of the whole A the first of them is."""

    def __init__(self, device: Device, each: Callable[[np.ndarray, int], None]) -> None:
        self._device = device
        self._each = each
        self._weights = self._next = 0

    def __call__(self, context: Any, slot: Slot) -> None:
        found = op(self._device, context, slot)
        if not isinstance(found, stream.Gemm):
            return
        a, weights = slot.buffers()[:2]
        if weights != self._weights:
            self._weights, self._next = weights, 0
        bits = memory(self._device, context, a, found.a_bytes)
        shape, strides = (found.rows, found.k), (2 * found.lda, 2)
        self._each(np.lib.stride_tricks.as_strided(bits, shape, strides), self._next)
        self._next += found.rows
