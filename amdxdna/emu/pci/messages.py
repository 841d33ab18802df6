"""Messages of the firmware's channels: opcodes, sizes of the bodies, and the protocol that brought them.

From the drivers: drivers/accel/amdxdna/aie2_msg_priv.h and npu4_regs.c in Linux, and AMD's xdna-driver
(src/driver/amdxdna, the same names), whose tables of messages and features give the protocols.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Management opcodes.
CREATE_CONTEXT, DESTROY_CONTEXT, GET_TELEMETRY = 0x02, 0x03, 0x04
QUERY_COLUMN_STATUS, QUERY_TILE_INFO, QUERY_AIE_VERSION = 0x0D, 0x0E, 0x0F
SUSPEND, RESUME, ASSIGN_PASID, MAP_HOST_BUFFER = 0x101, 0x102, 0x103, 0x106
GET_FIRMWARE_VERSION, SET_RUNTIME_CONFIG, GET_RUNTIME_CONFIG = 0x108, 0x10A, 0x10B
REGISTER_ASYNC_EVENT, START_TRACE, STOP_TRACE, SET_TRACE_CATEGORIES = 0x10C, 0x10F, 0x110, 0x111
UPDATE_PROPERTY, GET_APP_HEALTH, ADD_HOST_BUFFER, CONFIGURE_LOG = 0x113, 0x114, 0x115, 0x116
GET_DEVICE_REVISION, CALIBRATE_CLOCK = 0x117, 0x11C

# Context opcodes besides those of commands.py.
SYNC_BO, CONFIGURE_CUS, CONFIGURE_DEBUG_BO = 0x07, 0x11, 0x14


@dataclass(frozen=True)
class Layout:
    """Bytes of a request's and of a reply's body; `since` is the first protocol with the message."""

    request: int
    reply: int
    since: tuple[int, int] = (0, 0)


MANAGEMENT: dict[int, Layout] = {
    CREATE_CONTEXT: Layout(28, 76),
    DESTROY_CONTEXT: Layout(4, 4),
    GET_TELEMETRY: Layout(16, 16),
    QUERY_COLUMN_STATUS: Layout(20, 8),
    QUERY_TILE_INFO: Layout(4, 48),
    QUERY_AIE_VERSION: Layout(4, 8),
    SUSPEND: Layout(4, 4),
    RESUME: Layout(4, 4),
    ASSIGN_PASID: Layout(4, 4),
    MAP_HOST_BUFFER: Layout(20, 4),
    GET_FIRMWARE_VERSION: Layout(4, 20),
    SET_RUNTIME_CONFIG: Layout(12, 4),
    GET_RUNTIME_CONFIG: Layout(4, 12),
    REGISTER_ASYNC_EVENT: Layout(12, 8),
    START_TRACE: Layout(24, 20, (6, 19)),
    STOP_TRACE: Layout(4, 4, (6, 19)),
    SET_TRACE_CATEGORIES: Layout(4, 4, (6, 19)),
    UPDATE_PROPERTY: Layout(20, 4, (6, 15)),
    GET_APP_HEALTH: Layout(16, 36, (6, 18)),
    ADD_HOST_BUFFER: Layout(20, 4, (6, 18)),
    CONFIGURE_LOG: Layout(32, 32, (6, 19)),
    GET_DEVICE_REVISION: Layout(4, 12, (6, 24)),
    CALIBRATE_CLOCK: Layout(8, 4, (6, 24)),
}


def failure(opcode: int, status: int) -> bytes:
    """The reply to a management message that went wrong, in the size that the driver expects.

    A reply of another size makes the driver give up the whole channel. Only telemetry's has the status
    behind its other words.
    """
    size = MANAGEMENT[opcode].reply if opcode in MANAGEMENT else 4
    word = struct.pack("<I", status)
    return word.rjust(size, b"\0") if opcode == GET_TELEMETRY else word.ljust(size, b"\0")
