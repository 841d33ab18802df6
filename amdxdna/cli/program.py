"""The options by which selftest and bench take a program of the user's."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from amdxdna.cli.common import Parser

if TYPE_CHECKING:
    from amdxdna.selftest.program import Program


def add_program(parser: Parser) -> None:
    """Adds ``--xclbin``, ``--insts``, ``--buffers`` and ``--kernel``."""
    group = parser.add_argument_group("a program of your own, compiled for this NPU")
    group.add_argument("--xclbin", metavar="FILE", help="its xclbin")
    group.add_argument("--insts", metavar="FILE", help="its instruction stream, at most 64 MiB")
    group.add_argument(
        "--buffers",
        metavar="N,N,...",
        help="bytes of each buffer argument (k, m, g may follow): at "
        "least what the program uses, or it reaches past them",
    )
    group.add_argument("--kernel", metavar="NAME", help="the kernel's name, if the xclbin has several")


def add_loop(parser: Parser, end: str) -> None:
    """Adds ``--loop``; `end`: what ends a loop without a number."""
    parser.add_argument(
        "--loop",
        metavar="N",
        type=int,
        nargs="?",
        const=0,
        default=1,
        help=f"again and again: N times, or until {end}",
    )


def read_program(parser: Parser, options: argparse.Namespace) -> Program | None:
    """The program the options name, or None. Raises UsageError when one is missing, and what reading does."""
    given = [bool(options.xclbin), bool(options.insts), bool(options.buffers)]
    if not any(given):
        return None
    if not all(given):
        parser.error("--xclbin, --insts and --buffers go together")
    from amdxdna.selftest.program import Program

    return Program.read(options.xclbin, options.insts, options.buffers, options.kernel)
