"""`python -m amdxdna`: see, explain, trace and emulate, one subcommand a module.

The dispatcher imports nothing but the chosen subcommand's module and calls its ``NAME_main(argv) -> int``.
Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

from amdxdna.cli.common import FAILED, USAGE, CannotStart, UsageError, report
from amdxdna.cli.screen import tell
from amdxdna.entry import guarded, nearest

__all__ = ["COMMANDS", "available_commands", "main"]

#: Subcommand -> what it does. `amdxdna.cli.NAME` has `NAME_main`; a module that is not there is not offered.
COMMANDS = {
    "doctor": "check everything the NPU needs, with cause and remedy",
    "info": "driver, firmware, device and array",
    "contexts": "hardware contexts in use, and by whom",
    "power": "show or set the power mode",
    "sensors": "power draw and column utilisation",
    "telemetry": "the firmware's counters",
    "errors": "the last asynchronous error, decoded",
    "snapshot": "write what a bug report needs",
    "xclbin": "tell what an xclbin file holds",
    "insts": "disassemble an instruction stream",
    "trace": "record every call a program makes to the NPU",
    "emulate": "run a program on an emulated NPU, or serve one to QEMU",
    "pyxrt": "run a program written for XRT's Python module, without XRT",
    "run": "run a kernel of your own, with data from files",
    "example": "write a small kernel for the emulated NPU to start from",
    "selftest": "run known commands and check their data",
    "bench": "measure latency, throughput and bandwidth",
}

_HELP = """\
usage: amdxdna COMMAND [options]

AMD's NPU through the Linux amdxdna driver: see, explain, trace and emulate.

commands (each has --help, and --json for programs):
{commands}

Results go to stdout, everything else to stderr. Exit status: 0 done, 1 failed, 2 wrong usage, 130 stopped
with Ctrl-C. AMDXDNA_DEBUG=1 shows full reports of errors."""


def available_commands() -> dict[str, str]:
    """The subcommands of this installation: name -> module."""
    return {name: f"{__name__}.{name}" for name in COMMANDS if find_spec(f"{__name__}.{name}") is not None}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C.

    `trace` and `emulate` end with their program's own status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    own = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in own

    def failed(error: BaseException) -> int:
        report(error, as_json)
        if isinstance(error, CannotStart):
            return error.status
        return USAGE if isinstance(error, UsageError) else FAILED

    def run() -> int:
        try:
            return _run(words)
        except BrokenPipeError:
            if as_json:  # a program asked for all of a document; a person who leaves `| head` knows
                tell(["amdxdna: error: stdout cannot be written: its reader is gone"])
            raise

    return guarded(run, lambda line: tell([f"amdxdna: {line}"]), failed, last=argv is None)


def _run(words: list[str]) -> int:
    commands = available_commands()
    if words and words[0] == "--version":
        from amdxdna import __version__

        print(f"amdxdna {__version__}")
        return 0
    if not words or words[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:<10} {COMMANDS[name]}" for name in commands)
        print(_HELP.format(commands=lines), file=sys.stdout if words else sys.stderr)
        return 0 if words else USAGE
    name = words[0]
    if name not in commands:
        known = "this installation has no such command" if name in COMMANDS else "no such command"
        meant = " or ".join(nearest(name, commands))
        raise UsageError(
            f"{name}: {known}", f"Did you mean {meant}?" if meant else f"There are: {', '.join(commands)}"
        )
    command: Callable[[list[str]], int] = getattr(import_module(commands[name]), f"{name}_main")
    return command(words[1:])
