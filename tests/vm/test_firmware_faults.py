"""Firmware that misbehaves, in every place the driver looks: what Linux's driver makes of it.

Each row was measured on the driver; it shows that the model is asked what it thinks it is asked.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from amdxdna.emu.npu import Status
from amdxdna.emu.pci import commands, firmware, psp
from amdxdna.emu.pci import registers as reg
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.function import Npu2Function
from tests.conformance.kit import ABORT, COMPLETED, ERROR, NEW, TIMEOUT

from . import guest
from .conftest import Guests

Fault = Callable[[Npu2Function], None]


def answer(opcode: int, reply: bytes | None) -> Fault:
    """The firmware answers `opcode` with `reply` (None: not at all)."""

    def apply(function: Npu2Function) -> None:
        function.firmware.overrides[opcode] = lambda request, right: reply

    return apply


def patched(opcode: int, offset: int, layout: str, value: int) -> Fault:
    """The firmware's answer to `opcode` has `value` at `offset`."""

    def change(request: Any, right: bytes | None) -> bytes:
        data = bytearray(right or b"")
        struct.pack_into(layout, data, offset, value)
        return bytes(data)

    def apply(function: Npu2Function) -> None:
        function.firmware.overrides[opcode] = change

    return apply


def after_start(bar: int, offset: int, value: int) -> Fault:
    """A register holds `value` once the firmware has started."""

    def apply(function: Npu2Function) -> None:
        def start() -> None:
            function.firmware.start()
            function.bars.store(bar, offset, value)

        function.psp.start = start

    return apply


def psp_fault(command: int, response: int | None) -> Fault:
    """The PSP's response to a command."""

    def apply(function: Npu2Function) -> None:
        function.psp.faults[command] = response

    return apply


def smu_fault(response: int) -> Fault:
    """The SMU's response to everything."""

    def apply(function: Npu2Function) -> None:
        function.smu.fault = response

    return apply


def keeps_running(function: Npu2Function) -> None:
    """PWAITMODE stays 0 after SUSPEND."""

    def reply(request: Any, right: bytes | None) -> bytes | None:
        function.bars.store(reg.REGISTERS_BAR, reg.PWAITMODE, 0)
        return right

    function.firmware.overrides[firmware.SUSPEND] = reply


def status(value: int) -> bytes:
    return struct.pack("<I", value)


@dataclass(frozen=True)
class Row:
    """A fault and what comes of it: the probe's errno, or else a context's errno; a fragment of the log."""

    name: str
    fault: Fault
    bind: int = 0
    context: int = 0
    log: str = ""
    warns: str | None = None


ROWS = [
    Row(
        "alive with a wrong magic",
        after_start(reg.SRAM_BAR, reg.CHANNEL_INFO + 32, 0x1234),
        errno.EINVAL,
        log="Invalid mbox magic 0x1234",
    ),
    Row(
        "never alive",
        after_start(reg.SRAM_BAR, reg.FIRMWARE_ALIVE, 0),
        errno.ETIME,
        log="firmware is not alive",
    ),
    Row(
        "PSP refuses the image",
        psp_fault(psp.VALIDATE, 0xFFFF0007),
        errno.EIO,
        log="fw return error 0xffff0007",
    ),
    Row("PSP never ready", psp_fault(psp.VALIDATE, None), errno.ETIMEDOUT, log="PSP is not ready"),
    Row("PSP refuses to start", psp_fault(psp.START, 0xFFFF0002), errno.EIO, log="failed to start fw"),
    Row("SMU refuses", smu_fault(0xFF), errno.EINVAL, log="smu cmd 4 failed, 0xff"),
    Row("SMU silent", smu_fault(0), errno.ETIMEDOUT, log="smu cmd 4 timed out"),
    Row("still running after SUSPEND", keeps_running, errno.ETIMEDOUT, log="fw waitmode reg error"),
    Row(
        "SUSPEND refused",
        answer(firmware.SUSPEND, status(Status.BUSY)),
        errno.EINVAL,
        log="Failed to suspend fw",
    ),
    Row(
        "runtime configuration refused",
        answer(firmware.SET_RUNTIME_CONFIG, status(Status.INVALID_PARAM)),
        errno.EINVAL,
        log="Failed to set runtime config",
    ),
    Row(
        "four columns, tiles of eight asked for",
        patched(firmware.QUERY_TILE_INFO, 12, "<H", 4),
        context=errno.EINVAL,
    ),
    Row(
        "no columns",
        patched(firmware.QUERY_TILE_INFO, 12, "<H", 0),
        context=errno.EINVAL,
        log="Invalid num_col",
    ),
    Row(
        "context on the management vector",
        patched(firmware.CREATE_CONTEXT, 8, "<H", 0),
        context=errno.EINVAL,
        log="Not able to create channel",
    ),
    Row(
        "context on a vector that is not there",
        patched(firmware.CREATE_CONTEXT, 8, "<H", 99),
        context=errno.EINVAL,
        log="Alloc IRQ failed",
    ),
    Row(
        "context id -1",
        patched(firmware.CREATE_CONTEXT, 4, "<I", 0xFFFFFFFF),
        context=errno.EINVAL,
        log="create context failed",
        warns="aie2_create_context",
    ),
    Row(
        "ring size not a power of two",
        patched(firmware.CREATE_CONTEXT, 24, "<I", 1000),
        context=errno.EINVAL,
        log="Not able to create channel",
    ),
    Row(
        "heap refused",
        answer(firmware.MAP_HOST_BUFFER, status(Status.INVALID_PARAM)),
        context=errno.EINVAL,
        log="Map host buffer failed",
    ),
    Row(
        "heap reply too long",
        answer(firmware.MAP_HOST_BUFFER, bytes(8)),
        context=errno.EINVAL,
        log="Unexpected ret -22, disable irq",
    ),
    Row(
        "context refused: another application",
        patched(firmware.CREATE_CONTEXT, 0, "<I", Status.APPLICATION_ACTIVE),
        context=errno.EINVAL,
        log="status 0x2000007",
    ),
    Row(
        "silent on create",
        answer(firmware.CREATE_CONTEXT, None),
        context=errno.ETIME,
        log="Wait for completion timeout",
    ),
]


