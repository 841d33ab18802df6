"""Child processes of this one: some drivers destroy every context when a child closes what it inherited.

The emulated device has no descriptor that a child could inherit. What starts a child is told by the
interpreter's audit events, just before it does.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

from amdxdna.emu.driver.teardown import flush
from amdxdna.signals import uninterrupted
from amdxdna.weak import LiveSet

if TYPE_CHECKING:
    from amdxdna.emu.driver.objects import Client

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.system", "os.posix_spawn", "os.spawn"})
_clients: LiveSet[Client] = LiveSet()
_lock = threading.Lock()
_hooked = False


def watch(client: Client) -> None:
    """From now on every child that this process starts costs the client its contexts."""
    global _hooked
    with _lock:
        _clients.add(client)
        if not _hooked:
            _hooked = True
            sys.addaudithook(_hook)  # there is no way to take one back


def _hook(event: str, _arguments: object) -> None:
    if event not in _STARTS:
        return
    for client in _clients:
        if client.pid == os.getpid() and not client.closed:
            with contextlib.suppress(OSError):
                uninterrupted(flush, client)
