"""Does the NPU answer: queries, memory, a context, and a command where one can be run?"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from amdxdna import query
from amdxdna.doctor.events import COLD_START
from amdxdna.doctor.finding import NOT_OPEN, Finding, fail, ok, skip
from amdxdna.doctor.subject import Subject
from amdxdna.errors import ContextRefused, DeviceLost, NoFreeContext, XdnaError
from amdxdna.selftest.probes import PAGE, check_copy, copy_kernel, keeps_data, make_context

if TYPE_CHECKING:
    from amdxdna.device import Device


_NONE_LEFT = "0x2000003"
"""The firmware's status for a create when it has no context left (aie2_msg_priv.h: MGMT_ERT_NOAVAIL)."""


def _wedged(subject: Subject, device: Device) -> str:
    """The log's line in which the firmware has no context left, where no process has one; else empty."""
    try:
        if device.contexts() or device.resources().npu_task_curr:
            return ""
    except XdnaError:
        return ""
    lines = subject.kernel_log.lines
    return next((line.strip() for line in reversed(lines) if _NONE_LEFT in line), "")


def answer(subject: Subject) -> Finding:
    """Asks for the firmware's version, fills the heap's first page, makes a context, runs a copy."""
    device = subject.device
    if device is None:
        error = subject.error
        if error is None or (subject.path is None and not subject.emulated):
            return skip(NOT_OPEN)
        # What keeps a real node from being opened has a check of its own.
        return fail(
            f"the {'emulated device' if subject.emulated else 'node'} cannot be opened: {error.meaning}",
            error.remedy,
            symptom=not subject.emulated,
            facts={"errno": error.errno},
        )
    done: list[str] = []
    try:
        device.metadata()
        firmware = query.firmware_version(device.client)
        done.append(f"firmware {firmware}{' (the emulated NPU)' * firmware.emulated} answers")
        for kind in ("dev", "share", "cmd"):
            keeps_data(device, kind)
        done.append("heap and buffers work")
        make_context(device)
        done.append("a context can be made")
        ran = firmware.emulated
        if ran:
            with contextlib.closing(copy_kernel(device, PAGE)) as kernel:
                check_copy(device, kernel, PAGE)
    except NoFreeContext as error:
        return fail(
            f"{', '.join(done)}, but {error.meaning}", error.remedy, symptom=True, facts={"done": done}
        )
    except XdnaError as error:
        if isinstance(error, ContextRefused) and (line := _wedged(subject, device)):
            return fail(
                f"the firmware has no hardware context left though none is open ({line}): it is stuck",
                COLD_START,
                "Reloading it may do: `sudo modprobe -r amdxdna; sudo modprobe amdxdna`",
                facts={"done": done, "errno": error.errno},
            )
        so_far = f"{', '.join(done)}, but then: " if done else ""
        remedy = (
            (error.remedy,)
            if not isinstance(error, DeviceLost)
            else (error.remedy, "If it happens again, switch the machine off and on")
        )
        return fail(
            f"{so_far}{error.call} failed: {error.meaning}",
            *remedy,
            facts={"done": done, "errno": error.errno},
        )
    done.append(
        "a copy was run and its data checked"
        if ran
        else "no command was run: that takes an xclbin compiled for this NPU (selftest --xclbin)"
    )
    return ok("; ".join(done), facts={"done": done, "ran": ran})
