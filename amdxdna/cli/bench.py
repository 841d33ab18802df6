"""`amdxdna bench`: what calls and commands cost, and how fast they go.

JSON: ``amdxdna.bench`` version 1: ``device``, ``emulated``, ``seconds`` (for each measurement), the list
``measures`` of ``{"name", "value", "unit" "us"|"1/s"|"GiB/s", "p99" (in unit, or null), "count"}``
(value is the median where there is a p99), and ``skipped``: a list of reasons. With ``--loop`` one document
a line.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from amdxdna.cli.common import Parser, document, print_json
from amdxdna.cli.device import add_device, open_device
from amdxdna.cli.program import add_loop, add_program, read_program
from amdxdna.cli.screen import show, table, wrap

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.selftest.measure import Measure
    from amdxdna.selftest.program import Program

NO_COMMANDS = (
    "commands were not measured: this package's own programs run on the emulated NPU only. Give one "
    "compiled for this NPU with --xclbin, --insts and --buffers"
)


def bench_main(argv: list[str]) -> int:
    """Exit status 0, or 1 when a call or command fails or copied data is wrong."""
    parser = Parser(
        "bench",
        description="Times queries, buffers, contexts, commands (one at a time, four in flight, "
        "in chains) and copies, whose data is compared. Other load on the machine shows in the times.",
    )
    add_device(parser)
    add_program(parser)
    parser.add_argument("--seconds", metavar="S", type=float, default=1.0, help="for each measurement (1)")
    add_loop(parser, "Ctrl-C")
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="do not compare what was copied (for emu:instant, which copies nothing)",
    )
    parser.add_json()
    options = parser.parse_args(argv)
    if not 0 < options.seconds <= 600:
        parser.error("--seconds takes more than 0 and at most 600")
    if options.loop < 0:
        parser.error("--loop takes a number of passes")
    program = read_program(parser, options)
    passes = 0
    with open_device(options.device) as device:
        while not passes or passes != options.loop:
            measures, skipped = measure(device, program, options.seconds, not options.no_check)
            passes += 1
            if options.json:
                print_json(
                    document(
                        "bench",
                        device=device.path,
                        emulated=device.emulated,
                        seconds=options.seconds,
                        measures=[asdict(m) for m in measures],
                        skipped=skipped,
                    )
                )
            else:
                show(_screen(measures, skipped, device.emulated, passes))
    return 0


def measure(
    device: Device, program: Program | None, seconds: float, check: bool = True
) -> tuple[list[Measure], list[str]]:
    """All measurements, and what was left out."""
    from amdxdna.selftest import measure as measures

    found = measures.calls(device, seconds)
    skipped = []
    if device.emulated:
        found += measures.copies(device, seconds, check)
    elif program is None:
        skipped.append(NO_COMMANDS)
    if program is not None:
        found += measures.own(device, program, seconds)
    return found, skipped


def _screen(measures: list[Measure], skipped: list[str], emulated: bool, passes: int) -> list[str]:
    rows = [
        (m.name, _number(m.value), "" if m.p99 is None else _number(m.p99), m.unit, str(m.count))
        for m in measures
    ]
    lines = [""] if passes > 1 else []
    lines += table(("WHAT", "MEDIAN", "P99", "UNIT", "TIMES"), rows, right=(1, 2, 4))
    notes = [
        *skipped,
        *(
            ["the NPU is emulated: commands show this package's and the host's speed, no NPU's"]
            if emulated
            else []
        ),
    ]
    return [*lines, *([""] if notes else []), *(line for note in notes for line in wrap(note))]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
