"""Mailbox channels: a pair of rings in SRAM, with their pointers and doorbells in the register BAR.

x2i is the driver's ring to the firmware, i2x the one back. A message is four words, size in bytes, size |
protocol << 16, id and opcode, then the body; a word 0xDEADFACE means that the next message starts at the
ring's beginning. The driver acknowledges an interrupt by clearing the register behind the i2x head
(drivers/accel/amdxdna/amdxdna_mailbox.c).
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from . import registers as reg
from .msix import Interrupts

TOMBSTONE = 0xDEADFACE
_HEADER = struct.Struct("<IIII")
_SIZE_MASK = 0x7FF


@dataclass(frozen=True)
class Message:
    """One request of the driver."""

    opcode: int
    id: int
    body: bytes


class Channel:
    """One channel. Number 0 is the management channel, the others belong to contexts.

    Not thread-safe: the owner serialises calls. After `close` replies are dropped.
    """

    def __init__(self, bars: reg.Bars, interrupts: Interrupts, number: int) -> None:
        self._bars = bars
        self._interrupts = interrupts
        self.vector = number
        base = reg.MAILBOX_REGISTERS + number * reg.MAILBOX_STRIDE
        self.x2i_tail, self.x2i_head = base, base + 4
        self.i2x_tail, self.i2x_head, self.interrupt = base + 8, base + 0x10, base + reg.MAILBOX_INTERRUPT
        self._x2i = reg.RINGS + number * 2 * reg.RING_SIZE
        self._i2x = self._x2i + reg.RING_SIZE
        self._read = 0
        self._write = 0
        self._waiting: deque[bytes] = deque()
        self.closed = False
        for register in (self.x2i_tail, self.x2i_head, self.i2x_tail, self.i2x_head, self.interrupt):
            bars.store(reg.REGISTERS_BAR, register, 0)

    def rings(self, *, head_first: bool) -> tuple[int, ...]:
        """x2i then i2x: two pointer registers, buffer and size, as device addresses.

        The management channel is announced tail first, a context's channel head first.
        """
        words: list[int] = []
        x2i, i2x = (self.x2i_tail, self.x2i_head, self._x2i), (self.i2x_tail, self.i2x_head, self._i2x)
        for tail, head, buffer in (x2i, i2x):
            pointers = (head, tail) if head_first else (tail, head)
            words += [reg.REGISTERS_BASE + pointer for pointer in pointers]
            words += [reg.SRAM_BASE + buffer, reg.RING_SIZE]
        return tuple(words)

    def close(self) -> None:
        """Ends the channel; late replies go nowhere."""
        self.closed = True
        self._waiting.clear()

    def take(self) -> Message | None:
        """The next request, or None. A malformed ring (the driver never writes one) closes the channel."""
        while not self.closed:
            tail = self._bars.load(reg.REGISTERS_BAR, self.x2i_tail)
            if self._read == tail:
                return None
            header = self._bars.read(reg.SRAM_BAR, self._x2i + self._read, _HEADER.size)
            size, _, identifier, opcode = _HEADER.unpack(header)
            if size == TOMBSTONE and self._read > tail:
                self._read = 0
                continue
            start, end = self._read + _HEADER.size, self._read + _HEADER.size + size
            if tail >= reg.RING_SIZE or end > reg.RING_SIZE or (self._read < tail < end):
                self.close()
                return None
            self._read = end
            self._bars.store(reg.REGISTERS_BAR, self.x2i_head, end)
            return Message(opcode, identifier, self._bars.read(reg.SRAM_BAR, self._x2i + start, size))
        return None

    def reply(self, request: Message, body: bytes) -> None:
        """Answers `request`; kept back while the ring is full."""
        if self.closed:
            return
        header = _HEADER.pack(len(body), len(body) & _SIZE_MASK | 1 << 16, request.id, request.opcode)
        self._waiting.append(header + body)
        self.push()

    def push(self) -> None:
        """Writes what was kept back, as far as there is room; called when the driver moved its head."""
        wrote = False
        while self._waiting and self._place(self._waiting[0]):
            self._waiting.popleft()
            wrote = True
        if wrote:
            self._bars.store(reg.REGISTERS_BAR, self.i2x_tail, self._write)
            self._bars.store(reg.REGISTERS_BAR, self.interrupt, 1)
            self._interrupts.raise_vector(self.vector)

    def _place(self, message: bytes) -> bool:
        # One word is always left free: for the tombstone, and so that a full ring differs from an empty one.
        head = self._bars.load(reg.REGISTERS_BAR, self.i2x_head)
        limit = head - 4 if head > self._write else reg.RING_SIZE - 4
        if self._write + len(message) > limit:
            if head > self._write or len(message) > head - 4:
                return False
            self._bars.store(reg.SRAM_BAR, self._i2x + self._write, TOMBSTONE)
            self._write = 0
        self._bars.write(reg.SRAM_BAR, self._i2x + self._write, message)
        self._write += len(message)
        return True
