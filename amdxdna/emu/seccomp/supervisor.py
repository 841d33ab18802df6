"""Answers a program's calls on the emulated node."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from amdxdna import uapi
from amdxdna._native import lib
from amdxdna.emu.driver import teardown
from amdxdna.emu.driver.device import EmuDriver
from amdxdna.emu.driver.errors import error
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.seccomp import files, folders, injected, kernellog, polling, spawn
from amdxdna.emu.seccomp.call import Call, Stale
from amdxdna.emu.seccomp.client import HOT, RemoteClient
from amdxdna.emu.seccomp.files import Caller, Files
from amdxdna.emu.seccomp.observer import Observer
from amdxdna.emu.seccomp.receivers import Receivers
from amdxdna.emu.seccomp.rights import Teller
from amdxdna.emu.seccomp.tree import PCI_DEVICES, Outside, Tree, identity
from amdxdna.emu.seccomp.watch import CloseWatch
from amdxdna.emu.seccomp.workers import Workers
from amdxdna.usermem import UserMemory

DEFAULT_NODE = "/dev/accel/accel0"


class Supervisor:
    """One emulated device for the processes of one program. Use it in a process that has no other children.

    Counters for reports: `seen` (calls that were looked at), `opens`, `ioctls`.
    """

    def __init__(
        self, options: EmuOptions, node: str = DEFAULT_NODE, observer: Observer | None = None
    ) -> None:
        """`node`: the path under which the program finds the device. Raises OSError."""
        self.driver = EmuDriver(options)
        self.node = os.path.normpath(node)
        self.opens = 0
        self.ioctls = 0
        self._observer = observer
        self._began = time.monotonic()
        self._clients: dict[tuple[int, int] | None, RemoteClient] = {}
        """By device and inode of their memory."""
        self._workers = Workers("amdxdna-emu call")
        self._ending: set[threading.Event] = set()
        self._listener = -1
        self._receivers: Receivers | None = None
        self._blind = False
        self._rights = Teller("emulate" if observer is None else "trace")
        self._tree: Tree | None = None

    @property
    def seen(self) -> int:
        """Calls of the program that came here, most of them to go on at once."""
        return 0 if self._receivers is None else self._receivers.seen

    def run(self, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        """Runs the program and everything it starts to the end; the wait status of its first process.

        Raises CannotConfine, or the OSError with which the program could not be started.
        """
        folders.parent()  # before the program starts, which could do nothing
        spawn.become_subreaper()
        first = shutil.which(argv[0], path=environ.get("PATH"))
        if first is not None:
            self._rights.look(os.getpid(), first, argv[0])
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        child, self._listener = spawn.spawn(argv, environ)
        signals = spawn.Signals(child)
        signals.hold()
        # The program's opens and BOs are descriptors here; its own limit is what it was started with.
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
        try:
            self._tree = Tree(self.node, self.driver.kind)
            self._files = Files(self._tree)
            self._watch = CloseWatch()
            self._receivers = Receivers(
                self._listener, self._tree, lambda: len(self._clients), self._received
            )
            try:
                self._receivers.start()
                return spawn.reap_all(signals)
            finally:
                self._receivers.close()
                if self._observer:
                    self._tell_of_closes()
        finally:
            signals.undo()
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            if self._tree is not None:
                self._tree.close()
            self.driver.shutdown(1.0)

    # -- receiving

    def _received(self, call: Call, path: bytes) -> None:
        self._guard(partial(self._dispatch, call, path), call)

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

    def _work(self, call: Call, step: Callable[..., None], *given: Any) -> None:
        """Has a worker do a step of a call."""
        self._workers.run(partial(self._guard, partial(step, *given), call))

    def _dispatch(self, call: Call, path: bytes) -> None:
        if call.nr == files.GETCWD:
            self._cwd(call, os.fsdecode(path))
            return
        if call.nr in (files.GETDENTS, files.GETDENTS64):
            self._list(call, os.fsdecode(path))
            return
        if call.nr == files.EXECVE:
            shown = os.fsdecode(path).partition("/cwd/")[2] or os.fsdecode(path).partition("/root")[2]
            self._rights.look(call.thread, os.fsdecode(path), shown)
            call.go_on()
            return
        if path:
            self._path(call, os.fsdecode(path))
            return
        if call.nr in polling.CALLS:
            self._work(call, self._poll, call)
            return
        client = self._clients.get(call.file)
        if client is None:
            if call.nr in files.CALLS and call.file == (0, 0):
                self._cannot_read(call.thread)
            if call.file == self._files.tree.node_file and call.nr in files.CALLS | {files.FSTAT}:
                self._entry(call, None)  # a descriptor of O_PATH
            else:
                call.go_on()
        elif call.nr == files.IOCTL:
            self._ioctl(client, call)
        elif call.nr == files.MMAP:
            if client.moved(call):
                self._work(call, self._mmap, client, call)
            else:
                self._mmap(client, call)
        elif call.nr in files.CONTENTS:
            call.fail(errno.ENODEV if call.nr == files.FALLOCATE else errno.EINVAL)
        elif call.nr in (files.LSEEK, files.EPOLL_CTL):
            call.succeed(0)  # noop_llseek; an event that never comes
        else:
            self._answer(
                call, self._files.answer(call.nr, call.arguments, None, lambda: Caller.of(call.thread))
            )

    def _cwd(self, call: Call, path: str) -> None:
        """getcwd() in one of the tree's folders."""
        data = os.fsencode(self._files.plain(path) or path) + b"\0"
        if len(data) > call.arguments[1]:
            raise error(errno.ERANGE)
        self._answer(call, (len(data), call.arguments[0], data))

    def _list(self, call: Call, folder: str) -> None:
        """getdents() of the folder that the node is in, or of one that has paths of the tree."""
        process = Caller.of(call.thread).process
        fd = int(lib.xdna_take_fd(process, call.thread, call.arguments[0] & 0xFFFFFFFF))
        if fd < 0:
            call.go_on()
            return
        try:
            data = self._files.entries(fd, call.nr, call.arguments[2] & 0xFFFFFFFF, folder)
        finally:
            os.close(fd)
        self._answer(call, (len(data), call.arguments[1], data))

    def _poll(self, call: Call) -> None:
        def is_node(fd: int) -> bool:
            with contextlib.suppress(OSError):
                return identity(os.stat(f"/proc/{call.thread}/fd/{fd}")) in self._clients
            return False

        def write(address: int, data: bytes) -> None:
            call.check()
            UserMemory(call.thread).write(address, data)

        call.succeed(polling.answer(call, is_node, self._reader(call), write))

    def _cannot_read(self, thread: int) -> None:
        if not self._blind:
            self._blind = True
            print(
                f"amdxdna: the memory of process {thread} cannot be read (a program with more rights, or "
                "kernel.yama.ptrace_scope above 1): it finds no device",
                file=sys.stderr,
            )

    # -- files

    def _path(self, call: Call, path: str) -> None:
        tree = self._files.tree
        try:
            folder = "" if path.startswith("/") else self._files.folder(call.nr, call.thread, call.arguments)
        except OSError:
            call.go_on()
            return
        follow = self._follows(call)
        full, through = tree.absolute(path, folder, follow, f"/proc/{call.thread}/root")
        link = self._files.descriptor(call.thread, full)
        if link is not None:
            self._descriptor(call, link, follow)
        elif full == tree.node:
            self._entry(call, None)
        elif full == kernellog.PATH:
            self._log(call)
        elif not tree.covers(full) or (call.nr not in files.OPENS and full.rstrip("/") == PCI_DEVICES):
            self._elsewhere(call, full, through)
        else:
            try:
                with tree.opened(full, follow) as entry:
                    self._entry(call, None if tree.is_node(entry) else entry)
            except Outside:
                call.go_on()

    def _log(self, call: Call) -> None:
        """A call about the kernel log: a program that reads it gets the emulated driver's."""
        flags = self._flags(call) if call.nr in files.OPENS else os.O_PATH
        if flags & (os.O_ACCMODE | os.O_PATH | os.O_DIRECTORY | os.O_CREAT):
            call.go_on()
            return
        number, said = self._files.tree.number, self.driver.kernel_log()
        fd = kernellog.open_log(self.driver.kind, number, self._began, said)
        try:
            call.give(fd, bool(flags & os.O_CLOEXEC), answer=True)
        finally:
            os.close(fd)

    def _elsewhere(self, call: Call, path: str, through: bool) -> None:
        """A call about a file that is not the device's. Where the path leads there through the device's
        folders, the kernel would not find it."""
        if not through or path.rstrip("/") == PCI_DEVICES:
            call.go_on()
            return
        named = os.fsencode(path) + b"\0"
        self._work(call, injected.with_path, call, named)

    def _follows(self, call: Call) -> bool:
        """Whether a call goes through a link at its path's end."""
        if call.nr not in files.OPENS:
            return self._files.follows(call.nr, call.arguments)
        flags = self._flags(call)
        return not (flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL))

    def _entry(self, call: Call, entry: int | None) -> None:
        """A call about a file of the tree, None for the node."""
        if call.nr == files.CHDIR and entry is not None:
            self._later(call, os.dup(entry), injected.change_folder)
        elif call.nr not in files.OPENS:
            self._answer(
                call, self._files.answer(call.nr, call.arguments, entry, lambda: Caller.of(call.thread))
            )
        elif entry is None:
            if not self.driver.lock.acquire(blocking=False):  # the end of a context, say: that takes seconds
                self._work(call, self._open, call)
            else:
                self.driver.lock.release()
                self._open(call)
        elif self._flags(call) & os.O_PATH:
            flags = self._flags(call)
            self._files.check_entry(entry, flags)
            self._later(call, os.dup(entry), partial(injected.give_path, flags=flags))
        else:
            flags = self._flags(call)
            fd = self._files.open_entry(entry, flags)
            try:
                call.give(fd, bool(flags & os.O_CLOEXEC), answer=True)
            finally:
                os.close(fd)

    def _later(self, call: Call, fd: int, step: Callable[[Call, int], None]) -> None:
        """Has a worker do a step that the program itself must take part in; the step closes `fd`."""
        try:
            self._work(call, step, call, fd)
        except BaseException:
            os.close(fd)
            raise

    def _flags(self, call: Call) -> int:
        """The flags of an open."""
        return self._files.open_flags(call.nr, call.arguments, self._reader(call))

    def _descriptor(self, call: Call, link: str, follow: bool) -> None:
        """A call about /proc/PID/fd/N or /proc/PID/cwd: descriptors of the device lead to the node, those of
        its folders to where the program knows them. An open of the node's is a new one."""
        try:
            file: tuple[int, int] | None = identity(os.stat(link))
            target = os.readlink(link)
        except OSError:
            call.go_on()
            return
        node = file in self._clients or file == self._files.tree.node_file
        if call.nr in (files.READLINK, files.READLINKAT):
            shown = self.node if node else self._files.plain(target)
            if shown is not None:
                self._answer(call, self._files.link(call.nr, call.arguments, shown))
                return
        elif node and follow:
            self._entry(call, None)
            return
        call.go_on()

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
            if flags & os.O_PATH:
                self._later(
                    call,
                    os.open(self._files.tree.root + self.node, os.O_PATH | os.O_CLOEXEC),
                    partial(injected.give_path, flags=flags),
                )
                return
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

    def _tell_of_closes(self) -> None:
        """Has the observer told of the closes that the program's end was, however late their thread is."""
        self._watch.drain()
        for over in list(self._ending):
            over.wait(2 * teardown.LONGEST)

    def _await_ends(self) -> None:
        """Waits for releases: a program's close() returns before they are done, the driver's does not."""
        for over in list(self._ending):
            over.wait()

    # -- ioctl and mmap

    def _ioctl(self, client: RemoteClient, call: Call) -> None:
        self.ioctls += 1
        entry = self._observer.enter(client, call) if self._observer else None
        if uapi.number_of(call.arguments[1]) not in HOT:
            self._watch.drain()
        if client.may_block(call) or self._ending:
            try:
                self._work(call, self._finish, client, call, entry)
            except OSError as failed:
                client.forget(call)
                if self._observer:
                    self._observer.leave(entry, failed.errno or 0)
                raise
        else:
            self._finish(client, call, entry)

    def _finish(self, client: RemoteClient, call: Call, entry: Any) -> None:
        failed = 0
        value = 0
        if uapi.number_of(call.arguments[1]) not in HOT:
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
