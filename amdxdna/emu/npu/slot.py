"""One command as the firmware receives it: a slot of an execution chain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

MAX_ARGUMENT_WORDS = 26
MAX_MAP_WORDS = 1010
"""Of a START_CU slot, which ends where the driver's 4 KiB list does (struct cmd_chain_slot_execbuf_cf)."""
KERNEL_OP_TXN = 3  # first argument word: run an instruction stream
KERNEL_OP_DPU = 1
"""First argument word of AMD's DPU_PDI kernels, which have the instructions behind four buffers: [1, 0, ifm
lo, hi, param, ofm, inter, instruct lo, hi, bytes, mc lo, hi] (the metadata of 200 kernels in public xclbins;
xrt-smi calls them so, tests of Xilinx/XRT at 1457461d7d)."""
_DPU_STREAM = 10
_DPU_BUFFERS = (2, 4, 6, 8, 13)


class SlotType(IntEnum):
    """What a slot asks for: the firmware's numbers (aie2_msg_priv.h)."""

    START_CU = 1
    """The instruction stream is named by the argument words: [3, 0, address lo, hi, bytes, bo0 lo, ...]."""
    START_NPU = 2
    PREEMPTIBLE = 3
    ELF = 4
    """A control program that names its buffers itself; `cu` is not used."""


@dataclass(slots=True)
class Slot:
    """Field for field what the chain in memory carries (aie2_msg_priv.h): addresses in bytes.

    The argument words of every type but ELF begin [3, 0, instruction lo, hi, bytes] followed by buffer
    addresses in pairs (or are as at KERNEL_OP_DPU); types 2 and 3 take the instruction stream from
    `instructions` instead.
    """

    type: int
    cu: int = 0
    args: tuple[int, ...] = ()
    instructions: int = 0
    instruction_bytes: int = 0
    save: int = 0
    save_bytes: int = 0
    restore: int = 0
    restore_bytes: int = 0
    properties: int = 0

    def stream(self) -> tuple[int, int]:
        """Device address and length in bytes of the instruction stream; (0, 0) when there is none."""
        if self.type != SlotType.START_CU:
            return self.instructions, self.instruction_bytes
        args = self.args
        at = _DPU_STREAM if args[:1] == (KERNEL_OP_DPU,) else 2
        if len(args) < at + 3 or args[0] not in (KERNEL_OP_TXN, KERNEL_OP_DPU):
            return 0, 0
        return args[at] | args[at + 1] << 32, args[at + 2]

    def buffers(self) -> tuple[int, ...]:
        """The addresses of the buffers that the kernel works on, in argument order."""
        return _addresses(self.args)


@lru_cache(maxsize=1024)
def _addresses(args: tuple[int, ...]) -> tuple[int, ...]:
    if args[:1] == (KERNEL_OP_DPU,):
        return tuple(args[i] | args[i + 1] << 32 for i in _DPU_BUFFERS if i + 1 < len(args))
    return tuple(args[i] | args[i + 1] << 32 for i in range(5, len(args) - 1, 2))
