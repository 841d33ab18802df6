"""The command line of `accept`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amdxdna.entry import take_back
from amdxdna.output import is_special, open_appending, write_whole
from qwen35.cli.args import Parser
from qwen35.cli.output import Progress, notice
from qwen35.cli.signals import stopping
from qwen35.errors import QwenError, UsageError

if TYPE_CHECKING:
    from qwen35.accept.item import Item
    from qwen35.accept.report import Report
    from qwen35.accept.run import Acceptance

__all__ = ["accept_main"]


def _parser() -> Parser:
    parser = Parser(
        prog="qwen35 accept",
        description="The acceptance run for an NPU that nobody has tried: a few minutes, in which each "
        "thing the program relies on is tried on the bundle's own kernels. Ends in a verdict for each and "
        "the options to use, and writes one file to attach to a report. A wrong result of a command chain "
        "that ran is seen here and by the trial at load only: an answer compares chains with nothing.",
        epilog="Ctrl-C (SIGTERM, SIGHUP) stops it and still writes what was found. Exit status: 0 nothing "
        "failed, 1 something did, 130 stopped. "
        "Stopped before it has begun, it leaves an older FILE as it is.",
    )
    add = parser.add_argument
    add("bundle", nargs="?", metavar="BUNDLE", help="directory (default: as for a prompt)")
    add("--device", default="auto", metavar="D", help="as for a prompt (default auto)")
    add(
        "--out",
        default="qwen35-accept.json",
        metavar="FILE",
        help="the report, without names and serial numbers (default %(default)s)",
    )
    add("--hang", action="store_true", help="also try a command that never ends (modelled NPU only)")
    add("--json", action="store_true", help="the report on stdout instead of lines")
    add("--quiet", "-q", action="store_true", help="no progress")
    return parser


def accept_main(argv: Sequence[str]) -> int:
    """Runs `accept`: 0, 1 or 130. Raises UsageError for a report file that cannot be written."""
    options = _parser().parse_args(list(argv))
    target = Path(options.out)
    with stopping() as came, contextlib.closing(Progress(enabled=not options.quiet)) as progress:
        growing: bool | None = None
        try:
            # Before the libraries are loaded: an older report is never taken for this run's.
            growing = _begun(target, _empty("running"))
            run, report = _prepared(options, progress)
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            if growing or (growing is None and stopped and not is_special(target)):
                state = "interrupted" if stopped else "failed"
                with contextlib.suppress(OSError):
                    _write(target, _empty(state) | {"why": "stopped" if stopped else _why(error)})
            raise
        return _accept(options, target, growing, run, report, progress, came)


def _why(error: BaseException) -> str:
    """What kept the run from beginning, without names of a person or a machine."""
    from amdxdna.doctor.scrub import Scrubber

    what = error.what if isinstance(error, QwenError) else type(error).__name__
    return Scrubber.of().text(what)


def _empty(state: str) -> dict[str, Any]:
    return {"passed": False, "finished": False, "state": state, "items": []}


def _prepared(options: argparse.Namespace, progress: Progress) -> tuple[Acceptance, Report]:
    from qwen35.accept.report import Report
    from qwen35.accept.run import Acceptance
    from qwen35.find import find_bundle

    run = Acceptance(find_bundle(options.bundle), options.device, hang=options.hang, progress=progress)
    return run, Report(run)


def _accept(
    options: argparse.Namespace,
    target: Path,
    growing: bool,
    run: Acceptance,
    report: Report,
    progress: Progress,
    came: list[int],
) -> int:
    from qwen35.accept.report import passed, summary

    items: list[Item] = []
    finished = stopped = False
    if run.emulated and not options.json:
        why = "no NPU is here: " if options.device == "auto" else ""
        print(f"{why}a trial on the emulated NPU", flush=True)
    try:
        # A file has at all times what was found so far: a machine may not live to see the end.
        if growing:
            _write(target, report.made(items, "running"))
        with contextlib.closing(run):
            try:
                for item in run.items():
                    progress.close()
                    items.append(item)
                    if growing:
                        with contextlib.suppress(OSError):  # the last write tells
                            _write(target, report.made(items, "running"))
                    if not options.json:
                        print(item.line, flush=True)
                    if came:  # in a callback, where Python drops what a handler raises
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                take_back()  # sent again, that one would cut the end of this run short
                raise
            finished = True
    except KeyboardInterrupt:
        stopped = True
    except BaseException:
        if growing:
            with contextlib.suppress(OSError):
                _write(target, report.made(items, "failed"))
        raise

    def ended() -> tuple[dict[str, Any], OSError | None]:
        """The report, and why it could not be written."""
        nonlocal stopped
        if stopped:
            notice("stopped")
            stopped = False
        whole = report.made(items, "finished" if finished else "interrupted")
        try:
            _write(target, whole)
        except OSError as error:
            return whole, error
        return whole, None

    try:
        whole, unwritten = ended()
    except KeyboardInterrupt:  # an impatient second one
        whole, unwritten = ended()
    if options.json:
        json.dump(whole, sys.stdout)
        print()
    else:
        print("\n".join(["", *summary(run, items, finished)]))
    status = 130 if not finished else 0 if passed(items) else 1
    if unwritten is not None:
        kept = ": what is there was found before" if growing and items else ""
        notice(f"error: the report cannot be written: {unwritten.strerror} ({target}){kept}")
        return status or 1
    if not options.json:
        print(f"report: {target}")
    return status


def _begun(path: Path, made: dict[str, Any]) -> bool:
    """Writes a report that has not ended, in the place of any older one; false for a pipe or device, which
    gets the whole at the end. Raises UsageError."""
    try:
        if is_special(path):
            os.close(open_appending(path))
            return False
        _write(path, made)
    except OSError as error:
        text = f"the report cannot be written: {error.strerror}"
        raise UsageError(text, str(path), "give --out FILE") from None
    return True


def _write(path: Path, made: dict[str, Any]) -> None:
    write_whole(path, (json.dumps(made, indent=1) + "\n").encode())
