"""`amdxdna errors`: the last error that the array raised by itself, decoded.

The packing of the code is that of drivers/accel/amdxdna/amdxdna_error.h: number in bits 0-15, driver 16-23,
severity 24-31, module 32-39, class 40-47; of the extra code, column in bits 0-7 and row in bits 8-15.

JSON: ``amdxdna.errors`` version 1: ``error`` null when there was none, else ``{"code", "extra", "time_us",
"number", "kind", "module_number", "module", "driver", "severity", "class", "row", "column"}``, and
``unavailable``: why it is null when the driver cannot tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import FAILED, Parser, document, print_json
from amdxdna.cli.device import Answers, add_device, open_device
from amdxdna.cli.screen import not_available, pairs, show, when, wrap

if TYPE_CHECKING:
    from amdxdna.device_info import AsyncError

_SEVERITIES = {3: "critical"}
_DRIVERS = {4: "AIE"}
_CLASSES = {2: "AIE"}
_HINTS = {
    "saturation": "a result was out of range; harmless where saturation is meant",
    "floating point": "an invalid floating-point operation in a kernel",
    "stream": "a stream was switched or packed wrongly: xclbin and instruction stream may not fit each other",
    "access": "a kernel used an address outside its memory",
    "bus": "a transfer went to an address that is not there: a buffer may be too small or closed",
    "instruction": "a core met an instruction it does not know: the PDI is damaged or for another NPU",
    "ECC": "a memory of the array had a bit error; if it comes back, the hardware is faulty",
    "lock": "a lock was released or acquired out of order: kernels do not fit each other",
    "DMA": "a DMA descriptor is wrong: xclbin and instruction stream may not fit each other",
    "memory parity": "a memory of the array had a bit error; if it comes back, the hardware is faulty",
}


def errors_main(argv: list[str]) -> int:
    """Exit status 0 (with or without an error to show), or 1 when the driver cannot tell."""
    parser = Parser(
        "errors", description="The last asynchronous error of the array since the driver was loaded."
    )
    add_device(parser)
    parser.add_json()
    options = parser.parse_args(argv)
    answers = Answers()
    with open_device(options.device) as device:
        error = answers.ask("error", device.last_async_error)
    reason = answers.unavailable.get("error")
    if options.json:
        print_json(document("errors", error=decode(error), unavailable=answers.unavailable))
    elif reason is not None:
        show(wrap(not_available(reason), "last error  "))
    elif error is None:
        show(["last error  none since the driver was loaded"])
    else:
        show(pairs(_rows(error)))
    return FAILED if reason is not None else 0


def decode(error: AsyncError | None) -> dict[str, Any] | None:
    """Every field of an error's code."""
    if error is None:
        return None
    code = error.code
    return {
        "code": code,
        "extra": error.extra,
        "time_us": error.timestamp_us,
        "number": code & 0xFFFF,
        "kind": error.kind,
        "module_number": code >> 32 & 0xFF,
        "module": error.module,
        "driver": code >> 16 & 0xFF,
        "severity": code >> 24 & 0xFF,
        "class": code >> 40 & 0xFF,
        "row": error.row,
        "column": error.column,
    }


def _rows(error: AsyncError) -> list[tuple[str, str]]:
    fields = decode(error) or {}

    def named(names: dict[int, str], number: int) -> str:
        return f"{names[number]} ({number})" if number in names else f"unknown ({number})"

    return [
        ("last error", f"{error}"),
        ("time", when(error.timestamp_us)),
        ("means", _HINTS.get(error.kind, "not known to this package")),
        (
            "code",
            f"{error.code:#x}: driver {named(_DRIVERS, fields['driver'])}, severity "
            f"{named(_SEVERITIES, fields['severity'])}, module {error.module}, class "
            f"{named(_CLASSES, fields['class'])}",
        ),
        ("extra", f"{error.extra:#x}: row {error.row}, column {error.column}"),
    ]
