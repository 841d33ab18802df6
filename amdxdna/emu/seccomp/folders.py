"""Temporary folders that do not outlive their process for long: what a killed one left, the next one removes.

A folder is locked (flock) as long as its process lives, whose end unlocks it, whatever that end is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile

PREFIX = "amdxdna-emulate-"


class NoFolder(OSError):
    """No temporary folder can be written."""


def make() -> tuple[str, int]:
    """A new empty folder, and the descriptor that locks it. Raises OSError."""
    remove_stale(parent())
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Between the two calls another process may have taken it for a dead one's.
        if _lock(fd) and _is(path, fd):
            return path, fd
        os.close(fd)


def parent() -> str:
    """Where they are made. Raises NoFolder."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise NoFolder(errno.EROFS, "no temporary folder can be written") from None


def remove(path: str, fd: int) -> None:
    """Removes a folder of :func:`make`."""
    shutil.rmtree(path, ignore_errors=True)
    os.close(fd)


def remove_stale(where: str) -> None:
    """Removes this user's folders in `where` whose processes are gone."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(where)):
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_stale(entry.path)


def _remove_if_stale(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid == os.geteuid() and _lock(fd) and _is(path, fd):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is(path: str, fd: int) -> bool:
    """Whether the path still leads to the open folder."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    here = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
