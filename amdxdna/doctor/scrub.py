"""Takes what tells about a person or a machine out of text that goes into a public report."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from amdxdna.doctor.machine import Machine

_FIRST_USER = 1000
# Names that are words of every report, or of every machine.
_COMMON = frozenset(
    {
        "root",
        "nobody",
        "localhost",
        "amdxdna",
        "emu",
        "ok",
        "warn",
        "fail",
        "skip",
        "linux",
        "debian",
        "ubuntu",
        "fedora",
        "arch",
        "npu",
        "render",
        "user",
        "docker",
        "podman",
        "none",
        "unknown",
    }
)
_PATTERNS = (
    # At the beginning of a path a home folder, further in only somebody's name.
    (re.compile(r"(?<![\w.~>-])/(?:home|Users|var/home)/[^/\s\"':,;)]+"), "~"),
    (re.compile(r"/(home|Users)/[^/\s\"':,;)]+"), r"/\1/<user>"),
    (re.compile(r"(?<![\w.~>-])/root(?=/|\b)"), "~"),
    (re.compile(r"\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"), "<mac>"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"), "<address>"),
    (re.compile(r"(?i)\b(serial(?: ?number)?|s/n)\b[\s:=#]*\S+"), r"\1 <removed>"),
)


def private_names(machine: Machine) -> dict[str, str]:
    """Names to take out and what stands for them: the host's, and people's (user ids from 1000 on)."""
    names: dict[str, str] = {}
    for host in (os.uname().nodename, machine.text("proc/sys/kernel/hostname"), machine.text("etc/hostname")):
        for part in (host, host.partition(".")[0]):
            names[part] = "<host>"
    for row in (line.split(":") for line in machine.text("etc/passwd").splitlines()):
        if len(row) > 5 and row[2].isdecimal() and int(row[2]) >= _FIRST_USER:
            names[row[0]] = "<user>"
            full = row[4].split(",")[0]
            if " " in full:
                names[full] = "<user>"
    for key in ("USER", "LOGNAME", "SUDO_USER"):
        names[machine.environ.get(key, "")] = "<user>"
    return {name: mark for name, mark in names.items() if len(name) > 1 and name.lower() not in _COMMON}


class Scrubber:
    """Replaces private names (whole words), home folders, UUIDs, MAC and mail addresses, serial numbers."""

    def __init__(self, names: dict[str, str]) -> None:
        self._marks = {name.lower(): mark for name, mark in names.items()}
        words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        self._names = re.compile(rf"(?<![\w]){'(?:' + words + ')'}(?![\w])", re.IGNORECASE) if names else None

    @classmethod
    def of(cls, machine: Machine | None = None) -> Scrubber:
        """For reports of a machine; None: this one."""
        return cls(private_names(machine or Machine()))

    def text(self, text: str) -> str:
        """`text` with a mark in the place of each name, address and number that tells who or where."""
        for pattern, mark in _PATTERNS:
            text = pattern.sub(mark, text)
        if self._names is not None:
            text = self._names.sub(lambda match: self._marks[match[0].lower()], text)
        return text

    def value(self, value: Any) -> Any:
        """`value`, of JSON types, with every string in it, keys included, as :meth:`text` gives it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


def words_starting(words: Iterable[str], beginnings: tuple[str, ...]) -> list[str]:
    """Those of `words` that begin with one of `beginnings`: the rest may say where a disk is."""
    return [word for word in words if word.startswith(beginnings)]
