"""An NPU model with memory of its own."""

from __future__ import annotations

import threading

from amdxdna._native import ffi
from amdxdna.emu.faults import Faults
from amdxdna.emu.kernels import Family, pdi, stream
from amdxdna.emu.npu import DEVICE_HEAP, HEAP_CHUNK, BadAddress, Npu, Reply, Slot, Status
from amdxdna.emu.npu.context import Context
from amdxdna.emu.npu.schedule import Totals
from amdxdna.emu.timing import TimingModel

HOST = 4 * HEAP_CHUNK  # where the heap is on the bus
BUFFERS = 0x1000


class FlatMemory:
    """256 KiB at bus address HOST and 64 KiB at BUFFERS, for every context."""

    def __init__(self) -> None:
        self.heap = ffi.new("char[]", 256 << 10)
        self.buffers = ffi.new("char[]", 64 << 10)
        self.released: list[int] = []

    def pointer(self, context: int, address: int, size: int) -> int:
        for base, block in ((HOST, self.heap), (BUFFERS, self.buffers)):
            if base <= address and address + size <= base + len(block):
                return int(ffi.cast("uintptr_t", block)) + address - base
        raise BadAddress(address, size)

    def stamp(self, context: int) -> object:
        return "the blocks never move"

    def release(self, context: int) -> None:
        self.released.append(context)


class Rig:
    """An NPU with one configured context whose instruction streams are written on demand."""

    def __init__(
        self,
        faults: Faults | None = None,
        slots: int = 4,
        timing: TimingModel | None = None,
        columns: int = 8,
    ) -> None:
        """The context has the first `columns` columns."""
        self.memory = FlatMemory()
        self.lines: list[str] = []
        self.npu = Npu(
            self.memory, slots=slots, threads=1, faults=faults, log=self.lines.append, timing=timing
        )
        ffi.memmove(self.memory.heap, pdi(Family.COPY), 64)
        self.context = self.another(0, columns)
        self.replies: list[Reply] = []
        self.arrived = threading.Semaphore(0)

    def another(self, start_column: int = 0, columns: int = 8) -> int:
        """A context like the first one, on those columns."""
        status, context = self.npu.create_context(start_column, columns)
        assert status == 0
        assert self.npu.map_heap(context, HOST, HEAP_CHUNK) == 0
        assert self.npu.config_cus(context, [(DEVICE_HEAP, 0)]) == 0
        return context

    def slot(self, program: bytes, buffers: tuple[int, ...] = (), at: int = 0x1000, cu: int = 0) -> Slot:
        ffi.memmove(self.memory.heap + at, program, len(program))
        args = [3, 0, DEVICE_HEAP + at, 0, len(program)]
        for address in buffers:
            args += [address & 0xFFFFFFFF, address >> 32]
        return Slot(1, cu, tuple(args))

    def done(self, reply: Reply) -> None:
        self.replies.append(reply)
        self.arrived.release()

    def run(self, *slots: Slot) -> Reply:
        assert self.npu.submit(self.context, slots, self.done) == 0
        assert self.arrived.acquire(timeout=60)
        return self.replies[-1]


def copy_slot(
    rig: Rig, nbytes: int = 64, addend: int = 0, source: int = BUFFERS, target: int = BUFFERS + 4096
) -> Slot:
    return rig.slot(stream.copy(nbytes, addend), (source, target))


FIXED = TimingModel(bandwidth=1e15, rate=1e15, dispatch=0.02, member=0.005, load=0.0)
"""Only the fixed times count."""
MINUTE = 60_000_000
"""Microseconds: longer than any test waits."""


def totals(rig: Rig) -> Totals:
    assert rig.npu.schedule is not None
    return rig.npu.schedule.totals()


def submit(rig: Rig, context: int, *slots: Slot) -> threading.Event:
    """Set when the chain is answered."""
    answered = threading.Event()
    assert rig.npu.submit(context, slots, lambda reply: answered.set()) == Status.OK
    return answered


class SlowContext(Context):
    """Wakes up `late` seconds after it asked to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.late = 0.001
        super().__init__(0, 0, 8, 0, lambda: self.now)

    def wait(self, seconds: float | None) -> bool:
        assert seconds is not None
        self.now += seconds + self.late
        return False
