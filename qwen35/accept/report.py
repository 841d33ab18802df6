"""The report of an acceptance run: one JSON object, without names and serial numbers."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amdxdna.files import open_regular, read_up_to
from qwen35 import __version__
from qwen35.accept.item import BUNDLE_FAULT, Item, Verdict

if TYPE_CHECKING:
    from qwen35.accept.run import Acceptance

__all__ = ["SHAPE", "Report", "options", "passed", "summary"]

SINGLES, CHAINS, MAPPED = "single commands", "command chains", "weights in user memory"
SHAPE = 1
"""Version of the report: {"shape", "program", "machine", "bundle", "device", "emulated", "passed",
"finished", "state", "ways", "options", "items": [{"item", "verdict", "text", "seconds", "values"}]}; where a
run ended before its first item {"passed", "finished", "state", "why", "items"}."""


def options(run: Acceptance, items: Sequence[Item]) -> dict[str, str]:
    """The options to use from now on, as the environment takes them; after a FAIL the careful ones."""
    well = not _failed(items)
    return {
        "QWEN35_CHAINS": "auto" if run.chains and well else "off",
        "QWEN35_WEIGHTS": "auto" if run.mapped and well else "copy",
    }


def _failed(items: Sequence[Item]) -> list[str]:
    return [*dict.fromkeys(item.name for item in items if item.verdict is Verdict.FAIL)]


def _of_the_bundle(items: Sequence[Item]) -> list[str]:
    """Items that failed since the bundle is broken: then nothing else that failed tells of the device."""
    failed = (item for item in items if item.verdict is Verdict.FAIL)
    return [item.name for item in failed if item.values.items() >= BUNDLE_FAULT.items()]


def passed(items: Sequence[Item]) -> bool:
    """Whether nothing that the program relies on failed, and something was shown to work."""
    return all(item.verdict is not Verdict.FAIL for item in items) and any(
        item.verdict is Verdict.OK for item in items
    )


def ways(run: Acceptance, items: Sequence[Item], finished: bool) -> dict[str, tuple[str, str]]:
    """Way of using the device -> (PROVED, NOT PROVED, DO NOT USE or NOT TRIED; why)."""
    failed, named = _failed(items), {item.name: item for item in items}
    proved = any(item.verdict is Verdict.OK for item in items) and not failed
    why = (
        "the bundle is at fault"
        if _of_the_bundle(items)
        else f"{len(failed)} item{'s' * (len(failed) != 1)} failed"
    )
    kernels = sum(item.verdict is Verdict.OK and "kernel" in item.values for item in items)
    found = {
        SINGLES: ("PROVED", f"{kernels} kernels gave right results")
        if proved and finished and kernels
        else ("NOT PROVED", why if failed else "the run is not over")
    }
    for way, fit, parts in (
        (CHAINS, run.chains, ("chains", "prompts in chains")),
        (MAPPED, run.mapped, ("user-pointer",)),
    ):
        tried = [named[part] for part in parts if part in named]
        off = [item for item in tried if item.verdict in (Verdict.OFF, Verdict.FAIL)]
        if off:
            found[way] = "DO NOT USE", off[0].text
        elif failed and any(item.verdict is not Verdict.SKIP for item in tried):
            found[way] = "DO NOT USE", "single commands are not proved"
        elif not fit:
            found[way] = "NOT TRIED", tried[0].text if tried else "the run is not over"
        else:
            found[way] = ("PROVED", tried[0].text) if finished else ("NOT PROVED", "the run is not over")
    return found


def summary(run: Acceptance, items: Sequence[Item], finished: bool) -> list[str]:
    """The verdict and the options, for a person."""
    failed = _failed(items)
    told = ways(run, items, finished)
    singly = told[CHAINS][0] == "DO NOT USE"
    counts = ", ".join(
        f"{sum(item.verdict is verdict for item in items)} {verdict.value.lower()}" for verdict in Verdict
    )
    good = "PASS, with single commands only" if singly else "PASS"
    lines = [f"{good if passed(items) and finished else 'FAIL' if failed else 'INCOMPLETE'}: {counts}"]
    if failed:
        lines.append("failed: " + ", ".join(failed))
    lines += [f"{way + ':':<24}{verdict}: {why}" for way, (verdict, why) in told.items()]
    if not finished:
        lines.append("interrupted: what is not listed was not tried")
    if run.emulated:
        lines.append("this was the emulated NPU: nothing is proved about a real one")
    use = " ".join(f"{name}={value}" for name, value in options(run, items).items())
    if bundle := _of_the_bundle(items):
        lines.append(
            f"the bundle is at fault ({', '.join(bundle)}): nothing is proved about the device; "
            "copy or export it again, then run this again"
        )
    else:
        lines.append(
            f"do not rely on answers here; to find out more, use: {use}" if failed else f"use: {use}"
        )
    return lines


class Report:
    """Makes the report of a run, scrubbed: no names, no serial numbers, and of the bundle no path."""

    def __init__(self, run: Acceptance) -> None:
        from amdxdna.doctor.scrub import Scrubber
        from qwen35.find import DEFAULT_BUNDLE

        self._run = run
        self._scrubber = Scrubber.of()
        path = run.path
        places = sorted({str(path), str(path.resolve())} - {"/"}, key=len, reverse=True)
        nowhere = r"(?!)"
        found = "|".join(rf"(?<![\w.-]){re.escape(place)}(?![\w.-])" for place in places)
        self._places = re.compile(found or nowhere)
        self._bundle = "built in" if path.resolve() == Path(DEFAULT_BUNDLE).resolve() else _identity(path)

    def made(self, items: Sequence[Item], state: str) -> dict[str, Any]:
        """Of these items; `state`: running, interrupted, failed or finished."""
        run, finished = self._run, state == "finished"
        found = {
            "shape": SHAPE,
            "program": f"qwen35 {__version__}",
            "machine": {"kernel": platform.release(), "processor": _processor(), "cores": os.cpu_count()},
            "bundle": self._bundle,
            "device": run.device,
            "emulated": run.emulated,
            "passed": passed(items) and finished,
            "finished": finished,
            "state": state,
            "ways": {
                way: {"verdict": verdict.lower(), "why": why}
                for way, (verdict, why) in ways(run, items, finished).items()
            },
            "options": options(run, items),
            "items": [item.as_json() for item in items],
        }
        scrubbed: dict[str, Any] = _scrubbed(found, self._text)
        return scrubbed

    def _text(self, text: str) -> str:
        return self._scrubber.text(self._places.sub("<bundle>", text))


def _identity(path: Path) -> str:
    """Which bundle it is, without a word of where: the beginning of its manifest's SHA-256."""
    try:
        with open_regular(path / "manifest.txt") as file:
            return "manifest " + hashlib.sha256(read_up_to(file, 1 << 24)).hexdigest()[:16]
    except OSError:
        return "no manifest"


def _scrubbed(value: Any, text: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        # What is no identifier is a file's or a process's.
        return {
            key if key.isidentifier() else text(key): _scrubbed(item, text) for key, item in value.items()
        }
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
