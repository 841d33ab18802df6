"""How XRT names an xclbin."""

from __future__ import annotations

import re
import uuid as _uuid

from amdxdna.pyxrt.calls import incompatible


class uuid:
    """What identifies an xclbin. Two are equal when they are the same object, as XRT's are."""

    __module__ = "pyxrt"

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            incompatible("__init__", text)
        found = re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text)
        self._uuid = _uuid.UUID(text) if found else _uuid.UUID(int=0)

    def to_string(self) -> str:
        """The text."""
        return str(self._uuid)
