"""`amdxdna power [MODE]`: the power mode and the clocks that result; with MODE it is set (root).

JSON: ``amdxdna.power`` version 1: ``mode`` ("default"|"low"|"medium"|"high"|"turbo"), ``before`` (when it
was set, else null), ``clocks`` [{name, mhz}].
"""

from __future__ import annotations

from amdxdna.cli.common import Parser, UsageError, document, print_json
from amdxdna.cli.device import add_device, open_device, plain
from amdxdna.cli.screen import pairs, show
from amdxdna.device_info import PowerMode

MODES = ("default", "low", "medium", "high", "turbo")


def power_main(argv: list[str]) -> int:
    """Exit status 0, 1 when the driver refuses, 2 for a mode that is none."""
    parser = Parser(
        "power",
        description="Shows the power mode and the clocks, or sets the mode. The mode stays "
        "until it is set again or the driver is reloaded.",
    )
    parser.add_argument(
        "mode",
        nargs="?",
        metavar="MODE",
        help=f"{', '.join(MODES)}; needs root. turbo needs an NPU without open contexts",
    )
    add_device(parser)
    parser.add_json()
    options = parser.parse_args(argv)
    if options.mode is not None and options.mode not in MODES:
        raise UsageError(
            f"amdxdna power: there is no mode {options.mode!r}", f"There are: {', '.join(MODES)}"
        )
    from amdxdna import query

    with open_device(options.device) as device:
        before = None
        if options.mode is not None:
            before = device.power_mode.name.lower()
            device.power_mode = PowerMode[options.mode.upper()]
        mode = device.power_mode.name.lower()
        clocks = query.clocks(device.client)
    if options.json:
        print_json(document("power", mode=mode, before=before, clocks=[plain(clock) for clock in clocks]))
    else:
        shown = mode if before in (None, mode) else f"{mode} (was {before})"
        show(pairs([("power mode", shown), *((clock.name, f"{clock.mhz} MHz") for clock in clocks)]))
    return 0
