"""Command chains: several runs of one context in one submit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amdxdna import losses, packet
from amdxdna.arguments import wants
from amdxdna.buffer import Buffer
from amdxdna.errors import BadArgument, closed
from amdxdna.kernel import Kernel
from amdxdna.run import Run

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
    calls = [_checked(index, call) for index, call in enumerate(_listed(calls))]
    if not calls:
        raise BadArgument("a chain without runs", call="chain", remedy="Give at least one")
    shared = calls[0][0].shared
    if any(kernel.shared is not shared for kernel, _ in calls):
        raise BadArgument(
            "the kernels of a chain belong to several xclbins",
            call="chain",
            remedy="Make one chain for each xclbin",
        )
    handles: set[int] = set()
    addresses = []
    words = 0
    for kernel, buffers in calls:
        more, of_call = kernel.prepare(buffers, flush)
        handles |= more
        addresses.append(of_call)
        words = max(words, packet.START_CU_WORDS[len(of_call)])
    limit = packet.chain_limit(words)
    if len(calls) > limit:
        raise BadArgument(
            f"a chain of {len(calls)} runs; {limit} with this many buffers fit",
            call="chain",
            remedy="Split the chain",
        )
    attempts = 0
    with shared.lock:
        while True:
            context = shared.ready()
            members = []
            for (kernel, _), of_call in zip(calls, addresses, strict=True):
                member = context.take()
                kernel.fill(member, of_call)
                members.append(member)
            command = context.take()
            command.members = tuple(members)
            packed = packet.chain([member.buffer.handle for member in members], words)
            command.packet[: len(packed)] = packed
            if not all(buffer.handle for _, buffers in calls for buffer in buffers):
                raise closed("buffer")  # meanwhile: its number may be another's by now
            try:
                return context.submit(command, handles, tuple(buffers for _, buffers in calls))
            except BadArgument:
                if not shared.lost():
                    raise
            attempts += 1
            losses.pause(attempts, "EXEC_CMD")
