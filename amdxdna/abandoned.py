"""Hardware contexts that nobody has any more: destroyed once their commands are over."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Sequence

from amdxdna import ioctl, reaper
from amdxdna._native import ffi
from amdxdna.buffer import Buffer
from amdxdna.client import Client
from amdxdna.errors import BadArgument, XdnaError
from amdxdna.forklock import mutex
from amdxdna.packet import State
from amdxdna.run import NOT_SUBMITTED, Command

RESETS = (State.TIMEOUT, State.ABORT, State.NORESPONSE)
"""Ends after which the driver may still write to a command's buffer, until it has destroyed the context."""


_held: dict[int, tuple[Client, list[int]]] = {}


def hold(client: Client, handles: list[int], handle: int) -> None:
    """Counts context `handle`, in `handles`, until it is destroyed or its open is closed.

    A driver that loses contexts gives their numbers out again, each to one context at a time: whose this one
    was has lost his, and must not name the new one.
    """
    for owner, others in list(_held.values()):
        if owner is client and handle in others:
            others.clear()
            client.losses += 1
    handles.append(handle)
    _held[id(handles)] = client, handles


def held() -> int:
    """Hardware contexts that this process has, on all devices, forgotten ones too."""
    pid = os.getpid()
    return sum(
        len(handles) for client, handles in list(_held.values()) if not client.closed and client.pid == pid
    )


def destroy(client: Client, handle: int, *, known: bool = False) -> bool:
    """Has the driver destroy a context; False where it knows no such context any more (EINVAL).

    Raises that, too, where it must be `known`, and what else the driver says: DeviceLost where the context is
    gone with its device.
    """
    request = ffi.new("struct amdxdna_drm_destroy_hwctx *", {"handle": handle})
    try:
        ioctl.call(client.node, "DESTROY_HWCTX", request)
    except BadArgument as error:
        if known or error.errno != errno.EINVAL:
            raise
        return False
    return True


def _destroy(client: Client, handles: list[int]) -> bool:
    """Destroys contexts, if they are there; `handles` is empty then. False where the driver failed in it."""
    gone = True
    for handle in list(handles):
        try:
            destroy(client, handle)
        except XdnaError:
            gone = False
    handles.clear()
    return gone


def collect_contexts(seconds: float = 0.0) -> bool:
    """Gives back contexts of this process that are garbage (see :func:`amdxdna.reaper.collect`); true when
    there was one."""
    before = held()
    return reaper.collect(seconds, lambda: held() < before)


class Abandoned:
    """A context whose object is gone. :meth:`give_back` destroys it when its commands are over.

    Until then it keeps what they use, and the PDIs: the driver configures a context again from them whenever
    it resumes the device. `handles` is empty once the context is destroyed.
    """

    def __init__(
        self,
        client: Client,
        handles: list[int],
        syncobj: int,
        pending: dict[Command, object],
        spent: list[Command],
        pdis: Sequence[Buffer],
    ) -> None:
        self._client = client
        self._handles = handles
        self._syncobj = syncobj
        self._pending = pending
        self._spent = spent
        self._pdis = tuple(pdis)
        self._lock = mutex()
        self._done = False
        self._destroyed = True
        """Whether the driver has let go of what its commands used."""
        never_ends = client.profile.tdr_seconds is None and client.wait_seconds > 0
        self._until = time.monotonic() + client.wait_seconds if never_ends else math.inf
        """When its commands are no longer waited for: some drivers never end a hung one."""

    def give_back(self, deadline: int) -> bool:
        """Destroys the context if its commands are over by `deadline`; true when there is nothing left to do.

        Of two threads one is told to come again. On a driver that never ends a hung command, the context of
        one is destroyed under it after ``Client.wait_seconds``.
        """
        if not self._lock.acquire(blocking=False):
            return self._done
        try:
            if self._done:
                return True
            client = self._client
            if client.closed or client.pid != os.getpid():
                self._done = True
                _held.pop(id(self._handles), None)
                return True
            if self._handles and not self._over(deadline):
                if time.monotonic() < self._until:
                    return False
                self._cut()
            self._end()
            self._done = True
            _held.pop(id(self._handles), None)
        finally:
            self._lock.release()
        return True

    def _over(self, deadline: int) -> bool:
        for command in list(self._pending):
            if command.state is not None or command.exec.seq == NOT_SUBMITTED:
                continue
            try:
                if not command.over(self._client, command.exec.seq, deadline):
                    return False
            except XdnaError:  # a device that is gone; what it may write to stays
                command.state = State.NORESPONSE
            else:
                command.state = command.ended(self._client)
        return True

    def _cut(self) -> None:
        """Destroys the context under its commands, which ends them; takes the driver some two seconds."""
        self._destroyed = _destroy(self._client, self._handles)
        if not self._over(time.monotonic_ns() + int(reaper.PATIENCE * 1e9)):
            for command, kept in list(self._pending.items()):
                if command.state is None:
                    self._client.abandoned.append(kept)
                    command.state = State.NORESPONSE

    def _end(self) -> None:
        node = self._client.node
        self._destroyed &= _destroy(self._client, self._handles)
        for command in list(self._pending):
            reset = command.state == State.NORESPONSE or (command.state in RESETS and not self._destroyed)
            for each in (command, *command.members):
                if reset:
                    each.buffer.abandon()
                else:
                    each.close()
        self._pending.clear()
        while self._spent:
            last = self._spent.pop()
            if self._destroyed:
                last.close()
            else:
                last.buffer.abandon()
        self._pdis = ()
        with contextlib.suppress(XdnaError):
            ioctl.call(
                node, "SYNCOBJ_DESTROY", ffi.new("struct drm_syncobj_destroy *", {"handle": self._syncobj})
            )


def abandon(
    client: Client,
    handles: list[int],
    syncobj: int,
    pending: dict[Command, object],
    spent: list[Command],
    pdis: Sequence[Buffer] = (),
) -> None:
    """Destroys a context (`handles`: its number, or nothing when it is destroyed) and its timeline; one with
    commands in flight once they are over, at some later :func:`amdxdna.reaper.reap`."""
    rest = Abandoned(client, handles, syncobj, pending, spent, pdis)
    if not rest.give_back(0):
        reaper.later(rest.give_back)
