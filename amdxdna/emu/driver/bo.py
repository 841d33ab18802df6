"""Buffer objects: what a GEM handle names, how long it lives, and at which addresses it is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.store import Backing, BackingStore

SHARE: int = lib.AMDXDNA_BO_SHARE
DEV_HEAP: int = lib.AMDXDNA_BO_DEV_HEAP
DEV: int = lib.AMDXDNA_BO_DEV
CMD: int = lib.AMDXDNA_BO_CMD
INVALID_ADDR: int = lib.AMDXDNA_INVALID_ADDR


class Heap(Protocol):
    """Where DEV BOs lie."""

    def free(self, bo: Bo) -> None:
        """Takes back the range of a DEV BO that is gone."""


class Owner(Protocol):
    """What a BO needs of the open that made it: its memory, its address space, and what is counted there."""

    pasid: int
    total_usage: int
    internal_usage: int
    pinned: int
    borrowed: int

    @property
    def store(self) -> BackingStore: ...

    @property
    def space(self) -> AddressMap: ...

    @property
    def heap(self) -> Heap: ...


class Bo:
    """One buffer object. CMD BOs are SHARE BOs that count as internal (amdxdna_gem.c of Linux 7.3).

    References (`refs`): every handle, every mapping, the client's and contexts' hold on heap chunks, and DEV
    BOs' hold on theirs. Jobs in flight (`busy`) keep it too. All fields are guarded by the device's memory
    lock.
    """

    __slots__ = (
        "assigned",
        "backing",
        "busy",
        "chunks",
        "client",
        "dev_address",
        "handed_out",
        "internal",
        "iova",
        "kind",
        "map_offset",
        "opens",
        "pinned",
        "pointer",
        "private",
        "refs",
        "size",
        "user_address",
        "user_memory",
        "view",
    )

    def __init__(self, kind: int, size: int, client: Owner) -> None:
        self.kind = kind
        self.size = size
        self.client = client
        """Who opened it first; whose usage it counts in."""
        self.refs = 1
        self.opens = 0
        self.busy = 0
        """Jobs in flight that list it."""
        self.internal = kind == DEV_HEAP
        self.private = False
        """Made over user memory: cannot be exported."""
        self.backing: Backing | None = None
        self.map_offset = 0
        self.pointer = 0
        """The model's own mapping, in this process."""
        self.handed_out = 0
        """Bytes of the model's own mapping that the client uses as its mapping."""
        self.view: Any = None
        self.iova = INVALID_ADDR
        self.user_address = INVALID_ADDR
        """The client's address of it: the first mapping's; INVALID_ADDR while there is none."""
        self.user_memory = False
        self.pinned = 0
        """Bytes of the client's own memory in it, which count against the locked-memory limit."""
        self.dev_address = INVALID_ADDR
        """Device address, of DEV_HEAP and DEV BOs."""
        self.chunks: list[Bo] = []
        """Heap chunks a DEV BO lies in."""
        self.assigned = 0
        """Context whose debug buffer it is, 0 for none."""

    def device_address(self, pasid: bool) -> int:
        """What GET_BO_INFO reports as xdna_addr."""
        if self.kind in (DEV_HEAP, DEV):
            return self.dev_address
        return INVALID_ADDR if pasid else self.iova

    def bus_address(self, pasid: bool) -> int:
        """Where the device finds it on the bus: the mapping's host address, or its IOVA."""
        return self.user_address if pasid else self.iova

    def words(self) -> Any:
        """A writable buffer over the bytes of a mapped BO (made once)."""
        if self.view is None:
            self.view = ffi.buffer(ffi.cast("char *", self.pointer), self.size)
        return self.view


class Mapped(NamedTuple):
    """[start, end) shows `bo` from byte `offset` on. `own`: it is the model's own mapping of the BO."""

    start: int
    end: int
    bo: Bo
    offset: int
    own: bool


class AddressMap:
    """Which BO is at which address of one address space. Not thread-safe; ranges never overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[Mapped] = []
        self.changes = 0
        """Grows with every change: who keeps what `find` told compares it."""

    def __iter__(self) -> Iterator[Mapped]:
        return iter(list(self._ranges))

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, start: int, size: int, bo: Bo, offset: int = 0, own: bool = False) -> None:
        """Adds a range that overlaps no other."""
        self.changes += 1
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._ranges.insert(at, Mapped(start, start + size, bo, offset, own))

    def discard(self, bo: Bo) -> None:
        """Takes out every range of `bo`."""
        self.changes += 1
        keep = [r for r in self._ranges if r.bo is not bo]
        self._ranges = keep
        self._starts = [r.start for r in keep]

    def find(self, address: int, size: int) -> tuple[Bo, int] | None:
        """(BO, offset in it) of the range that holds all `size` bytes at `address`."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self._ranges[at]
        if address + size > found.end:
            return None
        return found.bo, address - found.start + found.offset

    def overlapping(self, start: int, size: int) -> list[Mapped]:
        """The ranges with bytes in [start, start + size)."""
        low = max(bisect_right(self._starts, start) - 1, 0)
        high = bisect_left(self._starts, start + size)
        return [r for r in self._ranges[low:high] if r.end > start]

    def remove(self, start: int, size: int) -> list[Mapped]:
        """Takes [start, start + size) out; returns the pieces that were in it, cut to it."""
        self.changes += 1
        end = start + size
        pieces = []
        for r in self.overlapping(start, size):
            at = bisect_left(self._starts, r.start)
            del self._starts[at], self._ranges[at]
            if r.start < start:
                self.add(r.start, start - r.start, r.bo, r.offset, r.own)
            if r.end > end:
                self.add(end, r.end - end, r.bo, r.offset + end - r.start, r.own)
            low, high = max(r.start, start), min(r.end, end)
            pieces.append(Mapped(low, high, r.bo, r.offset + low - r.start, r.own))
        return pieces
