"""`python -m amdxdna trace`: every call of a program on the NPU."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from amdxdna.cli import emulate
from amdxdna.cli.common import CommandError, Parser, UsageError, document

if TYPE_CHECKING:
    import argparse

    from amdxdna.trace.recorder import Recorder

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

The exit status is COMMAND's (128 + N when signal N killed it). Set AMDXDNA_TRACE=FILE instead to record what
a program does through this package's own binding, also on its in-process emulated device."""

DEFAULT_FILE = "amdxdna-trace.jsonl"


def parser() -> Parser:
    """The options of `trace`."""
    p = Parser("trace", usage="amdxdna trace [-o FILE] [--emulate [device options]] -- COMMAND [ARGUMENT...]",
               description=_DESCRIPTION, epilog=_EPILOG)
    p.add_argument("-o", "--output", default=DEFAULT_FILE, metavar="FILE",
                   help="the trace (default %(default)s); - writes it to stderr")
    p.add_argument("--emulate", action="store_true", help="run COMMAND on an emulated NPU")
    p.add_argument("--every-call", action="store_true",
                   help="let every system call stop, not only those that a filter picks: slow, for programs "
                        "whose calls somebody else answers (`emulate` inside)")
    p.add_argument("--node", action="append", default=[], metavar="PATH",
                   help="take this path for a node too; repeatable")
    p.add_argument("--quiet", "-q", action="store_true", help="do not print the summary")
    emulate.add_device_options(p)
    p.add_json()
    return p


def trace_main(argv: list[str]) -> int:
    """Runs `trace` with `argv`; the exit status."""
    own, command = emulate.split(argv, "trace")
    given = parser().parse_args(own)
    if given.emulate and (given.every_call or given.node):
        raise UsageError("--emulate goes without --every-call and --node",
                         "It sees every call of its node already")
    runner = _emulated(given) if given.emulate else _kernel(given)

    from amdxdna.trace.recorder import Recorder

    fd = _output(given.output)
    try:
        recorder = Recorder(fd, "seccomp" if given.emulate else "ptrace", command)
        status = runner(recorder, command)
        summary = recorder.finish()
    finally:
        if fd != 2:
            os.close(fd)
    code, killed = emulate.wait_status(status)
    emulate.tell_killed(command[0], killed)
    if given.json:
        import json

        print(json.dumps(document("trace-summary", status=code, signal=killed, file=given.output,
                                  summary=summary)), file=sys.stderr)
    elif not given.quiet:
        from amdxdna.trace.summary import lines

        where = "" if given.output == "-" else f" -> {given.output}"
        print("\n".join([f"amdxdna: trace of {command[0]}{where}", *lines(summary)]), file=sys.stderr)
    return code


def _output(path: str) -> int:
    """The trace's descriptor."""
    if path == "-":
        return 2
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as failed:
        raise CommandError(f"{path} cannot be written: {failed.strerror}",
                           "Name another file with -o") from None


def _kernel(given: argparse.Namespace) -> Any:
    """Runs the program on the kernel's node."""
    def run(recorder: Recorder, command: list[str]) -> int:
        from amdxdna.trace.ptrace import CannotTrace, Tracer

        try:
            return Tracer(recorder, every_stop=given.every_call, nodes=given.node).run(command, os.environ)
        except CannotTrace as failed:
            raise CommandError(
                f"the kernel refuses to trace: {failed.strerror}",
                "A sandbox or container may forbid ptrace or seccomp; try --every-call, or set "
                "AMDXDNA_TRACE=FILE where the program uses this package") from None
        except OSError as failed:
            raise CommandError(f"{command[0]} cannot be started: {failed.strerror}") from None

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
