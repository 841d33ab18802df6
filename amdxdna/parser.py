"""What the command lines of both packages expect of argparse."""

from __future__ import annotations

import argparse
import sys
from typing import Any


class ArgumentParser(argparse.ArgumentParser):
    """Lets a failed write of its help, and of its version, through: OSError."""

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse's own swallows the OSError of a stream that cannot be written.
        if message:
            (file or sys.stderr).write(message)
