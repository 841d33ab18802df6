"""Signals at every place of the binding where the interpreter looks for them: nothing leaks, all goes on."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from amdxdna.buffer import Buffer
from amdxdna.device import Device
from amdxdna.files import open_regular
from tests.support.binding import adder
from tests.support.descriptors import descriptors
from tests.support.interrupting import SOAK, Ledger, everywhere, handlers, watchdog
from tests.support.operations import OPERATIONS, Rig

PLACES = max(12, SOAK // 20)
"""Places of each operation, at most, that are tried."""


@pytest.fixture
def rig() -> Iterator[Rig]:
    with watchdog(900 + 2 * PLACES), handlers():
        rig = Rig()
        yield rig
        rig.close()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_nothing_is_left_behind(rig: Rig, operation: Callable[[Rig], None]) -> None:
    operation(rig)
    rig.right()
    ledger = Ledger(rig.device)
    gc.collect()
    before = ledger.read()

    def check(where: str) -> None:
        rig.right()
        ledger.settle(before, where)

    assert everywhere(lambda: operation(rig), check, PLACES) > 0


def test_a_device_is_closed(rig: Rig) -> None:
    rig.right()
    ledger = Ledger(rig.device)
    before = ledger.read()

    def use() -> None:
        with Device.open("emu:quiet,threads=1,slots=3") as device:
            buffer: Buffer = device.alloc(64)
            adder(device, 64, 1).run(buffer, buffer)

    def check(where: str) -> None:
        rig.right()
        gc.collect()
        ledger.settle(before, where)

    assert everywhere(use, check, PLACES) > 0


def test_a_file_is_closed_once(rig: Rig) -> None:
    """A descriptor that has two owners for a moment would be closed twice, and name another file by then."""
    before = descriptors()

    def check(where: str) -> None:
        assert descriptors() <= before, where

    assert everywhere(lambda: open_regular(__file__).close(), check, 500) > 0
