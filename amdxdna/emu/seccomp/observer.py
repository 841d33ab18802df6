"""Who watches the calls about the device."""

from __future__ import annotations

from typing import Any, Protocol

from amdxdna.emu.seccomp.call import Call
from amdxdna.emu.seccomp.client import RemoteClient
from amdxdna.emu.seccomp.files import Caller


class Observer(Protocol):
    """Sees every call about the device, from any thread: the tracer."""

    def opened(
        self, client: RemoteClient | None, caller: Caller, path: str, fd: int, failed: int, began: float
    ) -> None:
        """An open of the node; `client` is None when it failed with an errno. `began`: time.monotonic()."""

    def enter(self, client: RemoteClient, call: Call) -> Any:
        """Before an ioctl; what it returns goes to leave()."""

    def leave(self, entry: Any, failed: int) -> None:
        """After an ioctl, before the program goes on."""

    def mapped(
        self, client: RemoteClient, call: Call, address: int | None, failed: int, began: float
    ) -> None:
        """A mapping; `address` is None where the kernel chooses it after this."""

    def closed(self, client: RemoteClient) -> None:
        """The last holder of an open is gone."""
