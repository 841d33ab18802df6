"""What the command lines of both packages expect of argparse."""

from __future__ import annotations

import argparse
import sys
from typing import Any


class ArgumentParser(argparse.ArgumentParser):
    """Lets a failed write of its help, and of its version, through: OSError."""

    def with_values(self, message: str) -> str:
        """A message of argparse's; where an option's value is missing, with the values there are."""
        if message.endswith(": expected one argument"):
            names = message.removeprefix("argument ").partition(":")[0].split("/")
            for action in self._actions:
                if action.choices is not None and names[0] in action.option_strings:
                    return f"{message}, one of {', '.join(map(str, action.choices))}"
        return message

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse's own swallows the OSError of a stream that cannot be written.
        if message:
            (file or sys.stderr).write(message)
