"""What a tracer knows of one open of the node: buffers, mappings, contexts, commands in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amdxdna.packet import CMD_BYTES, State
from amdxdna.trace import packets
from amdxdna.trace.fields import STATES, Memory, named

_INVALID = (1 << 64) - 1
_NOT_OVER = (State.NEW, State.QUEUED, State.RUNNING, State.SUBMITTED)


@dataclass
class TracedBo:
    """A buffer: its type's name, size, and the addresses that are known."""

    kind: str
    size: int
    device: int = _INVALID
    offset: int = _INVALID
    mappings: list[tuple[int, int]] = field(default_factory=list)
    """(address, size) in the program, newest last."""


@dataclass
class Submitted:
    """A command in flight: its BO, and when its submit began."""

    bo: int
    began: float
    reused: bool = False
    """The program has written another packet into the BO: it saw the end without a wait."""


@dataclass
class TracedContext:
    """A hardware context: its syncobj and what it has in flight, by sequence number."""

    syncobj: int
    flight: dict[int, Submitted] = field(default_factory=dict)
    newest: int = -1


class Session:
    """One open of the node, numbered from 1. Not thread-safe: the recorder's lock guards it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.bos: dict[int, TracedBo] = {}
        self.contexts: dict[int, TracedContext] = {}
        self._index: list[tuple[int, int, int]] | None = None
        self.read_bo: Callable[[int, int], bytes | None] | None = None
        """Reads a BO where mappings are not known from calls; given the handle and a size."""

    # -- addresses

    def find(self, address: int) -> tuple[int, int] | None:
        """(handle, offset) of the BO at a device address or at a mapping's host address."""
        if self._index is None:
            ranges = []
            for handle, bo in self.bos.items():
                if bo.kind == "DEV_HEAP":
                    continue
                if bo.device != _INVALID:
                    ranges.append((bo.device, bo.size, handle))
                ranges += [(start, size, handle) for start, size in bo.mappings]
            self._index = sorted(ranges)
        at = bisect_right(self._index, (address, 1 << 64, 0)) - 1
        if at >= 0:
            start, size, handle = self._index[at]
            if address < start + size:
                return handle, address - start
        return None

    def reader(self, memory: Memory) -> packets.ReadBo:
        """How packets are read from the program."""

        def read(handle: int, size: int) -> bytes | None:
            if self.read_bo is not None:
                return self.read_bo(handle, size)
            bo = self.bos.get(handle)
            if bo is None or not bo.mappings:
                return None
            address, mapped = bo.mappings[-1]
            return memory.read(address, min(size, mapped))

        return read

    def packet(self, handle: int, memory: Memory) -> dict[str, Any] | None:
        """The packet in a command BO that is submitted; None when it is not mapped where it can be seen."""
        read = self.reader(memory)
        data = read(handle, CMD_BYTES)
        decoded = None if data is None else packets.decode(data, self.find, read)
        again = {handle, *(member["bo"] for member in (decoded or {}).get("commands", ()))}
        for context in self.contexts.values():
            for command in context.flight.values():
                command.reused |= command.bo in again
        return decoded

    # -- what calls change

    def created(self, handle: int, kind: str, size: int) -> None:
        """Notes a BO that CREATE_BO, or an import, gave."""
        self.bos[handle] = TracedBo(kind, size)
        self._index = None

    def dropped(self, handle: int) -> TracedBo | None:
        """A GEM_CLOSE begins; what it closes."""
        self._index = None
        return self.bos.pop(handle, None)

    def kept(self, handle: int, bo: TracedBo) -> None:
        """Notes that the GEM_CLOSE failed: the BO is still there."""
        self.bos.setdefault(handle, bo)
        self._index = None

    def informed(self, handle: int, offset: int, host: int, device: int) -> None:
        """Notes what GET_BO_INFO told of a BO: map offset, host and device address."""
        bo = self.bos.setdefault(handle, TracedBo("imported", 0))
        bo.offset = offset
        bo.device = device
        if host != _INVALID and not bo.mappings and bo.size:
            bo.mappings.append((host, bo.size))
        self._index = None

    def mapped(self, offset: int, address: int, size: int) -> int | None:
        """mmap: the handle of the BO at `offset`, if it is known."""
        self.unmapped(address, size)
        for handle, bo in self.bos.items():
            if bo.offset == offset:
                bo.mappings.append((address, size))
                bo.size = bo.size or size
                return handle
        return None

    def unmapped(self, address: int, size: int) -> None:
        """What was mapped in that range is gone (or replaced)."""
        for bo in self.bos.values():
            bo.mappings = [
                (start, length)
                for start, length in bo.mappings
                if start + length <= address or start >= address + size
            ]
        self._index = None

    def context(self, handle: int, syncobj: int) -> None:
        """Notes a context that CREATE_HWCTX gave."""
        self.contexts[handle] = TracedContext(syncobj)

    def destroyed(self, handle: int, context: TracedContext) -> int:
        """DESTROY_HWCTX; how many of its commands no wait was issued for."""
        if self.contexts.get(handle) is context:
            del self.contexts[handle]
        return len(context.flight)

    def submitted(self, context: int, sequence: int, bo: int, began: float) -> None:
        """Notes a command that EXEC_CMD took."""
        known = self.contexts.get(context)
        if known is not None:
            known.flight[sequence] = Submitted(bo, began)
            known.newest = max(known.newest, sequence)

    def completed(self, waits: list[tuple[int, int]], ended: float, memory: Memory) -> list[dict[str, Any]]:
        """A wait for (syncobj, point) pairs succeeded: the commands that are over."""
        over = []
        read = self.reader(memory)
        for syncobj, point in waits:
            for handle, context in self.contexts.items():
                if context.syncobj != syncobj:
                    continue
                # Point 0 stands for whatever was submitted last.
                last = point or context.newest
                for sequence in sorted(s for s in context.flight if s <= last):
                    command = context.flight.pop(sequence)
                    over.append(self._over(handle, sequence, command, ended, read))
        return over

    def _over(
        self, context: int, sequence: int, command: Submitted, ended: float, read: packets.ReadBo
    ) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "context": context,
            "seq": sequence,
            "bo": command.bo,
            "state": None,
            "us": round((ended - command.began) * 1e6, 1),
        }
        try:
            data = read(command.bo, 64)
        except OSError:
            data = None
        # A packet that was written again may not have run yet: that state is the later command's.
        if data and not (command.reused and packets.state_of(data) in _NOT_OVER):
            entry["state"] = named(STATES, packets.state_of(data))
            report = packets.health(data) if entry["state"] == "TIMEOUT" and len(data) >= 36 else None
            if report:
                entry["health"] = report
        return entry

    @property
    def in_flight(self) -> int:
        """Commands that no wait was issued for."""
        return sum(len(context.flight) for context in self.contexts.values())
