"""`python -m amdxdna trace`: every call of a program on the NPU."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

from amdxdna.cli import emulate
from amdxdna.cli.common import FAILED, CannotStart, CommandError, Parser, UsageError, document, writing
from amdxdna.cli.screen import tell
from amdxdna.files import open_regular
from amdxdna.output import open_growing, same_file
from amdxdna.trace import SCHEMA, VERSION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from amdxdna.trace.recorder import Recorder, View

_DESCRIPTION = """\
Records every ioctl, wait and mapping of COMMAND (and of what it starts) on the NPU's node, decoded by field,
with packets, results, errno and what it means. Any program will do, other runtimes too; no privileges are
needed. With --emulate the program runs on an emulated NPU."""

_EPILOG = """\
A trace is JSON lines: a header, a line a call, a summary. amdxdna/trace/__init__.py describes the format
(version 1). The summary is also printed, on stderr: as text, or with --json as one document

  {"schema": "amdxdna.trace-summary", "version": 1, "status": 0, "signal": null, "file": "...",
   "summary": {...}}

What it costs, measured on a small virtual machine: about 70 us a traced ioctl and 11 us an open or a close
by ptrace, nothing for other calls; 50 us an ioctl with --emulate; 35 us with AMDXDNA_TRACE.

The exit status is COMMAND's (128 + N when signal N killed it, 127 or 126 when it could not be started), 1
where that is 0 and the trace could not be written. Set
AMDXDNA_TRACE=FILE instead to record what a program does through this package's own binding, also on its
in-process emulated device."""

DEFAULT_FILE = "amdxdna-trace.jsonl"
_MOST_CONTENTS = 1 << 16
_LONGEST, _LARGEST = 64 << 20, 64 << 30
"""Bytes of a line and of a whole trace that --read takes. With --buffers 65536 a submit has 128 KiB a BO."""


def parser() -> Parser:
    """The options of `trace`."""
    p = Parser(
        "trace",
        usage="amdxdna trace [options] -- COMMAND [ARGUMENT...]\n"
        "       amdxdna trace --read TRACE [--text] [--timeline FILE]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"the trace (default {DEFAULT_FILE}; with --text none); - writes it to stderr",
    )
    p.add_argument("--emulate", action="store_true", help="run COMMAND on an emulated NPU")
    p.add_argument(
        "--every-call",
        action="store_true",
        help="let every system call stop, not only those that a filter picks: slow, for a COMMAND "
        "that starts `emulate` itself (inside `emulate` it is done without asking)",
    )
    p.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="PATH",
        help="take this file or device for a node too, whatever name it is opened by; repeatable",
    )
    p.add_argument("--quiet", "-q", action="store_true", help="do not print the summary")
    views = p.add_argument_group("views for people")
    views.add_argument("--text", action="store_true", help="a line a call, to stderr, instead of the trace")
    views.add_argument(
        "-e",
        dest="names",
        metavar="NAME,...",
        action="append",
        default=[],
        help="with --text: only these calls, as EXEC_CMD,CREATE_BO",
    )
    views.add_argument("--packets", action="store_true", help="with --text: the packets of submits too")
    views.add_argument(
        "--buffers",
        metavar="N",
        type=int,
        default=0,
        help="record the first N bytes of the buffers that a submit lists",
    )
    views.add_argument(
        "--timeline",
        metavar="FILE",
        help="write calls, commands and contexts on a time axis (Chrome's trace format, which "
        "Perfetto opens)",
    )
    views.add_argument("--read", metavar="TRACE", help="run nothing: make these views of a recorded trace")
    emulate.add_device_options(p)
    p.add_json()
    return p


def trace_main(argv: list[str]) -> int:
    """Runs `trace` with `argv`; the exit status."""
    if "--" not in argv and any(word == "--read" or word.startswith("--read=") for word in argv):
        return _read(parser().parse_args(argv))
    own, command = emulate.split(argv, "trace")
    given = parser().parse_args(own)
    if given.read:
        raise UsageError("--read goes without a COMMAND", "Leave the command away")
    if given.emulate and (given.every_call or given.node):
        raise UsageError(
            "--emulate goes without --every-call and --node", "It sees every call of its node already"
        )
    if not given.emulate and emulate.device_options(given):
        raise UsageError(
            f"{emulate.device_options(given)[0]} is of the emulated NPU's options", "Add --emulate"
        )
    _check(given)
    runner = _emulated(given) if given.emulate else _kernel(given)

    from amdxdna.trace.recorder import Recorder

    with contextlib.ExitStack() as stack:
        fd = None
        if not given.text or given.output is not None:
            _require_replaceable(given.output or DEFAULT_FILE)
            fd = _output(stack, given.output or DEFAULT_FILE)
        views = _views(stack, given)
        recorder = Recorder(
            fd, "seccomp" if given.emulate else "ptrace", command, views=views, contents=given.buffers
        )
        status = runner(recorder, command)
        summary = recorder.finish()
    code, killed = emulate.wait_status(status)
    emulate.tell_killed(command[0], killed)
    where = given.output or ("-" if given.text else DEFAULT_FILE)
    if given.json:
        import json

        print(
            json.dumps(document("trace-summary", status=code, signal=killed, file=where, summary=summary)),
            file=sys.stderr,
        )
    elif not given.quiet:
        from amdxdna.trace.summary import lines

        arrow = "" if where == "-" else f" -> {where}"
        tell([f"amdxdna: trace of {command[0]}{arrow}", *lines(summary)])
    if not summary["opens"] and not given.quiet:
        tell(_NOTHING.splitlines())
    elif not set(summary["calls"]) - _WITHOUT_IOCTL and not given.quiet:
        tell(_NO_IOCTL.splitlines())
    return code or (FAILED if recorder.broken else 0)


_NOTHING = """\
amdxdna: the command never opened an NPU's node. If it ran on this package's emulated device ("emu", the
default where there is no NPU), set AMDXDNA_TRACE=FILE to record that, or give it a node: trace --emulate.
If it runs programs of its own under `emulate`, --every-call sees their calls"""

_WITHOUT_IOCTL = {"open", "close", "mmap", "munmap"}
_NO_IOCTL = """\
amdxdna: the node was opened, and no ioctl came by here. If the command is or runs `emulate`, that answers its
program's ioctls: turn them round (emulate -- ... trace -- PROGRAM), or use trace --emulate -- PROGRAM"""