class Faulty:
    """A probe of a function with a fault, and what comes after."""

    def __init__(self, guests: Guests) -> None:
        self.machine = guests.get()
        self.function = self.machine.function

    def bind(self, fault: Fault, options: FirmwareOptions | None = None) -> guest.Answer:
        """Probes the function with `fault` applied."""
        self.machine.request("unbind", bdf=guest.BDF)
        self.function.configure(options or FirmwareOptions())
        fault(self.function)
        return self.machine.request("bind", bdf=guest.BDF)

    def call(self, function: str, **arguments: object) -> guest.Answer:
        """Calls a function of guest_side."""
        answer = self.machine.request("call", target=f"tests.vm.guest_side:{function}", arguments=arguments)
        assert "error" not in answer.value, answer.value["error"]
        return answer


@pytest.fixture
def faulty(guests: Guests) -> Faulty:
    return Faulty(guests)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_fault(row: Row, faulty: Faulty) -> None:
    """The errno of the probe or of a context, and the driver's reason for it."""
    bound = faulty.bind(row.fault)
    log = bound.log
    assert bound.value["errno"] == row.bind, (bound.value, log)
    if not row.bind:
        made = faulty.call("context")
        log = log + made.log
        assert made.value["result"]["errno"] == row.context, made.value
    assert any(row.log in line for line in log), "\n".join(log)
    guest.check_log(log, row.warns)


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ((5, 0), errno.EOPNOTSUPP),
        ((6, 11), errno.EOPNOTSUPP),
        ((6, 12), 0),
        ((7, 0), 0),
        ((8, 0), errno.EOPNOTSUPP),
    ],
)
def test_protocols(protocol: tuple[int, int], expected: int, faulty: Faulty) -> None:
    """Only protocols 6 from 12 on, and 7, are accepted."""
    bound = faulty.bind(lambda function: None, FirmwareOptions(protocol=protocol))
    assert bound.value["errno"] == expected, bound.log


def test_no_interrupt(faulty: Faulty) -> None:
    """A reply without its interrupt is not seen: the driver gives up after five seconds."""
    faulty.bind(lambda function: None)
    interrupts = faulty.function.interrupts
    right = interrupts.raise_vector
    interrupts.raise_vector = lambda vector: None  # type: ignore[method-assign]
    try:
        made = faulty.call("context")
    finally:
        interrupts.raise_vector = right  # type: ignore[method-assign]
    assert made.value["result"]["errno"] == errno.ETIME
    assert made.value["result"]["seconds"] > 4


CHAIN = commands.CHAIN_NPU


# A channel that the driver gives up is marked dead by and by: what is submitted meanwhile may still time out.
LOST = {NEW, ABORT, TIMEOUT}


@pytest.mark.parametrize(
    ("name", "opcode", "reply", "first", "next_ones"),
    [
        ("CUs refused", firmware.CONFIGURE_CUS, status(Status.INVALID_PARAM), COMPLETED, {COMPLETED}),
        ("reply too short", CHAIN, bytes(4), ABORT, LOST),
        ("failed, with no failing command", CHAIN, struct.pack("<III", 0x3000003, 0, 0), ABORT, LOST),
        ("failed", CHAIN, struct.pack("<III", 0x3000003, 0, 0x3000003), ERROR, {ERROR}),
        ("no reply", CHAIN, None, TIMEOUT, LOST),
    ],
)
def test_execution(
    name: str, opcode: int, reply: bytes | None, first: int, next_ones: set[int], faulty: Faulty
) -> None:
    """Wrong replies to a command: the packet's state, and that of the next one in the same context."""
    faulty.bind(answer(opcode, reply))
    states = faulty.call("copies", count=2).value["result"]
    assert states[0] == first
    assert states[1] in next_ones


def test_health_names_the_chain_member(faulty: Faulty) -> None:
    """The driver reads the model's health report field by field, the index in the chain too."""
    faulty.bind(lambda function: None)
    ran = faulty.call("run", name="timeouts.hang_in_a_chain")
    text = "\n".join(ran.log)
    assert "Version: 1.0" in text
    assert "Timed out sub command ID: 1" in text, text


def test_array_error(faulty: Faulty) -> None:
    """An asynchronous error of the array is what GET_ARRAY then reports."""
    faulty.bind(lambda function: None)
    assert faulty.function.firmware.raise_array_error(row=4, column=3)
    seen = faulty.call("last_array_error").value["result"]
    assert seen["code"] != 0
