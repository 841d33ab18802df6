"""PDI images: both forms decode to the writes they were made of; arrays, routes and summaries follow."""

from __future__ import annotations

import json
import random
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from amdxdna import pdi
from amdxdna.aie import registers, switch
from amdxdna.cli import main
from amdxdna.emu.kernels.families import Family
from amdxdna.emu.kernels.families import pdi as emulator_pdi
from amdxdna.pdi import drawing, summary
from amdxdna.xclbin.writer import KernelSpec, PdiSpec
from amdxdna.xclbin.writer import build as build_xclbin
from tests.support.designs import design, program
from tests.support.pdi_builder import B, Item, W, at, build, circuit, packets
from tests.support.pdi_folder import count

# Words for tile (2,0) from mlir-aie, test/Targets/AIETargetCDODirect: shims.mlir and dma_bd_iteration.mlir.
SHIM_BD = B(at(2, 0, 0x1D000), (0x400, 0, 0, 0, 0, 0, 0, 0x02000000))
SHIM_DEMUX = W(at(2, 0, 0x1F004), 0x10, 0x30)
SHIM_MASTER = W(0x403F010, 0x8000000E)


@pytest.mark.parametrize("transformed", [False, True])
def test_commands_are_what_the_image_was_made_of(transformed: bool) -> None:
    items = [*design(), B(at(0, 2, 4096), list(range(300))), SHIM_BD, SHIM_DEMUX, SHIM_MASTER]
    image = pdi.read(build(items, transformed=transformed))
    assert (image.name, image.id, image.transformed, image.problems) == (
        "aie_image",
        0x1C000000,
        transformed,
        (),
    )
    found = [command for command in pdi.commands(image) if command.name != "NOP"]
    assert len(found) == len(items)
    for command, item in zip(found, items, strict=True):
        assert command.address == item.address
        if isinstance(item, B):
            assert (command.name, command.data, command.words) == (
                "BLOCK_WRITE",
                tuple(item.words),
                len(item.words),
            )
        else:
            assert (command.value, command.mask) == (
                item.value,
                0xFFFFFFFF if item.mask is None else item.mask,
            )


@pytest.mark.parametrize("transformed", [False, True])
def test_other_commands_and_unknown_ones_are_passed_over_by_their_length(transformed: bool) -> None:
    if transformed:
        image = pdi.read(build([W(at(0, 2, 0x1F000), 9)], transformed=True))
        assert [c.value for c in pdi.commands(image)] == [9]
        return
    words = [
        *(0x104 | 1 << 16, 77, 0x1FF | 2 << 16, 1, 2, 0x10C | 4 << 16, 0, at(0, 2, 0x400), 5, 8),
        *(0x108 | 3 << 16, 0, at(0, 2, 0x1F000), 6, 0x107 | 4 << 16, 0, at(0, 2, 0x1F010), 0xF, 0x33, 0x100),
        0xDEADBEEF,
    ]
    image = pdi.read(build([], raw=struct.pack(f"<{len(words)}I", *words)))
    found = list(pdi.commands(image))
    assert [c.name for c in found] == [
        "DELAY",
        "COMMAND_0x1ff",
        "BLOCK_SET",
        "WRITE_64",
        "MASK_WRITE_64",
        "END_MARK",
    ]
    array = pdi.Array().apply(found)
    assert array.unknown_commands == 1 and "unknown command 0x1ff" in array.problems[0]
    tile = array.tiles[0, 2]
    assert tile.data_bytes == 20 and tile.locks() == {0: 6, 1: 3}


def test_array_holds_what_a_register_read_would_give() -> None:
    array = pdi.Array().apply(pdi.commands(pdi.read(build(design()))))
    assert sorted(array.tiles) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)]
    core = array.tiles[0, 2]
    assert core.running and core.data_bytes == 12 and len(core.program) == 1600
    assert core.program == struct.pack("<400I", *program(1))
    assert core.locks() == {0: 2, 1: 0}
    assert list(core.descriptors()) == [0] and list(array.tiles[0, 1].descriptors()) == [0]
    (start,) = core.starts
    assert (start.direction, start.channel, start.bd, start.repeat, start.token) == ("s2mm", 0, 0, 4, True)
    assert array.unknown_words == 0 and not array.problems
    array.apply([pdi.Command(0, 0x102, at(0, 2, 0x32000), 0, 1)])
    assert not core.running


