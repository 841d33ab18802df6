"""What the subcommands share: options, one-line errors, JSON documents. Imports no part of the binding.

Every ``--json`` answer is one document ``{"schema": "amdxdna.NAME", "version": N, ...}`` on one line of
stdout. Fields may be added within a version; a field that changes its meaning or goes raises it. A command
that fails prints its line on stderr and, with ``--json``, an ``amdxdna.error`` document::

    {"schema": "amdxdna.error", "version": 1, "call": "open", "errno": "ENOENT",
     "meaning": "there is no NPU node ...", "remedy": "Load it ..."}

``call``, ``errno`` and ``remedy`` are null where there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from amdxdna.entry import FAILED, USAGE, descriptor_fault, library_fault, memory_fault, thread_fault
from amdxdna.parser import ArgumentParser
from amdxdna.programs import own_commands
from amdxdna.text import one_line

__all__ = [
    "CannotStart",
    "CommandError",
    "FAILED",
    "Parser",
    "USAGE",
    "UsageError",
    "document",
    "one_line",
    "print_json",
    "report",
    "writing",
]


class CommandError(Exception):
    """A command that cannot go on: the fault, and what to do about it (may be empty). Exit status 1."""

    def __init__(self, meaning: str, remedy: str = "") -> None:
        self.meaning = meaning
        self.remedy = remedy
        super().__init__(meaning, remedy)

    def __str__(self) -> str:
        return self.meaning + (f". {self.remedy}" if self.remedy else "")


class UsageError(CommandError):
    """A wrong option or argument. Exit status 2."""


class CannotStart(CommandError):
    """A program that could not be started. Exit status as a shell has it: 127 where there is no such program,
    126 where there is one that cannot be run."""

    def __init__(self, program: str, failed: OSError) -> None:
        super().__init__(f"{program} cannot be started: {descriptor_fault(failed) or failed.strerror}")
        self.status = 127 if failed.errno in (errno.ENOENT, errno.ENOTDIR) else 126


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """For what writes `path`: raises CommandError where that cannot be done."""
    try:
        yield
    except OSError as failed:
        raise CommandError(f"{path} cannot be written: {failed.strerror}", "Name another file") from None


class Parser(ArgumentParser):
    """An argument parser that says a mistake in one line, with exit status 2; no abbreviated options."""

    def __init__(self, command: str, **settings: Any) -> None:
        """`command` is the subcommand's name; `settings` are ArgumentParser's."""
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog=f"amdxdna {command}", allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {self.with_values(message)}", f"See python -m {self.prog} --help")

    def add_json(self) -> None:
        """Adds ``--json``."""
        self.add_argument("--json", action="store_true", help="print one JSON document for programs")


def document(name: str, version: int = 1, **content: Any) -> dict[str, Any]:
    """A JSON document with its schema's name and version first."""
    return {"schema": f"amdxdna.{name}", "version": version, **content}


def print_json(value: dict[str, Any]) -> None:
    """One document on one line of stdout."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def report(error: BaseException, as_json: bool = False) -> None:
    """An error in one line on stderr, and as a document on stdout; with AMDXDNA_DEBUG=1 all of it first."""
    if os.environ.get("AMDXDNA_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)
    text, call, number, meaning, remedy = _explain(error)
    with contextlib.suppress(OSError, ValueError):  # a stderr that is closed or full is no reason to fail
        print(f"amdxdna: error: {own_commands(one_line(text))}", file=sys.stderr, flush=True)
    if as_json:
        name = None if number is None else errno.errorcode.get(number, str(number))
        name = "EOPNOTSUPP" if number == errno.EOPNOTSUPP else name
        print_json(
            document("error", call=call or None, errno=name, meaning=one_line(meaning), remedy=remedy or None)
        )


def _limit_or_library(error: BaseException) -> str | None:
    if not isinstance(error, OSError) or getattr(error, "meaning", None) is None:
        known = descriptor_fault(error)
        if known is not None and known not in str(error):
            return known
    return memory_fault(error) or library_fault(error) or thread_fault(error)


def _explain(error: BaseException) -> tuple[str, str, int | None, str, str]:
    """(line, call, errno, meaning, remedy) of any exception that may reach a user."""
    number = error.errno if isinstance(error, OSError) else None
    if (known := _limit_or_library(error)) is not None:
        return known, getattr(error, "call", ""), number, known, ""
    meaning = getattr(error, "meaning", None)
    if meaning is not None:  # CommandError and the binding's own
        return str(error), getattr(error, "call", ""), number, meaning, getattr(error, "remedy", "")
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", "", number, f"{where}{error.strerror}", ""
    if isinstance(error, MemoryError):
        return "out of memory", "", None, "out of memory", ""
    text = f"unexpected {type(error).__name__}: {error or 'no details'} (a fault of this program)"
    again = "Run again with AMDXDNA_DEBUG=1 for the full report"
    return f"{text}. {again}", "", None, text, again
