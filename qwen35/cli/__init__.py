"""`python -m qwen35`: answers on stdout, everything else on stderr.

`args` knows the options, `run` asks once or line by line, `chat` is the conversation, `answers` one answer of
either; `readline`, `entries` and `paths` read what people type.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from amdxdna.entry import FAILED, USAGE, guarded, require_memory
from qwen35.cli.output import notice, report
from qwen35.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from qwen35.api import Qwen35

__all__ = ["main"]

Loader = Callable[["argparse.Namespace"], "Qwen35"]


def main(argv: Sequence[str] | None = None, load: Loader | None = None) -> int:
    """Runs the command line and returns the exit status.

    0 answered, 1 failed, 2 wrong usage, 130 stopped with Ctrl-C. `load` makes the model from the options
    (tests give their own).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(words, load), notice, _failed, last=argv is None)


def _failed(error: BaseException) -> int:
    report(error)
    return USAGE if isinstance(error, UsageError) else FAILED


def _run(words: list[str], load: Loader | None) -> int:
    from qwen35.cli import args

    if words and words[0] in args.COMMANDS and not os.path.isdir(words[0]):
        commands = args.available_commands()
        if words[0] not in commands:
            raise UsageError(
                f"this installation has no command {words[0]}", "", "see python -m qwen35 --help"
            )
        if not {"-h", "--help"} & set(words):
            require_memory()
        from importlib import import_module

        command: Callable[[list[str]], int] = getattr(import_module(commands[words[0]]), f"{words[0]}_main")
        return command(words[1:])
    options = args.parse(words)
    from qwen35.cli.run import run

    return run(options, load)
