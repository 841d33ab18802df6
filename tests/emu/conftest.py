"""Clients of emulated drivers, closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amdxdna.emu.node import EmuNode
from tests.conformance import kit
from tests.support.driver_clients import Open, options


def opened(kind: Callable[[EmuNode], Any]) -> Iterator[Any]:
    made: list[kit.Client] = []

    def make(**values: Any) -> Any:
        made.append(kind(EmuNode(options(**values))))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def ready() -> Iterator[Open]:
    """With a context and buffers."""
    yield from opened(kit.Ready)


@pytest.fixture
def bare() -> Iterator[Callable[..., kit.Client]]:
    """The open alone."""
    yield from opened(kit.Client)
