"""How the NPU reaches memory: through its front end, which knows address spaces and backing pages."""

from __future__ import annotations

from typing import Protocol


class BadAddress(Exception):
    """The context cannot reach these bytes."""

    def __init__(self, address: int, size: int) -> None:
        super().__init__(address, size)
        self.address = address
        self.size = size
        self.argument: int | None = None
        """Which of a command's buffers it is, from 0."""

    def __str__(self) -> str:
        if self.argument is None:
            return f"no memory of this context at {self.address:#x}, {self.size} bytes"
        if not self.address:
            return f"argument {self.argument} is missing: address 0x0 where {self.size} bytes are needed"
        return f"argument {self.argument}: no {self.size} bytes of this context's memory at {self.address:#x}"


class Memory(Protocol):
    """What a front end gives its :class:`~amdxdna.emu.npu.npu.Npu`. Called from the contexts' workers."""

    def pointer(self, context: int, address: int, size: int) -> int:
        """A pointer of this process to `size` readable and writable bytes at the context's `address`.

        `address` is what the device puts on the bus: an IOVA, or a host address of the context's process.
        Device heap addresses (0x4000000 and up) never come here: the NPU has turned them into the address
        that the heap was mapped at. The pointer stays valid until :meth:`release` of the same context.
        Raises BadAddress.
        """

    def stamp(self, context: int) -> object:
        """What compares equal as long as `pointer` gives the same answers to `context`; None: no promise.

        Begins a command as `pointer` does: answers of an equal stamp may be used until :meth:`release`.
        """

    def release(self, context: int) -> None:
        """The pointers handed out to `context` are not used any more.

        Called after every command, also after one that failed or whose context is gone: a memory that
        hands out copies writes them back here, one that pins pages unpins them.
        """
