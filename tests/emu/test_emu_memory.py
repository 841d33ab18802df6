"""The device's view of memory: what is kept between commands does not outlive what it is about."""

from __future__ import annotations

import mmap
from typing import Any

import pytest

from amdxdna._native import ffi
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


def asked(rig: Rig, address: int, size: int = 64) -> tuple[object, int]:
    """The stamp, and the answer that is good for it."""
    return rig.memory.stamp(7), rig.memory.pointer(7, address, size)


def test_the_stamp_stays_while_answers_do(rig: Rig) -> None:
    bo, at = rig.bo()
    stamp, pointer = asked(rig, at)
    assert stamp is not None
    rig.memory.release(7)
    assert asked(rig, at) == (stamp, pointer) == (stamp, bo.pointer)


def test_a_freed_bo_changes_the_stamp(rig: Rig) -> None:
    bo, at = rig.bo()
    stamp, _ = asked(rig, at)
    rig.memory.release(7)
    rig.gone(bo)
    assert rig.memory.stamp(7) != stamp
    with pytest.raises(BadAddress):
        rig.memory.pointer(7, at, 64)


def test_what_a_command_has_stamped_stays_mapped_until_its_end(rig: Rig) -> None:
    """The stamp alone begins the command: its pointers are used without being asked for again."""
    bo, at = rig.bo()
    asked(rig, at)
    rig.memory.release(7)
    rig.memory.stamp(7)
    rig.gone(bo)
    assert memory_module.store.is_mapped(bo.pointer, bo.size)
    rig.memory.release(7)
    assert not memory_module.store.is_mapped(bo.pointer, bo.size)


def test_memory_that_moved_changes_the_stamp(rig: Rig) -> None:
    bo, at = rig.bo()
    stamp, old = asked(rig, at)
    bo.pointer = bo.backing.map(bo.size)
    rig.memory.moved()
    after, pointer = asked(rig, at)
    assert after != stamp
    assert pointer == bo.pointer != old
    memory_module.store.unmap(old, bo.size)


def test_a_context_number_used_again_has_another_stamp(rig: Rig) -> None:
    _, at = rig.bo()
    stamp, _ = asked(rig, at)
    rig.memory.unbind(7)
    assert rig.memory.stamp(7) is None
    stranger = rig.driver.open(54321)
    rig.memory.bind(7, stranger)
    assert rig.memory.stamp(7) not in (None, stamp)


def test_the_users_own_memory_has_no_stamp(rig: Rig) -> None:
    """He may unmap it at any time."""
    block = mmap.mmap(-1, PAGE)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(block)))
    bo = rig.memory.create(rig.client, SHARE, PAGE, vaddr=address)
    assert rig.memory.stamp(7) is None
    rig.memory.put(bo)
    assert rig.memory.stamp(7) is not None
