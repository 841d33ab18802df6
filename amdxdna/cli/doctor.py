"""`amdxdna doctor`: what the NPU needs, what is missing, and what to do about it.

JSON: ``amdxdna.doctor`` version 1: ``ok`` (bool), ``cause`` (a check's name or null), the list ``checks``:
``{"check", "status": "ok"|"warn"|"fail"|"skip", "meaning", "remedy": [...], "symptom": bool, "facts": {}}``
in the order they were made; ``facts`` differ by check.
"""

from __future__ import annotations

from amdxdna.cli.common import FAILED, Parser, document, print_json
from amdxdna.cli.device import add_machine
from amdxdna.cli.screen import paint, show, width, wrap
from amdxdna.doctor import Machine, Report, Status, examine

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red", Status.SKIP: "dim"}
_NARROW = 60


def doctor_main(argv: list[str]) -> int:
    """Exit status 0 when nothing failed (warnings are no failure), else 1."""
    parser = Parser(
        "doctor",
        description="Checks everything the NPU needs: driver, firmware, permission, "
        "IOMMU, limits, contexts, and whether it answers. Says what is wrong and what to do.",
    )
    add_machine(parser)
    parser.add_json()
    options = parser.parse_args(argv)
    report = examine(options.device, Machine(options.root))
    if options.json:
        cause = report.cause
        print_json(
            document(
                "doctor",
                ok=report.ok,
                cause=cause.check if cause else None,
                checks=[finding.as_json() for finding in report.findings],
            )
        )
    else:
        show(screen(report))
    return 0 if report.ok else FAILED


def screen(report: Report) -> list[str]:
    """The report as lines."""
    lines: list[str] = []
    column = max(len(finding.check) for finding in report.findings)
    for finding in report.findings:
        word = finding.status.value
        head = f"{word:<4}  {finding.check:<{column}}  "
        rest = "      " if width() < _NARROW else " " * len(head)
        text = wrap(finding.meaning, head, rest)
        text[0] = paint(word, _COLOURS[finding.status]) + text[0][len(word) :]
        lines += text
        if finding.status in (Status.WARN, Status.FAIL) and not finding.symptom:
            for step in finding.remedy:
                lines += wrap(step, rest + "- ", rest + "  ")
    return [*lines, "", *_verdict(report)]


def _verdict(report: Report) -> list[str]:
    cause = report.cause
    if cause is None:
        warned = [f.check for f in report.findings if f.status is Status.WARN]
        return wrap("The NPU can be used" + (f"; worth a look: {', '.join(warned)}." if warned else "."))
    lines = wrap(cause.meaning, "Cause: ")
    lines[0] = paint("Cause:", "bold") + lines[0][len("Cause:") :]
    if cause.remedy:
        todo = wrap(cause.remedy[0], "Do:    ")
        todo[0] = paint("Do:", "bold") + todo[0][len("Do:") :]
        lines += todo
    return lines
