"""What has the kernel said of the NPU since it started?"""

from __future__ import annotations

from amdxdna.doctor.events import events, heaviest
from amdxdna.doctor.finding import Finding, finding, ok, skip
from amdxdna.doctor.subject import Subject

_SHOWN = 160


def log(subject: Subject) -> Finding:
    """Faults, hung commands and crashes in the kernel log, the heaviest quoted."""
    if subject.emulated:
        return skip("an emulated device of this process's own has none")
    if subject.npu is None and not subject.nodes:
        return skip(f"unknown: {subject.unseen}" if subject.unseen else "no NPU that it could tell of")
    lines, unreadable, left_out = subject.kernel_log
    if unreadable:
        return skip(unreadable, "Run doctor with sudo to have it read")
    found = events(lines)
    facts = {
        "events": [{"kind": e.kind.name, "count": e.count, "line": e.line} for e in found],
        "left_out": left_out,
    }
    first = heaviest(found)
    if first is None:
        return ok(
            "the kernel log tells of no fault since the driver started"
            + ("; its oldest part was not read" if left_out else ""),
            facts=facts,
        )
    others = ", ".join(f"{e.count} x {e.kind.name}" for e in found if e is not first)
    times = f", {first.count} times" if first.count > 1 else ""
    text = f"{first.kind.meaning}{times} ({first.line[:_SHOWN]})" + (f"; also {others}" if others else "")
    return finding(first.status, text, *first.remedy, facts=facts)
