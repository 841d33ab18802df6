"""Answers that take calls of the program's own, which its thread is made to run (:meth:`Call.inject`).

They take as long as the program lets them: for a worker. Raise OSError, and Stale where the caller is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.errors import error
from amdxdna.emu.seccomp import files
from amdxdna.emu.seccomp.call import CLOSE, Call

_LONGEST_NAME = 4096


def with_path(call: Call, path: bytes) -> None:
    """Makes the caller do its own call with another path; the kernel does it as it is where the caller cannot
    be traced."""
    try:
        value = call.again(files.path_argument(call.nr), path)
    except OSError as failed:
        if failed.errno != errno.EOPNOTSUPP or call.injected:
            raise
        call.go_on()
    else:
        call.succeed(value)


def change_folder(call: Call, folder: int) -> None:
    """Makes the caller go to a folder of the tree; the descriptor `folder` is closed."""
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            raise error(errno.ENOTDIR)
        with _lent(call, folder) as fd:
            call.inject(files.FCHDIR, fd)
    finally:
        os.close(folder)
    call.succeed()


def give_path(call: Call, path: int, flags: int) -> None:
    """Gives the program an O_PATH descriptor of what `path` is a descriptor of, which is closed. Such a
    descriptor cannot be handed over: the program has to make it."""
    try:
        with _lent(call, path) as fd:
            name = call.arguments[files.path_argument(call.nr)]
            # An empty string means the descriptor itself: the end of the name that the program gave.
            end = name + len(_name(call, name))
            made = call.inject(files.OPEN_TREE, fd, end, files.AT_EMPTY_PATH | flags & os.O_CLOEXEC)
    finally:
        os.close(path)
    call.succeed(made)


@contextlib.contextmanager
def _lent(call: Call, path: int) -> Iterator[int]:
    """A descriptor of the program's for what the O_PATH descriptor `path` is of; closed there at the end."""
    own = os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fd = call.give(own, True)
    finally:
        os.close(own)
    try:
        yield fd
    finally:
        call.inject(CLOSE, fd)


def _name(call: Call, address: int) -> bytes:
    """A string of the program's. Raises OSError."""
    text = ffi.new("char[]", _LONGEST_NAME)
    length = int(lib.xdna_read_string(call.thread, address, text, len(text)))
    call.check()
    if length < 0:
        raise error(-length)
    return bytes(ffi.buffer(text, length))
