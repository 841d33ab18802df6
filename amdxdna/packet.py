"""Command packets (ERT) and what comes back in them.

A packet is an array of 32-bit words in a CMD buffer: a header, then the payload. The header holds the state
(4 bits), the number of CU mask words but one (2 bits at 10), the number of payload words (11 bits at 12), the
opcode (5 bits at 23) and the type (at 28).
Layout from drivers/accel/amdxdna/amdxdna_ctx.h; the order of a kernel's argument words from working runtimes.

Everything is bounds-checked here: the driver drops a bad packet without an error, leaving its state NEW.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from amdxdna.errors import BadArgument

CMD_BYTES = 4096
MAX_ARGUMENT_WORDS = 26
MAX_CUS = 32


class Opcode(IntEnum):
    """What a packet is."""

    START_CU = 0
    CMD_CHAIN = 19
    START_NPU = 20
    START_NPU_PREEMPT = 21
    START_NPU_PREEMPT_ELF = 22


PREEMPTION = (Opcode.START_NPU_PREEMPT, Opcode.START_NPU_PREEMPT_ELF)
"""Packets that the driver drops unless the firmware speaks protocol 6.12 (preemption) and 6.15 (the commands)
or newer (npu4_regs.c and aie2_message.c of amd/xdna-driver)."""

RUN_INSTRUCTIONS = 3
"""First argument word of a DPU kernel: run an instruction stream."""

# The words of START_CU before the buffers: opcode, 0, instruction address, instruction bytes.
FIXED_WORDS = 5
MAX_BUFFERS = (MAX_ARGUMENT_WORDS - FIXED_WORDS) // 2
# A kernel has five buffer arguments (bo0 to bo4); those not given are 0.
_MIN_BUFFERS = 5
_TYPE_CU = 3
_CHAIN_WORDS = 6
# The driver copies a chain into one 4 KiB list; a member takes this much and its argument words.
_CHAIN_SLOT_BYTES = 56
_CHAIN_LIST_BYTES = 4096
# The driver makes a list of a single command too: what one slot holds is what the list does.
MAX_MAP_WORDS = (_CHAIN_LIST_BYTES - _CHAIN_SLOT_BYTES) // 4
"""Most argument words of a START_CU packet. The other packets that name a compute unit take 26."""
MIN_MAP_WORDS = 4

# Drivers up to Linux 6.18 copy this many argument words of a single command whatever its count says
# (execute_buffer_req of aie2_msg_priv.h): what is behind the count must be 0, not an earlier packet's.
_COPIED_WORDS = 19

START_CU_STRUCTS = tuple(
    Struct(f"<IIIIQI{count}Q{max(0, 4 * (_COPIED_WORDS - FIXED_WORDS) - 8 * count)}x")
    for count in range(MAX_BUFFERS + 1)
)
"""By number of buffers: header, CU mask, 3, 0, instruction address, instruction bytes, buffer addresses, and
zeros to the end of what any driver copies."""

# Behind the CU mask: instructions, bytes, properties (none are defined), the first argument (ert_npu_data and
# ert_npu_preempt_data of XRT's ert.h).
_NPU = Struct("<IIQIIQ")
_PREEMPT = Struct("<IIQQQIIIIQ")

UNTOUCHED = 0xFFFFFFFF
"""A chain's error index until the driver has written one: then a member failed, whatever the state says."""


class State(IntEnum):
    """The state of a command, in the low four bits of its header."""

    INVALID = 0
    NEW = 1
    QUEUED = 2
    RUNNING = 3
    COMPLETED = 4
    ERROR = 5
    ABORT = 6
    SUBMITTED = 7
    TIMEOUT = 8
    NORESPONSE = 9


STATE_MASK = 15
"""The state in a header, for those who wait: a call takes longer."""


def state_of(header: int) -> int:
    """The state in a header: a number, for old drivers write what is no State."""
    return header & STATE_MASK


def opcode_of(header: int) -> int:
    """The opcode in a header."""
    return header >> 23 & 31


def payload_words(header: int) -> int:
    """The words behind the header."""
    return header >> 12 & 0x7FF


def mask_words(header: int) -> int:
    """How many of the payload words are CU masks."""
    return 1 + (header >> 10 & 3)


def argument_words(header: int) -> int:
    """The words behind the CU mask of a packet with one mask word, which is all that this package makes."""
    return max(payload_words(header) - 1, 0)


