"""What the binding's tests share: copy kernels on the emulated NPU, and a node that can be tampered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amdxdna._native import ffi, lib
from amdxdna.buffer import Buffer
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.emu.kernels.stream import Copy, Delay, Hang
from amdxdna.kernel import Kernel
from amdxdna.node import Node
from amdxdna.opening import open_node
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


def flushes(monkeypatch: Any) -> list[tuple[int, int]]:
    """(address, length) of each flush that a buffer makes from now on, instead of the flush."""
    from amdxdna import buffer as module

    seen: list[tuple[int, int]] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def xdna_flush(self, address: int, length: int) -> None:
            seen.append((address, length))

    monkeypatch.setattr(module, "lib", Recorder())
    return seen


def promising(limit: int, slots: int) -> ProxyNode:
    """A driver that says `limit` contexts of a device that holds `slots`."""

    def promise(request: int, address: int) -> int | None:
        if request != lib.DRM_IOCTL_AMDXDNA_GET_INFO:
            return None
        info = ffi.cast("struct amdxdna_drm_get_info *", address)
        if info.param != lib.DRM_AMDXDNA_QUERY_RESOURCE_INFO:
            return None
        node.inner.ioctl(request, address)
        ffi.cast("struct amdxdna_drm_get_resource_info *", info.buffer).npu_task_max = limit
        return 0

    node = ProxyNode(open_node(f"emu:quiet,threads=1,slots={slots}"), promise)
    return node
