"""Temporary folders that do not outlive their process for long: what a killed one left, the next one removes.

A folder is locked (flock) as long as its process lives, whose end unlocks it, whatever that end is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import tempfile

PREFIX = "amdxdna-emulate-"
_MOST_ROUNDS = 100_000


class NoFolder(OSError):
    """No temporary folder can be written."""


def make() -> tuple[str, int]:
    """A new empty folder, and the descriptor that locks it. Raises OSError."""
    remove_stale(parent())
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX)
        # Before it is locked another process may take it for a dead one's.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
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
    """Removes a folder of :func:`make`, whatever modes a program has given it and what is in it."""
    try:
        _erase(path, fd)
    finally:
        os.close(fd)


def remove_stale(where: str) -> None:
    """Removes this user's folders in `where` whose processes are gone."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(where)):
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_stale(entry.path)


def _remove_if_stale(path: str) -> None:
    fd = _opened(path)
    try:
        if _lock(fd) and _is(path, fd):
            _erase(path, fd)
    finally:
        os.close(fd)


def _opened(name: str, folder: int | None = None) -> int:
    """This user's folder of that name, open and readable whatever its mode was. Never through a link."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(path).st_uid != os.geteuid():
            raise PermissionError(errno.EACCES, "another user's", name)
        os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path)
    finally:
        os.close(path)


def _erase(path: str, fd: int) -> None:
    """Removes the folder `path`, which `fd` is open on, as far as that goes."""
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o700)
        for _ in range(_MOST_ROUNDS):
            if not _flatten(fd):
                break
        if _is(path, fd):
            os.rmdir(path)


def _flatten(fd: int) -> int:
    """Removes what is in a folder, but for the folders in its folders, which become its own; their number.

    So a tree of any depth goes with two descriptors.
    """
    moved = 0
    for name in _without_files(fd):
        with contextlib.suppress(OSError):
            below = _opened(name, fd)
            try:
                for deeper in _without_files(below):
                    with contextlib.suppress(OSError):
                        os.close(_opened(deeper, below))  # one that may not be written to cannot be moved
                        os.rename(deeper, secrets.token_hex(16), src_dir_fd=below, dst_dir_fd=fd)
                        moved += 1
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=fd)
    return moved


def _without_files(fd: int) -> list[str]:
    """Removes the files of a folder; the names of the folders in it."""
    found = []
    with os.scandir(fd) as entries:
        for entry in list(entries):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=fd)
    return found


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
