"""How the subcommands write to a terminal: widths, colours, tables, numbers. No part of the binding."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from amdxdna.programs import own_commands
from amdxdna.text import printable

NOT_AVAILABLE = "n/a"
_COLOURS = {"green": "32", "yellow": "33", "red": "31;1", "dim": "2", "bold": "1"}
_PAINT = re.compile("(\x1b\\[(?:" + "|".join([*_COLOURS.values(), "0"]) + ")m)")
_WIDEST = 120


def width() -> int:
    """Columns to write to: the terminal's, at most 120, at least 40."""
    return max(40, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))


def coloured() -> bool:
    """Whether stdout takes colour: a terminal, and neither NO_COLOR nor TERM=dumb is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """`text` in a colour, where stdout takes colour."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if coloured() else text


def wrap(text: str, first: str = "", rest: str | None = None) -> list[str]:
    """`text` in lines of :func:`width`, the first behind `first`, the others behind `rest` (blanks)."""
    lines = textwrap.wrap(
        own_commands(text),
        width(),
        initial_indent=first,
        break_on_hyphens=False,
        subsequent_indent=" " * len(first) if rest is None else rest,
    )
    return lines or [first.rstrip()]


def pairs(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Names and values in two columns; a long value goes on under itself."""
    listed = list(rows)
    column = max((len(name) for name, _ in listed), default=0) + 2
    return [line for name, value in listed for line in wrap(value, f"{name:<{column}}")]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Rows below a header, the columns in `right` flush right; a block a row where they do not fit."""
    aligned = set(right)
    sizes = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    if sum(sizes) + 2 * (len(sizes) - 1) > width():
        blocks: list[str] = []
        for row in rows:
            blocks += [*([""] if blocks else []), *pairs(zip(header, row, strict=True))]
        return blocks
    return [
        "  ".join(
            cell.rjust(size) if i in aligned else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]


def not_available(reason: str) -> str:
    """What stands where the driver has no answer."""
    return f"{NOT_AVAILABLE}: {reason}"


def size(nbytes: float) -> str:
    """A number of bytes in the unit that suits it."""
    value, units = nbytes, iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while abs(value) >= 1024 and unit != "GiB":
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"


def when(microseconds: int) -> str:
    """A time since 1970 in microseconds, as UTC."""
    try:
        moment = datetime.fromtimestamp(microseconds / 1e6, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{microseconds} us"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def show(lines: Iterable[str]) -> None:
    """Writes lines to stdout, with what is not ours in them made printable."""
    sys.stdout.write("".join(f"{_fit(line)}\n" for line in lines))
    sys.stdout.flush()


def tell(lines: Iterable[str]) -> None:
    """Writes lines to stderr, as :func:`show` does. A stderr that is closed or full is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        print("\n".join(printable(own_commands(line)) for line in lines), file=sys.stderr, flush=True)


def _fit(line: str) -> str:
    """Whatever a name brings along is spelled out; colours stay where :func:`paint` gives them."""
    parts = _PAINT.split(line) if coloured() else [line]
    return "".join(part if _PAINT.fullmatch(part) else printable(part) for part in parts)
