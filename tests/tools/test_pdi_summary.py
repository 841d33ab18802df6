"""A summary of a PDI: one design whose whole listing, drawing and document were written down by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from amdxdna import pdi
from amdxdna.cli.xclbin import command_text
from amdxdna.pdi import drawing, summary
from amdxdna.pdi.routes import End, Packet, Port, Route
from tests.support.pdi_builder import B, Item, W, at, build

ON = 1 << 31


def sampler() -> list[Item]:
    """Two columns with one of everything that a summary tells apart."""
    items: list[Item] = [W(at(0, 6, 0), 1)]  # row 6 is none
    for row in (2, 3):
        items += [
            B(at(0, row, 0x400), (1, 2)),
            B(at(0, row, 0x20000), (0x11, 0x22)),
            W(at(0, row, 0x32000), 1),
        ]
    items += [B(at(1, 2, 0x20000), (0x33,)), W(at(1, 2, 0x32000), 2), W(at(1, 3, 0x32000), 1)]
    items += [W(at(0, 2, 0x1F000), 2), W(at(0, 2, 0x1F0F0), 0), W(at(0, 1, 0xC03F0), 1)]
    bd = (1 << 31 | 3 << 28 | 5 << 23 | 64, 7, 1, 0, 0, 0, 0, 1 << 31 | 0x7F << 24 | 66 << 16)
    items += [B(at(1, 5, 0x1D060), [0] * 6), B(at(0, 1, 0xA0000), [0] * 8), B(at(0, 1, 0xA05E0), bd)]
    # Four starts of three channels of the memory tile, one of a core's.
    items += [W(at(0, 1, offset), 0x8001002F) for offset in (0xA0604, 0xA062C, 0xA0634, 0xA0604)]
    items += [W(at(0, 2, 0x1DE1C), 1)]
    streams = [
        ((0, 0), {0x1F000: 1 << 10, 0x1F004: 1 << 4 | 1 << 6}),
        ((0, 0), {0x3F114: ON, 0x3F030: ON | 5, 0x3F124: ON, 0x3F044: ON | 9}),
        ((0, 1), {0xB011C: ON, 0xB0008: ON | 7, 0xB0130: ON, 0xB0018: ON | 12}),
        ((1, 0), {0x1F000: 1 << 10 | 1 << 14}),
        ((1, 0), {0x3F114: ON, 0x3F020: ON | 5, 0x3F124: ON, 0x3F024: ON | 9}),
        ((0, 0), {0x3F148: ON, 0x3F010: ON | 18, 0x3F14C: ON, 0x3F014: ON | 19}),
        ((0, 1), {0xB0100: 3 << 30, 0xB0104: 3 << 30, 0xB001C: 3 << 30 | 1 << 3 | 2}),
        ((0, 1), dict.fromkeys((0xB0200, 0xB0210), 1 << 8 | 1 << 24 | 0x1F << 16 | 2)),
        ((0, 0), {0x3F138: 3 << 30, 0x3F2E0: 1 << 8 | 1 << 24 | 0x1F << 16 | 1 << 4}),
        ((0, 0), {0x3F008: 3 << 30 | 2 << 3}),
        ((0, 3), {0x3F15C: ON}),
        ((1, 2), {0x3F104: ON, 0x3F020: ON | 1}),
        ((1, 3), {0x3F100: ON, 0x3F034: ON}),
        ((1, 4), {0x3F114: ON, 0x3F038: ON | 5}),
        ((1, 5), {0x3F118: ON, 0x3F008: ON | 6, 0x3F104: ON, 0x3F034: ON | 1}),
    ]
    return items + [W(at(*place, o), v) for place, writes in streams for o, v in writes.items()]


LISTING = """\
tiles     2 columns; 3 of 6 cores run, 2 programs; 1 without one here (the instructions load it)
          (1,4) only pass streams on
          (1,5) left for the instructions to load and start
program   A  8 bytes, data 8, in 2: (0,2) (0,3)
          B  4 bytes, data 0, in 1: (1,2)
