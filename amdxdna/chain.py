"""Command chains: several runs of one context in one submit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amdxdna import losses, packet
from amdxdna.arguments import Uncopied, wants
from amdxdna.buffer import Buffer
from amdxdna.errors import BadArgument, closed
from amdxdna.kernel import Kernel, Place
from amdxdna.run import Command, Run

_CALLS = "Give a list of (kernel, [buffers])"
Call = tuple[Kernel, Sequence[Buffer]]


def _listed(calls: object) -> Sequence[Any]:
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise wants("chain", "calls", calls, _CALLS)
    return calls


def _checked(index: int, call: Any) -> tuple[Kernel, tuple[Buffer, ...]]:
    """A member of a chain; its buffers are checked with those of any start."""
    if (
        not isinstance(call, Sequence)
        or len(call) != 2
        or not isinstance(call[0], Kernel)
        or not isinstance(call[1], Sequence)
    ):
        raise wants("chain", f"calls[{index}]", call, _CALLS)
    return call[0], tuple(call[1])


def start_chain(calls: Sequence[Call], flush: bool = True) -> Run:
    """Submits the runs `calls` = [(kernel, buffers), ...] as one command: in order, until one fails.

    The kernels must be of one xclbin. A failed chain's exception carries the failing member's ``index``, or
    None where the driver does not tell it. A chain counts as one of the four commands in flight.

    A failed member is an exception of the wait on every known driver: by the chain's state, or by its error
    index, which drivers before 750817a7c41d write though they call the chain completed. What firmware and
    driver together call completed, index untouched, is taken for it: whether each member wrote its result
    only the result can tell, see :class:`amdxdna.marks.Marks`.

    Raises BadArgument for an empty chain, kernels of several xclbins, or more runs than the driver's 4 KiB
    list holds (35 of up to five buffers), and what :meth:`Kernel.start` raises.
    """
    return Staged([_checked(index, call) for index, call in enumerate(_listed(calls))]).start(flush)


class Staged(Uncopied):
    """Runs of one context, their packets written, to be submitted as one command. Internal to the package.

    What a start takes is done but for the flush and the submit, so that it can be done while the command
    before is running. `start` it at most once. Not thread-safe.
    """

    __slots__ = (
        "_addresses",
        "_buffers",
        "_calls",
        "_command",
        "_context",
        "_handles",
        "_keep",
        "_kernels",
        "_words",
        "shared",
    )

    def __init__(self, calls: Sequence[tuple[Kernel, tuple[Buffer, ...]]], single: bool = False) -> None:
        """`single`: a call alone goes as a command of its own where the driver takes it. Raises as
        :func:`start_chain`."""
        if not calls:
            raise BadArgument("a chain without runs", call="chain", remedy="Give at least one")
        self.shared = shared = calls[0][0].shared
        if any(kernel.shared is not shared for kernel, _ in calls):
            raise BadArgument(
                "the kernels of a chain belong to several xclbins",
                call="chain",
                remedy="Make one chain for each xclbin",
            )
        handles: set[int] = set()
        self._addresses = []
        words = 0
        for kernel, buffers in calls:
            more, of_call = kernel.prepare(buffers, False)
            handles |= more
            self._addresses.append(of_call)
            words = max(words, packet.START_CU_WORDS[len(of_call)])
        limit = packet.chain_limit(words)
        if len(calls) > limit:
            raise BadArgument(
                f"a chain of {len(calls)} runs; {limit} with this many buffers fit",
                call="chain",
                remedy="Split the chain",
            )
        alone = single and len(calls) == 1 and len(calls[0][1]) <= shared.most_buffers
        self._words = 0 if alone else words
        self._calls = calls
        self._kernels = tuple(dict.fromkeys(kernel for kernel, _ in calls))
        self._buffers = tuple(dict.fromkeys(buffer for _, buffers in calls for buffer in buffers))
        self._handles = tuple(handles)
        self._keep = calls[0][1] if alone else tuple(buffers for _, buffers in calls)
        self._context: Place | None = None
        self._command: Command | None = None
        with shared.lock:
            self._write(shared.ready())

    def _write(self, context: Place) -> None:
        """Writes the packets into commands of a context. The lock is held."""
        self.drop()
        members = []
        for (kernel, _), of_call in zip(self._calls, self._addresses, strict=True):
            member = context.take()
            kernel.fill(member, of_call)
            members.append(member)
        command = members[0]
        if self._words:
            command = context.take()
            command.members = tuple(members)
            packed = packet.chain([member.buffer.handle for member in members], self._words)
            command.packet[: len(packed)] = packed
        context.touches(command, self._handles)
        self._context, self._command = context, command

    def start(self, flush: bool = True) -> Run:
        """Submits it; `flush` and what it raises as :meth:`Kernel.start`."""
        for kernel in self._kernels:
            kernel.check_open()
        for buffer in self._buffers:
            if flush and not buffer.clean:
                buffer.flush_for_start()
        attempts = 0
        with self.shared.lock:
            while True:
                context = self.shared.ready()
                if context is not self._context or self._command is None:
                    self._write(context)
                for buffer in self._buffers:
                    if not buffer.handle:
                        raise closed("buffer")  # meanwhile: its number may be another's by now
                command, self._command = self._command, None
                assert command is not None
                try:
                    return context.submit(command, self._keep)
                except BadArgument:
                    if not self.shared.lost():
                        raise
                attempts += 1
                losses.pause(attempts, "EXEC_CMD")

    def drop(self) -> None:
        """Gives the commands back that were not submitted. Idempotent."""
        command, self._command = self._command, None
        if command is not None:
            for each in dict.fromkeys((*command.members, command)):
                each.close()
