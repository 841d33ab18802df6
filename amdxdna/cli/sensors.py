"""`amdxdna sensors`: power draw and how busy each column is.

JSON: ``amdxdna.sensors`` version 1: ``sensors``: a list of ``{"label", "value" (number), "unit", "type"
"power"|"utilization"|number, "raw"}``, or null where there are none, and ``unavailable``: why.
"""

from __future__ import annotations

from amdxdna.cli.common import FAILED, Parser, document, print_json
from amdxdna.cli.device import Answers, add_device, open_device, sensor_value
from amdxdna.cli.screen import not_available, show, table, wrap

_TYPES = {0: "power", 1: "utilization"}


def sensors_main(argv: list[str]) -> int:
    """Exit status 0, or 1 when there are no readings."""
    parser = Parser(
        "sensors",
        description="Power draw and column utilisation, as the platform's power management "
        "(amd_pmf) measures them.",
    )
    add_device(parser)
    parser.add_json()
    options = parser.parse_args(argv)
    from amdxdna import query

    answers = Answers()
    with open_device(options.device) as device:
        found = answers.ask("sensors", lambda: query.sensors(device.client))
    reason = answers.unavailable.get("sensors")
    if options.json:
        print_json(
            document(
                "sensors",
                sensors=None
                if found is None
                else [
                    {
                        "label": s.label,
                        "value": sensor_value(s)[0],
                        "unit": sensor_value(s)[1],
                        "type": _TYPES.get(s.type, s.type),
                        "raw": s.value,
                    }
                    for s in found
                ],
                unavailable=answers.unavailable,
            )
        )
    elif found is None:
        show(wrap(not_available(reason or "no answer"), "sensors  "))
    else:
        rows = [(s.label, f"{sensor_value(s)[0]:g}", sensor_value(s)[1]) for s in found]
        show(table(("SENSOR", "VALUE", "UNIT"), rows, right=(1,)))
    return FAILED if found is None else 0