dma       compute 1 BD, 1 channel started; memory 2 BDs, 3 channels started; shim left to the instructions
locks     2 set to a count, 1 to 0
streams   10 sources, 10 ends, 3 of them loose
  (0,0) mm2s 0 -> (0,1) s2mm 2
  (0,0) south 7 -> (0,1) ctrl
  (0,1) mm2s 0 1, packet 1 -> (0,0) south 0 (tokens)
  (0,3) core trace -> (0,3) slave core trace (no master takes it)
  (1,0) mm2s 0 -> (0,0) s2mm 0
  (1,0) mm2s 1 -> (0,0) s2mm 1
  (1,2) mm2s 0 -> (1,2) south 3 ((1,1) north 3 is not enabled)
  (1,3) core -> (1,5) s2mm 1
  (1,5) mm2s 0 -> (1,5) north 0 (leaves the partition)
problem   WRITE at byte 356: (0,6) 0x0, 4 bytes: outside the array"""

DRAWING = """\
         column 0       column 1
     +--------------+--------------+
row 5| core unused  | core waits   |
     |              | < 1,3        |
     |              |              |
     +--------------+--------------+
row 4| core unused  | core passes  |
     |              |              |
     |              |              |
     +--------------+--------------+
row 3| core A       | core runs    |
     |              |              |
     |              |              |
     +--------------+--------------+
row 2| core A       | core B off   |
     |              |              |
     |              |              |
     +--------------+--------------+
row 1| mem          | mem unused   |
     | < 0,0        |              |
     |              |              |
     +--------------+--------------+
