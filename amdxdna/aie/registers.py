"""Names of AIE-ML registers (NPU1 and NPU2): which tile an address lies in, and what is there.

Offsets and fields from aie-rt's public register tables (xaiemlgbl_params.h): an address is column << 25 |
row << 20 | offset; row 0 holds the shim tiles, the next rows the memory tiles, then the compute tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from amdxdna.aie import observing

COLUMN_SHIFT, ROW_SHIFT = 25, 20
SHIM, MEMORY, COMPUTE = "shim", "memory tile", "compute tile"


class Tile(NamedTuple):
    """Where an address points: the tile's column, row and kind, and the offset in it."""

    column: int
    row: int
    kind: str
    offset: int


def tile_of(address: int, memory_rows: int = 1) -> Tile:
    """The tile of an address, on an array with `memory_rows` rows of memory tiles."""
    row = address >> ROW_SHIFT & 0x1F
    kind = SHIM if row == 0 else MEMORY if row <= memory_rows else COMPUTE
    return Tile(address >> COLUMN_SHIFT & 0x7F, row, kind, address & ((1 << ROW_SHIFT) - 1))


class Dma(NamedTuple):
    """A tile's DMA: buffer descriptors of `words` words each 0x20 bytes, and channels 8 bytes each; a word of
    status each."""

    bds: int
    words: int
    number: int
    s2mm: int
    mm2s: int
    channels: int
    s2mm_status: int
    mm2s_status: int


DMAS = {
    SHIM: Dma(0x1D000, 8, 16, 0x1D200, 0x1D210, 2, 0x1D220, 0x1D228),
    MEMORY: Dma(0xA0000, 8, 48, 0xA0600, 0xA0630, 6, 0xA0660, 0xA0680),
    COMPUTE: Dma(0x1D000, 6, 16, 0x1DE00, 0x1DE10, 2, 0x1DF00, 0x1DF10),
}
BD_STEP, _CHANNEL_STEP, LOCK_STEP = 0x20, 8, 0x10
LOCKS = {SHIM: (0x14000, 16), MEMORY: (0xC0000, 64), COMPUTE: (0x1F000, 16)}
SWITCH = {SHIM: 0x3F000, MEMORY: 0xB0000, COMPUTE: 0x3F000}
MUX, DEMUX = 0x1F000, 0x1F004
CORE_CONTROL = 0x32000
# Registers of an event module: broadcasts, and the directions they do not go on to.
_BLOCKS = ((0x40, "South"), (0x50, "West"), (0x60, "North"), (0x70, "East"))


def _events(base: int, prefix: str = "", network: str = "") -> dict[int, str]:
    """Names of the broadcast registers of the event module whose broadcast 0 is at `base`."""
    found = {base + 4 * n: f"{prefix}Event_Broadcast{n}" for n in range(16)}
    for first, letter in ((base, network), *(((base + 0x40, "B"),) if network else ())):
        for at, side in _BLOCKS:
            for word, what in enumerate(("Set", "Clr", "Value")):
                name = f"{prefix}Event_Broadcast_{letter + '_' if letter else ''}Block_{side}_{what}"
                found[first + at + 4 * word] = name
    return found


_SINGLE = {
    COMPUTE: {
        CORE_CONTROL: "Core_Control",
        0x32004: "Core_Status",
        0x32030: "Error_Halt_Control",
        0x32034: "Error_Halt_Event",
        0x32038: "Core_Processor_Bus",
        0x36030: "Tile_Control",
        0x36060: "Accumulator_Control",
        0x60000: "Module_Clock_Control",
        0x60010: "Module_Reset_Control",
        **_events(0x14010, "Memory_"),
        **_events(0x34010, "Core_"),
        **observing.COMPUTE,
    },
    MEMORY: {
        0xFFF00: "Module_Clock_Control",
        0xFFF10: "Module_Reset_Control",
        **_events(0x94010, network="A"),
        **observing.MEMORY,
    },
    SHIM: {
        MUX: "Mux_Config",
        DEMUX: "Demux_Config",
        0x33000: "PL_Interface_Upsizer_Config",
        0x15004: "Interrupt_Controller_2nd_Level_Enable",
        **{
            0x35000 + 0x30 * n + at: f"Interrupt_Controller_1st_Level_{name}"
            for n, letter in enumerate("AB")
            for at, name in (
                (4, f"Enable_{letter}"),
                (0x10, f"IRQ_NO_{letter}"),
                (0x14, f"IRQ_Event_{letter}"),
                (0x18, f"Block_North_In_{letter}_Set"),
            )
        },
        0xFFF20: "Column_Clock_Control",
        0xFFF28: "Column_Reset_Control",
        **_events(0x34010, network="A"),
        **observing.SHIM,
    },
}
PROGRAM, PROGRAM_BYTES = 0x20000, 0x4000
DATA_BYTES = {COMPUTE: 0x10000, MEMORY: 0x80000}

