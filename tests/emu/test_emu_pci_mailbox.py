"""Mailbox channels: both rings, wrapping, a full ring, and what a reply does to the registers."""

from __future__ import annotations

import os
import struct

import pytest

from amdxdna.emu.pci import registers as reg
from amdxdna.emu.pci.mailbox import TOMBSTONE, Channel, Message
from amdxdna.emu.pci.msix import Interrupts, capability


class Driver:
    """The other side of a channel, as the driver behaves."""

    def __init__(self, number: int = 3) -> None:
        self.bars = reg.Bars()
        self.interrupts = Interrupts(8)
        self.channel = Channel(self.bars, self.interrupts, number)
        words = self.channel.rings(head_first=False)
        self.x2i_tail, self.x2i_head = words[0] - reg.REGISTERS_BASE, words[1] - reg.REGISTERS_BASE
        self.i2x_tail, self.i2x_head = words[4] - reg.REGISTERS_BASE, words[5] - reg.REGISTERS_BASE
        self.x2i, self.i2x = words[2] - reg.SRAM_BASE, words[6] - reg.SRAM_BASE
        self.sent = 0
        self.tail = 0
        self.head = 0

    def send(self, opcode: int, body: bytes) -> int:
        """Writes a request; its id."""
        identifier = 0x1D000000 | self.sent
        self.sent += 1
        message = struct.pack("<IIII", len(body), len(body) | 1 << 16, identifier, opcode) + body
        if self.tail + len(message) > reg.RING_SIZE - 4:
            self.bars.store(reg.SRAM_BAR, self.x2i + self.tail, TOMBSTONE)
            self.tail = 0
        self.bars.write(reg.SRAM_BAR, self.x2i + self.tail, message)
        self.tail += len(message)
        self.bars.store(reg.REGISTERS_BAR, self.x2i_tail, self.tail)
        return identifier

    def receive(self) -> Message | None:
        """Reads one reply."""
        while self.head != self.bars.load(reg.REGISTERS_BAR, self.i2x_tail):
            size, total, identifier, opcode = struct.unpack(
                "<IIII", self.bars.read(reg.SRAM_BAR, self.i2x + self.head, 16)
            )
            if size == TOMBSTONE:
                self.head = 0
                continue
            assert total == size | 1 << 16
            body = self.bars.read(reg.SRAM_BAR, self.i2x + self.head + 16, size)
            self.head += 16 + size
            self.bars.store(reg.REGISTERS_BAR, self.i2x_head, self.head)
            return Message(opcode, identifier, body)
        return None


def test_many_messages_wrap_both_rings() -> None:
    driver = Driver()
    for i in range(200):
        body = struct.pack("<I", i) * (1 + i % 20)
        identifier = driver.send(0x100 + i, body)
        request = driver.channel.take()
        assert request == Message(0x100 + i, identifier, body)
        assert driver.bars.load(reg.REGISTERS_BAR, driver.x2i_head) == driver.tail
        assert driver.channel.take() is None
        driver.channel.reply(request, body[::-1])
        assert driver.receive() == Message(0x100 + i, identifier, body[::-1])


def test_a_full_ring_holds_replies_back() -> None:
    """Replies past the ring's size wait, in order, and never overwrite what the driver has not read."""
    driver = Driver()
    requests = [Message(1, i, b"") for i in range(100)]
    for i, request in enumerate(requests):
        driver.channel.reply(request, struct.pack("<25I", *[i] * 25))
    got = []
    while True:
        message = driver.receive()
        driver.channel.push()
        if message is None:
            message = driver.receive()
        if message is None:
            break
        got.append(message)
    assert [m.id for m in got] == list(range(100))
    assert all(m.body == struct.pack("<25I", *[m.id] * 25) for m in got)


def test_a_reply_interrupts() -> None:
    driver = Driver()
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    driver.interrupts.connect(3, fd)
    driver.channel.reply(Message(1, 2, b""), b"\0\0\0\0")
    assert os.eventfd_read(fd) == 1
    assert driver.bars.load(reg.REGISTERS_BAR, driver.channel.interrupt) == 1
    assert driver.channel.interrupt == driver.i2x_head + 4


def test_a_closed_channel_is_silent() -> None:
    driver = Driver()
    driver.send(1, b"")
    driver.channel.close()
    assert driver.channel.take() is None
    driver.channel.reply(Message(1, 2, b""), b"1234")
    assert driver.receive() is None


@pytest.mark.parametrize("unread", [0, 0x100])
@pytest.mark.parametrize("more", [0, 4])
def test_a_reply_fills_all_of_a_ring_but_a_word(unread: int, more: int) -> None:
    """From the ring's beginning, behind its end, and up to what the driver has not read."""

    def reply(nbytes: int) -> int:
        driver.channel.reply(Message(1, 2, b""), bytes(nbytes - 16))
        return driver.bars.load(reg.REGISTERS_BAR, driver.i2x_tail)

    driver = Driver()
    assert reply(0x7FC + more) == (0 if more else 0x7FC)
    driver = Driver()
    assert reply(0x700) == 0x700 and driver.receive()
    if unread:
        assert reply(unread) == unread  # it does not fit behind: to the beginning
    assert reply(0x6FC - unread + more) == ((unread or 0x700) if more else 0x6FC)


@pytest.mark.parametrize(("size", "tail"), [(0x1000, 0x100), (8, 0x10), (8, 0x800), (8, 0x10000)])
def test_a_malformed_ring_ends_the_channel(size: int, tail: int) -> None:
    driver = Driver()
    driver.bars.write(reg.SRAM_BAR, driver.x2i, struct.pack("<IIII", size, size, 0, 1))
    driver.bars.store(reg.REGISTERS_BAR, driver.x2i_tail, tail)
    assert driver.channel.take() is None
    assert driver.channel.closed


def test_ring_addresses() -> None:
    """Channels do not overlap, and head comes first where it is asked for."""
    bars, interrupts = reg.Bars(), Interrupts(32)
    seen: set[int] = set()
    for number in range(32):
        words = Channel(bars, interrupts, number).rings(head_first=True)
        assert words[0] == words[1] + 4, "head first"
        assert not any(word % 4 for word in words)
        for start, size in ((words[2], words[3]), (words[6], words[7])):
            span = set(range(start, start + size))
            assert not span & seen
            assert start + size <= reg.SRAM_BASE + reg.BAR_SIZES[reg.SRAM_BAR]
            seen |= span


def test_interrupts_are_latched() -> None:
    """An interrupt without an eventfd is delivered when one arrives: once, and not after a reset."""
    interrupts = Interrupts(4)
    interrupts.raise_vector(2)
    interrupts.raise_vector(2)
    assert interrupts.pending == {2}
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    interrupts.connect(2, os.dup(fd))
    assert os.eventfd_read(fd) == 1
    assert not interrupts.pending
    interrupts.disconnect()
    interrupts.raise_vector(2)
    interrupts.clear()
    interrupts.connect(2, os.dup(fd))
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    interrupts.disconnect(2)
    os.close(fd)


def test_capability() -> None:
    assert capability(32, 1) == bytes([0x11, 0, 31, 0, 1, 0, 0, 0, 1, 0x80, 0, 0])
