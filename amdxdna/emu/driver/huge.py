"""A file of huge pages, where the kernel lets this process have one.

Weights are read from end to end at every token: with pages of 4 KiB the page walks cost a third of the
memory bandwidth, and making the pages costs more than filling them. A memfd gets huge pages only where the
whole system is set to that, a tmpfs of one's own by a mount option (Linux's admin-guide/mm/transhuge.rst),
and a mount that is never attached shows nowhere and ends with its last file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same on every architecture
_CLOEXEC = 1
_SET_STRING, _CREATE = 1, 6
_NAME = "memfd:amdxdna-memory-large"

HUGE_PAGE = 2 << 20
_SIZE = 1 << 50

_libc: Any = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else ctypes.c_char_p(word) for word in arguments]
    value = int(_libc.syscall(ctypes.c_long(number), *words))
    if value < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value


def huge_file() -> int | None:
    """A descriptor of a sparse, unnamed 1 PiB file on huge pages; None where we lack the right to make it."""
    opened: list[int] = []
    try:
        settings = _call(_FSOPEN, b"tmpfs", _CLOEXEC)
        opened.append(settings)
        for key, value in ((b"huge", b"always"), (b"size", b"0"), (b"mode", b"0700")):
            _call(_FSCONFIG, settings, _SET_STRING, key, value, 0)
        _call(_FSCONFIG, settings, _CREATE, None, None, 0)
        folder = _call(_FSMOUNT, settings, _CLOEXEC, 0)
        opened.append(folder)
        file = os.open(_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            os.unlink(_NAME, dir_fd=folder)
            os.ftruncate(file, _SIZE)
        except OSError:
            os.close(file)
            raise
        return file
    except OSError:
        return None
    finally:
        for descriptor in opened:
            with contextlib.suppress(OSError):
                os.close(descriptor)
