"""The one exception of bundle files."""

from __future__ import annotations

import os

from qwen35.errors import ModelError

__all__ = ["BundleError"]


class BundleError(ModelError):
    """A bundle that is missing, malformed, inconsistent or cannot be written.

    `path` is the file, `line` its 1-based line (0: the file as a whole), `message` what is wrong with it.
    """

    def __init__(self, path: str | os.PathLike[str], line: int, message: str, remedy: str = "") -> None:
        self.path = os.fspath(path)
        self.line = line
        self.message = message
        super().__init__(message, f"{self.path}:{line}" if line else self.path, remedy)
        self.args = (self.path, line, message, remedy)