Field = tuple[str, int, int, int]
"""Name, word, lowest bit, bits."""
_LOCK_FIELDS = (
    ("lock_rel_value", 18, 7),
    ("lock_rel_id", 13, 4),
    ("lock_acq_enable", 12, 1),
    ("lock_acq_value", 5, 7),
    ("lock_acq_id", 0, 4),
)


def _chain(word: int) -> tuple[Field, ...]:
    """The last word of shim and compute descriptors: what comes next, and locks."""
    return (
        ("tlast_suppress", word, 31, 1),
        ("next_bd", word, 27, 4),
        ("use_next_bd", word, 26, 1),
        ("valid", word, 25, 1),
        *((name, word, low, bits) for name, low, bits in _LOCK_FIELDS),
    )


BD_FIELDS: dict[str, tuple[Field, ...]] = {
    SHIM: (
        ("length", 0, 0, 32),
        ("packet", 2, 30, 1),
        ("out_of_order_bd", 2, 24, 6),
        ("packet_id", 2, 19, 5),
        ("packet_type", 2, 16, 3),
        ("secure", 3, 30, 1),
        ("d0_wrap", 3, 20, 10),
        ("d0_step", 3, 0, 20),
        ("burst", 4, 30, 2),
        ("d1_wrap", 4, 20, 10),
        ("d1_step", 4, 0, 20),
        ("smid", 5, 28, 4),
        ("axcache", 5, 24, 4),
        ("axqos", 5, 20, 4),
        ("d2_step", 5, 0, 20),
        ("iteration_current", 6, 26, 6),
        ("iteration_wrap", 6, 20, 6),
        ("iteration_step", 6, 0, 20),
        *_chain(7),
    ),
    MEMORY: (
        ("packet", 0, 31, 1),
        ("packet_type", 0, 28, 3),
        ("packet_id", 0, 23, 5),
        ("out_of_order_bd", 0, 17, 6),
        ("length", 0, 0, 17),
        ("d0_zero_before", 1, 26, 6),
        ("next_bd", 1, 20, 6),
        ("use_next_bd", 1, 19, 1),
        ("base", 1, 0, 19),
        ("tlast_suppress", 2, 31, 1),
        ("d0_wrap", 2, 17, 10),
        ("d0_step", 2, 0, 17),
        ("d1_zero_before", 3, 27, 5),
        ("d1_wrap", 3, 17, 10),
        ("d1_step", 3, 0, 17),
        ("compression", 4, 31, 1),
        ("d2_zero_before", 4, 27, 4),
        ("d2_wrap", 4, 17, 10),
        ("d2_step", 4, 0, 17),
        ("d2_zero_after", 5, 28, 4),
        ("d1_zero_after", 5, 23, 5),
        ("d0_zero_after", 5, 17, 6),
        ("d3_step", 5, 0, 17),
        ("iteration_current", 6, 23, 6),
        ("iteration_wrap", 6, 17, 6),
        ("iteration_step", 6, 0, 17),
        ("valid", 7, 31, 1),
        ("lock_rel_value", 7, 24, 7),
        ("lock_rel_id", 7, 16, 8),
        ("lock_acq_enable", 7, 15, 1),
        ("lock_acq_value", 7, 8, 7),
        ("lock_acq_id", 7, 0, 8),
    ),
    COMPUTE: (
        ("base", 0, 14, 14),
        ("length", 0, 0, 14),
        ("compression", 1, 31, 1),
        ("packet", 1, 30, 1),
        ("out_of_order_bd", 1, 24, 6),
        ("packet_id", 1, 19, 5),
        ("packet_type", 1, 16, 3),
        ("d1_step", 2, 13, 13),
        ("d0_step", 2, 0, 13),
        ("d1_wrap", 3, 21, 8),
        ("d0_wrap", 3, 13, 8),
        ("d2_step", 3, 0, 13),
        ("iteration_current", 4, 19, 6),
        ("iteration_wrap", 4, 13, 6),
        ("iteration_step", 4, 0, 13),
        *_chain(5),
    ),
}
_STEPS = ("d0_step", "d1_step", "d2_step", "d3_step", "iteration_step", "iteration_wrap")
"""Fields that hold one less than they mean (aie-rt's DMA code)."""


