"""Geometry of the AIE array, as the firmware tells it."""

from __future__ import annotations

from typing import NamedTuple

COLUMN_BYTES = 0x2000
"""Of a column's status dump."""


class TileInfo(NamedTuple):
    """Geometry of the array; the order of the firmware's tile-info reply."""

    column_bytes: int
    major: int
    minor: int
    columns: int
    rows: int
    core_rows: int
    mem_rows: int
    shim_rows: int
    core_row_start: int
    mem_row_start: int
    shim_row_start: int
    core_dma_channels: int
    mem_dma_channels: int
    shim_dma_channels: int
    core_locks: int
    mem_locks: int
    shim_locks: int
    core_events: int
    mem_events: int
    shim_events: int


def geometry(columns: int, major: int, minor: int) -> TileInfo:
    """Shim row 0, memory row 1, four core rows from 2, in `columns` columns of that AIE version."""
    return TileInfo(
        column_bytes=COLUMN_BYTES,
        major=major,
        minor=minor,
        columns=columns,
        rows=6,
        core_rows=4,
        mem_rows=1,
        shim_rows=1,
        core_row_start=2,
        mem_row_start=1,
        shim_row_start=0,
        core_dma_channels=2,
        mem_dma_channels=6,
        shim_dma_channels=2,
        core_locks=16,
        mem_locks=64,
        shim_locks=16,
        core_events=128,
        mem_events=128,
        shim_events=128,
    )
