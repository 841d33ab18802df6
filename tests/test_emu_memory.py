"""The device's view of memory: answers that are kept between commands do not outlive what they are about."""

from __future__ import annotations

from typing import Any

import pytest

from amdxdna._native import lib
from amdxdna.emu.driver import memory as memory_module
from amdxdna.emu.driver.bo import SHARE
from amdxdna.emu.driver.device import EmuDriver
from amdxdna.emu.npu import BadAddress
from amdxdna.emu.options import EmuOptions

PAGE = 4096


class Rig:
    """A client whose firmware context 7 asks for memory."""

    def __init__(self, address: str) -> None:
        self.driver = EmuDriver(EmuOptions(address=address, quiet=True))
        self.memory = self.driver.memory
        self.client = self.driver.open(12345)
        self.memory.bind(7, self.client)

    def bo(self, pages: int = 1) -> tuple[Any, int]:
        """A BO and where the device sees it."""
        bo = self.memory.create(self.client, SHARE, pages * PAGE)
        if self.memory.pasid:
            self.client.mapped(bo, bo.pointer, bo.size, own=True)
            return bo, bo.pointer
        return bo, bo.iova

    def gone(self, bo: Any) -> None:
        if self.memory.pasid:
            self.client.unmapped(bo.pointer, bo.size)
        self.memory.put(bo)


@pytest.fixture(params=["pasid", "iova"])
def rig(request: pytest.FixtureRequest) -> Any:
    made = Rig(request.param)
    yield made
    made.memory.release(7)
    made.driver.shutdown(0.0)


def ask(rig: Rig, address: int, size: int = 64) -> int:
    """Twice: the second answer is one that was kept."""
    first = rig.memory.pointer(7, address, size)
    assert (7, address, size) in rig.memory._known
    assert rig.memory.pointer(7, address, size) == first
    return first


def test_a_freed_bo_is_not_found_again(rig: Rig) -> None:
    bo, at = rig.bo()
    assert ask(rig, at) == bo.pointer
    rig.memory.release(7)
    rig.gone(bo)
    with pytest.raises(BadAddress):
        rig.memory.pointer(7, at, 64)


def test_a_freed_bo_is_not_found_while_the_command_runs(rig: Rig) -> None:
    bo, at = rig.bo()
    other, there = rig.bo()
    ask(rig, at)
    rig.gone(bo)
    with pytest.raises(BadAddress):
        rig.memory.pointer(7, at, 64)
    assert ask(rig, there) == other.pointer
    # What the command holds stays mapped until its end: this would crash otherwise.
    assert lib.xdna_flush(bo.pointer, 64) is None


def test_another_size_is_another_question(rig: Rig) -> None:
    bo, at = rig.bo(2)
    assert ask(rig, at, 2 * PAGE) == bo.pointer
    with pytest.raises(BadAddress):
        rig.memory.pointer(7, at, 2 * PAGE + 1)


def test_memory_that_moved_is_found_where_it_is(rig: Rig) -> None:
    bo, at = rig.bo()
    old = ask(rig, at)
    bo.pointer = bo.backing.map(bo.size)
    rig.memory.moved()
    assert ask(rig, at) == bo.pointer != old
    memory_module.store.unmap(old, bo.size)


def test_a_context_number_used_again_has_other_addresses(rig: Rig) -> None:
    _, at = rig.bo()
    ask(rig, at)
    rig.memory.unbind(7)
    with pytest.raises(BadAddress):
        rig.memory.pointer(7, at, 64)
    stranger = rig.driver.open(54321)
    rig.memory.bind(7, stranger)
    if rig.memory.pasid:
        with pytest.raises(BadAddress):
            rig.memory.pointer(7, at, 64)


def test_what_is_kept_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "MOST_KNOWN", 8)
    bo, at = rig.bo()
    for offset in range(40):
        assert ask(rig, at + offset) == bo.pointer + offset
    assert len(rig.memory._known) <= 8
