"""Reading lines for the conversation: prompt, editing and history on a terminal, plain lines from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amdxdna.files import read_regular
from amdxdna.output import write_whole
from qwen35.cli.entries import read_line
from qwen35.cli.paths import complete

__all__ = ["LineReader"]

PROMPT, MORE = "> ", ". "
HISTORY_ENTRIES = 1000
_MOST_HISTORY = 16 << 20


class LineReader:
    """Entries of stdin. Use it as a context manager.

    On a terminal readline edits, keeps history (in the user's state directory; QWEN35_HISTORY names another
    file, empty keeps none) and completes `commands` and, behind those in `with_files`, file names. What is
    pasted is one entry, whatever lines it has (bracketed paste, GNU readline 8.1 or newer); a line that ends
    in a backslash goes on in the next. The history is written after each entry, so that it outlives a
    terminal that is closed. From a pipe there is no prompt and no history.
    """

    def __init__(
        self, commands: Iterable[str] = (), max_ctx: int = 8192, with_files: Iterable[str] = ()
    ) -> None:
        """`max_ctx` bounds the lines of a pipe."""
        self.terminal = sys.stdin.isatty()
        self._commands, self._with_files = sorted(commands), frozenset(with_files)
        self._max_ctx = max_ctx
        self._readline: Any = None
        self._found: list[str] = []
        self._history: Path | None = None

    def __enter__(self) -> LineReader:
        if self.terminal:
            with contextlib.suppress(ImportError):
                import readline

                self._readline = readline
                self._set_up(readline)
        return self

    def __exit__(self, *error: object) -> None:
        if self._readline is not None:
            self._readline.set_completer(None)

    def _remember(self, entry: str) -> None:
        """Adds an entry to the history, and writes that."""
        readline = self._readline
        if readline is None or not entry.strip():
            return
        count = readline.get_current_history_length()
        if count and readline.get_history_item(count) == entry:
            return
        readline.add_history(entry)
        if self._history is None:
            return
        entries = [readline.get_history_item(number + 1) for number in range(count + 1)][-HISTORY_ENTRIES:]
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # An entry's lines end in a backslash but for the last, as they may be typed.
            kept = "".join(entry.replace("\n", "\\\n") + "\n" for entry in entries)
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
                entry = "\n".join([*lines, line_]).rstrip("\n")
                self._remember(entry)
                return entry
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
        readline.set_auto_history(False)  # an entry of several lines is one
        if self._history is not None:
            with contextlib.suppress(OSError):
                text = read_regular(self._history, _MOST_HISTORY).decode("utf-8", "surrogateescape")
                for entry in text.replace("\\\n", "\0").splitlines()[-HISTORY_ENTRIES:]:
                    readline.add_history(entry.replace("\0", "\n"))
        readline.set_completer_delims(" \t\n")
        readline.set_completer(self._complete)
        if "libedit" in (readline.__doc__ or ""):
            readline.parse_and_bind("bind ^I rl_complete")
        else:
            readline.parse_and_bind("tab: complete")
            # Python switches it off for its own prompt, which runs what is pasted line by line.
            readline.parse_and_bind("set enable-bracketed-paste on")

    def _complete(self, word: str, state: int) -> str | None:
        if state == 0:
            begin = self._readline.get_begidx()
            line = self._readline.get_line_buffer()[: self._readline.get_endidx()]
            command, space, _ = line.partition(" ")
            if not space:
                known = self._commands if line.startswith("/") else ()
                self._found = [command + " " for command in known if command.startswith(word)]
            else:
                self._found = complete(line, begin) if command in self._with_files else []
        return self._found[state] if state < len(self._found) else None


def _history_file() -> Path | None:
    named = os.environ.get("QWEN35_HISTORY")
    if named is not None:
        return Path(named) if named else None
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "qwen35" / "history"