_ANSWERED = """\
amdxdna: somebody else answers this program's calls (`emulate`): every call of it stops, which is slow"""


_GIVE = "Give a file that `trace` or AMDXDNA_TRACE wrote"


def _check(given: argparse.Namespace) -> None:
    """Raises UsageError for view options that do not go together."""
    if (given.names or given.packets) and not given.text:
        raise UsageError("-e and --packets belong to --text", "Add --text")
    if given.buffers < 0 or given.buffers > _MOST_CONTENTS:
        raise UsageError(f"--buffers {given.buffers}", f"Give 0 to {_MOST_CONTENTS}")
    trace = given.read or given.output or (None if given.text else DEFAULT_FILE)
    if given.timeline and given.timeline != "-" and trace and same_file(trace, given.timeline):
        raise UsageError(f"{trace} is the trace, and --timeline would take its place", "Name another file")


def _views(stack: contextlib.ExitStack, given: argparse.Namespace) -> list[View]:
    """The views that the options ask for; they are finished when the stack unwinds."""
    from amdxdna.trace.text import TextView, names_of
    from amdxdna.trace.timeline import TimelineView

    views: list[View] = []
    if given.text:
        views.append(
            TextView(lambda text: write_all(2, text), names=names_of(given.names), packets=given.packets)
        )
    if given.timeline:
        target = _output(stack, given.timeline)
        timeline = TimelineView(lambda text: write_all(target, text))
        stack.callback(timeline.finish)
        views.append(timeline)
    return views


