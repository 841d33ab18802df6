"""The firmware's health report of one context (layout: struct app_health_report, aie2_msg_priv.h)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

FATAL_RESERVED_WORDS = 127


@dataclass(slots=True)
class Fatal:
    """A fatal error of the context; all zero while there is none."""

    type: int = 0
    exception_type: int = 0
    exception_argument: int = 0
    exception_pc: int = 0
    app_module: int = 0
    task_index: int = 0


@dataclass(slots=True)
class Health:
    """What the firmware reports of one context."""

    context: int
    dpu_pc: int = 0
    """Address of the instruction being executed."""
    transaction: int = 0
    """Index of the instruction being executed in its stream."""
    context_pc: int = 0
    slot: int = 0
    """Index in its chain of the command being executed."""
    fatal: Fatal = field(default_factory=Fatal)

    def pack(self) -> bytes:
        """The report as the firmware writes it to memory: version 1.0, then the fields, little-endian."""
        f = self.fatal
        size = struct.calcsize("<HH5I6I") + 4 * FATAL_RESERVED_WORDS + 4
        head = struct.pack(
            "<HHIIIII",
            1,
            0,
            size,
            self.context,
            self.dpu_pc & 0xFFFFFFFF,
            self.transaction,
            self.context_pc & 0xFFFFFFFF,
        )
        fatal = struct.pack(
            "<6I", f.type, f.exception_type, f.exception_argument, f.exception_pc, f.app_module, f.task_index
        )
        return head + fatal + bytes(4 * FATAL_RESERVED_WORDS) + struct.pack("<I", self.slot)
