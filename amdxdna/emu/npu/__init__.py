"""The NPU as its firmware presents it: contexts, CUs, slots, chains and health; no operating system.

:class:`Npu` is driven by a front end (the emulated driver of ``amdxdna.emu.driver``, or a PCI function that
decodes mailbox messages), reaches memory only through the front end's :class:`Memory`, and completes
commands later, from a worker thread of each context.
"""

from amdxdna.emu.npu.context import Reply
from amdxdna.emu.npu.health import Fatal, Health
from amdxdna.emu.npu.heap import DEVICE_HEAP, HEAP_CHUNK
from amdxdna.emu.npu.memory import BadAddress, Memory
from amdxdna.emu.npu.npu import Npu
from amdxdna.emu.npu.slot import Slot, SlotType
from amdxdna.emu.npu.status import Status
from amdxdna.emu.npu.tiles import TileInfo

__all__ = [
    "DEVICE_HEAP",
    "HEAP_CHUNK",
    "BadAddress",
    "Fatal",
    "Health",
    "Memory",
    "Npu",
    "Reply",
    "Slot",
    "SlotType",
    "Status",
    "TileInfo",
]
