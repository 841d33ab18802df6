"""What a program loses that would get rights by being run, under a filter that a user without rights sets.

Such a filter needs no_new_privs, with which an exec gives none (prctl(2), PR_SET_NO_NEW_PRIVS).
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys

CAPABILITIES = "security.capability"


def thread_status(thread: int) -> dict[str, str]:
    """The first lines of /proc/THREAD/status, to its groups. Raises OSError when the thread is gone."""
    fields: dict[str, str] = {}
    with open(f"/proc/{thread}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            fields[name] = value
            if name == "Groups":
                break
    return fields


def lost(path: str, user: int, group: int) -> str | None:
    """The rights that an exec of the file would give this effective user and group; None without."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or os.statvfs(path).f_flag & os.ST_NOSUID:
            return None
    except OSError:
        return None
    if status.st_mode & stat.S_ISUID and status.st_uid != user:
        return f"user {status.st_uid}'s rights (setuid)"
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != group:
        return f"group {status.st_gid}'s rights (setgid)"
    if user != 0:
        with contextlib.suppress(OSError):
            if os.getxattr(path, CAPABILITIES):
                return "the file's capabilities"
    return None


class Teller:
    """Says a line on stderr about each program that loses rights, once."""

    def __init__(self, name: str) -> None:
        """`name`: the subcommand that the program runs under."""
        self._name = name
        self._told: set[str] = set()

    def look(self, thread: int, path: str, shown: str) -> None:
        """At what `thread` runs. `path`: where the file is found from here; `shown`: what it is called there.

        Raises OSError when the thread is gone.
        """
        user, group = (int(thread_status(thread)[name].split()[1]) for name in ("Uid", "Gid"))
        what = lost(path, user, group)
        if what is not None and shown not in self._told:
            self._told.add(shown)
            print(
                f"amdxdna: {self._name}: {shown} runs without {what}: no program gains any under "
                f"{self._name}",
                file=sys.stderr,
            )
