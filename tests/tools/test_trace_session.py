"""What a tracer knows of one open: in which BO an address lies, which commands are over, in which state."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from amdxdna.trace.session import Session

NONE = (1 << 64) - 1


class Packets:
    """Command BOs by handle; no other memory can be read."""

    def __init__(self, **states: int) -> None:
        self.data = {int(name[2:]): self.packet(state) for name, state in states.items()}

    @staticmethod
    def packet(state: int, *payload: int) -> bytes:
        return struct.pack(f"<{1 + len(payload)}I", state | len(payload) << 12, *payload).ljust(64, b"\0")

    def read_bo(self, handle: int, size: int) -> bytes | None:
        return self.data.get(handle)

    def read(self, address: int, size: int) -> bytes:
        raise OSError(14, "Bad address")


def running(*submits: tuple[int, int, int], states: dict[str, int] | None = None) -> tuple[Session, Packets]:
    """Contexts 1 and 2 with syncobjs 11 and 12, and submits (context, sequence, BO) a second apart."""
    session, packets = Session(1), Packets(**(states or {}))
    session.read_bo = packets.read_bo
    for context in (1, 2):
        session.context(context, 10 + context)
    for second, (context, sequence, bo) in enumerate(submits):
        session.submitted(context, sequence, bo, float(second))
    return session, packets


def over(session: Session, packets: Packets, *waits: tuple[int, int]) -> list[tuple[Any, ...]]:
    found = session.completed(list(waits), 5.0, packets)
    return [(each["context"], each["seq"], each["bo"], each["state"], each["us"]) for each in found]


def test_a_wait_for_a_point_ends_what_came_before_it() -> None:
    session, packets = running(
        (1, 1, 5), (1, 2, 6), (2, 1, 7), (1, 3, 8), states={"bo5": 4, "bo6": 5, "bo7": 4, "bo8": 4}
    )
    assert session.in_flight == 4
    assert over(session, packets, (11, 2)) == [(1, 1, 5, "COMPLETED", 5e6), (1, 2, 6, "ERROR", 4e6)]
    assert over(session, packets, (11, 2)) == [] and session.in_flight == 2
    # Point 0 is whatever was submitted last.
    assert over(session, packets, (12, 0), (11, 0)) == [
        (2, 1, 7, "COMPLETED", 3e6),
        (1, 3, 8, "COMPLETED", 2e6),
    ]
    assert session.in_flight == 0


@pytest.mark.parametrize(
    ("again", "state", "told"),
    [
        (None, 1, "NEW"),
        (5, 4, "COMPLETED"),  # the later one's, which is over as well
        (5, 1, None),
        (5, 2, None),
        (5, 3, None),
        (5, 7, None),
        (6, 1, "NEW"),
        ("chain", 1, None),
    ],
)
def test_a_packet_that_is_written_again_tells_of_the_later_command(
    again: int | str | None, state: int, told: str | None
) -> None:
    session, packets = running((1, 1, 5), states={"bo5": state, "bo6": 4})
    if again == "chain":
        packets.data[9] = Packets.packet(1 | 19 << 23, 1, 0, 0, 0, 0, 0, 5, 0)
        session.packet(9, packets)
    elif again is not None:
        session.packet(int(again), packets)
    assert over(session, packets, (11, 1)) == [(1, 1, 5, told, 5e6)]


def test_a_packet_that_cannot_be_read_has_no_state() -> None:
    session, packets = running((1, 1, 5))
    assert over(session, packets, (11, 1)) == [(1, 1, 5, None, 5e6)]
    session, packets = running((1, 1, 5))
    session.read_bo = None
    session.created(5, "CMD", 64)
    session.mapped(NONE, 0x1000, 64)
    assert over(session, packets, (11, 1)) == [(1, 1, 5, None, 5e6)]


@pytest.mark.parametrize(
    ("state", "size", "reported"),
    [(8, 64, True), (8, 36, True), (8, 35, False), (5, 64, False), (4, 64, False)],
)
def test_only_a_command_that_timed_out_has_a_health_report(state: int, size: int, reported: bool) -> None:
    session, packets = running((1, 1, 5))
    packets.data[5] = Packets.packet(state, 1, 0, 17, 0xABCD, 0, 0, 0, 0)[:size]
    (found,) = session.completed([(11, 1)], 5.0, packets)
    assert ("operation 17" in found.get("health", "")) == reported


def test_a_context_that_ends_counts_what_nobody_waited_for() -> None:
    session, packets = running((1, 1, 5), (1, 2, 6), (2, 1, 7))
    first = session.contexts[1]
    assert session.destroyed(1, first) == 2 and set(session.contexts) == {2}
    assert over(session, packets, (11, 0)) == []
    session.submitted(1, 3, 5, 0.0)  # of a context that nobody saw made
    assert session.in_flight == 1
    # Its number is a newer one's by the time the end is seen.
    session.context(1, 13)
    assert session.destroyed(1, first) == 2 and set(session.contexts) == {1, 2}


def located(session: Session, *addresses: int) -> list[tuple[int, int] | None]:
    return [session.find(address) for address in addresses]


def test_where_an_address_lies() -> None:
    session = Session(1)
    session.created(1, "DEV_HEAP", 0x10000)
    session.created(2, "DEV", 0x100)
    session.created(3, "SHARE", 0x1000)
    assert located(session, 0, 0x1000) == [None, None]
    session.informed(1, 0x50, NONE, 0x4000000)
    session.informed(2, NONE, NONE, 0x4000000)
    session.informed(3, 0x70, NONE, NONE)  # not mapped yet
    assert session.find(NONE) is None
    session.informed(3, 0x70, 0x9000, NONE)
    assert located(session, 0x3FFFFFF, 0x4000000, 0x40000FF, 0x4000100) == [None, (2, 0), (2, 0xFF), None]
    assert located(session, 0x8FFF, 0x9000, 0x9FFF, 0xA000) == [None, (3, 0), (3, 0xFFF), None]
    # A mapping that is known is not added once more; another one is.
    session.informed(3, 0x70, 0xB000, NONE)
    assert session.find(0xB000) is None
    assert session.mapped(0x70, 0xB000, 0x800) == 3 and session.mapped(0x71, 0xC000, 0x800) is None
    assert located(session, 0xB7FF, 0xB800, 0xC000) == [(3, 0x7FF), None, None]
    # What is unmapped, in part or whole, and no neighbour of it.
    session.unmapped(0xA000, 0x1000)
    assert located(session, 0x9000, 0xB000) == [(3, 0), (3, 0)]
    session.unmapped(0x9FFF, 1)
    assert located(session, 0x9000, 0xB000) == [None, (3, 0)]
    # A new mapping takes the place of what was there.
    session.created(4, "SHARE", 0x1000)
    session.informed(4, 0x90, NONE, NONE)
    assert session.mapped(0x90, 0xB7FF, 0x1000) == 4
    assert located(session, 0xB000, 0xB7FF) == [None, (4, 0)]


def test_a_bo_that_is_closed_and_one_that_is_not() -> None:
    session = Session(1)
    session.created(2, "SHARE", 0x100)
    session.informed(2, 0x50, 0x9000, NONE)
    closing = session.dropped(2)
    assert closing is not None and session.find(0x9000) is None and session.dropped(2) is None
    session.kept(2, closing)  # the close failed
    assert session.find(0x9000) == (2, 0)
    session.created(2, "SHARE", 0x100)
    session.kept(2, closing)
    assert session.find(0x9000) is None


def test_an_imported_bo_is_as_long_as_its_mapping() -> None:
    session = Session(1)
    session.informed(7, 0x50, 0x9000, 0x9000)
    assert (session.bos[7].kind, session.find(0x9000)) == ("imported", None)
    assert session.mapped(0x50, 0x9000, 0x200) == 7
    assert located(session, 0x91FF, 0x9200) == [(7, 0x1FF), None]
