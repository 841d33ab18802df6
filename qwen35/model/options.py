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

from qwen35.errors import UsageError

__all__ = ["CHAINS", "LONGER", "WAIT", "WEIGHTS", "Options"]

CHAINS = ("auto", "on", "off")
WEIGHTS = ("auto", "copy", "map")
WAIT = 10.0
"""Seconds that the wait for a command can be set to, at the least; the reference runtime waits as long."""

LONGER = (
    "--wait SECONDS, or QWEN35_WAIT=SECONDS in the environment (in a program: Qwen35.load(..., wait=SECONDS))"
)
"""How a user waits longer."""
_VARIABLES = {"chains": "QWEN35_CHAINS", "weights": "QWEN35_WEIGHTS", "wait": "QWEN35_WAIT"}


@dataclass(frozen=True)
class Options:
    """`chains`: command chains for groups of runs (auto: when proved at load; on; off).

    `weights`: auto (user-pointer buffers where the driver takes them and they are proved, else copies), copy,
    or map (raises where that is refused). `wait`: seconds without progress after which the wait for a command
    ends, `WAIT` or more; long kernels get more (Device.wait_seconds); None leaves the device's own limit.
    """

    chains: str = "auto"
    weights: str = "auto"
    wait: float | None = None

    def __post_init__(self) -> None:
        _choose("chains", self.chains, CHAINS)
        _choose("weights", self.weights, WEIGHTS)
        if self.wait is not None and not (math.isfinite(self.wait) and self.wait >= WAIT):
            raise _wrong("wait", f"{self.wait:g}", f"it is a number of seconds from {WAIT:g} on")

    @classmethod
    def of(
        cls,
        chains: str | None = None,
        weights: str | None = None,
        wait: float | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Options:
        """What is given, else the environment's QWEN35_CHAINS, QWEN35_WEIGHTS and QWEN35_WAIT, else auto.

        Raises UsageError for a word or number that is none of the choices.
        """
        found = os.environ if environ is None else environ
        given = {"chains": chains, "weights": weights, "wait": wait}
        for name, variable in _VARIABLES.items():
            text = found.get(variable, "")
            if given[name] is None and text:
                given[name] = _seconds(text) if name == "wait" else text
        return cls(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def line(self) -> str:
        """For a person, on one line."""
        wait = "as the device's" if self.wait is None else f"{self.wait:g} s"
        return f"chains {self.chains}, weights {self.weights}, wait {wait}"


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong("wait", text, f"it is a number of seconds from {WAIT:g} on") from None


def _choose(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _wrong(name, value, f"it is one of {', '.join(choices)}")


def _wrong(name: str, value: str, rule: str) -> UsageError:
    return UsageError(f"{name} {value!r}", f"--{name}, {_VARIABLES[name]}", rule)
