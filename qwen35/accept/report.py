"""The report of an acceptance run: one JSON object, without names and serial numbers."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qwen35 import __version__
from qwen35.accept.item import Item, Verdict

if TYPE_CHECKING:
    from qwen35.accept.run import Acceptance

__all__ = ["SHAPE", "options", "report", "summary"]

SHAPE = 1
"""Version of the report: {"shape", "program", "machine", "bundle", "device", "passed", "finished", "options",
"items": [{"item", "verdict", "text", "seconds", "values"}]}."""


def options(run: Acceptance) -> dict[str, str]:
    """The options to use from now on, as the environment takes them."""
    return {"QWEN35_CHAINS": "auto" if run.chains else "off",
            "QWEN35_WEIGHTS": "auto" if run.mapped else "copy"}


def passed(items: Sequence[Item]) -> bool:
    """Whether nothing that the program relies on failed, and something was shown to work."""
    return all(item.verdict is not Verdict.FAIL for item in items) and any(
        item.verdict is Verdict.OK for item in items)


def summary(run: Acceptance, items: Sequence[Item], finished: bool) -> list[str]:
    """The verdict and the options, for a person."""
    failed = [item.name for item in items if item.verdict is Verdict.FAIL]
    off = [item.name for item in items if item.verdict is Verdict.OFF]
    counts = ", ".join(f"{sum(item.verdict is verdict for item in items)} {verdict.value.lower()}"
                       for verdict in Verdict)
    lines = [f"{'PASS' if passed(items) and finished else 'FAIL' if failed else 'INCOMPLETE'}: {counts}"]
    if failed:
        lines.append("failed: " + ", ".join(failed))
    if off:
        lines.append("not to be used here: " + ", ".join(off))
    if not finished:
        lines.append("stopped before the end: what is not listed was not tried")
    lines.append("use: " + " ".join(f"{name}={value}" for name, value in options(run).items()))
    return lines


def report(run: Acceptance, items: Sequence[Item], finished: bool) -> dict[str, Any]:
    """The whole, scrubbed."""
    from amdxdna.doctor.machine import Machine
    from amdxdna.doctor.scrub import Scrubber, private_names

    scrubber = Scrubber(private_names(Machine()))
    found = {
        "shape": SHAPE,
        "program": f"qwen35 {__version__}",
        "machine": {"kernel": platform.release(), "processor": _processor(), "cores": os.cpu_count()},
        "bundle": str(run.path), "device": run.device, "passed": passed(items) and finished,
        "finished": finished, "options": options(run), "items": [item.as_json() for item in items],
    }
    scrubbed: dict[str, Any] = _scrubbed(found, scrubber.text)
    return scrubbed


def _scrubbed(value: Any, text: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(key): _scrubbed(item, text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(item, text) for item in value]
    return value


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, "")
    except OSError:
        return ""
