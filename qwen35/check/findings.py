"""What a check found: one figure, and whether it is as it should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """`passed` None: a figure that decides nothing. `values` are the numbers behind `text`, for --json."""

    name: str
    passed: bool | None
    text: str
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """One line for a person: the verdict, what was looked at, the figure."""
        verdict = {True: "ok  ", False: "FAIL", None: "    "}[self.passed]
        return f"{verdict} {self.name}: {self.text}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `passed` is null for a figure that decides nothing."""
        return {"name": self.name, "passed": self.passed, "text": self.text, **self.values}
