"""Control code in the NPU's memory, ready to run: the buffers of a kernel instance, and of each run of it.

What goes where, and what is sent, is what XRT 2.25 does (measured; core/common/api/xrt_module.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator

from amdxdna import packet
from amdxdna.allocation import allocate
from amdxdna.arguments import Uncopied
from amdxdna.buffer import Buffer
from amdxdna.elf.control import (
    CONTROL_PACKETS,
    CONTROL_SCRATCHPAD,
    PACKETS,
    PREEMPTION_SCRATCHPAD,
    RESTORE,
    SAVE,
    TEXT,
    ControlElf,
)
from amdxdna.elf.patch import Patch
from amdxdna.errors import BadArgument
from amdxdna.hwctx import HwContext
from amdxdna.packet import Placed
from amdxdna.pdis import load_pdi

_PREEMPTION = "control code that saves its state or loads PDIs"


class ControlKernel(Uncopied):
    """The control code of a kernel instance in a context, with the PDIs that it loads.

    ``cu`` is the compute unit of an xclbin's kernel; None for a full file. Every run has code of its own
    (:meth:`load`), since its buffers' addresses are in it. Raises KeyError for an instance that is not there,
    BadArgument for a file that this context or no driver can run, Unsupported where the driver is too old,
    OutOfHeap.
    """

    def __init__(self, context: HwContext, elf: ControlElf, name: str = "", cu: int | None = None) -> None:
        self.code = elf.code(name)
        if (elf.columns is None) != (cu is not None):
            raise BadArgument(
                f"{elf.path} goes with a kernel of an xclbin"
                if elf.columns is None
                else f"{elf.path} brings its own PDIs and goes with no xclbin",
                call="elf",
                remedy="Make the context from " + ("that xclbin" if elf.columns is None else "the file"),
            )
        if elf.columns is not None and not elf.has_pdis:
            # It would go out as a packet that names a compute unit, of which such a context has none.
            raise BadArgument(
                f"{elf.path} has no PDI, and without an xclbin there is no other",
                call="elf",
                remedy="Make it with the PDIs that its kernels load",
            )
        self.opcode = (
            packet.Opcode.START_NPU_PREEMPT_ELF
            if elf.has_pdis
            else packet.Opcode.START_NPU_PREEMPT
            if elf.preemptible
            else packet.Opcode.START_NPU
        )
        if self.opcode != packet.Opcode.START_NPU:
            context.client.need(_PREEMPTION)
        self.context = context
        self.elf = elf
        self.cu = cu
        self.pdis = {symbol: load_pdi(context.client, data) for symbol, data in self.code.pdis.items()}

    def load(self) -> ControlCode:
        """Code for a run, whose arguments are not set yet. Raises OutOfHeap, OutOfMemory."""
        return ControlCode(self)


class ControlCode(Uncopied):
    """The code of one run. Start it only after :meth:`flush`; set no argument while it runs. Not thread-safe.

    ``buffers`` are those that a submit touches besides the arguments. ``scratchpad``: the control scratchpad,
    zeros at first, or None.
    """

    def __init__(self, kernel: ControlKernel) -> None:
        self._kernel = kernel
        code, client = kernel.code, kernel.context.client
        self._parts = {
            # Control packets are read by the array's DMA, which reaches no device heap.
            part: allocate(client, len(data), "share" if part == PACKETS else "dev", flush=False)
            for part, data in code.parts.items()
        }
        self._memory = {part: buffer.memory() for part, buffer in self._parts.items()}
        for part, data in code.parts.items():
            self._memory[part][:] = data
        self._fresh = True
        self._changed: list[tuple[Buffer, int, int]] = []
        self._further = {}
        for symbol, data in code.packets.items():
            buffer = self._further[symbol] = allocate(client, len(data), flush=False)
            buffer.write(data)
        self.scratchpad: Buffer | None = None
        if kernel.elf.scratchpad:
            self.scratchpad = allocate(client, kernel.elf.scratchpad, "dev", flush=False)
            self.scratchpad.write(bytes(kernel.elf.scratchpad))
        self._preemption = kernel.context.preemption_scratch() if SAVE in code.parts else None
        self.buffers = (
            *self._parts.values(),
            *self._further.values(),
            *kernel.pdis.values(),
            *(each for each in (self.scratchpad, self._preemption) if each is not None),
        )
        self._settle()

    def _settle(self) -> None:
        """Writes the addresses that do not change."""
        for symbol, buffer in (
            *self._kernel.pdis.items(),
            *self._further.items(),
            (CONTROL_SCRATCHPAD, self.scratchpad),
            (CONTROL_PACKETS, self._parts.get(PACKETS)),
        ):
            if buffer is not None:
                self._write(TEXT, symbol, None, buffer.address)
        if self._preemption is not None:
            for part in (SAVE, RESTORE):
                self._write(part, PREEMPTION_SCRATCHPAD, None, self._preemption.address)

    def _write(self, part: str, name: str, index: int | None, value: int) -> None:
        self._put(part, self._kernel.code.places(part, name, index), value)

    def _put(self, part: str, places: tuple[Patch, ...], value: int) -> None:
        memory = self._memory[part]
        for place in places:
            data = place.value(value)
            memory[place.at : place.at + len(data)] = data
            if not self._fresh:
                self._changed.append((self._parts[part], place.at, len(data)))

    def set(self, index: int, name: str, value: int) -> None:
        """Writes an argument: a buffer's address, or a number. By its name, or else by its index."""
        for part in (PACKETS, TEXT):
            if part in self._memory:
                self._write(part, name, index, value)

    def flush(self) -> None:
        """Writes the cache lines back that the host has written since the last time."""
        if self._fresh:
            for buffer in self._parts.values():
                buffer.to_device()
            self._fresh = False
        for buffer, at, nbytes in self._changed:
            buffer.to_device(at, nbytes)
        self._changed.clear()

    def part(self, name: str) -> bytes:
        """The bytes of a section as the NPU sees them. Raises KeyError for one that is not there."""
        return bytes(self._memory[name])

    def _places(self) -> Iterator[Placed]:
        for part in (TEXT, SAVE, RESTORE):
            buffer = self._parts.get(part)
            yield Placed() if buffer is None else Placed(buffer.address, buffer.nbytes)

    def packet(self, argument: int = 0) -> bytes:
        """The packet that starts it. `argument`: the kernel's first (of an xclbin's kernel, 3 by custom; of a
        full file a buffer's address, which the driver ignores)."""
        code, save, restore = self._places()
        kernel = self._kernel
        if kernel.opcode == packet.Opcode.START_NPU_PREEMPT_ELF:
            return packet.start_npu_elf(code, save, restore, argument)
        if kernel.opcode == packet.Opcode.START_NPU_PREEMPT:
            return packet.start_npu_preempt(kernel.cu or 0, code, save, restore, argument)
        return packet.start_npu(kernel.cu or 0, code, argument)
