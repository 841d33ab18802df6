"""Command packets, bit by bit."""

from __future__ import annotations

import random
from struct import unpack

import pytest

from amdxdna import packet
from amdxdna.errors import BadArgument
from amdxdna.packet import Placed


def words(data: bytes) -> list[int]:
    return list(unpack(f"<{len(data) // 4}I", data))


def test_check_value():
    """Captured from a working runtime: three buffers, instructions of 0xCB0 bytes at 0x4028000."""
    got = words(packet.start_cu(0, 0x4028000, 0xCB0, [0x7F0012345000, 0x1000, 0xFFFFF7FFC000]))
    assert got == [
        *(0x30010001, 1, 3, 0, 0x4028000, 0, 0xCB0, 0x12345000, 0x7F00, 0x1000, 0, 0xF7FFC000, 0xFFFF, 0, 0),
        *(0, 0),
    ]


@pytest.mark.parametrize("count", range(packet.MAX_BUFFERS + 1))
def test_start_cu_fields(count):
    buffers = [0x100000000 * (i + 1) + i for i in range(count)]
    got = words(packet.start_cu(5, 0x4000000, 64, buffers))
    state, length, opcode, kind = got[0] & 15, got[0] >> 12 & 0x7FF, got[0] >> 23 & 31, got[0] >> 28
    assert (state, opcode, kind) == (1, 0, 3)
    assert length == len(got) - 1 == 1 + packet.START_CU_WORDS[count]
    assert packet.START_CU_WORDS[count] <= 26
    assert got[1] == 1 << 5
    assert [got[7 + 2 * i] | got[8 + 2 * i] << 32 for i in range(count)] == buffers
    assert not any(got[7 + 2 * count :])


def test_start_npu_fields():
    """As XRT 2.25 sends them."""
    code, save, restore = Placed(0x104008000, 32), Placed(0x4010000, 64), Placed(0x4018000, 96)
    assert words(packet.start_npu(2, code)) == [0x3A007001, 4, 0x04008000, 1, 32, 0, 3, 0]
    assert words(packet.start_npu(0, Placed(1, 1), 0)) == [0x3A007001, 1, 1, 0, 1, 0, 0, 0]
    assert words(packet.start_npu(31, Placed((1 << 64) - 1, 7), (1 << 64) - 1))[1:] == [
        1 << 31,
        *[0xFFFFFFFF] * 2,
        7,
        0,
        *[0xFFFFFFFF] * 2,
    ]
    assert words(packet.start_npu_preempt(1, code, save, restore)) == [
        *(0x3A80D001, 2, 0x04008000, 1, 0x4010000, 0, 0x4018000, 0, 32, 64, 96, 0, 3, 0),
    ]
    assert words(packet.start_npu_elf(code, save, restore, 0x500000001)) == [
        *(0x3B00D001, 0, 0x04008000, 1, 0x4010000, 0, 0x4018000, 0, 32, 64, 96, 0, 1, 5),
    ]
    assert words(packet.start_npu_elf(code, Placed(), Placed())) == [
        *(0x3B00D001, 0, 0x04008000, 1, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0),
    ]


