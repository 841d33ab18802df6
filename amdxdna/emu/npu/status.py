"""Firmware status words (numbers: drivers/accel/amdxdna/aie2_msg_priv.h)."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The firmware's answer to a request or a command."""

    OK = 0
    NO_CONTEXT_FREE = 0x2000003
    """Every context slot is taken."""
    BUSY = 0x2000006
    APPLICATION_ACTIVE = 0x2000007
    INVALID_INSTRUCTION = 0x3000002
    """The instruction stream is not one this NPU executes, or its kernel refused the arguments."""
    PDI_LOAD_FAILED = 0x3000003
    """The CU's PDI is not one this NPU can load: compiled AIE code is not interpreted."""
    INVALID_BUFFER = 0x4000001
    """A command named memory that its context cannot reach."""
    INVALID_COMMAND = 0x4000002
    INVALID_PARAM = 0x4000003
    """A malformed request: unknown context, misaligned heap, unknown CU, too many arguments."""
