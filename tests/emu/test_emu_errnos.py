"""The measured errno table, line by line, on the emulated device in both address modes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from tests.conformance import errnos, kit, packets

MakeTarget = Callable[..., kit.Target]


@pytest.fixture(params=["pasid", "iova"])
def make_target(request: pytest.FixtureRequest) -> Iterator[MakeTarget]:
    made: list[kit.Target] = []

    def make(**options: object) -> kit.Target:
        values = {"privileged": True, **options}
        emu = EmuOptions(address=request.param, threads=1, quiet=True, **values)  # type: ignore[arg-type]
        made.append(kit.Target(functools.partial(EmuNode, emu), kernel=False))
        return made[-1]

    yield make
    for target in made:
        target.close()


@pytest.mark.parametrize("line", [*errnos.LINES, errnos.SYNC_AT_END], ids=lambda line: line.name)
def test_line(make_target: MakeTarget, line: errnos.Line) -> None:
    target = make_target(**errnos.EMULATED_OPTIONS.get(line.group, {}))
    wrong = errnos.check_line(line, errnos.GROUPS[line.group](target))
    assert not wrong


@pytest.mark.parametrize("packet", packets.PACKETS, ids=lambda packet: packet.name)
def test_packet(make_target: MakeTarget, packet: packets.Packet) -> None:
    assert not packets.check_packet(packet, errnos.bench(make_target()))


def test_memlock_zero_is_eperm(make_target: MakeTarget) -> None:
    target = make_target(privileged=False, memlock=0)
    line = errnos.Line("bare", "userptr, memlock 0", errnos.E.EPERM, errnos.user_bo())
    assert not errnos.check_line(line, target.client())
