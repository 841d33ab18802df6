"""`amdxdna telemetry`: the firmware's block of counters, as it is.

Its layout is the firmware's own and not public: the block is shown as words, and can be written to a file.

JSON: ``amdxdna.telemetry`` version 1: ``type``, ``major``, ``minor``, ``contexts`` (by firmware context: the
driver's context id, 0 for none), ``bytes`` (of the block up to its last word that is not 0), ``data`` (those
bytes, hexadecimal), or these null and ``unavailable``: why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amdxdna.cli.common import FAILED, Parser, document, print_json, writing
from amdxdna.cli.device import Answers, add_device, open_device
from amdxdna.cli.screen import not_available, pairs, show, width, wrap
from amdxdna.output import write_whole

_SHOWN = 512


def telemetry_main(argv: list[str]) -> int:
    """Exit status 0, or 1 when the driver or firmware gives no telemetry."""
    parser = Parser(
        "telemetry",
        description="The firmware's telemetry: which contexts it knows, and its counters "
        "as words (their layout is not public).",
    )
    add_device(parser)
    parser.add_argument("--type", metavar="N", type=int, default=0, help="kind of block, from 0 (0)")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the block to FILE as it is")
    parser.add_json()
    options = parser.parse_args(argv)
    if not 0 <= options.type < 1 << 32:
        parser.error("--type takes a number from 0")
    answers = Answers()
    with open_device(options.device) as device:
        block = answers.ask("telemetry", lambda: device.telemetry(options.type))
    if block is None:
        if options.json:
            nothing: dict[str, Any] = dict.fromkeys(("type", "major", "minor", "contexts", "bytes", "data"))
            print_json(document("telemetry", **nothing, unavailable=answers.unavailable))
        else:
            show(wrap(not_available(answers.unavailable["telemetry"]), "telemetry  "))
        return FAILED
    if options.output is not None:
        with writing(options.output):
            write_whole(options.output, block.data)
    used = block.data.rstrip(b"\0")
    used = block.data[: -(-len(used) // 4) * 4]
    if options.json:
        print_json(
            document(
                "telemetry",
                type=block.type,
                major=block.major,
                minor=block.minor,
                contexts=list(block.contexts),
                bytes=len(used),
                data=used.hex(),
                unavailable={},
            )
        )
        return 0
    held = [f"{index} = {context}" for index, context in enumerate(block.contexts) if context]
    show(
        pairs(
            [
                ("type", f"{block.type}, version {block.major}.{block.minor}"),
                (
                    "contexts",
                    f"{len(held)} of {len(block.contexts)} firmware contexts are in use"
                    + (f" (firmware's = driver's number: {', '.join(held)})" if held else ""),
                ),
                ("data", f"{len(used)} bytes" if used else "empty: this firmware fills nothing in"),
            ]
        )
    )
    show(_words(used[:_SHOWN]))
    if len(used) > _SHOWN:
        show(wrap(f"{len(used) - _SHOWN} bytes more: write them to a file with -o, or use --json"))
    return 0


def _words(data: bytes) -> list[str]:
    a_line = max(1, (width() - 8) // 9)
    words = [data[i : i + 4][::-1].hex() for i in range(0, len(data), 4)]
    return [f"{4 * i:06x}  {' '.join(words[i : i + a_line])}" for i in range(0, len(words), a_line)]
