"""Operations that a signal may interrupt, and what must hold afterwards."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

from amdxdna.device import Device
from amdxdna.run import State
from tests.support.binding import adder, copy_xclbin


class Rig:
    """A device of two slots, kernels of three xclbins, and what each operation does with them."""

    def __init__(self) -> None:
        self.device = Device.open("emu:quiet,threads=1,slots=2")
        self.kernels = [adder(self.device, 64, n + 1, variant=n) for n in range(3)]
        self.a, self.b, self.c, self.d = (self.device.alloc(64) for _ in range(4))
        self.a.view("u4")[:] = range(16)

    def close(self) -> None:
        self.device.close()

    def run(self) -> None:
        self.kernels[0].run(self.a, self.b)

    def start(self) -> None:
        runs = [self.kernels[0].start(self.a, self.b) for _ in range(6)]
        for run in runs:
            run.wait()

    def dropped(self) -> None:
        for _ in range(3):
            self.kernels[0].start(self.a, self.b)
        self.kernels[0].run(self.a, self.b)

    def chain(self) -> None:
        calls = [(self.kernels[0], (self.a, self.b)), (self.kernels[0], (self.b, self.c))]
        self.device.pool.chain(calls).wait()

    def evict(self) -> None:
        for kernel in self.kernels:
            kernel.run(self.a, self.b)

    def alloc(self) -> None:
        for kind in ("share", "cmd", "dev"):
            self.device.alloc(5000, kind).close()

    def drop(self) -> None:
        for kind in ("share", "cmd", "dev"):
            self.device.alloc(5000, kind).write(b"x" * 5000)

    def sub(self) -> None:
        whole = self.device.alloc(8192)
        with whole.sub(4096) as part:
            part.view()[:] = 1
        whole.close()

    def share(self) -> None:
        whole = self.device.alloc(4096)
        fd = -1
        try:
            fd = whole.export_fd()
            self.device.import_fd(fd).close()
            self.device.import_fd(fd, 4096).close()
        finally:
            if fd >= 0:
                os.close(fd)
        whole.close()

    def wrap(self) -> None:
        self.device.wrap(mmap.mmap(-1, 8192)).close()

    def context(self) -> None:
        self.device.pool.unload()
        self.device.context(copy_xclbin(7)).close()

    def kernel(self) -> None:
        kernel = adder(self.device, 64, 9, variant=9)
        kernel.run(self.a, self.b)
        kernel.close()

    def unload(self) -> None:
        self.device.pool.unload()
        self.kernels[0].run(self.a, self.b)

    def right(self) -> None:
        """Runs every kernel and looks at its result. Nothing else writes `d`: what was interrupted may be in
        flight in a context, and contexts wait for each other in nothing."""
        for n in range(len(self.kernels)):
            self.right_one(n)

    def right_one(self, n: int) -> None:
        """The same for one of the kernels."""
        self.d.view("u4")[:] = 0
        assert self.kernels[n].run(self.a, self.d, outputs=[self.d], timeout=60).state is State.COMPLETED
        assert self.d.view("u4").tolist() == list(range(n + 1, n + 17))


OPERATIONS: list[Callable[[Rig], None]] = [
    *(Rig.run, Rig.start, Rig.dropped, Rig.chain, Rig.evict, Rig.alloc, Rig.drop, Rig.sub, Rig.share),
    *(Rig.wrap, Rig.context, Rig.kernel, Rig.unload),
]
