"""The one exception of reading a checkpoint."""

from __future__ import annotations

import os

from qwen35.errors import ModelError

__all__ = ["CheckpointError"]


class CheckpointError(ModelError):
    """A checkpoint that is missing, malformed, or of a shape that cannot be exported."""

    def __init__(self, path: str | os.PathLike[str], message: str, remedy: str = "") -> None:
        self.path = os.fspath(path)
        self.message = message
        super().__init__(message, self.path, remedy)
        self.args = (self.path, message, remedy)