def header(opcode: int, payload_words: int, state: int = State.NEW, kind: int = 0) -> int:
    """The header word of a packet with `payload_words` words behind it. Raises BadArgument out of range."""
    if not 0 <= opcode < 32:
        raise _bad(f"opcode {opcode} does not fit five bits")
    if not 0 < payload_words < CMD_BYTES // 4:
        raise _bad(f"{payload_words} payload words do not fit a {CMD_BYTES}-byte command buffer")
    return state | payload_words << 12 | opcode << 23 | kind << 28


START_CU_WORDS = tuple(FIXED_WORDS + 2 * max(count, _MIN_BUFFERS) for count in range(MAX_BUFFERS + 1))
"""Argument words of a START_CU packet, by number of buffers."""

START_CU_HEADERS = tuple(header(Opcode.START_CU, 1 + words, kind=_TYPE_CU) for words in START_CU_WORDS)


def start_cu(cu: int, instructions: int, instruction_bytes: int, buffers: Sequence[int]) -> bytes:
    """An ERT_START_CU packet: compute unit index, device address and size of the instructions, buffers.

    Raises BadArgument for a CU index past 31, more buffers than 26 argument words hold (10), addresses that
    are no 64-bit number, or an instruction size of 0.
    """
    if len(buffers) > MAX_BUFFERS:
        raise _bad(
            f"{len(buffers)} buffers; {MAX_BUFFERS} fit the {MAX_ARGUMENT_WORDS} argument words of a packet"
        )
    _check(cu, instructions, instruction_bytes, buffers)
    packed = START_CU_STRUCTS[len(buffers)].pack(
        START_CU_HEADERS[len(buffers)],
        1 << cu,
        RUN_INSTRUCTIONS,
        0,
        instructions,
        instruction_bytes,
        *buffers,
    )
    return packed[: 4 * (2 + START_CU_WORDS[len(buffers)])]


def register_map(cu: int, words: int) -> bytes:
    """The head of an ERT_START_CU packet and `words` argument words of 0, for the caller to fill.

    Each argument goes to its own byte offset behind the head (8 bytes), in little-endian order; the layout is
    the xclbin's metadata's (``KernelInfo`` of :mod:`amdxdna.xclbin.metadata`). Raises BadArgument for a CU
    index past 31 or more words than the driver's list takes.
    """
    if not 0 <= cu < MAX_CUS:
        raise _bad(f"compute unit {cu}; a context has at most {MAX_CUS}")
    if not MIN_MAP_WORDS <= words <= MAX_MAP_WORDS:
        raise _bad(f"{words} argument words; the driver takes {MIN_MAP_WORDS} to {MAX_MAP_WORDS}")
    return Struct(f"<II{4 * words}x").pack(header(Opcode.START_CU, 1 + words, kind=_TYPE_CU), 1 << cu)


class Placed(NamedTuple):
    """Control code in the device heap: its device address and bytes; zeros where there is none."""

    address: int = 0
    nbytes: int = 0


def start_npu(cu: int, code: Placed, argument: int = RUN_INSTRUCTIONS) -> bytes:
    """An ERT_START_NPU packet: control code whose buffers' addresses are in it, for a compute unit.

    `argument` is the kernel's first. What XRT 2.25 sends, measured. Raises BadArgument for a CU index past
    31, code without an address or bytes, or an argument that is no 64-bit number.
    """
    _check(cu, code.address, code.nbytes, (argument,), least=0)
    return _NPU.pack(header(Opcode.START_NPU, 7, kind=_TYPE_CU), 1 << cu, *code, 0, argument)


def start_npu_preempt(
    cu: int, code: Placed, save: Placed, restore: Placed, argument: int = RUN_INSTRUCTIONS
) -> bytes:
    """An ERT_START_NPU_PREEMPT packet: :func:`start_npu` with code to save and restore the array's state.

    Raises as that does.
    """
    for part in (save, restore):
        _check(cu, part.address, part.nbytes, (argument,), least=0)
    return _preempt(Opcode.START_NPU_PREEMPT, 1 << cu, code, save, restore, argument)


def start_npu_elf(code: Placed, save: Placed, restore: Placed, argument: int = 0) -> bytes:
    """An ERT_START_NPU_PREEMPT_ELF packet: control code that loads its own PDIs, for no compute unit.

    Raises as :func:`start_npu` does. The driver ignores `argument` (aie2_message.c).
    """
    return _preempt(Opcode.START_NPU_PREEMPT_ELF, 0, code, save, restore, argument)


