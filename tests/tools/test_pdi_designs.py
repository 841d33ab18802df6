"""Summaries of known designs against what their makers say of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from amdxdna import pdi
from amdxdna.pdi import drawing, summary
from amdxdna.xclbin import Xclbin
from tests.support import pdi_designs
from tests.support.pdi_builder import build
from tests.support.pdi_designs import Design

DESIGNS = [pdi_designs.vector_scalar_mul, pdi_designs.distribute_and_join, pdi_designs.whole_array_gemm]


@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("make", DESIGNS)
def test_every_stream_goes_from_where_to_where_the_design_says(
    make: Callable[[], Design], transformed: bool
) -> None:
    design = make()
    found = summary.summarise(pdi.read(build(design.items, transformed=transformed)))
    assert not found.problems
    assert {
        (r.source.column, r.source.row, r.source.name): {
            (e.port.column, e.port.row, e.port.name) for e in r.ends
        }
        for r in found.routes
    } == design.streams
    assert not any(end.fault for route in found.routes for end in route.ends)


@pytest.mark.parametrize(
    ("make", "tiles", "program", "streams"),
    [
        (pdi_designs.vector_scalar_mul, "1 column; 1 of 1 core run", "in 1: (0,2)", "3 sources, 3 ends"),
        (
            pdi_designs.distribute_and_join,
            "1 column; 3 of 3 cores run",
            "in 3: (0,2) (0,3) (0,4)",
            "8 sources, 8 ends",
        ),
        # 8 to the memory tiles; A and B each four times to four cores; 16 results; four to the host.
        (pdi_designs.whole_array_gemm, "4 columns; 16 of 16 cores run", "in 16: ", "36 sources, 60 ends"),
    ],
)
def test_summaries_say_it(make: Callable[[], Design], tiles: str, program: str, streams: str) -> None:
    found = summary.summarise(pdi.read(build(make().items)))
    lines = summary.lines(found)
    assert tiles in lines[0]
    assert [program in line for line in lines if line.startswith("program")] == [True], lines
    assert any(streams in line and "no loose end" in line for line in lines), lines


def test_the_drawing_shows_who_feeds_the_cores_of_the_gemm() -> None:
    found = summary.summarise(pdi.read(build(pdi_designs.whole_array_gemm().items)))
    feeds = drawing.feeds(found)
    for column in range(4):
        assert set(feeds[column, 0]) == {(column, 1)}
        assert set(feeds[column, 1]) == {(column, 0), *((column, row) for row in range(2, 6))}
        for row in range(2, 6):
            assert set(feeds[column, row]) == {(column, 1), (row - 2, 1)}


# -- files that are not in the repository: a folder of them in AMDXDNA_XCLBINS

OVERLAYS = {"1x4": (1, 4), "4x4": (4, 16)}
"""Columns and cores of RyzenAI-SW's overlays by their names. Ryzen AI's documentation (runtime_setup.rst)
runs up to four streams at once with 1x4.xclbin, one column each, and names 4x4.xclbin as the configuration
that takes most of the NPU; a column has four compute tiles (riallto.ai, notebook 3_2; mlir-aie's Devices)."""


@pytest.mark.skipif("AMDXDNA_XCLBINS" not in os.environ, reason="AMDXDNA_XCLBINS names no folder")
@pytest.mark.parametrize("name", OVERLAYS)
def test_overlays_are_as_wide_as_their_names_say(name: str) -> None:
    columns, cores = OVERLAYS[name]
    files = [
        path
        for path in Path(os.environ["AMDXDNA_XCLBINS"]).rglob("*.xclbin")
        if path.stem.split("__")[-1] == name
    ]
    assert files
    for path in files:
        file = Xclbin.read(path)
        assert file.partition.column_width == columns
        for number, one in enumerate(file.pdis):
            found = summary.summarise(pdi.read(one.data), columns)
            running = [tile for tile in found.array.tiles.values() if tile.running]
            assert len(running) == cores, f"{path}: PDI {number}"
            assert {(tile.column, tile.row) for tile in running} == {
                (column, row) for column in range(columns) for row in range(2, 6)
            }
