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
    rows: int = 6
    core_rows: int = 4
    mem_rows: int = 1
    shim_rows: int = 1
    core_row_start: int = 2
    mem_row_start: int = 1
    shim_row_start: int = 0
    core_dma_channels: int = 2
    mem_dma_channels: int = 6
    shim_dma_channels: int = 2
    core_locks: int = 16
    mem_locks: int = 64
    shim_locks: int = 16
    core_events: int = 128
    mem_events: int = 128
    shim_events: int = 128
