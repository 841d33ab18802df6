"""`amdxdna selftest`: does the NPU do what it should?

JSON: ``amdxdna.selftest`` version 1: ``device``, ``ok``, ``passes`` (how often all steps were made) and the
``steps`` of the last: a list of ``{"name", "status": "ok"|"fail"|"skip", "detail", "remedy" (or null),
"seconds"}``.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from amdxdna.cli.common import FAILED, Parser, document, print_json
from amdxdna.cli.device import add_device, open_device
from amdxdna.cli.program import add_loop, add_program, read_program
from amdxdna.cli.screen import paint, show, wrap

if TYPE_CHECKING:
    from amdxdna.selftest.steps import Bench

_COLOURS = {"ok": "green", "fail": "red", "skip": "dim"}


@dataclass(frozen=True)
class Result:
    """How one step ended."""

    name: str
    status: str
    detail: str
    seconds: float
    remedy: str | None = None


def selftest_main(argv: list[str]) -> int:
    """Exit status 0 when nothing failed (skipped steps are no failure), else 1."""
    parser = Parser(
        "selftest",
        description="Does one thing after the other with the NPU and checks the data. A real "
        "NPU cannot run this package's own programs, so there the commands are left out unless you give "
        "one that is compiled for it.",
    )
    add_device(parser)
    add_program(parser)
    add_loop(parser, "something fails or Ctrl-C")
    parser.add_json()
    options = parser.parse_args(argv)
    if options.loop < 0:
        parser.error("--loop takes a number of passes")
    program = read_program(parser, options)
    from amdxdna.selftest.steps import Bench

    passes, results = 0, []
    with open_device(options.device) as device:
        bench = Bench(device, program)
        try:
            while True:
                began = time.perf_counter()
                results = one_pass(bench)
                passes += 1
                failed = [result for result in results if result.status == "fail"]
                if options.loop != 1 and not options.json:
                    state = f"failed: {failed[0].name}" if failed else "ok"
                    show([f"pass {passes}: {state}, {time.perf_counter() - began:.1f} s"])
                if failed or passes == options.loop:
                    break
        except KeyboardInterrupt:
            if not passes:
                raise
        path = device.path
    ok = all(result.status != "fail" for result in results)
    if options.json:
        print_json(
            document(
                "selftest", device=path, ok=ok, passes=passes, steps=[asdict(result) for result in results]
            )
        )
    else:
        show(_screen(results, passes))
    return 0 if ok else FAILED


def one_pass(bench: Bench) -> list[Result]:
    """Every step once; after a failure the others are still made."""
    from amdxdna.errors import XdnaError
    from amdxdna.selftest.steps import STEPS, Skipped

    results = []
    for name, step in STEPS.items():
        began = time.perf_counter()
        status, remedy = "ok", None
        try:
            detail = step(bench)
        except Skipped as reason:
            status, detail = "skip", str(reason)
        except XdnaError as error:
            status, remedy = "fail", error.remedy or None
            detail = f"{error.call}: {error.meaning}" if error.call else error.meaning
        results.append(Result(name, status, detail, time.perf_counter() - began, remedy))
    return results


def _screen(results: list[Result], passes: int) -> list[str]:
    column = max(len(result.name) for result in results)
    lines: list[str] = []
    for result in results:
        head = f"{result.status:<4}  {result.name:<{column}}  "
        text = wrap(result.detail, head)
        text[0] = paint(result.status, _COLOURS[result.status]) + text[0][len(result.status) :]
        lines += text
        if result.remedy:
            lines += wrap(result.remedy, " " * len(head) + "- ")
    counts = {status: sum(result.status == status for result in results) for status in ("ok", "fail", "skip")}
    again = f" ({passes} passes)" if passes > 1 else ""
    return [*lines, "", f"{counts['ok']} ok, {counts['fail']} failed, {counts['skip']} skipped{again}"]
