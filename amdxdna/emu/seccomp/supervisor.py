"""Answers a program's calls on the emulated node."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.device import EmuDriver
from amdxdna.emu.driver.store import memfd_device
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.seccomp import files, folders, spawn
from amdxdna.emu.seccomp.call import Call, Stale
from amdxdna.emu.seccomp.client import HOT, RemoteClient
from amdxdna.emu.seccomp.files import Caller, Files
from amdxdna.emu.seccomp.tree import PCI_DEVICES, Outside, Tree, identity
from amdxdna.emu.seccomp.watch import CloseWatch
from amdxdna.emu.seccomp.workers import Workers
from amdxdna.usermem import UserMemory

DEFAULT_NODE = "/dev/accel/accel0"


class Observer(Protocol):
    """Sees every call about the device, from any thread: the tracer."""

    def opened(self, client: RemoteClient | None, caller: Caller, path: str, fd: int, failed: int,
               began: float) -> None:
        """An open of the node; `client` is None when it failed with an errno. `began`: time.monotonic()."""

    def enter(self, client: RemoteClient, call: Call) -> Any:
        """Before an ioctl; what it returns goes to leave()."""

    def leave(self, entry: Any, failed: int) -> None:
        """After an ioctl, before the program goes on."""

    def mapped(self, client: RemoteClient, call: Call, address: int | None, failed: int,
               began: float) -> None:
        """A mapping; `address` is None where the kernel chooses it after this."""

    def closed(self, client: RemoteClient) -> None:
        """The last holder of an open is gone."""


class Supervisor:
    """One emulated device for the processes of one program. Use it in a process that has no other children.

    Counters for reports: `seen` (calls that were looked at), `opens`, `ioctls`.
    """

    def __init__(self, options: EmuOptions, node: str = DEFAULT_NODE,
                 observer: Observer | None = None) -> None:
        """`node`: the path under which the program finds the device. Raises OSError."""
        self.driver = EmuDriver(options)
        self.node = os.path.normpath(node)
        self.opens = 0
        self.ioctls = 0
        self._observer = observer
        self._seen = ffi.new("uint64_t *")
        self._clients: dict[tuple[int, int] | None, RemoteClient] = {}
        """By device and inode of their memory."""
        self._workers = Workers("amdxdna-emu call")
        self._ending: set[threading.Event] = set()
        self._listener = -1
        self._stop = -1
        self._blind = False
        self._tree: Tree | None = None

    @property
    def seen(self) -> int:
        """Calls of the program that came here, most of them to go on at once."""
        return int(self._seen[0])

    def run(self, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        """Runs the program and everything it starts to the end; the wait status of its first process.

        Raises CannotConfine, or the OSError with which the program could not be started.
        """
        folders.parent()  # before the program starts, which could do nothing
        spawn.become_subreaper()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        child, self._listener = spawn.spawn(argv, environ)
        undo = spawn.forward_signals(child)
        # The program's opens and BOs are descriptors here; its own limit is what it was started with.
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
        try:
            self._tree = Tree(self.node, self.driver.kind)
            self._files = Files(self._tree)
            self._watch = CloseWatch()
            self._stop = os.eventfd(0, os.EFD_CLOEXEC)
            lib.xdna_notice_start(self._listener)
            receiver = threading.Thread(target=self._receive, name="amdxdna-emu calls")
            receiver.start()
            status = spawn.reap_all(child)
            os.eventfd_write(self._stop, 1)
            receiver.join()
            return status
        finally:
            undo()
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            if self._tree is not None:
                self._tree.close()
            self.driver.shutdown(1.0)

    # -- receiving

    def _receive(self) -> None:
        notice = ffi.new("struct xdna_notice *")
        device, tokens = memfd_device(), self._files.tree.tokens
        while True:
            found = lib.xdna_notice_next(self._listener, self._stop, device, tokens, notice, self._seen)
            if found == -errno.EINTR:
                continue
            if found <= 0:
                return
            call = Call(self._listener, notice)
            self._guard(partial(self._dispatch, call, ffi.string(notice.path)), call)

    def _guard(self, step: Callable[[], None], call: Call) -> None:
        """Runs a step of a call. Whatever happens, the program does not hang."""
        try:
            step()
        except Stale:
            pass
        except OSError as failed:
            with contextlib.suppress(Stale):
                call.fail(failed.errno or errno.EIO)
        except Exception:
            traceback.print_exc()
            with contextlib.suppress(Stale):
                call.fail(errno.EIO)

    def _dispatch(self, call: Call, path: bytes) -> None:
        if path:
            self._path(call, os.fsdecode(path))
            return
        client = self._clients.get(call.file)
        if client is None:
            if call.nr in files.CALLS and call.file == (0, 0):
                self._cannot_read(call.thread)
            call.go_on()
        elif call.nr == files.IOCTL:
            self._ioctl(client, call)
        elif call.nr == files.MMAP:
            if client.moved(call):
                self._workers.run(partial(self._guard, partial(self._mmap, client, call), call))
            else:
                self._mmap(client, call)
        else:
            self._answer(call, self._files.status(call.nr, call.arguments, self._files.node_status()))

    def _cannot_read(self, thread: int) -> None:
        if not self._blind:
            self._blind = True
            print(f"amdxdna: the memory of process {thread} cannot be read (a program with more rights, or "
                  "kernel.yama.ptrace_scope above 1): it finds no device", file=sys.stderr)

    # -- files

    def _path(self, call: Call, path: str) -> None:
        try:
            full = self._files.resolve(call.nr, call.thread, call.arguments, path)
        except OSError:
            call.go_on()
            return
        link = self._files.descriptor(call.nr, call.thread, full)
        if link is not None:
            self._descriptor(call, link)
            return
        tree = self._files.tree
        if full == tree.node:
            self._entry(call, None)
        elif not tree.covers(full) or (call.nr not in files.OPENS and full.rstrip("/") == PCI_DEVICES):
            call.go_on()
        else:
            follow = self._files.follows(call.nr, call.arguments)
            if call.nr in files.OPENS:
                follow = not self._flags(call) & os.O_NOFOLLOW
            try:
                with tree.opened(full, follow) as entry:
                    self._entry(call, None if tree.is_node(entry) else entry)
            except Outside:
                call.go_on()

    def _entry(self, call: Call, entry: int | None) -> None:
        """A call about a file of the tree, None for the node."""
        if call.nr not in files.OPENS:
            self._answer(call, self._files.answer(call.nr, call.arguments, entry,
                                                  lambda: Caller.of(call.thread)))
        elif entry is None:
            self._open(call)
        else:
            flags = self._flags(call)
            fd = self._files.open_entry(entry, flags)
            try:
                call.give(fd, bool(flags & os.O_CLOEXEC), answer=True)
            finally:
                os.close(fd)

    def _flags(self, call: Call) -> int:
        """The flags of an open."""
        return self._files.open_flags(call.nr, call.arguments, self._reader(call))

    def _descriptor(self, call: Call, link: str) -> None:
        """A question about /proc/PID/fd/N: the device's descriptors lead to the node."""
        try:
            file: tuple[int, int] | None = identity(os.stat(link))
        except OSError:
            file = None
        follow = not ((call.nr == files.NEWFSTATAT and call.arguments[3] & files.AT_SYMLINK_NOFOLLOW)
                      or (call.nr == files.STATX and call.arguments[2] & files.AT_SYMLINK_NOFOLLOW))
        if file not in self._clients or not follow:
            call.go_on()
        elif call.nr in (files.READLINK, files.READLINKAT):
            self._answer(call, self._files.link(call.nr, call.arguments, self.node))
        else:
            self._answer(call, self._files.status(call.nr, call.arguments, self._files.node_status()))

    def _reader(self, call: Call) -> Callable[[int, int], bytes]:
        def read(address: int, size: int) -> bytes:
            data = UserMemory(call.thread).read(address, size)
            call.check()
            return data

        return read

    def _answer(self, call: Call, answer: tuple[int, int, bytes]) -> None:
        """Writes what a call returns into the program's memory, and answers it."""
        value, address, data = answer
        if data:
            call.check()
            UserMemory(call.thread).write(address, data)
        call.succeed(value)

    def _open(self, call: Call) -> None:
        caller = Caller.of(call.thread)
        if not call.valid():
            raise Stale
        client: RemoteClient | None = None
        began = time.monotonic()
        try:
            flags = self._flags(call)
            self._files.check_node(flags, caller)
            opened = self.driver.open(caller.process, RemoteClient)
            assert isinstance(opened, RemoteClient)
            client = opened
            number = self._hand_over(client, call, flags)
            if self._observer:
                self._observer.opened(client, caller, self.node, number, 0, began)
            call.succeed(number)
        except BaseException as failed:
            if client is not None:
                self._clients.pop(client.file, None)
                client.close()
            if self._observer and isinstance(failed, OSError):
                self._observer.opened(None, caller, self.node, -1, failed.errno or 0, began)
            raise
        self.opens += 1

    def _hand_over(self, client: RemoteClient, call: Call, flags: int) -> int:
        """Gives the program its descriptor. The watch is there before it can be closed."""
        fd = client.open_file(flags)
        try:
            self._watch.add(client.store.file.fd, partial(self._begin_end, client))
            self._clients[client.file] = client
            return call.give(fd, bool(flags & os.O_CLOEXEC))
        finally:
            os.close(fd)

    def _begin_end(self, client: RemoteClient) -> None:
        """Starts the driver's release of an open."""
        if self._clients.pop(client.file, None) is not None:
            over = threading.Event()
            self._ending.add(over)
            try:
                self._workers.run(partial(self._end, client, over))
            except OSError:
                self._end(client, over)

    def _end(self, client: RemoteClient, over: threading.Event) -> None:
        try:
            client.close()
            if self._observer:
                self._observer.closed(client)
        except Exception:
            traceback.print_exc()
        finally:
            self._ending.discard(over)
            over.set()

    def _await_ends(self) -> None:
        """Waits for releases: a program's close() returns before they are done, the driver's does not."""
        for over in list(self._ending):
            over.wait()

    # -- ioctl and mmap

    def _ioctl(self, client: RemoteClient, call: Call) -> None:
        self.ioctls += 1
        entry = self._observer.enter(client, call) if self._observer else None
        if call.arguments[1] & 0xFF not in HOT:
            self._watch.drain()
        if client.may_block(call) or self._ending:
            self._workers.run(partial(self._guard, partial(self._finish, client, call, entry), call))
        else:
            self._finish(client, call, entry)

    def _finish(self, client: RemoteClient, call: Call, entry: Any) -> None:
        failed = 0
        value = 0
        if call.arguments[1] & 0xFF not in HOT:
            self._await_ends()
        try:
            value = client.handle(call)
        except OSError as refused:
            failed = refused.errno or errno.EIO
        if self._observer:
            self._observer.leave(entry, failed)
        if failed:
            call.fail(failed)
        else:
            call.succeed(value)

    def _mmap(self, client: RemoteClient, call: Call) -> None:
        began = time.monotonic()
        try:
            where = client.map(call)
        except OSError as refused:
            if self._observer:
                self._observer.mapped(client, call, None, refused.errno or 0, began)
            raise
        if self._observer:
            self._observer.mapped(client, call, where, 0, began)
        if where is None:
            call.go_on()
        else:
            call.succeed(where)
