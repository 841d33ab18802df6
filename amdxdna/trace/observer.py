"""Records the calls that the supervisor of an emulated node answers: nothing has to be stopped for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from amdxdna._native import ffi
from amdxdna.emu.seccomp.call import Call
from amdxdna.emu.seccomp.client import RemoteClient
from amdxdna.emu.seccomp.files import Caller
from amdxdna.trace.recorder import Pending, Recorder
from amdxdna.trace.session import Session
from amdxdna.usermem import UserMemory


@dataclass
class _Mapping:
    """An mmap that the kernel does after it was seen: its address is known later."""

    tid: int
    length: int
    offset: int
    hint: int
    began: float
    known: set[int]


class TraceObserver:
    """An :class:`amdxdna.emu.seccomp.observer.Observer` that writes a trace. Thread-safe."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = threading.Lock()
        self._sessions: dict[RemoteClient, Session] = {}
        self._mappings: dict[RemoteClient, list[_Mapping]] = {}

    def opened(
        self, client: RemoteClient | None, caller: Caller, path: str, fd: int, failed: int, began: float
    ) -> None:
        """See Observer."""
        session = self._recorder.opened(caller.process, caller.thread, path, fd, failed, began)
        if client is not None and session is not None:
            session.read_bo = lambda handle, size: _read_bo(client, handle, size)
            with self._lock:
                self._sessions[client] = session

    def enter(self, client: RemoteClient, call: Call) -> Pending:
        """See Observer."""
        self._settle(client)
        request, address = call.arguments[1] & 0xFFFFFFFF, call.arguments[2]
        return self._recorder.enter(
            self._sessions[client], client.pid, call.thread, request, address, UserMemory(call.thread)
        )

    def leave(self, entry: Pending, failed: int) -> None:
        """See Observer."""
        self._recorder.leave(entry, failed)

    def mapped(
        self, client: RemoteClient, call: Call, address: int | None, failed: int, began: float
    ) -> None:
        """See Observer."""
        self._settle(client)
        hint, length, _, _, _, offset = call.arguments
        if address is None and not failed:
            known = _starts(client, offset)
            with self._lock:
                self._mappings.setdefault(client, []).append(
                    _Mapping(call.thread, length, offset, hint, began, known)
                )
            return
        self._recorder.mapped(
            self._sessions[client], client.pid, call.thread, length, offset, hint, address, failed, began
        )

    def _settle(self, client: RemoteClient, last: bool = False) -> None:
        """Writes the mappings whose addresses have become known."""
        if not self._mappings.get(client):
            return
        client.sync()
        with self._lock:
            waiting = self._mappings.pop(client, [])
            keep = []
            for mapping in waiting:
                new = sorted(_starts(client, mapping.offset) - mapping.known)
                if not new and not last:
                    keep.append(mapping)
                    continue
                self._recorder.mapped(
                    self._sessions[client],
                    client.pid,
                    mapping.tid,
                    mapping.length,
                    mapping.offset,
                    mapping.hint,
                    new[0] if new else None,
                    0,
                    mapping.began,
                    mapping.began,
                )
            if keep:
                self._mappings[client] = keep

    def closed(self, client: RemoteClient) -> None:
        """See Observer."""
        self._settle(client, last=True)
        with self._lock:
            session = self._sessions.pop(client)
        self._recorder.closed(session, client.pid, client.pid)


def _starts(client: RemoteClient, offset: int) -> set[int]:
    """Where the BO at a map offset is mapped."""
    with client.memory.lock:
        return {r.start for r in client.space if r.bo.map_offset == offset}


def _read_bo(client: RemoteClient, handle: int, size: int) -> bytes | None:
    """The first bytes of a BO, from the model's own mapping."""
    with client.memory.lock:
        bo: Any = client.handles.get(handle)
        if bo is None or not bo.pointer:
            return None
        return bytes(ffi.buffer(ffi.cast("char *", bo.pointer), min(size, bo.size)))