def test_routes_by_hand() -> None:
    found = {
        str(r.source): [(str(e.port), str(e.packet), e.fault) for e in r.ends]
        for r in pdi.routes(pdi.Array().apply(pdi.commands(pdi.read(build(design())))), 2)
    }
    assert found.pop("(0,0) mm2s 0") == [("(0,1) s2mm 0", "", "")]
    assert sorted(found.pop("(0,1) mm2s 2")) == [("(0,2) s2mm 1", "", ""), ("(0,3) s2mm 0", "", "")]
    assert sorted(found.pop("(0,3) mm2s 1")) == [
        ("(0,0) s2mm 0", "packet 2", ""),
        ("(0,1) s2mm 5", "packet 4 mask 0x1c", ""),
    ]
    assert found.pop("(1,2) core") == [("(0,2) core", "", "")]
    assert not found


@pytest.mark.parametrize(
    ("items", "fault"),
    [
        (circuit(0, 2, "north 0", "dma 0"), "(0,3) south 0 is not enabled"),
        (circuit(0, 2, "east 0", "dma 0"), "leaves the partition"),
        (circuit(0, 2, "west 0", "dma 0"), "leaves the partition"),
        (circuit(0, 5, "north 0", "dma 0"), "leaves the partition"),
        ([W(at(0, 2, 0x3F100 + 4), 1 << 31)], "no master takes it"),
        (packets(0, 2, "dma 0", [(1, 0x1F, 2, 5)], [("core", 5, 0b0001)]), "no master takes it"),
    ],
    ids=["dead end", "east border", "west border", "north border", "no master", "other msel"],
)
def test_loose_ends_say_why(items: list[Item], fault: str) -> None:
    (route,) = pdi.routes(pdi.Array().apply(pdi.commands(pdi.read(build(items)))), 1)
    assert [end.fault for end in route.ends] == [fault]


def test_loop_ends() -> None:
    """A stream that goes round two tiles for ever, fed by a DMA: the walk ends, with its one real end."""
    items = circuit(0, 2, "north 0", "dma 0") + circuit(0, 2, "north 0", "north 1")
    items += packets(0, 2, "north 1", [(0, 0, 0, 0)], [("north 0", 0, 1)])
    items += packets(0, 3, "south 0", [(0, 0, 0, 0)], [("south 1", 0, 1), ("core", 0, 1)])
    items += packets(0, 2, "dma 0", [(0, 0, 0, 0)], [("north 0", 0, 1)])
    found = pdi.routes(pdi.Array().apply(pdi.commands(pdi.read(build(items)))), 1)
    assert [str(end.port) for route in found for end in route.ends] == ["(0,3) core"]


def test_random_switches_always_end() -> None:
    rng = random.Random(5)
    for _ in range(30):
        items: list[Item] = []
        for column in range(2):
            for row in range(6):
                kind = registers.tile_of(at(column, row, 0)).kind
                for offset in (*range(0, 0x64, 4), *range(0x100, 0x168, 4), *range(0x200, 0x380, 4)):
                    items.append(
                        W(
                            at(column, row, registers.SWITCH[kind] + offset),
                            rng.getrandbits(32) | (rng.random() < 0.7) << 31,
                        )
                    )
        array = pdi.Array().apply(pdi.commands(pdi.read(build(items, nops=False))))
        assert all(route.ends for route in pdi.routes(array, 2))


def test_data_that_is_cut_by_twenty_bytes_is_told_and_the_rest_decoded() -> None:
    """Files of an old xclbinutil lack the last five words of the data (XRT 2da383eb5e)."""
    items = [*design(), B(at(0, 3, 0x1D0A0), (1, 2, 3, 4, 5, 6))]
    found = summary.summarise(pdi.read(build(items, transformed=True, short=20)))
    assert any("the image ends 20 bytes before this block write does" in p for p in found.problems)
    assert found.array.tiles[0, 3].registers[0x1D0A0] == 1
    assert len(found.routes) == 4


def test_damaged_headers_are_named() -> None:
    good = bytearray(build(design()))
    for offset, what in (
        (0x10 + 8, "lies at byte"),
        (0x10 + 4, "images"),
        (0x38, "identification"),
        (0x154, "no configuration"),
        (0x0, "no PDI image"),
    ):
        bad = bytearray(good)
        bad[offset] ^= 0x55
        with pytest.raises(pdi.BadPdi, match=what):
            pdi.read(bytes(bad))
    bad = bytearray(good)
    bad[0x90 + 0x10] ^= 1
    assert pdi.read(bytes(bad)).problems == ("the image header's checksum is wrong",)
    with pytest.raises(pdi.BadPdi, match="less than its headers"):
        pdi.read(b"compiled code")


