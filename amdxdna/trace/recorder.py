"""Turns calls into the lines of a trace. Whoever sees the calls (ptrace, the supervisor, the binding) says
here what it saw, before and after each; the rest is common."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from amdxdna import uapi
from amdxdna.causes import explain
from amdxdna.trace import SCHEMA, VERSION, calls, fields
from amdxdna.trace.calls import CORE_NAMES, REQUESTS, Request
from amdxdna.trace.fields import Memory, errno_name, guarded, hexadecimal
from amdxdna.trace.session import Session, TracedBo, TracedContext
from amdxdna.trace.summary import Summary

_WAIT_ALL = 1


View = Callable[[dict[str, Any]], None]
"""Something else to make of a trace's lines. May raise OSError, which ends the recording."""


@dataclass
class Pending:
    """An ioctl that has begun."""

    session: Session
    pid: int
    tid: int
    request: int
    address: int
    memory: Memory
    began: float
    known: Request | None
    before: bytes
    given: dict[str, Any] = field(default_factory=dict)
    packet: Any = None
    contents: dict[int, str] = field(default_factory=dict)
    closing: TracedBo | TracedContext | None = None
    """What a GEM_CLOSE or a DESTROY_HWCTX is about."""


class Recorder:
    """Writes one trace. Thread-safe; every method may be called from any thread.

    Times are time.monotonic()'s; `began` and `ended` default to now.
    """

    def __init__(
        self,
        fd: int | None,
        source: str,
        command: Sequence[str] | None = None,
        *,
        views: Sequence[View] = (),
        contents: int = 0,
    ) -> None:
        """Writes to descriptor `fd` (None: nowhere), which the caller closes after :meth:`finish`.

        `views` get every line's dictionary too. `contents`: bytes recorded of each BO that a submit lists.
        """
        self._fd = fd
        self._views = tuple(views)
        self._contents = contents
        self._lock = threading.RLock()
        self._start = time.monotonic()
        self._sessions = 0
        self._open: list[Session] = []
        self._broken = False
        self.summary = Summary()
        self.finished: dict[str, Any] | None = None
        self._record(
            {
                "schema": SCHEMA,
                "version": VERSION,
                "source": source,
                "pid": os.getpid(),
                "command": list(command) if command is not None else None,
                "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        for view in self._views:
            view(line)
        if self._fd is None:
            return
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(self._fd, data) :]

    @property
    def broken(self) -> bool:
        """Whether the trace or a view could not be written to its end."""
        return self._broken

    def _record(self, line: dict[str, Any]) -> None:
        """Writes a line; a full disk ends the recording, never the call that is recorded."""
        if self._broken:
            return
        try:
            self._write(line)
        except OSError as error:
            self._broken = True
            with contextlib.suppress(OSError, ValueError):
                print(f"amdxdna: the trace ends here: {error.strerror}", file=sys.stderr, flush=True)

    def _line(
        self,
        name: str,
        session: Session | None,
        pid: int,
        tid: int,
        began: float,
        ended: float,
        given: dict[str, Any],
        filled: dict[str, Any] | None = None,
        failed: int = 0,
        kind: str = "",
        more: dict[str, Any] | None = None,
    ) -> None:
        line: dict[str, Any] = {
            "t": round(began - self._start, 6),
            "us": round((ended - began) * 1e6, 1),
            "pid": pid,
            "tid": tid,
            "open": session.number if session else None,
            "call": name,
            "in": given,
            "out": filled or {},
            **(more or {}),
        }
        error = None
        if failed:
            _, meaning, remedy = explain(f"{name} {kind}" if kind else name, failed)
            line["errno"] = error = errno_name(failed)
            line["meaning"], line["remedy"] = meaning, remedy
        if self.finished is None:
            self.summary.call(name, ended - began, error)
            self._record(line)

    # -- open, close, mappings

    def opened(
        self,
        pid: int,
        tid: int,
        path: str,
        fd: int | None,
        failed: int = 0,
        began: float | None = None,
        inherited: bool = False,
    ) -> Session | None:
        """An open of the node; its session when it worked. `inherited`: the descriptor came another way."""
        now = time.monotonic()
        with self._lock:
            session = None
            if not failed:
                self._sessions += 1
                session = Session(self._sessions)
                self._open.append(session)
                self.summary.opens += 1
            given: dict[str, Any] = {"path": path}
            if inherited:
                given["inherited"] = True
            began = now if began is None else began
            filled = None if failed else {"fd": fd}
            self._line("open", session, pid, tid, began, now, given, filled, failed)
            return session

    def closed(self, session: Session, pid: int, tid: int) -> None:
        """Records that the open is over."""
        now = time.monotonic()
        with self._lock:
            if session in self._open:
                self._open.remove(session)
                self.summary.unobserved += session.in_flight
                self._line("close", session, pid, tid, now, now, {})

    def mapped(
        self,
        session: Session,
        pid: int,
        tid: int,
        length: int,
        offset: int,
        hint: int,
        address: int | None,
        failed: int = 0,
        began: float | None = None,
        ended: float | None = None,
    ) -> None:
        """An mmap of the node. `hint`: the address asked for; `address`: the one given, None if unknown."""
        now = time.monotonic() if ended is None else ended
        with self._lock:
            bo = None
            if not failed and address is not None:
                bo = session.mapped(offset, address, length)
            given: dict[str, Any] = {"length": length, "offset": hexadecimal(offset)}
            if hint:
                given["address"] = hexadecimal(hint)
            filled: dict[str, Any] = {}
            if not failed:
                filled = {"address": None if address is None else hexadecimal(address), "bo": bo}
            began = now if began is None else began
            self._line("mmap", session, pid, tid, began, now, given, filled, failed)

    def unmapping(self, session: Session, address: int, length: int) -> None:
        """A munmap of a mapping of the node begins."""
        with self._lock:
            session.unmapped(address, length)

    def unmapped(self, session: Session, pid: int, tid: int, address: int, length: int) -> None:
        """Records a munmap that worked."""
        now = time.monotonic()
        with self._lock:
            given = {"address": hexadecimal(address), "length": length}
            self._line("munmap", session, pid, tid, now, now, given)

    def stage(self, name: str, began: float, ended: float) -> None:
        """A stage of the program's own work, such as a model's, on the calling thread."""
        with self._lock:
            if self.finished is None:
                self._record(
                    {
                        "t": round(began - self._start, 6),
                        "us": round((ended - began) * 1e6, 1),
                        "pid": os.getpid(),
                        "tid": threading.get_native_id(),
                        "stage": name,
                    }
                )

    # -- ioctl

    def enter(
        self, session: Session, pid: int, tid: int, request: int, address: int, memory: Memory
    ) -> Pending:
        """An ioctl begins: reads what it was given, and for a submit its packet."""
        known = REQUESTS.get(uapi.number_of(request))
        pending = Pending(session, pid, tid, request, address, memory, time.monotonic(), known, b"")
        try:
            pending.before = memory.read(address, uapi.struct_size(request))
        except OSError:
            pending.given = {"address": hexadecimal(address)}
            return pending
        if known is None:
            pending.given = {"request": f"{request:#x}", "raw": pending.before.hex()}
            return pending
        pending.given = guarded(lambda: fields.decode(known.struct, pending.before))
        if known.given is not None:
            given = known.given
            pending.given |= guarded(lambda: given(calls.view(known.struct, pending.before), memory))
        if known.name in ("GEM_CLOSE", "DESTROY_HWCTX"):
            # Now, for by the end another thread may have been seen to create what has the handle next.
            handle = int(calls.view(known.struct, pending.before).handle)
            with self._lock:
                pending.closing = (
                    session.dropped(handle) if known.name == "GEM_CLOSE" else session.contexts.get(handle)
                )
        if known.name == "EXEC_CMD" and len(pending.before) >= 28:
            handle = int(calls.view(known.struct, pending.before).cmd_handles) & 0xFFFFFFFF
            with self._lock:
                pending.packet = guarded(lambda: session.packet(handle, memory))
                if self._contents:
                    pending.contents = self._listed(session, pending, memory)
        return pending

    def _listed(self, session: Session, pending: Pending, memory: Memory) -> dict[int, str]:
        """The first bytes, in hexadecimal, of the BOs that a submit lists and that can be read."""
        found = {}
        for handle in pending.given.get("bos", ()):
            with contextlib.suppress(OSError):
                data = session.reader(memory)(handle, self._contents)
                if data:
                    found[handle] = data.hex()
        return found

    def leave(self, pending: Pending, failed: int, ended: float | None = None) -> None:
        """The ioctl is over, with an errno or 0."""
        ended = time.monotonic() if ended is None else ended
        known, memory = pending.known, pending.memory
        number = uapi.number_of(pending.request)
        name = known.name if known else CORE_NAMES.get(number, f"ioctl {number:#04x}")
        filled: dict[str, Any] = {}
        more: dict[str, Any] = {}
        after = b""
        if known and pending.before and pending.request >> 31:  # the struct is written back
            try:
                after = memory.read(pending.address, len(pending.before))
            except OSError:
                after = pending.before
            filled = guarded(lambda: fields.changes(known.struct, pending.before, after))
            if not failed and known.filled is not None:
                make = known.filled
                filled |= guarded(
                    lambda: make(
                        calls.view(known.struct, pending.before), calls.view(known.struct, after), memory
                    )
                )
        if known and known.name == "EXEC_CMD":
            more["packet"] = pending.packet
            if pending.contents:
                more["contents"] = pending.contents
            if not failed and after:
                filled["seq"] = int(calls.view(known.struct, after).seq)  # the first is 0, as before
        kind = ""
        with self._lock:
            if known and pending.before:
                kind = _kind(known, pending)
                if not failed:
                    over = self._effect(pending, known, after, ended)
                    if over is not None:
                        more["completed"] = over
                elif isinstance(pending.closing, TracedBo):
                    handle = int(calls.view(known.struct, pending.before).handle)
                    pending.session.kept(handle, pending.closing)
            at = pending.session, pending.pid, pending.tid, pending.began, ended
            self._line(name, *at, pending.given, filled, failed, kind, more)

    def _effect(
        self, pending: Pending, known: Request, after: bytes, ended: float
    ) -> list[dict[str, Any]] | None:
        """Follows what a call that worked changes; the commands that a wait found over."""
        session, summary = pending.session, self.summary
        before = calls.view(known.struct, pending.before)
        now = calls.view(known.struct, after or pending.before)
        if known.name == "CREATE_BO":
            session.created(now.handle, _kind(known, pending), before.size)
            if now.type != 3:  # DEV BOs are parts of the heap
                summary.add_bytes("allocated", before.size)
        elif known.name == "GET_BO_INFO":
            session.informed(now.handle, now.map_offset, now.vaddr, now.xdna_addr)
        elif known.name == "PRIME_FD_TO_HANDLE":
            if now.handle not in session.bos:
                session.created(now.handle, "imported", 0)
        elif known.name == "CREATE_HWCTX":
            summary.contexts += 1
            session.context(now.handle, now.syncobj_handle)
        elif known.name == "DESTROY_HWCTX":
            if isinstance(pending.closing, TracedContext):
                summary.unobserved += session.destroyed(before.handle, pending.closing)
        elif known.name == "SYNC_BO":
            summary.add_bytes("synced", before.size)
        elif known.name == "EXEC_CMD":
            session.submitted(before.hwctx, now.seq, before.cmd_handles & 0xFFFFFFFF, pending.began)
            listed = {bo for bo in pending.given.get("bos", []) if bo in session.bos}
            summary.submitted(pending.packet, sum(session.bos[bo].size for bo in listed))
        elif known.name == "SYNCOBJ_TIMELINE_WAIT":
            waits = [(syncobj, point) for syncobj, point in pending.given.get("waits", [])]
            if not before.flags & _WAIT_ALL and len(waits) > 1:
                waits = waits[now.first_signaled : now.first_signaled + 1]
            over = session.completed(waits, ended, pending.memory)
            for command in over:
                summary.completed(command)
            return over
        return None

    def finish(self) -> dict[str, Any]:
        """Writes the summary; the summary. Later calls are not recorded."""
        with self._lock:
            if self.finished is None:
                self.summary.unobserved += sum(session.in_flight for session in self._open)
                self.finished = self.summary.document(time.monotonic() - self._start)
                self._record({"summary": self.finished})
            return self.finished


def _kind(known: Request, pending: Pending) -> str:
    """What narrows the meaning of an errno: a BO's type."""
    if known.name != "CREATE_BO":
        return ""
    args = calls.view(known.struct, pending.before)
    return "userptr" if args.vaddr else str(fields.BO_TYPES.get(args.type, args.type))