def test_chain_fields():
    got = words(packet.chain([5, 6, 7]))
    assert got == [1 | 12 << 12 | 19 << 23, 3, 0, 0xFFFFFFFF, 0, 0, 0, 5, 0, 6, 0, 7, 0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: packet.start_cu(32, 4096, 4, []),
        lambda: packet.start_cu(-1, 4096, 4, []),
        lambda: packet.start_cu(0, 0, 4, []),
        lambda: packet.start_cu(0, 4096, 0, []),
        lambda: packet.start_cu(0, 4096, 1 << 32, []),
        lambda: packet.start_cu(0, 4096, 4, [1] * (packet.MAX_BUFFERS + 1)),
        lambda: packet.start_cu(0, 4096, 4, [1 << 64]),
        lambda: packet.start_cu(0, 4096, 4, [0]),
        lambda: packet.start_npu(32, Placed(4096, 4)),
        lambda: packet.start_npu(0, Placed(0, 4)),
        lambda: packet.start_npu(0, Placed(4096, 1 << 32)),
        lambda: packet.start_npu(0, Placed(4096, 4), 1 << 64),
        lambda: packet.start_npu_preempt(0, Placed(4096, 4), Placed(), Placed(4096, 4)),
        lambda: packet.start_npu_preempt(0, Placed(4096, 4), Placed(4096, 4), Placed()),
        lambda: packet.start_npu_elf(Placed(), Placed(), Placed()),
        lambda: packet.chain([]),
        lambda: packet.chain([1] * (packet.chain_limit(26) + 1)),
        lambda: packet.header(32, 1),
        lambda: packet.header(0, 0),
        lambda: packet.header(0, 1024),
        lambda: packet.header(-1, 1),
    ],
)
def test_bounds_are_checked_before_the_driver_drops_it(call):
    with pytest.raises(BadArgument) as caught:
        call()
    assert caught.value.call == "packet"


def test_parts_of_a_header():
    full = packet.header(31, 1023, 15, 15)
    assert (packet.state_of(full), packet.opcode_of(full), packet.payload_words(full)) == (15, 31, 1023)
    assert (packet.state_of(1 << 4), packet.opcode_of(1 << 28), packet.payload_words(1 << 23)) == (0, 0, 0)
    assert [packet.mask_words(at << 10) for at in (0, 1, 2, 3, 4)] == [1, 2, 3, 4, 1]
    assert [packet.argument_words(words << 12) for words in (0, 1, 2, 0x7FF)] == [0, 0, 1, 0x7FE]


def test_limits():
    assert packet.MAX_BUFFERS == 10
    # A list has 4096 bytes; a member takes 56 and its words.
    assert [packet.chain_limit(words) for words in (2, 15, 26)] == [64, 35, 25]
    assert len(packet.chain([1] * 35, 15)) <= packet.CMD_BYTES


def test_health_report():
    """The words a stock driver left after a hang, behind its header."""
    report = packet.health([0x1, 0, 0x22, 0x33, 0x1, 0x2, 0x4, 0x5])
    assert report == packet.Health(1, 0x22, 0x33, 1, 2, 4, 5)
    text = str(report)
    for part in ("operation 34", "0x00000033", "fatal error type 1", "exception 2", "0x00000004", "module 5"):
        assert part in text
    idle = packet.health([1, 0, 0xFFFFFFFF, 0x28B060AD, 0, 0, 0, 0])
    assert "no operation" in str(idle) and "0x28b060ad" in str(idle) and "no fatal error" in str(idle)
    assert idle.lookup == "" and "--at 34`" in report.lookup
    old = packet.health([0, 0x22, 0x33])
    assert old == packet.Health(0, 0x22, 0x33, 0, 0, 0, 0) and "fatal" not in str(old)


@pytest.mark.parametrize(
    "payload",
    [
        [0xFFFFFFFF] * 8,
        [1, 3, 0, 0x4008000, 0, 0x20, 0, 0],  # the packet as it was: drivers that leave no report
        [0] * 8,
        [1, 0, 0x22, 0x33, 0, 0, 0],
        [0, 0x22],
        [0, 0x22, 0],
        [],
    ],
)
def test_no_health_report(payload):
    assert packet.health(payload) is None


def test_health_of_random_words_never_fails():
    rng = random.Random(3)
    for _ in range(500):
        report = packet.health([rng.choice((0, 1, 3, 0xFFFFFFFF, rng.getrandbits(32))) for _ in range(8)])
        assert report is None or str(report)


def test_states_are_the_drivers():
    assert [s.name for s in packet.State] == [
        "INVALID",
        "NEW",
        "QUEUED",
        "RUNNING",
        "COMPLETED",
        "ERROR",
        "ABORT",
        "SUBMITTED",
        "TIMEOUT",
        "NORESPONSE",
    ]
    assert [int(s) for s in packet.State] == list(range(10))
