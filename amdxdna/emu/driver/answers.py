"""What the driver writes into the packet of a command that did not complete: each driver in its own way."""

from __future__ import annotations

from amdxdna.emu.driver import minors, packet
from amdxdna.emu.driver.objects import Job
from amdxdna.emu.npu import Health, Reply
from amdxdna.packet import State, state_of

_MASK = 0xFFFFFFFF


def failed(job: Job, reply: Reply) -> None:
    """The firmware refused the command, or it failed."""
    kind = job.hwctx.device.kind
    state: int = State.ERROR
    if kind.raw_status and (kind.lists_singles or packet.is_chain(job.command)):
        state = state_of(reply.slot_status)  # amdxdna_cmd_set_state masks it
    fail(job, state, reply.failed)


def fail(job: Job, state: int, index: int = 0, data: bytes = b"") -> None:
    """The state; in a chain the failing member's index; and over the payload (in a chain the first member's)
    `data`, and 0xFF where the driver does that (amdxdna_cmd_set_error)."""
    client = job.hwctx.client
    with client.memory.lock:
        target = job.command
        packet.set_state(target, state)
        if packet.is_chain(target):
            packet.set_index(target, index)
            first = packet.member(target, 0, client.command_bo)
            if first is None:
                return
            target = first
        packet.overwrite(target, data, client.device.kind.fills_payload)


def dropped(job: Job) -> None:
    """The command's context is gone: ABORT, which some drivers do not say of single commands."""
    kind = job.hwctx.device.kind
    if kind.hung != "abort":
        fail(job, State.ABORT)
    elif kind.lists_singles or packet.is_chain(job.command):
        with job.hwctx.client.memory.lock:
            packet.set_state(job.command, State.ABORT)


def timed_out(job: Job, report: Health) -> None:
    """The command hung, and the driver gave its context up."""
    kind = job.hwctx.device.kind
    if kind.hung == "abort":
        dropped(job)
        return
    words = _report(report, kind.report_version)
    if kind.hung == "report":
        told = kind.level >= minors.HEALTH_REPORT or kind.major > 0
        # The legacy driver of 2025 names the first member whichever hung.
        fail(job, State.TIMEOUT, 0 if kind.major else report.slot, words if told else b"")
        return
    client = job.hwctx.client
    with client.memory.lock:
        packet.set_state(job.command, State.TIMEOUT)
        target = job.command
        if kind.hung == "member" and packet.is_chain(target):
            member = packet.member(target, packet.set_index(target, report.slot), client.command_bo)
            if member is None:
                return
            packet.set_state(member, State.TIMEOUT)
            target = member
        packet.overwrite(target, words, kind.fills_payload)


def _report(report: Health, version: int) -> bytes:
    """A timed-out command's payload: the version, from 1 on the NPU's generation (0), the report's fields."""
    fatal = report.fatal
    words = (
        version,
        *(0,) * version,
        report.transaction,
        report.context_pc,
        fatal.type,
        fatal.exception_type,
        fatal.exception_pc,
        fatal.app_module,
    )
    return b"".join((word & _MASK).to_bytes(4, "little") for word in words)