def name_of(tile: Tile) -> str | None:
    """The register at a tile's offset, by name; None where no name is known."""
    dma = DMAS[tile.kind]
    at = tile.offset - dma.bds
    if 0 <= at < dma.number * BD_STEP:
        return f"DMA_BD{at // BD_STEP}_{at % BD_STEP // 4}"
    for direction, base, status in (("S2MM", dma.s2mm, dma.s2mm_status), ("MM2S", dma.mm2s, dma.mm2s_status)):
        at = tile.offset - status
        if 0 <= at < dma.channels * 4:
            return f"DMA_{direction}_Status_{at // 4}"
        at = tile.offset - base
        if 0 <= at < dma.channels * _CHANNEL_STEP:
            what = "Task_Queue" if at % _CHANNEL_STEP >= 4 else "Ctrl"
            return f"DMA_{direction}_{at // _CHANNEL_STEP}_{what}"
    single = _SINGLE[tile.kind].get(tile.offset)
    if single:
        return single
    base, count = LOCKS[tile.kind]
    at = tile.offset - base
    if 0 <= at < count * LOCK_STEP:
        return f"Lock{at // LOCK_STEP}_value"
    if 0 <= tile.offset - SWITCH[tile.kind] < 0x1000:
        at = tile.offset - SWITCH[tile.kind]
        for start, part in (
            (0x400, ""),
            (0x200, "_Slave_Slot"),
            (0x100, "_Slave_Config"),
            (0, "_Master_Config"),
        ):
            if at >= start:
                return f"Stream_Switch{part}+{at - start:#x}"
    if tile.kind == COMPUTE and 0 <= tile.offset - PROGRAM < PROGRAM_BYTES:
        return f"Program_Memory+{tile.offset - PROGRAM:#x}"
    if tile.offset < DATA_BYTES.get(tile.kind, 0):
        return f"Data_Memory+{tile.offset:#x}"
    return None


def task(tile: Tile, value: int) -> dict[str, Any] | None:
    """What a write of `value` to a DMA channel's task queue starts; None for another register."""
    name = name_of(tile)
    if name is None or not name.endswith("_Task_Queue"):
        return None
    direction, channel = name.split("_")[1:3]
    return {
        "direction": direction,
        "channel": int(channel),
        "bd": value & (0x3F if tile.kind == MEMORY else 0xF),
        "repeat": (value >> 16 & 0xFF) + 1,
        "token": bool(value >> 31),
    }


def descriptor(tile: Tile, words: list[int]) -> list[dict[str, Any]]:
    """The buffer descriptors that a block write of `words` at `tile` holds, whole ones only.

    Fields that are 0 are left out. Steps and the iteration wrap are given as they are meant, one more than
    their field: one that is left out is 1. A shim descriptor's ``address`` is in bytes.
    """
    dma = DMAS[tile.kind]
    at = tile.offset - dma.bds
    if not 0 <= at < dma.number * BD_STEP or at % BD_STEP:
        return []
    found = []
    per = BD_STEP // 4
    for first in range(0, len(words), per):
        part = words[first : first + dma.words]
        number = at // BD_STEP + first // per
        if len(part) < dma.words or number >= dma.number:
            break
        bd: dict[str, Any] = {"bd": number}
        if tile.kind == SHIM:
            bd["address"] = f"{(part[1] & 0xFFFFFFFC) | (part[2] & 0xFFFF) << 32:#x}"
        for name, word, low, bits in BD_FIELDS[tile.kind]:
            value = part[word] >> low & (1 << bits) - 1
            if value:
                bd[name] = value + 1 if name in _STEPS else value
        found.append(bd)
    return found
