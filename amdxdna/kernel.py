"""Kernels: a compute unit of an xclbin together with an instruction stream."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from amdxdna import losses, packet
from amdxdna.arguments import Uncopied, seconds
from amdxdna.arguments import buffers as _buffers
from amdxdna.buffer import Buffer
from amdxdna.errors import BadArgument, BadType, closed
from amdxdna.reaper import Finalizer, reap
from amdxdna.run import Command, Run
from amdxdna.signals import section

_STRUCTS = packet.START_CU_STRUCTS
_HEADERS = packet.START_CU_HEADERS
_RUN = packet.RUN_INSTRUCTIONS


class Place(Protocol):
    """The context of the moment (:class:`amdxdna.hwctx.HwContext`)."""

    def take(self) -> Command:
        """A command buffer that is not in use."""

    def touches(self, command: Command, handles: Sequence[int]) -> None:
        """Notes the buffer handles that the command touches, each once."""

    def submit(self, command: Command, keep: object) -> Run:
        """Submits what is in the command's packet, with the buffers that were listed."""


class Shared(Protocol):
    """What a kernel needs of its xclbin's context, which the pool makes, gives up and makes again."""

    most_buffers: int

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    @property
    def path(self) -> str:
        """The xclbin's name, for messages."""

    def ready(self) -> Place:
        """A context that works; made when there is none. The lock is held."""

    def lost(self) -> bool:
        """After a refused submit: whether a new context will do."""

    def replace(self) -> None:
        """Makes the next command run in a fresh context."""

    def settle(self) -> bool:
        """Waits until nothing is in flight; false where commands may go on using their buffers."""

    def chain(self, calls: Sequence[tuple[Kernel, Sequence[Buffer]]], flush: bool) -> Run:
        """Submits runs as one command."""

    def drop_kernel(self) -> None:
        """Counts one kernel less, which was closed."""

    def kernel_dropped(self) -> None:
        """Counts one kernel less, which was dropped and never closed."""


class Kernel(Uncopied):
    """An instruction stream ready to run. Made by :meth:`amdxdna.pool.ContextPool.kernel`.

    The kernels of one xclbin share a hardware context, which the pool may give up while none of them runs;
    starting one brings it back. ``name`` is for messages, ``ops`` its operations a run. Thread-safe. A kernel
    that is dropped without close() is given back like a dropped :class:`Buffer`, when its runs are over.
    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_bytes",
        "_client",
        "_finalizer",
        "_handle",
        "_insts",
        "_mask",
        "name",
        "ops",
        "shared",
    )

    def __init__(self, shared: Shared, insts: Buffer, cu: int, name: str, ops: int) -> None:
        self.shared = shared
        self.name = name
        self.ops = ops
        self._client = insts.client
        self._insts: Buffer | None = insts
        self._handle = insts.handle
        self._address = insts.address
        self._bytes = insts.nbytes
        self._mask = 1 << cu
        # Checks CU and address once; what changes from run to run is checked in prepare().
        packet.start_cu(cu, self._address, self._bytes, ())
        self._finalizer = Finalizer(self, shared.kernel_dropped)

    def __repr__(self) -> str:
        return f"<Kernel {self.name} of {self.shared.path}>"

    def start(self, *buffers: Buffer, flush: bool = True, outputs: Sequence[Buffer] = ()) -> Run:
        """Submits a run over `buffers`, in the order of the kernel's arguments, and returns at once.

        With `flush` every buffer that is not clean is written back first (see :class:`Buffer`); without, the
        caller has done so. `outputs` are made readable for the host by the run's wait. Blocks while four runs
        are in flight in the xclbin's context, and while a context is made when the pool has to. Raises
        BadArgument for more than ten buffers, a buffer of another device or what is none, Closed for a closed
        one, and what making a context raises.
        """
        if type(outputs) is not tuple or outputs:
            _buffers("start", "outputs", outputs, Buffer)
        run = self._start(buffers, flush)
        run.outputs = outputs
        return run

    def _start(self, buffers: tuple[Buffer, ...], flush: bool) -> Run:
        shared = self.shared
        if len(buffers) > shared.most_buffers:
            return shared.chain([(self, buffers)], flush)
        handles, addresses = self.prepare(buffers, flush)
        attempts = 0
        with shared.lock:
            while True:
                context = shared.ready()
                command = context.take()
                self.fill(command, addresses)
                for buffer in buffers:
                    if not buffer.handle:  # closed meanwhile: its number may be another's by now
                        raise closed("buffer")
                context.touches(command, tuple(handles))
                try:
                    return context.submit(command, buffers)
                except BadArgument:
                    if not shared.lost():
                        raise
                attempts += 1
                losses.pause(attempts, "EXEC_CMD")

    def run(
        self,
        *buffers: Buffer,
        flush: bool = True,
        outputs: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Run:
        """Starts a run and waits for it: :meth:`start`, then :meth:`Run.wait`."""
        if type(outputs) is not tuple or outputs:
            _buffers("run", "outputs", outputs, Buffer)
        if timeout is not None:
            seconds("run", "timeout", timeout, past=True)
        return self._start(buffers, flush).wait(timeout, outputs)

    def prepare(self, buffers: Sequence[Buffer], flush: bool) -> tuple[set[int], list[int]]:
        """Checks and flushes `buffers`; returns (BO handles of the run, addresses). Internal."""
        if len(buffers) > packet.MAX_BUFFERS:
            raise BadArgument(
                f"{self.name}: {len(buffers)} buffers; {packet.MAX_BUFFERS} fit a packet",
                call="start",
                remedy="Put several into one buffer",
            )
        self.check_open()
        client = self._client
        handles = {self._handle}
        addresses = []
        for buffer in buffers:
            if not isinstance(buffer, Buffer):
                raise BadType(
                    f"{self.name}: a {type(buffer).__name__} is no buffer",
                    call="start",
                    remedy="Use device.alloc and copy it in, or device.wrap for its own memory",
                )
            handle = buffer.handle
            if buffer.client is not client or not handle:
                self._refuse(buffer)
            handles.add(handle)
            addresses.append(buffer.address)
            if flush and not buffer.clean:
                buffer.flush_for_start()
        return handles, addresses

    def fill(self, command: Command, addresses: Sequence[int]) -> None:
        """Writes the run's packet. Only the driver reads a command buffer, on the CPU: no flush. Internal."""
        count = len(addresses)
        _STRUCTS[count].pack_into(
            command.packet, 0, _HEADERS[count], self._mask, _RUN, 0, self._address, self._bytes, *addresses
        )

    def check_open(self) -> None:
        """Raises Closed after close(). Internal."""
        if self._insts is None:
            raise closed("kernel")

    def _refuse(self, buffer: Buffer) -> None:
        if not buffer.handle:
            raise closed("buffer")
        raise BadArgument(
            f"{self.name}: a buffer of another device",
            call="start",
            remedy="Allocate it from the kernel's device, or pass it on as a dma-buf",
        )

    @section
    def close(self) -> None:
        """Gives the instruction buffer back; with an xclbin's last kernel goes its context. Idempotent."""
        insts, self._insts = self._insts, None
        if insts is not None:
            self._finalizer.detach()
            self.shared.drop_kernel()
            insts.close()
            reap()
