"""Clock levels of Strix parts (npu4_regs.c), and the level a QoS request asks for (aie2_solver.c)."""

from __future__ import annotations

LEVELS = (
    (396, 792),
    (600, 1056),
    (792, 1152),
    (975, 1267),
    (975, 1267),
    (1056, 1408),
    (1152, 1584),
    (1267, 1800),
)
"""(MP-NPU clock, H clock) in MHz, lowest level first."""
TOP = len(LEVELS) - 1


def level_for(gops: int, fps: int, latency: int, requested: int, ops_per_cycle: int) -> int:
    """The lowest level that does `requested` GOPS; the top one when the request names no rate."""
    if not (gops and (fps or latency)):
        return TOP
    return next((level for level in range(TOP) if requested <= ops_per_cycle * LEVELS[level][1] // 1000), TOP)
