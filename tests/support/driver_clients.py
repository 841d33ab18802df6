"""Clients of emulated drivers, and the driver's side of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from amdxdna.emu.kernels import stream
from amdxdna.emu.options import EmuOptions
from tests.conformance import kit

Open = Callable[..., kit.Ready]


def options(**values: Any) -> EmuOptions:
    return EmuOptions(**{"threads": 1, "quiet": True, "privileged": True, **values})


def driver(client: kit.Client) -> Any:
    return client.node.driver  # type: ignore[attr-defined]


class Clock:
    """The watchdog's time: it stands unless it is set forward."""

    def __init__(self, client: kit.Ready) -> None:
        self._now = time.monotonic()
        self._client = client
        driver(client).clock = lambda: self._now

    def forward(self, seconds: float) -> None:
        self._now += seconds
        driver(self._client).look()

    def hang(self, program: bytes = stream.hang(), buffers: tuple[int, ...] = ()) -> None:
        """Runs a command that hangs; returns when it has timed out."""
        client = self._client
        seq = client.start(program, *buffers)
        self.until_waiting()
        self.forward(2.1)
        client.wait(client.syncobj, seq)

    def until_waiting(self) -> None:
        number = context_of(self._client).firmware
        kit.until(lambda: driver(self._client).npu.context(number).waiting, 60, "the command's wait")


def context_of(client: kit.Ready) -> Any:
    return client.node.client.contexts[client.hwctx]  # type: ignore[attr-defined]