def write_all(fd: int, text: str) -> None:
    """Writes all of `text`; a disk that is full raises OSError."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(fd, data) :]


def _read(given: argparse.Namespace) -> int:
    """Makes views of a recorded trace."""
    import json

    if not given.text and not given.timeline:
        raise UsageError("--read makes views of a trace", "Add --text or --timeline FILE")
    _check(given)
    with contextlib.ExitStack() as stack:
        rows = _rows(stack, given.read)
        views = _views(stack, given)
        number = 0
        for number, row in enumerate(rows, 1):
            try:
                line = json.loads(row.decode("utf-8", "replace"))
                if number == 1 and line.get("schema") != SCHEMA:
                    raise ValueError("no header")
                if number == 1 and line.get("version") != VERSION:
                    raise CommandError(
                        f"{given.read}: a trace of format version {line.get('version')}, "
                        f"and this amdxdna reads version {VERSION}",
                        "Read it with the amdxdna that wrote it",
                    )
                for view in views:
                    view(line)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
                raise CommandError(f"{given.read}: line {number} is not of a trace: {wrong}", _GIVE) from None
        if not number:
            raise CommandError(f"{given.read}: no trace: the file is empty", _GIVE)
    return 0


def _rows(stack: contextlib.ExitStack, path: str) -> Iterator[bytes]:
    """The lines of a regular file, as they are asked for. Raises CommandError."""
    try:
        file = io.BufferedReader(stack.enter_context(open_regular(path)), 1 << 16)
        if os.fstat(file.fileno()).st_size > _LARGEST:
            raise OSError(errno.EFBIG, f"longer than {_LARGEST:,} bytes")
    except OSError as failed:
        raise CommandError(f"{path} cannot be read: {failed.strerror}") from None

    def read() -> Iterator[bytes]:
        left = _LARGEST
        for number in itertools.count(1):
            try:
                row = file.readline(_LONGEST + 1)
            except OSError as failed:
                raise CommandError(f"{path} cannot be read: {failed.strerror}") from None
            left -= len(row)
            if len(row) > _LONGEST or left < 0:
                raise CommandError(
                    f"{path}: line {number} is not of a trace: longer than {_LONGEST:,} bytes", _GIVE
                )
            if not row:
                return
            yield row

    return read()


def _require_replaceable(path: str) -> None:
    """Raises CommandError for a file that holds something else than a trace."""
    start = f'{{"schema": "{SCHEMA}"'.encode()
    try:
        if path == "-" or not stat.S_ISREG(os.lstat(path).st_mode):
            return  # what becomes of links, pipes and devices says the opening
        with open_regular(path) as file:
            found = file.read(len(start)) or start
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as failed:
        raise CommandError(f"{path} cannot be read: {failed.strerror}", "Name another file") from None
    if found != start:
        raise CommandError(f"{path} is there already and is no trace", "Name another file, or remove it")


def _output(stack: contextlib.ExitStack, path: str) -> int:
    """A file's descriptor, closed with the stack; "-" is stderr."""
    if path == "-":
        return 2
    with writing(path):
        fd = open_growing(path)
    stack.callback(os.close, fd)
    return fd


def _kernel(given: argparse.Namespace) -> Any:
    """Runs the program on the kernel's node."""

    def run(recorder: Recorder, command: list[str]) -> int:
        from amdxdna.trace.ptrace import CannotTrace, Tracer

        try:
            tracer = Tracer(recorder, every_stop=given.every_call, nodes=given.node)
            if tracer.answered_elsewhere and not given.quiet:
                tell(_ANSWERED.splitlines())
            return tracer.run(command, os.environ)
        except CannotTrace as failed:
            raise CommandError(
                f"the kernel refuses to trace: {failed.strerror}",
                "A sandbox or container may forbid ptrace or seccomp; try --every-call, or set "
                "AMDXDNA_TRACE=FILE where the program uses this package",
            ) from None
        except OSError as failed:
            raise CannotStart(command[0], failed) from None

    return run


def _emulated(given: argparse.Namespace) -> Any:
    """Runs the program on an emulated node."""
    emulate.check_node_path(given.device_path)
    options = emulate.emulator_options(given)

    def run(recorder: Recorder, command: list[str]) -> int:
        from amdxdna.emu.seccomp.supervisor import Supervisor
        from amdxdna.trace.observer import TraceObserver

        try:
            return Supervisor(options, given.device_path, TraceObserver(recorder)).run(command, os.environ)
        except OSError as failed:
            raise emulate.cannot_start(command, failed) from None

    return run
