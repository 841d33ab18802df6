"""What the binding's tests share: copy kernels on the emulated NPU, and a node that can be tampered with."""

from __future__ import annotations

from collections.abc import Callable

from amdxdna.buffer import Buffer
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.emu.kernels.stream import Copy, Delay, Hang
from amdxdna.kernel import Kernel
from amdxdna.node import Node
from amdxdna.xclbin import Xclbin, writer

COPY = pdi(Family.COPY)


def copy_xclbin(variant: int = 0, columns: int = 8) -> Xclbin:
    """An xclbin of the copy family; another `variant` is another file that needs a context of its own."""
    return Xclbin.read(
        writer.build([writer.PdiSpec(COPY)], [writer.KernelSpec(f"COPY{variant}")], columns=columns)
    )


def adder(device, nbytes: int, addend: int, *, delay_us: int = 0, variant: int = 0) -> Kernel:
    """dst = src + addend, in 32-bit words, after a delay."""
    ops: list[object] = [Delay(delay_us)] if delay_us else []
    return device.pool.kernel(copy_xclbin(variant), stream.program([*ops, Copy(nbytes, addend)]))


def hanging(device, variant: int = 0) -> Kernel:
    """Never completes."""
    return device.pool.kernel(copy_xclbin(variant), stream.program([Hang()]))


def numbers(device, count: int, start: int = 0) -> Buffer:
    """A buffer of 32-bit words that count up."""
    buffer = device.alloc(4 * count)
    buffer.view("u4")[:] = range(start, start + count)
    return buffer


class ProxyNode:
    """A node that passes everything on, unless `hook(request, address)` answers with a value or raises."""

    def __init__(self, inner: Node, hook: Callable[[int, int], int | None] = lambda request, address: None):
        self.inner = inner
        self.hook = hook
        self.path = inner.path
        self.emulated = inner.emulated
        self.refuse_maps = 0
        """An errno every mmap fails with, when not 0."""
        self.maps = 0
        self.closes = 0
        self.requests: list[int] = []

    def ioctl(self, request: int, address: int) -> int:
        self.requests.append(request)
        answer = self.hook(request, address)
        return self.inner.ioctl(request, address) if answer is None else answer

    def mmap(self, length: int, offset: int, *, address: int = 0) -> int:
        self.maps += 1
        if self.refuse_maps:
            raise OSError(self.refuse_maps, "refused")
        return self.inner.mmap(length, offset, address=address)

    def munmap(self, address: int, length: int) -> None:
        self.inner.munmap(address, length)

    def text(self, path: str) -> str | None:
        return self.inner.text(path)

    def close(self) -> None:
        self.closes += 1
        self.inner.close()
