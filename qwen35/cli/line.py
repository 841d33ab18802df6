"""Reading lines for the conversation: prompt, editing and history on a terminal, plain lines from a pipe."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amdxdna.output import write_whole
from qwen35.cli.entries import read_line

__all__ = ["LineReader"]

PROMPT, MORE = "> ", ". "
HISTORY_LINES = 1000


class LineReader:
    """Lines of stdin. Use it as a context manager: history is read on entry and written on exit.

    On a terminal GNU readline edits, keeps history (in the user's state directory; QWEN35_HISTORY names
    another file, empty keeps none) and completes `commands` and file names. A line that ends in a backslash
    goes on in the next. From a pipe there is no prompt and no history.
    """

    def __init__(self, commands: Iterable[str] = (), max_ctx: int = 8192) -> None:
        """`max_ctx` bounds the lines of a pipe."""
        self.terminal = sys.stdin.isatty()
        self._commands, self._max_ctx = sorted(commands), max_ctx
        self._readline: Any = None
        self._history: Path | None = None

    def __enter__(self) -> LineReader:
        if self.terminal:
            with contextlib.suppress(ImportError):
                import readline

                self._readline = readline
                self._set_up(readline)
        return self

    def __exit__(self, *error: object) -> None:
        if self._readline is not None and self._history is not None:
            with contextlib.suppress(OSError):
                self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                lines = [self._readline.get_history_item(number + 1)
                         for number in range(self._readline.get_current_history_length())]
                kept = "".join(f"{line}\n" for line in lines[-HISTORY_LINES:])
                write_whole(self._history, kept.encode("utf-8", "surrogateescape"), private=True)

    def read(self) -> str | None:
        """The next entry, or None at the end of the input.

        Raises KeyboardInterrupt for Ctrl-C, UsageError for a line that is too long; the next one can be read.
        """
        if not self.terminal:
            return read_line(sys.stdin.buffer, self._max_ctx)
        lines: list[str] = []
        while True:
            try:
                line_ = self._prompt(MORE if lines else PROMPT)
            except EOFError:
                sys.stderr.write("\n")
                sys.stderr.flush()
                return "\n".join(lines) if lines else None
            if not line_.endswith("\\"):
                return "\n".join([*lines, line_])
            lines.append(line_[:-1])

    def _prompt(self, text: str) -> str:
        if sys.stdout.isatty():
            return input(text)
        # Answers go elsewhere: the prompt must not.
        sys.stderr.write(text)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def _set_up(self, readline: Any) -> None:
        self._history = _history_file()
        if self._history is not None:
            with contextlib.suppress(OSError):
                readline.read_history_file(str(self._history))
        readline.set_completer_delims(" \t\n")
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")

    def _complete(self, word: str, state: int) -> str | None:
        line = self._readline.get_line_buffer()
        if not line.startswith("/"):
            return None
        if " " not in line:
            found = [command + " " for command in self._commands if command.startswith(word)]
        else:
            names = glob.glob(os.path.expanduser(glob.escape(word)) + "*")
            found = sorted(name + "/" if os.path.isdir(name) else name for name in names)
        return found[state] if state < len(found) else None


def _history_file() -> Path | None:
    named = os.environ.get("QWEN35_HISTORY")
    if named is not None:
        return Path(named) if named else None
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "qwen35" / "history"