row 0| shim         | shim         |
     | < 0,1 1,0    |              |
     |              |              |
     +--------------+--------------+"""


def test_the_whole_listing_and_drawing() -> None:
    told = summary.summarise(pdi.read(build(sampler())), 2)
    assert "\n".join(summary.lines(told)) == LISTING
    assert "\n".join(line.rstrip() for line in drawing.text(told)) == DRAWING


def test_the_whole_document() -> None:
    image = build(sampler())
    told = summary.document(summary.summarise(pdi.read(image), 2))
    # 51 writes, one of them of nowhere; 8 blocks, a NOP before each: 9 words of memories, 22 of descriptors.
    assert {key: value for key, value in told.items() if not isinstance(value, list)} == {
        "name": "aie_image",
        "bytes": len(image),
        "form": "plain",
        "commands": 51 + 8 + 8,
        "unknown_commands": 0,
        "words": 50 + 9 + 22,
        "unknown_words": 0,
        "columns": 2,
    }
    assert told["problems"] == ["WRITE at byte 356: (0,6) 0x0, 4 bytes: outside the array"]
    assert told["programs"] == [
        {"program": "A", "bytes": 8, "data_bytes": 8, "tiles": [[0, 2], [0, 3]]},
        {"program": "B", "bytes": 4, "data_bytes": 0, "tiles": [[1, 2]]},
    ]
    tiles = {tuple(tile["tile"]): tile for tile in told["tiles"]}
    assert list(tiles) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3), (1, 4), (1, 5)]
    assert tiles[0, 2] == {
        "tile": [0, 2],
        "kind": "compute tile",
        "running": True,
        "program": "A",
        "program_bytes": 8,
        "data_bytes": 8,
        "descriptors": [],
        "starts": [{"direction": "mm2s", "channel": 1, "bd": 1, "repeat": 1, "token": False}],
        "locks": {"0": 2, "15": 0},
    }
    assert tiles[0, 1]["descriptors"] == [
        {"bd": 0},
        {
            "bd": 47,
            "packet": 1,
            "packet_type": 3,
            "packet_id": 5,
            "length": 64,
            "base": 7,
            "d0_step": 2,
            "valid": 1,
            "lock_rel_value": 127,
            "lock_rel_id": 66,
        },
    ]
    assert (tiles[1, 3]["program"], tiles[1, 3]["running"]) == (None, True)
    assert (tiles[1, 2]["program"], tiles[1, 2]["running"]) == ("B", False)
    assert [tiles[place]["kind"] for place in ((0, 0), (0, 1))] == ["shim", "memory tile"]
    assert told["routes"][2] == {
        "from": {"tile": [0, 1], "port": "mm2s 0"},
        "to": [
            {"tile": [0, 0], "port": "south 0 (tokens)", "packet_id": 1, "packet_mask": 31, "fault": None}
        ],
    }
    assert told["routes"][4] == {
        "from": {"tile": [0, 3], "port": "core trace"},
        "to": [
            {
                "tile": [0, 3],
                "port": "slave core trace",
                "packet_id": None,
                "packet_mask": None,
                "fault": "no master takes it",
            }
        ],
    }


def test_a_partition_that_is_narrower_than_what_is_written() -> None:
    image = pdi.read(build([W(at(3, 2, 0x1F000), 1), W(at(0, 2, 0x1F000), 1)]))
    told = summary.summarise(image, 2)
    assert told.problems == ("it writes to 4 columns, the partition has 2",) and told.columns == 2
    for columns, wide in ((None, 4), (0, 4), (4, 4), (8, 8)):
        told = summary.summarise(image, columns)
        assert (told.columns, told.problems) == (wide, ())


def routed(routes: list[Route], columns: int = 5) -> summary.Summary:
    """A summary of these streams alone."""
    image = pdi.read(build([]))
    return summary.Summary(image, pdi.Array(), columns, (), tuple(routes), ())


def to(target: tuple[int, int, str], *sources: tuple[int, int], fault: str = "") -> list[Route]:
    return [Route(Port(c, r, "core"), (End(Port(*target), Packet(), fault),)) for c, r in sources]


def test_programs_are_named_by_letters_the_commonest_first() -> None:
    """27 programs more than letters: A to Z, AA. One of them is in two cores, and comes first."""
    items: list[Item] = [
        B(at(n % 8, 2 + n // 8, 0x20000), [n if n < 28 else 20] + [5] * (n % 3)) for n in range(27)
    ]
    items += [B(at(7, 5, 0x20000), [20, 5, 5])]
    told = summary.summarise(pdi.read(build(items)))
    assert [program.letter for program in told.programs] == [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "AA"]
    assert told.programs[0].tiles == ((4, 4), (7, 5)) and told.letter(4, 4) == "A"
    assert told.letter(0, 2) == "B" and told.letter(2, 5) == "AA" and told.letter(6, 5) == ""


def test_cores_of_a_program_are_told_row_by_row() -> None:
    """In whichever order they are written."""
    places = [(1, 3), (2, 2), (0, 3), (1, 2), (0, 2)]
    told = summary.summarise(pdi.read(build([B(at(*place, 0x20000), [7]) for place in places])))
    assert told.programs[0].tiles == ((0, 2), (1, 2), (2, 2), (0, 3), (1, 3))


@pytest.mark.parametrize(
    ("rows", "columns", "where"),
    [
        (4, [1], "(1,2) (1,3) (1,4) (1,5) s2mm 1"),
        (4, [0], "(0,2) (0,3) (0,4) (0,5) s2mm 1"),
        (3, [0, 2], "6 tiles in columns 0 2: s2mm 1"),
        (5, [3], "5 tiles in column 3: s2mm 1"),
    ],
)
def test_many_ends_are_counted(rows: int, columns: list[int], where: str) -> None:
    ends = tuple(End(Port(c, 2 + r, "s2mm 1"), Packet()) for r in range(rows) for c in columns)
    lines = summary.lines(routed([Route(Port(0, 1, "mm2s 0"), ends)]))
    assert f"  (0,1) mm2s 0 -> {where}" in lines
    assert f"streams   1 source, {len(ends)} ends, no loose end" in lines


@pytest.mark.parametrize(
    ("cores", "said"),
    [(8, "(0,2) (1,2) (2,2) (3,2) (4,2) (5,2) (6,2) (7,2)"), (9, "9 cores")],
)
def test_cores_that_wait_are_listed_or_counted(cores: int, said: str) -> None:
    items: list[Item] = [B(at(n % 8, 2 + n // 8, 0x1D000), [0] * 6) for n in range(cores)]
    lines = summary.lines(summary.summarise(pdi.read(build(items))))
    assert lines[1] == f"          {said} left for the instructions to load and start"


@pytest.mark.parametrize(
    ("sources", "shown"),
    [
        ([], ["", ""]),
        ([(0, 2)], ["< 0,2", ""]),
        ([(0, 3), (0, 2)], ["< 0,2 0,3", ""]),
        ([(0, 2), (0, 3), (0, 4)], ["< 0,2 0,3", "0,4"]),
        ([(0, 2), (0, 3), (0, 4), (0, 5), (1, 2)], ["< 0,2 0,3", "0,4 0,5 1,2"]),
        ([(0, 2), (0, 3), (0, 4), (0, 5), (1, 2), (1, 3)], ["< 0,2 0,3", "0,4 0,5 +2"]),
        ([(c, r) for c in range(5) for r in range(2, 6)], ["< 0,2 0,3", "0,4 0,5 +16"]),
    ],
)
def test_a_cell_of_the_drawing_lists_who_feeds_it_or_counts_them(
    sources: list[tuple[int, int]], shown: list[str]
) -> None:
    """Twelve characters in two lines; one whose stream does not arrive feeds nobody."""
    told = drawing.text(routed(to((0, 1, "s2mm 0"), *sources) + to((0, 1, "x"), (4, 0), fault="lost")))
    row = next(number for number, line in enumerate(told) if line.startswith("row 1"))
    assert [line.split("|")[1].strip() for line in told[row + 1 : row + 3]] == shown


SVG = "{http://www.w3.org/2000/svg}"


def test_boxes_of_the_svg() -> None:
    root = ElementTree.fromstring(drawing.svg(summary.summarise(pdi.read(build(sampler())), 2), "a"))
    boxes = {}
    for group in root.findall(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        name, detail = ("".join(text.itertext()) for text in group.findall(f"{SVG}text"))
        boxes[name[:5]] = (
            name[6:],
            detail,
            rect.attrib["fill"],
            int(rect.attrib["x"]),
            int(rect.attrib["y"]),
        )
    # Row 5 above, column 0 to the left; 132 by 74 with 34 between, a margin of 40.
    assert boxes["(0,5)"][3:] == (40, 40) and boxes["(1,0)"][3:] == (206, 580)
    assert root.attrib["viewBox"] == "0 0 412 728"
    assert {place: box[:2] for place, box in boxes.items() if box[1]} == {
        "(0,0)": ("shim", "0 BDs, 0 started"),
        "(0,1)": ("mem", "2 BDs, 4 started"),
        "(0,2)": ("core A", "8 bytes; 0 BDs, 1 started"),
        "(0,3)": ("core A", "8 bytes; 0 BDs, 0 started"),
        "(1,0)": ("shim", "0 BDs, 0 started"),
        "(1,2)": ("core B off", "4 bytes; 0 BDs, 0 started"),
        "(1,3)": ("core runs", "0 BDs, 0 started"),
        "(1,4)": ("core passes", "0 BDs, 0 started"),
        "(1,5)": ("core waits", "1 BDs, 0 started"),
    }
    # What does nothing is pale; shim, memory tiles and cores that work have a colour each.
    pale = boxes["(0,5)"][2]
    assert {place for place, box in boxes.items() if box[2] == pale} == {
        *("(0,4)", "(0,5)", "(1,1)", "(1,2)", "(1,4)", "(1,5)")
    }
    fills = {kind: {box[2] for box in boxes.values() if box[0] == kind} for kind in ("shim", "mem")}
    cores = {box[2] for box in boxes.values() if box[0] in ("core A", "core runs")}
    assert len(fills["shim"]) == len(fills["mem"]) == len(cores) == 1
    assert len({pale, *fills["shim"], *fills["mem"], *cores}) == 4


@pytest.mark.parametrize(
    ("source", "target", "streams", "begin", "end", "width", "lean"),
    [
        ((0, 1), (0, 2), 1, "above", "below", "1.25", 13),
        ((7, 5), (1, 0), 2, "below", "above", "1.5", 49 + 65 + 5 - 92),
        ((1, 2), (4, 2), 11, "above", "above", "3.75", 7 + 26 + 20),
        ((4, 3), (0, 5), 13, "above", "below", "4", 28 + 39),
    ],
)
def test_arrows_leave_a_box_and_enter_another_from_outside(
    source: tuple[int, int],
    target: tuple[int, int],
    streams: int,
    begin: str,
    end: str,
    width: str,
    lean: int,
) -> None:
    """Spread over the 92 pixels between its corners: 7 for each column it begins in, 13 for each row, 5 for
    each column it ends in."""
    routes = [r for _ in range(streams) for r in to((*target, "s2mm 0"), source)]
    root = ElementTree.fromstring(drawing.svg(routed(routes), "a"))
    (arrow,) = root.findall(f"{SVG}path")
    points = [tuple(map(int, p.split(","))) for p in arrow.attrib["d"].translate({77: "", 67: ""}).split()]
    for place, side, (x, y), (lean_x, lean_y) in (
        (source, begin, points[0], points[1]),
        (target, end, points[3], points[2]),
    ):
        left, top = 40 + 166 * place[0], 40 + 108 * (5 - place[1])
        assert x == lean_x == left + 20 + lean
        assert (y, lean_y) == ((top, top - 34) if side == "above" else (top + 74, top + 108))
    assert arrow.attrib["stroke-width"] == width


def test_arrows_from_one_tile_have_one_colour() -> None:
    routes = [r for s in range(4) for t in (4, 5) for r in to((4, t, "core"), (s, 0))]
    root = ElementTree.fromstring(drawing.svg(routed(routes), "a"))
    colours = [arrow.attrib["stroke"] for arrow in root.findall(f"{SVG}path")]
    assert colours[:4] == colours[4:] and len(set(colours)) == 4


@pytest.mark.parametrize(
    ("command", "line", "text"),
    [
        (
            pdi.Command(356, 0x103, at(1, 2, 0x32000), 1),
            {"address": "0x02232000", "tile": [1, 2], "register": "Core_Control", "value": "0x00000001"},
            "0x000164  WRITE         0x02232000 (1,2) Core_Control 0x00000001",
        ),
        (
            pdi.Command(360, 0x102, at(0, 2, 0x50000), 2, 3),
            {
                "address": "0x00250000",
                "tile": [0, 2],
                "register": None,
                "value": "0x00000002",
                "mask": "0x00000003",
            },
            "0x000168  MASK_WRITE    0x00250000 (0,2) ? 0x00000002 mask 0x00000003",
        ),
        (
            pdi.Command(356, 0x107, 1 << 32, 2, 3),
            {"address": "0x100000000", "value": "0x00000002", "mask": "0x00000003"},
            "0x000164  MASK_WRITE_64 0x100000000 0x00000002 mask 0x00000003",
        ),
        (
            pdi.Command(356, 0x105, at(0, 1, 0x400), data=(7, 8), words=3),
            {
                "address": "0x00100400",
                "tile": [0, 1],
                "register": "Data_Memory+0x400",
                "words": 3,
                "data": ["0x00000007", "0x00000008"],
            },
            "0x000164  BLOCK_WRITE   0x00100400 (0,1) Data_Memory+0x400 3 words: 0x00000007 0x00000008",
        ),
        (
            pdi.Command(356, 0x111, payload=(5,)),
            {"payload": ["0x00000005"]},
            "0x000164  NOP           0x00000005",
        ),
        (pdi.Command(356, 0x100), {"payload": []}, "0x000164  END_MARK"),
    ],
)
def test_commands_in_a_document_and_in_a_line(
    command: pdi.Command, line: dict[str, object], text: str
) -> None:
    found = summary.command_line(command)
    assert found == {"offset": command.offset, "command": command.name, **line}
    assert command_text(found) == text


def test_a_long_block_is_cut_in_a_line() -> None:
    for words, end in ((8, "0x00000007"), (9, "0x00000007 ...")):
        command = pdi.Command(356, 0x105, at(0, 1, 0x400), data=tuple(range(words)), words=words)
        text = command_text(summary.command_line(command))
        assert f" {words} words: 0x00000000 " in text and text.endswith(end)