def test_one_region_of_data_cannot_be_named_twice() -> None:
    """Else a file of a few hundred bytes could name gigabytes."""
    data = bytearray(build([B(at(0, 2, 0x1000), [1] * 64), B(at(0, 2, 0x2000), [2] * 64)], transformed=True))
    entry = 0x164 + 8 + 16
    struct.pack_into("<I", data, entry + 8, 0)
    with pytest.raises(pdi.BadPdi, match="not behind what was read before"):
        list(pdi.commands(pdi.read(bytes(data))))


@pytest.mark.parametrize("transformed", [False, True])
def test_any_damage_gives_a_result_or_the_one_error(transformed: bool) -> None:
    good = build(design(), transformed=transformed)
    rng = random.Random(11)
    for n in range(1500):
        data = bytearray(good)
        if n % 3 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(n % 3):
            data[rng.randrange(len(data))] = rng.getrandbits(8)
        try:
            found = summary.summarise(pdi.read(bytes(data)), rng.choice([None, 1, 2, 8]))
        except pdi.BadPdi:
            continue
        if n % 10 == 0:
            json.dumps(summary.document(found))
            summary.lines(found)


def test_summary_reads_as_the_design() -> None:
    found = summary.summarise(pdi.read(build(design())), 2)
    text = summary.lines(found)
    assert "2 columns; 3 of 3 cores run, 2 programs" in text[0]
    assert any("A  1600 bytes, data 12, in 2: (0,2) (0,3)" in line for line in text)
    assert any("B  1600 bytes, data 12, in 1: (1,2)" in line for line in text)
    assert any(
        "compute 1 BD, 1 channel started; memory 1 BD, 0 channels started; shim left" in line for line in text
    )
    assert any("locks     3 set to a count, 3 to 0" in line for line in text)
    assert "  (0,0) mm2s 0 -> (0,1) s2mm 0" in text
    assert "  (0,3) mm2s 1, packet 2 -> (0,0) s2mm 0" in text
    grid = drawing.text(found)
    assert any("core A" in line and "core B" in line for line in grid)
    assert "< 0,1" in "\n".join(grid)


def test_columns_that_do_the_same_share_a_line() -> None:
    items = [
        item
        for column in range(3)
        for item in circuit(column, 1, "dma 0", "south 0")
        + circuit(column, 0, "north 0", "south 3")
        + [W(at(column, 0, 0x1F000), 1 << 10)]
    ]
    assert "  (c,0) mm2s 0 -> (c,1) s2mm 0, c = 0 1 2" in summary.lines(
        summary.summarise(pdi.read(build(items)))
    )


