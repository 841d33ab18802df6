"""How a model uses its device: what is proved at load, what is forced, and how long a command may take.

Single commands, weights copied into SHARE BOs and waits that end are what public programs run this NPU with
(the reference runtime does nothing else). Command chains and user-pointer weights are faster or leaner where
they work: `auto` uses them when qwen35.model.probe has shown at load that they do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen35.errors import UsageError
from qwen35.model.steps import MOST

__all__ = ["CHAINS", "LONGER", "WAIT", "WEIGHTS", "Options"]

CHAINS = ("auto", "on", "off")
WEIGHTS = ("auto", "copy", "map")
WAIT = 10.0
"""Seconds that the wait for a command can be set to, at the least; the reference runtime waits as long."""

LONGER = (
    "--wait SECONDS, or QWEN35_WAIT=SECONDS in the environment (in a program: Qwen35.load(..., wait=SECONDS))"
)
"""How a user waits longer."""
_STEPS = f"it is auto, or a whole number from 0 to {MOST}"
_VARIABLES = {
    "chains": "QWEN35_CHAINS",
    "weights": "QWEN35_WEIGHTS",
    "wait": "QWEN35_WAIT",
    "steps": "QWEN35_STEPS",
}


@dataclass(frozen=True)
class Options:
    """`chains`: command chains for groups of runs (auto: when proved at load; on; off).

    `weights`: auto (user-pointer buffers where the driver takes them and they are proved, else copies), copy,
    or map (raises where that is refused). `wait`: seconds without progress after which the wait for a command
    ends, `WAIT` or more; long kernels get more (Device.wait_seconds); None leaves the device's own limit.
    `steps`: up to how many new tokens of a prompt go by decode steps instead of a pass (0: none), or auto: as
    many as cost less, measured at load. Results then differ in rounding (qwen35.model.steps).
    `lanes`: parts of a prompt that are under way at once, 1 or 2: with 2 the host has one while the NPU has
    the other. The answer is the same.
    """

    chains: str = "auto"
    weights: str = "auto"
    wait: float | None = None
    steps: int | str = 0
    lanes: int = 2

    def __post_init__(self) -> None:
        _choose("chains", self.chains, CHAINS)
        _choose("weights", self.weights, WEIGHTS)
        if self.lanes not in (1, 2):
            raise UsageError(f"{self.lanes} lanes", remedy="give 1 or 2")
        if self.wait is not None and not (math.isfinite(self.wait) and self.wait >= WAIT):
            raise _wrong("wait", f"{self.wait:g}", f"it is a number of seconds from {WAIT:g} on")
        if self.steps != "auto":
            known = isinstance(self.steps, int) and not isinstance(self.steps, bool)
            if not known or not 0 <= int(self.steps) <= MOST:
                raise _wrong("steps", self.steps, _STEPS)

    @classmethod
    def of(
        cls,
        chains: str | None = None,
        weights: str | None = None,
        wait: float | None = None,
        steps: int | str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Options:
        """What is given, else what QWEN35_CHAINS, QWEN35_WEIGHTS, QWEN35_WAIT and QWEN35_STEPS hold, else
        the defaults.

        Raises UsageError for a word or number that is none of the choices.
        """
        found = os.environ if environ is None else environ
        given: dict[str, Any] = {"chains": chains, "weights": weights, "wait": wait, "steps": steps}
        for name, variable in _VARIABLES.items():
            text = found.get(variable, "")
            if given[name] is None and text:
                given[name] = _seconds(text) if name == "wait" else text
        if isinstance(given["steps"], str) and given["steps"] != "auto":
            given["steps"] = _count(given["steps"])
        return cls(**{name: value for name, value in given.items() if value is not None})

    def line(self) -> str:
        """For a person, on one line."""
        wait = "as the device's" if self.wait is None else f"{self.wait:g} s"
        return f"chains {self.chains}, weights {self.weights}, wait {wait}, steps {self.steps}"


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong("wait", text, f"it is a number of seconds from {WAIT:g} on") from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise _wrong("steps", text, _STEPS)
    return int(text)


def _choose(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _wrong(name, value, f"it is one of {', '.join(choices)}")


def _wrong(name: str, value: Any, rule: str) -> UsageError:
    return UsageError(f"{name} {value!r}", f"--{name}, {_VARIABLES[name]}", rule)