def _preempt(opcode: int, mask: int, code: Placed, save: Placed, restore: Placed, argument: int) -> bytes:
    _check(0, code.address, code.nbytes, (argument,), least=0)
    return _PREEMPT.pack(
        header(opcode, 13, kind=_TYPE_CU),
        mask,
        code.address,
        save.address,
        restore.address,
        code.nbytes,
        save.nbytes,
        restore.nbytes,
        0,
        argument,
    )


def chain(handles: Sequence[int], argument_words: int = MAX_ARGUMENT_WORDS) -> bytes:
    """An ERT_CMD_CHAIN packet over the command buffers `handles`, run in order until one fails.

    `argument_words` is the sum the members carry behind their CU masks, or 26 each when not given. Raises
    BadArgument for no member, or more than the driver's 4 KiB list holds.
    """
    limit = chain_limit(argument_words)
    if not 0 < len(handles) <= limit:
        raise _bad(f"a chain of {len(handles)} commands; 1 to {limit} of this size fit")
    return Struct(f"<II5I{len(handles)}Q").pack(
        header(Opcode.CMD_CHAIN, _CHAIN_WORDS + 2 * len(handles)),
        len(handles),
        0,
        UNTOUCHED,
        0,
        0,
        0,
        *handles,
    )


def chain_limit(argument_words: int) -> int:
    """How many commands of `argument_words` argument words each fit a chain."""
    return _CHAIN_LIST_BYTES // (_CHAIN_SLOT_BYTES + 4 * argument_words)


def _check(
    cu: int, instructions: int, instruction_bytes: int, buffers: Sequence[int], least: int = 1
) -> None:
    if not 0 <= cu < MAX_CUS:
        raise _bad(f"compute unit {cu}; a context has at most {MAX_CUS}")
    if not 0 < instruction_bytes < 1 << 32:
        raise _bad(f"{instruction_bytes} bytes of instructions")
    if not 0 < instructions < 1 << 64:
        raise _bad(f"{instructions:#x} is no device address")
    for address in buffers:
        if not least <= address < 1 << 64:
            raise _bad(f"{address:#x} is no device address")


def _bad(what: str) -> BadArgument:
    return BadArgument(what, call="packet", remedy="Correct the kernel's arguments")


def lookup(operation: int) -> str:
    """The command that shows an operation of an instruction stream, in a sentence."""
    return f"`python -m amdxdna insts FILE --at {operation}` shows operation {operation} of its stream"


@dataclass(frozen=True)
class Health:
    """What the driver leaves in a timed-out command: where the firmware says its context stood.

    Of version 0 (AMD's out-of-tree drivers of 2025) only operation and PC are told; the rest is 0.
    """

    version: int
    txn_op_idx: int
    ctx_pc: int
    fatal_error_type: int
    fatal_error_exception_type: int
    fatal_error_exception_pc: int
    fatal_error_app_module: int

    @property
    def lookup(self) -> str:
        """How to see the operation; empty where none had started."""
        return "" if self.txn_op_idx == 0xFFFFFFFF else lookup(self.txn_op_idx)

    def __str__(self) -> str:
        if self.txn_op_idx == 0xFFFFFFFF:
            where = "no operation of the instruction stream had started"
        else:
            where = f"the instruction stream stopped at operation {self.txn_op_idx}"
        text = f"{where}, context PC {self.ctx_pc:#010x}"
        if self.fatal_error_type:
            text += (
                f"; fatal error type {self.fatal_error_type}, exception "
                f"{self.fatal_error_exception_type} at PC {self.fatal_error_exception_pc:#010x}, "
                f"firmware module {self.fatal_error_app_module}"
            )
        elif self.version:
            text += "; the firmware reports no fatal error, so the array waits for data or a lock"
        return text


def health(words: Sequence[int]) -> Health | None:
    """Decodes the payload (from word 1) of a command in state TIMEOUT; None when there is no report.

    The driver fills the payload with ones when it has none; drivers that leave the packet as it was are told
    by its word 2, which is 3 in a packet and 0 in a report. A packet's word 1 is never 0 (a CU mask, or a
    chain's members): there a report of version 0 begins, which has no word for the NPU's generation
    (struct amdxdna_ctx_health_data of xdna-driver be90de6d; its later words came in July 2025).
    """
    if len(words) >= 8 and words[0] == 1 and words[1] == 0:
        return Health(words[0], *words[2:8])
    if len(words) >= 3 and words[0] == 0 and words[2]:
        return Health(0, words[1], words[2], 0, 0, 0, 0)
    return None
