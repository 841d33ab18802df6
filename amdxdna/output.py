"""Files that a command or a call writes for the user: whole or not at all, and never through a link.

A link in a file's place may be somebody else's, to a file that only this user may write: it is refused. The
bytes go to a file of an unguessable name beside the target, which then takes its name. What is written in
place, a device or pipe, is looked at again once it is open: another thing may have taken its name meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import IO

READER_SECONDS = 5.0
"""How long a pipe may have no reader."""
_AT_ONCE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[IO[bytes]]:
    """A file to write, which is at `path` once the block ends, and nowhere when it raises.

    A new file has the mode that the umask leaves of 0666, and so has one in the place of another user's; one
    of this user's keeps its mode; `private`: 0600.
    Devices and pipes are written to as they are; with `private` only devices, for whoever made a pipe reads
    it. Raises OSError: ELOOP for a link, EINVAL for such a pipe, EISDIR, ESTALE for what was replaced between
    look and open, and as open does.
    """
    target = os.fspath(path)
    mode = _look(target, private)
    if isinstance(mode, os.stat_result):
        with open(_special(target, mode, os.O_WRONLY), "wb") as file:
            yield file
        return
    fd, partial = _beside(target)
    try:
        with open(fd, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def write_whole(path: str | os.PathLike[str], data: bytes, *, private: bool = False) -> None:
    """Writes `data` as :func:`whole_file` does. Each OSError names the file."""
    try:
        with whole_file(path, private=private) as file:
            file.write(data)
    except OSError as error:
        if error.filename is None:  # of a write: no room, a limit on a file's size
            error.filename = os.fspath(path)
        raise


def open_growing(path: str | os.PathLike[str]) -> int:
    """A descriptor of a new, empty file at `path`, for what is to be seen while it grows.

    Otherwise as :func:`whole_file`.
    """
    target = os.fspath(path)
    mode = _look(target, False)
    if isinstance(mode, os.stat_result):
        return _special(target, mode, os.O_WRONLY)
    fd, partial = _beside(target)
    try:
        os.fchmod(fd, mode)
        os.replace(partial, target)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    return fd


def open_appending(path: str | os.PathLike[str]) -> int:
    """A descriptor that writes behind what is in the file at `path`. Otherwise as :func:`whole_file`.

    Raises OSError EMLINK for a file of several names: one may be somebody else's for a file of this user's.
    """
    target = os.fspath(path)
    mode = _look(target, False)
    if isinstance(mode, os.stat_result):
        return _special(target, mode, os.O_WRONLY | os.O_APPEND)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | _AT_ONCE, mode)
    try:
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode):
            raise _replaced(target)
        if there.st_nlink > 1:
            text = "it has further names (hard links), and such files are not appended to"
            raise OSError(errno.EMLINK, text, target)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two names are of one file, there or yet to be written. Devices and pipes are no such files."""
    try:
        there = os.stat(one)
        return stat.S_ISREG(there.st_mode) and os.path.samestat(there, os.stat(other))
    except (OSError, ValueError):
        return os.path.realpath(one) == os.path.realpath(other)


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether a device, pipe or socket is there. Raises as :func:`whole_file`."""
    return isinstance(_look(os.fspath(path), False), os.stat_result)


def _special(target: str, looked: os.stat_result, flags: int) -> int:
    """A descriptor of the device or pipe that was `looked` at.

    Raises ENXIO for a pipe that nobody begins to read in a while, ESTALE for anything else.
    """
    end = time.monotonic() + READER_SECONDS
    while True:
        try:
            fd = os.open(target, flags | _AT_ONCE)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(os.stat(target).st_mode):
                raise
            if time.monotonic() >= end:
                raise OSError(errno.ENXIO, "nobody reads this pipe", target) from None
        time.sleep(0.02)
    try:
        if not os.path.samestat(os.fstat(fd), looked):
            raise _replaced(target)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _replaced(target: str) -> OSError:
    return OSError(errno.ESTALE, "another file took its place just now", target)


def _beside(target: str) -> tuple[int, str]:
    folder, name = os.path.split(target)
    try:
        return tempfile.mkstemp(prefix=f".{name[:100]}.", dir=folder or ".")
    except OSError as error:
        # Of the file that was asked for, not of the one beside it.
        raise OSError(error.errno, error.strerror, target) from None


def _look(target: str, private: bool) -> int | os.stat_result:
    """The mode that the file gets; of a device, pipe or socket, which is no file to replace, what it is."""
    try:
        there = os.lstat(target)
        if stat.S_ISLNK(there.st_mode):
            # /dev/stdout and the like: what they lead to is already open, and named by nobody else.
            there = os.stat(target)
            if private or stat.S_ISREG(there.st_mode) or stat.S_ISDIR(there.st_mode):
                raise OSError(errno.ELOOP, "it is a link, and links are not written through", target)
    except FileNotFoundError:
        if os.path.islink(target):
            raise OSError(errno.ELOOP, "it is a link, and links are not written through", target) from None
        return 0o600 if private else 0o666 & ~_umask()
    if stat.S_ISDIR(there.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    if not stat.S_ISREG(there.st_mode):
        if private and not stat.S_ISCHR(there.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file, and what goes there is for you alone", target)
        return there
    if private:
        return 0o600
    # Whoever planted a file chose its mode, too.
    return stat.S_IMODE(there.st_mode) & 0o777 if there.st_uid == os.geteuid() else 0o666 & ~_umask()


def _umask() -> int:
    with open("/proc/self/status") as file:  # os.umask() would change it for other threads meanwhile
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