def test_svg_is_xml_with_every_tile_and_an_arrow_for_each_feed(tmp_path: Path) -> None:
    found = summary.summarise(pdi.read(build(design())), 2)
    root = ElementTree.fromstring(drawing.svg(found, "<&> design"))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}g/{name}rect")) == 12
    assert len(root.findall(f"{name}path")) == sum(
        source != target for target, sources in drawing.feeds(found).items() for source in sources
    )
    assert "<&> design" in root.findtext(f"{name}title", "")
    across, down = map(int, root.attrib["viewBox"].split()[2:])
    boxes = [
        tuple(int(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        for rect in root.findall(f"{name}g/{name}rect")
    ]
    for seen, (x, y, width, height) in enumerate(boxes):
        assert x >= 0 and x + width <= across and y >= 0 and y + height <= down
        for left, top, _, _ in boxes[:seen]:  # none lies over another
            assert abs(x - left) >= width or abs(y - top) >= height


def test_every_kind_of_switch_has_as_many_ports_as_registers() -> None:
    """A master's and a slave's register are 4 bytes each, from 0x3F000 and 0x3F100 on in a core's and the
    shim's address space, from 0xB0000 and 0xB0100 on in a memory tile's; the last of the slaves is a trace
    unit's (Stream_Switch_Master_Config_* and _Slave_Config_* in AMD's AM025)."""
    ends = {
        kind: (0x4 * len(switch.MASTERS[kind]), 0x4 * len(switch.SLAVES[kind]))
        for kind in (registers.COMPUTE, registers.MEMORY, registers.SHIM)
    }
    assert ends == {
        registers.COMPUTE: (0x5C, 0x64),
        registers.MEMORY: (0x44, 0x48),
        registers.SHIM: (0x58, 0x5C),
    }
    assert all("trace" in ports[-1] for ports in switch.SLAVES.values())


# -- the command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "design.xclbin"
    path.write_bytes(
        build_xclbin(
            [
                PdiSpec(build(design(), transformed=True), (0x101,)),
                PdiSpec(build([SHIM_BD]), (0x7FF,)),
                PdiSpec(b"compiled code" * 10, (0x102,)),
                PdiSpec(emulator_pdi(Family.COPY), (0x103,)),
            ],
            [KernelSpec("FIRST", 0x101), KernelSpec("SECOND", 0x102), KernelSpec("THIRD", 0x103)],
            columns=2,
        )
    )
    return path


def test_command_says_what_is_in_a_pdi(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xclbin", str(file), "--pdi", "--draw", "--commands"]) == 0
    out = capsys.readouterr().out
    assert "PDI 0 of 4" in out and "commands and data apart" in out and "2 columns; 3 of 3 cores run" in out
    assert "PDI 2 of 4: 130 bytes: at byte 0: no PDI image" in out
    assert "PDI 3 of 4: 64 bytes: the emulated NPU's kernel copy" in out
    assert "0x00132000" not in out and "(0,2) Core_Control" in out
    assert main(["xclbin", str(file), "--pdi", "1", "--json", "--commands"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["pdi"] for one in said["pdi"]] == [1]
    assert said["pdi"][0]["tiles"][0]["descriptors"][0]["length"] == 0x400
    assert said["pdi"][0]["commands_listed"][-1]["register"] == "DMA_BD0_0"
    assert [p["used"] for p in said["pdis"]] == [True, False, True, True]
    assert said["arguments"]["FIRST"][1] == {
        "index": 1,
        "name": "instr",
        "size": 8,
        "offset": 8,
        "buffer": True,
        "type": "char *",
    }


@pytest.mark.parametrize(
    ("words", "status", "what"),
    [
        (["--pdi", "4"], 1, "there is no PDI 4"),
        (["--pdi", "-1"], 1, "there is no PDI -1"),
        (["--pdi", "x"], 2, "invalid int value"),
        (["--svg", "/proc/nowhere/x.svg", "--pdi", "0"], 1, "/proc/nowhere/x.svg"),
        (["--svg", "x.svg"], 1, "Name it: --pdi N"),
        (["--svg", "x.svg", "--pdi", "2"], 1, "cannot be drawn"),
        (["other", "--pdi"], 2, "compared as a whole"),
    ],
)
def test_wrong_words_are_one_line(
    file: Path,
    words: list[str],
    status: int,
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["xclbin", str(file), *words]) == status
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and what in said.err and not said.out


def test_two_files_are_compared(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.xclbin"
    other.write_bytes(
        build_xclbin([PdiSpec(build(design()), (0x101,))], [KernelSpec("FIRST", 0x101)], columns=4)
    )
    assert main(["xclbin", str(file), str(file)]) == 0
    assert "the same content" in capsys.readouterr().out
    assert main(["xclbin", str(file), str(other)]) == 1
    out = capsys.readouterr().out
    assert "partition columns: 2 | 4" in out and "PDI 1 size:" in out and "context of its own" in out
    assert main(["xclbin", str(file), str(other), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert {"what": "partition columns", "file": 2, "other": 4} in said["differences"]
    assert said["same_context"] is False


def test_folder_of_files_is_counted(file: Path, tmp_path: Path) -> None:
    found = count(tmp_path)
    assert (found["files"], found["PDIs"], found["PDIs not decoded"]) == (1, 4, 2)
    assert (found["unknown commands"], found["unknown words"], found["loose ends"]) == (0, 0, 0)
    unknown = build(
        [W(at(0, 2, 0x50000), 1)],
        raw=struct.pack("<2I", 0x1FE, 0x103 | 2 << 16) + struct.pack("<2I", at(0, 2, 0x50000), 1),
    )
    (tmp_path / "strange.xclbin").write_bytes(build_xclbin([PdiSpec(unknown)]))
    found = count(tmp_path)
    assert (found["unknown commands"], found["unknown words"]) == (1, 1)
