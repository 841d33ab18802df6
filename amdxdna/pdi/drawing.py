"""Drawings of a configured array: a grid of text, and SVG. Who is fed from where."""

from __future__ import annotations

from xml.sax.saxutils import escape

from amdxdna.aie.registers import COMPUTE, MEMORY, SHIM, tile_of
from amdxdna.pdi.array import TOP_ROW
from amdxdna.pdi.summary import Summary

_CELL = 14
_LINES = 3

_Place = tuple[int, int]


def feeds(summary: Summary) -> dict[_Place, dict[_Place, int]]:
    """For each tile that streams arrive at, the tiles they come from and how many ends there are."""
    found: dict[_Place, dict[_Place, int]] = {}
    for route in summary.routes:
        source = route.source.column, route.source.row
        for end in route.ends:
            if not end.fault:
                into = found.setdefault((end.port.column, end.port.row), {})
                into[source] = into.get(source, 0) + 1
    return found


def _kind(row: int) -> str:
    return tile_of(row << 20).kind


def _label(summary: Summary, column: int, row: int) -> str:
    """A tile's name and, for a core, the letter of its program."""
    kind = {SHIM: "shim", MEMORY: "mem", COMPUTE: "core"}[_kind(row)]
    tile = summary.array.get(column, row)
    if tile is None:
        return f"{kind} unused"
    if kind != "core":
        return kind
    letter = summary.letter(column, row)
    if letter:
        return f"core {letter}" + ("" if tile.running else " off")
    return "core runs" if tile.running else "core waits" if tile.descriptors() else "core passes"


def text(summary: Summary) -> list[str]:
    """The array as a grid, row 0 (shim) below; each tile names those that feed it."""
    into = feeds(summary)
    line = "     +" + "+".join("-" * _CELL for _ in range(summary.columns)) + "+"
    said = ["      " + " ".join(f"column {column}".center(_CELL) for column in range(summary.columns)), line]
    for row in range(TOP_ROW, -1, -1):
        cells = []
        for column in range(summary.columns):
            sources = [f"{c},{r}" for c, r in sorted(into.get((column, row), {}))]
            cells.append([_label(summary, column, row), *_fill(sources)])
        for at in range(_LINES):
            head = f"row {row}" if at == 0 else ""
            said.append(f"{head:<5}|" + "|".join(f" {cell[at]:<{_CELL - 1}}" for cell in cells) + "|")
        said.append(line)
    return said


def _fill(sources: list[str]) -> list[str]:
    """The sources in the lines of a cell; what does not fit is counted."""
    room = _CELL - 2
    rows = ["" for _ in range(_LINES - 1)]
    at = 0
    for number, source in enumerate(sources):
        piece = ("< " if number == 0 else "") + source
        if rows[at] and len(rows[at]) + 1 + len(piece) > room:
            at += 1
        if at == len(rows) or (
            at == len(rows) - 1 and number < len(sources) - 1 and len(rows[at]) + len(piece) + 5 > room
        ):
            left = f"+{len(sources) - number}"
            rows[-1] = f"{rows[-1]} {left}".strip()
            break
        rows[at] = f"{rows[at]} {piece}".strip()
    return rows


_WIDTH, _HEIGHT, _GAP, _MARGIN = 132, 74, 34, 40
_FILLS = {"shim": "#dfe7ef", "mem": "#e9e3f1", "core": "#e3efe0", "off": "#f2f2f2"}
_STROKES = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22")


def svg(summary: Summary, title: str) -> str:
    """An SVG document: tiles as boxes, an arrow for each pair of tiles that a stream joins."""
    columns, rows = summary.columns, TOP_ROW + 1
    wide = 2 * _MARGIN + columns * (_WIDTH + _GAP)
    high = 2 * _MARGIN + rows * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="context-stroke"/></marker></defs>',
        f'<text x="{_MARGIN}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for row in range(rows):
        for column in range(columns):
            parts.append(_box(summary, column, row))
    for (column, row), sources in sorted(feeds(summary).items()):
        parts += [
            _arrow(source, (column, row), count)
            for source, count in sorted(sources.items())
            if source != (column, row)
        ]
    return "\n".join([*parts, "</svg>", ""])


def _corner(column: int, row: int) -> tuple[int, int]:
    return _MARGIN + column * (_WIDTH + _GAP), _MARGIN + (TOP_ROW - row) * (_HEIGHT + _GAP)


def _box(summary: Summary, column: int, row: int) -> str:
    x, y = _corner(column, row)
    label = _label(summary, column, row)
    tile = summary.array.get(column, row)
    fill = (
        _FILLS["off"]
        if tile is None or label.endswith(("passes", "waits", "off"))
        else _FILLS[label.split(" ")[0]]
    )
    detail = "" if tile is None else f"{len(tile.descriptors())} BDs, {len(tile.starts)} started"
    if tile is not None and tile.program:
        detail = f"{len(tile.program)} bytes; {detail}"
    return (
        f'<g><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="{fill}" '
        f'stroke="#555"/><text x="{x + 8}" y="{y + 18}" font-weight="bold">({column},{row}) '
        f'{escape(label)}</text><text x="{x + 8}" y="{y + 36}" font-size="9">{escape(detail)}</text></g>'
    )


def _arrow(source: _Place, target: _Place, count: int) -> str:
    """A curve from tile to tile, coloured by where it begins, and thicker for more streams."""
    (x1, y1), (x2, y2) = _corner(*source), _corner(*target)
    # Ends spread along a box, so that arrows from different tiles do not fall on each other.
    lean = 20 + (source[0] * 7 + source[1] * 13 + target[0] * 5) % (_WIDTH - 40)
    x1, x2 = x1 + lean, x2 + lean
    below = target[1] < source[1]
    y1, y2 = y1 + (_HEIGHT if below else 0), y2 + (0 if below else _HEIGHT)
    if source[1] == target[1]:
        y2 = y1
    bend = _GAP if below else -_GAP
    colour = _STROKES[(source[0] + 3 * source[1]) % len(_STROKES)]
    return (
        f'<path d="M{x1},{y1} C{x1},{y1 + bend} {x2},{y2 - (bend if source[1] != target[1] else -bend)} '
        f'{x2},{y2}" fill="none" stroke="{colour}" stroke-opacity="0.7" '
        f'stroke-width="{min(1 + count / 4, 4):g}" '
        f'marker-end="url(#tip)"/>'
    )
