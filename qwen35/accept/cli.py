"""The command line of `accept`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from amdxdna.output import open_appending, write_whole
from qwen35.cli.args import Parser
from qwen35.cli.output import Progress, notice
from qwen35.errors import UsageError

__all__ = ["accept_main"]


def _parser() -> Parser:
    parser = Parser(
        prog="qwen35 accept",
        description="The acceptance run for an NPU that nobody has tried: about two minutes, in which each "
        "thing the program relies on is tried on the bundle's own kernels. Ends in a verdict for each and "
        "the options to use, and writes one file to attach to a report.",
        epilog="Ctrl-C stops it and still writes what was found. Exit status: 0 nothing failed, 1 something "
        "did, 130 stopped.",
    )
    add = parser.add_argument
    add("bundle", nargs="?", metavar="BUNDLE", help="directory (default: as for a prompt)")
    add("--device", default="auto", metavar="D", help="as for a prompt (default auto)")
    add("--out", default="qwen35-accept.json", metavar="FILE",
        help="the report, without names and serial numbers (default %(default)s)")
    add("--hang", action="store_true", help="also try a command that never ends (modelled NPU only)")
    add("--json", action="store_true", help="the report on stdout instead of lines")
    add("--quiet", "-q", action="store_true", help="no progress")
    return parser


def accept_main(argv: Sequence[str]) -> int:
    """Runs `accept`: 0, 1 or 130. Raises UsageError for a report file that cannot be written."""
    options = _parser().parse_args(list(argv))
    from qwen35.accept.item import Item
    from qwen35.accept.report import passed, report, summary
    from qwen35.accept.run import Acceptance
    from qwen35.api import find_bundle

    target = Path(options.out)
    _writable(target)
    items: list[Item] = []
    finished = False
    with contextlib.closing(Progress(enabled=not options.quiet)) as progress:
        run = Acceptance(find_bundle(options.bundle), options.device, hang=options.hang, told=progress)
        try:
            with contextlib.closing(run):
                for item in run.items():
                    progress.close()
                    items.append(item)
                    if not options.json:
                        print(item.line, flush=True)
                finished = True
        except KeyboardInterrupt:
            notice("stopped")
    whole = report(run, items, finished)
    write_whole(target, (json.dumps(whole, indent=1) + "\n").encode())
    if options.json:
        json.dump(whole, sys.stdout)
        print()
    else:
        print("\n".join(["", *summary(run, items, finished), f"report: {target}"]))
    return 130 if not finished else 0 if passed(items) else 1


def _writable(path: Path) -> None:
    try:
        os.close(open_appending(path))
    except OSError as error:
        text = f"the report cannot be written: {error.strerror}"
        raise UsageError(text, str(path), "give --out FILE") from None
