"""Commands that are started again and again: each owns its command buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from amdxdna import packet
from amdxdna.arguments import Uncopied, content, instance, wants
from amdxdna.buffer import Buffer
from amdxdna.errors import BadArgument, closed
from amdxdna.hwctx import HwContext
from amdxdna.packet import State, argument_words, opcode_of
from amdxdna.run import Command, Run

_BEHIND = 64
"""Bytes behind a packet that are 0: what drivers up to Linux 6.18 copy whatever its count says."""


class Restartable(Uncopied):
    """A packet that is changed and started any number of times, in a command buffer of its own.

    ``packet`` is what the next start submits: write it at any time. Nothing is flushed here: the caller does
    (:meth:`Buffer.to_device`) what the host wrote and the NPU reads. A start keeps its buffers alive until
    the run is over. One that is dropped in flight leaves its command buffer to the context. Several threads
    may wait for it; start it from one at a time.
    """

    __slots__ = ("__weakref__", "_command", "_run", "context", "packet")

    def __init__(self, context: HwContext, words: bytes) -> None:
        """`words`: the packet, its header first. Raises BadArgument for more than a command buffer holds."""
        instance("EXEC_CMD", "context", context, HwContext, "Give Device.context(...)")
        words = bytes(content("EXEC_CMD", "words", words, "Give the packet's bytes"))
        if len(words) > packet.CMD_BYTES - _BEHIND:
            raise BadArgument(
                f"a packet of {len(words)} bytes",
                call="EXEC_CMD",
                remedy=f"At most {packet.CMD_BYTES - _BEHIND} fit",
            )
        self.context = context
        self.packet = bytearray(words)
        self._run: Run | None = None
        self._command: Command = context.assign(self)

    @property
    def state(self) -> State:
        """Of the last start: COMPLETED, or how it failed; NEW before it, and while it is in flight."""
        return State.NEW if self._run is None else self._run.state

    @property
    def run(self) -> Run | None:
        """The last start."""
        return self._run

    @property
    def in_flight(self) -> bool:
        """Whether a start of it is not over. Does not block."""
        return self._run is not None and not self._run.done

    def start(self, buffers: Iterable[Buffer]) -> Run:
        """Submits the packet, which touches `buffers`, and returns at once.

        Raises BadArgument while a start of it is in flight, and for a buffer of another device; Closed for a
        closed context or buffer.
        """
        if self._as_list:
            self._run = RestartableChain([self]).start(buffers)
            return self._run
        listed = listed_buffers(buffers)
        handles = handles_of(self.context, listed)
        command = self.ready()
        self.context.touches(command, handles)
        self._run = self.context.submit(command, listed)
        return self._run

    @property
    def _as_list(self) -> bool:
        """Whether the driver takes it whole, and tells its failure, in a list of one only."""
        profile = self.context.client.profile
        if not profile.singles_trusted:
            return True
        most = profile.packet_words
        return most is not None and argument_words(int.from_bytes(self.packet[:4], "little")) > most

    def ready(self) -> Command:
        """The command, about to be submitted. Internal."""
        if self.in_flight:
            raise BadArgument(
                "this command is in flight",
                call="EXEC_CMD",
                remedy="Wait for it before it is started again, or use another one",
            )
        if not self.context.handle:
            raise closed("hardware context")
        if self._command.spent:
            self._command = self.context.assign(self)
        command = self._command
        # The driver leaves a state in the header, and a report of a time-out over the rest. Old drivers copy
        # more words than the packet has.
        fresh = bytes(self.packet)
        command.packet[: len(fresh) + _BEHIND] = fresh + bytes(_BEHIND)
        return command


def listed_buffers(value: Iterable[Buffer]) -> tuple[Buffer, ...]:
    """What any iterable gives. Raises BadType for what is none."""
    try:
        return tuple(value)
    except TypeError:
        raise wants("EXEC_CMD", "buffers", value, "Give a list of buffers") from None


def handles_of(context: HwContext, buffers: Sequence[Buffer]) -> list[int]:
    """The BO handles of `buffers`, each once, sorted. Raises BadArgument for one of another device, BadType
    for what is none, Closed for a closed one."""
    handles = set()
    for buffer in buffers:
        if not isinstance(buffer, Buffer):
            raise wants("EXEC_CMD", "buffers", buffer, "Give a list of buffers")
        handle = buffer.handle
        if not handle:
            raise closed("buffer")
        if buffer.client is not context.client:
            raise BadArgument(
                "a buffer of another device",
                call="EXEC_CMD",
                remedy="Allocate it from the context's device, or pass it on as a dma-buf",
            )
        handles.add(handle)
    return sorted(handles)


class RestartableChain(Uncopied):
    """Restartables of one context that are submitted as one command: in order, until one fails.

    Raises BadArgument where they are of several contexts or opcodes, or more than the driver's list takes;
    :func:`amdxdna.packet.chain_limit` says how many that is.
    """

    __slots__ = ("_head", "members")

    def __init__(self, members: Sequence[Restartable]) -> None:
        if not isinstance(members, Sequence) or not all(isinstance(one, Restartable) for one in members):
            raise wants("chain", "members", members, "Give a list of Restartables")
        self.members = tuple(members)
        if not self.members:
            raise BadArgument("a chain without runs", call="chain", remedy="Give at least one")
        context = self.members[0].context
        if any(member.context is not context for member in self.members):
            raise BadArgument(
                "the commands of a chain belong to several contexts",
                call="chain",
                remedy="Make one chain for each context",
            )
        self._head = Restartable(context, b"")

    @property
    def run(self) -> Run | None:
        """The last start."""
        return self._head.run

    def start(self, buffers: Iterable[Buffer]) -> Run:
        """Submits all; the packets touch `buffers`. Raises as :meth:`Restartable.start` does."""
        head = self._head
        listed = listed_buffers(buffers)
        handles = handles_of(head.context, listed)
        command = head.ready()  # before the members' packets are written, which one in flight may yet read
        commands = tuple(member.ready() for member in self.members)
        words = [argument_words(command.words[0]) for command in commands]
        if len({opcode_of(command.words[0]) for command in commands}) > 1:
            raise BadArgument(
                "the commands of a chain have several opcodes", call="chain", remedy="Make one chain for each"
            )
        packed = packet.chain([each.buffer.handle for each in commands], max(words))
        command.packet[: len(packed)] = packed
        command.members = commands
        head.context.touches(command, handles)
        head._run = head.context.submit(command, listed)
        return head._run
