"""Buffer objects: what a GEM handle names, and how long it lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.store import Backing

if TYPE_CHECKING:
    from amdxdna.emu.driver.client import Client

SHARE: int = lib.AMDXDNA_BO_SHARE
DEV_HEAP: int = lib.AMDXDNA_BO_DEV_HEAP
DEV: int = lib.AMDXDNA_BO_DEV
CMD: int = lib.AMDXDNA_BO_CMD
INVALID_ADDR: int = lib.AMDXDNA_INVALID_ADDR


class Bo:
    """One buffer object. CMD BOs are SHARE BOs that count as internal (amdxdna_gem.c of Linux 7.3).

    References (`refs`): every handle, every mapping, the client's and contexts' hold on heap chunks, and DEV
    BOs' hold on theirs. Jobs in flight (`busy`) keep it too. All fields are guarded by the device's memory
    lock.
    """

    __slots__ = ("assigned", "backing", "busy", "chunks", "client", "dev_address", "handed_out", "internal",
                 "iova", "kind", "map_offset", "opens", "pinned", "pointer", "private", "refs", "size",
                 "user_address", "user_memory", "view")

    def __init__(self, kind: int, size: int, client: Client) -> None:
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
