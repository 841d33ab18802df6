"""One item of an acceptance run, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["BUNDLE_FAULT", "Item", "Verdict"]

BUNDLE_FAULT = {"at_fault": "bundle"}
"""Values of a FAIL that the bundle's files are to blame for, whatever the device does."""


class Verdict(str, Enum):
    """OK: it works. OFF: it does not, and the program goes without it. FAIL: the program relies on it.

    SKIP: it was not tried. NOTE: a figure that decides nothing.
    """

    OK = "ok"
    OFF = "off"
    FAIL = "FAIL"
    SKIP = "skip"
    NOTE = "note"


@dataclass(frozen=True)
class Item:
    """`text` says what was found, `values` are the numbers behind it, `seconds` it took."""

    name: str
    verdict: Verdict
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """For a person."""
        return f"{self.verdict.value:<4} {self.name:<18} {self.text}"

    def as_json(self) -> dict[str, Any]:
        """As it stands in the report."""
        return {
            "item": self.name,
            "verdict": self.verdict.value.lower(),
            "text": self.text,
            "seconds": round(self.seconds, 3),
            "values": self.values,
        }
