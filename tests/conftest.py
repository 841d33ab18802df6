"""Fixtures that several test files share. Nothing heavy is imported before a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def open_emu() -> Iterator[Callable[..., Any]]:
    """Opens emulated devices, ``open_emu("slots=1,address=iova")``, and closes them after the test."""
    from amdxdna.device import Device

    opened = []

    def make(options: str = "") -> Any:
        device = Device.open("emu:" + ",".join(part for part in ("threads=1,quiet", options) if part))
        opened.append(device)
        return device

    yield make
    for device in reversed(opened):
        device.close()


@pytest.fixture(params=["pasid", "iova"])
def device(request: pytest.FixtureRequest, open_emu: Callable[..., Any]) -> Any:
    """An emulated device, in both address modes."""
    return open_emu(f"address={request.param}")
