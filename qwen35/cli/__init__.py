"""`python -m qwen35`: answers on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from qwen35.cli.output import notice, report
from qwen35.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from qwen35.api import Qwen35

__all__ = ["main"]

Loader = Callable[["argparse.Namespace"], "Qwen35"]

ANSWERED, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None, load: Loader | None = None) -> int:
    """Runs the command line and returns the exit status.

    0 answered, 1 failed, 2 wrong usage, 130 stopped with Ctrl-C. `load` makes the model from the options
    (tests give their own).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _require_streams()
    try:
        return _run(words, load)
    except SystemExit as leaving:  # --help, --version
        return leaving.code if isinstance(leaving.code, int) else FAILED
    except KeyboardInterrupt:
        notice("stopped")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout went away: there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except UsageError as error:
        report(error)
        return USAGE
    except Exception as error:
        report(error)
        return FAILED


def _run(words: list[str], load: Loader | None) -> int:
    from qwen35.cli import args

    if words and words[0] in args.COMMANDS and not os.path.isdir(words[0]):
        commands = args.available_commands()
        if words[0] not in commands:
            raise UsageError(f"this installation has no command {words[0]}", "", "see qwen35 --help")
        from importlib import import_module

        command: Callable[[list[str]], int] = getattr(import_module(commands[words[0]]), f"{words[0]}_main")
        return command(words[1:])
    options = args.parse(words)
    from qwen35.cli.run import run

    return run(options, load)


def _require_streams() -> None:
    """A standard stream that the caller closed is None: it then reads as empty and swallows what it gets."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (for the life of the process)
