"""Packets of every kind, as measured on the stock driver of Linux 7.3.4.

Each is accepted; what was measured is the state it ends in, and its first two words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from amdxdna._native import lib
from amdxdna.emu.kernels import stream

from .errnos import Bench, bench
from .kit import CHAIN, COMPLETED, ERROR, NEW, START_NPU, Target, case, header

CMD = lib.AMDXDNA_BO_CMD
_MASK = 0xFFFFFFFF


class Packet(NamedTuple):
    """`words` makes the packet; it ends in `state` with `second` in word 1 (None: not looked at)."""

    name: str
    words: Callable[[Bench], list[int]]
    state: int
    second: int | None


def _changed(at: int, value: int, program: bytes = b"") -> Callable[[Bench], list[int]]:
    def words(c: Bench) -> list[int]:
        packet = c.start_npu(program or stream.copy(4096, 1))
        packet[at] = value
        return packet

    return words


def _start(program: bytes, **fields: int) -> Callable[[Bench], list[int]]:
    return lambda c: c.start_npu(program, **fields)


def _other(opcode: int) -> Callable[[Bench], list[int]]:
    return lambda c: c.start_npu(stream.copy(4096, 1), opcode)


def _chain(*programs: bytes, members: int | None = None, bad: bool = False) -> Callable[[Bench], list[int]]:
    """A chain of START_NPU packets, each with its own instruction stream."""

    def words(c: Bench) -> list[int]:
        handles = []
        for program in programs:
            command, code = c.bo(0x1000, CMD), c.dev(0x1000)
            packet = c.start_npu(program)
            c.load(program, code)
            packet[2:5] = [code.device & _MASK, code.device >> 32, len(program)]
            handles.append(c.raw(command, *packet).handle)
        if bad:
            handles = [4242]
        payload = [len(handles) if members is None else members, 0, 0, 0, 0, 0]
        for handle in handles:
            payload += [handle, 0]
        return [header(CHAIN, len(payload)), *payload]

    return words


_COPY, _FAIL = stream.copy(4096, 1), stream.fail(0x3000002)
PACKETS = [
    Packet(
        "EXEC a packet that failed before",
        lambda c: [header(START_NPU, 14, ERROR), *[_MASK] * 1000],
        ERROR,
        _MASK,
    ),
    Packet("EXEC all-zero packet", lambda c: [0] * 12, NEW, 0),
    Packet("EXEC unknown opcode 5", _other(5), NEW, 1),
    Packet("EXEC cu mask 0", _changed(1, 0), NEW, 0),
    Packet("EXEC cu 9 (not configured; firmware answers error)", _changed(1, 1 << 9), ERROR, _MASK),
    Packet("EXEC count beyond BO", _changed(0, header(START_NPU, 2000)), NEW, 1),
    Packet("EXEC count too small for start_npu", _changed(0, header(START_NPU, 3)), NEW, 1),
    Packet("EXEC 35 argument words (over 26)", _changed(0, header(START_NPU, 40)), NEW, 1),
    Packet("EXEC firmware returns error 0x3000002", _start(_FAIL), ERROR, _MASK),
    Packet("EXEC model sees unmapped source address", _start(_COPY, source=0x1000), ERROR, _MASK),
    Packet("EXEC instruction address below heap", _changed(2, 0x3FFF000), ERROR, _MASK),
    Packet("EXEC ERT_START_CU", _other(0), ERROR, _MASK),
    Packet("EXEC ERT_START_DPU(18)", _other(18), NEW, 1),
    Packet("EXEC START_NPU_PREEMPT", _other(21), ERROR, _MASK),
    Packet("EXEC START_NPU_PREEMPT_ELF", _other(22), ERROR, _MASK),
    Packet("EXEC good again", _start(_COPY), COMPLETED, 1),
    Packet("EXEC chain of 2", _chain(_COPY, _COPY), COMPLETED, 2),
    Packet("EXEC chain count 0", _chain(_COPY, members=0), NEW, 0),
    Packet("EXEC chain bad member handle", _chain(bad=True), NEW, 1),
    Packet("EXEC chain, firmware error", _chain(_FAIL, _COPY), ERROR, 2),
]


def check_packet(packet: Packet, on: Bench) -> str:
    """Runs a packet; what is wrong with it, or nothing."""
    words = packet.words(on)
    on.raw(on.command, *words)
    on.wait(on.syncobj, on.submit(on.hwctx, on.command.handle, on.source.handle))
    on.command.flush()
    first, second = on.command.words()[0], on.command.words()[1]
    expected = words[0] & ~15 | packet.state
    if first != expected or (packet.second is not None and second != packet.second):
        return f"{packet.name}: {first:#x} {second:#x} instead of {expected:#x} {packet.second}"
    return ""


@case()
def packets(t: Target) -> None:
    """Packets of every kind: what state they end in."""
    wrong, on = [], bench(t)
    for packet in PACKETS:
        wrong.append(check_packet(packet, on))
    assert not any(wrong), "\n".join(filter(None, wrong))
