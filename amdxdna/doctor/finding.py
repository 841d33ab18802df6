"""What a check found out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any


class Status(str, Enum):
    """How a check ended. SKIP: it could not be made, or does not apply."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Finding:
    """One check's result: what is so, and (for WARN and FAIL) what to do about it, step by step.

    ``symptom``: another check names the cause of this failure. ``facts`` are values for programs, of JSON
    types.
    """

    check: str
    status: Status
    meaning: str
    remedy: tuple[str, ...] = ()
    symptom: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The finding as it stands in the JSON document."""
        return {
            "check": self.check,
            "status": self.status.value,
            "meaning": self.meaning,
            "remedy": list(self.remedy),
            "symptom": self.symptom,
            "facts": self.facts,
        }


def finding(
    status: Status, meaning: str, *remedy: str, symptom: bool = False, facts: dict[str, Any] | None = None
) -> Finding:
    """What a check returns; :data:`amdxdna.doctor.checks.CHECKS` puts the check's name to it."""
    return Finding("", status, meaning, remedy, symptom, facts or {})


ok, warn, fail, skip = (partial(finding, status) for status in Status)
NOT_OPEN = "needs an open device"


@dataclass(frozen=True)
class Report:
    """All findings, in the order in which the checks were made."""

    findings: tuple[Finding, ...]

    @property
    def cause(self) -> Finding | None:
        """The failure to deal with first: the first that is no mere symptom of another."""
        failed = [f for f in self.findings if f.status is Status.FAIL]
        return next((f for f in failed if not f.symptom), failed[0] if failed else None)

    @property
    def ok(self) -> bool:
        """True when nothing failed."""
        return self.cause is None

    def __getitem__(self, check: str) -> Finding:
        return next(f for f in self.findings if f.check == check)
