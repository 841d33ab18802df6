"""Is there a device node to open?"""

from __future__ import annotations

import os
from pathlib import Path

from amdxdna.doctor import advice
from amdxdna.doctor.finding import Finding, fail, ok, skip, warn
from amdxdna.doctor.subject import Subject
from amdxdna.sysfs import absent


def node(subject: Subject) -> Finding:
    """The accel node, in sysfs and in /dev."""
    if subject.emulated:
        return skip("the emulated device has none")
    machine, path = subject.machine, subject.path
    if path is None:
        if (unseen := machine.hidden("sys/class/accel", "dev/accel")) or subject.unseen:
            return fail(f"unknown: {unseen or subject.unseen}", advice.READABLE)
        if subject.npu is None or not machine.driver_loaded or not subject.npu.driver:
            return skip("no driver has an NPU, so there is no node")
        if subject.spec.isdecimal():
            return fail(
                f"there is no NPU {subject.spec}; there are {len(subject.nodes)}, from 0",
                "Give a smaller index",
            )
        return fail("the driver has the NPU but made no accel node", advice.LOG)
    shown = machine.shown(path)
    known = any(str(path) == each.path for each in subject.nodes)
    if os.path.exists(path):
        facts = {"path": shown, "listed": known}
        if not known and subject.nodes:
            others = ", ".join(machine.shown(Path(each.path)) for each in subject.nodes)
            return warn(
                f"{shown} is no node of the amdxdna driver, as /sys has it",
                f"The NPU's node is {others}",
                facts=facts,
            )
        return ok(shown, facts=facts)
    if not absent(path):
        return fail(f"{shown} cannot be looked at; see permission", symptom=True)
    if not known:
        return fail(
            f"there is no {shown}",
            *(f"The NPU's node is {machine.shown(Path(each.path))}" for each in subject.nodes[:1]),
        )
    if kind := machine.container():
        return fail(
            f"the driver has {shown}, but this container ({kind}) was not given it",
            f"Start the container with `--device {shown}` (a device, not a volume: a bind mount "
            "alone does not allow opening it)",
        )
    return fail(
        f"the driver has {shown}, but the node is missing from the file system",
        "Restart udev (`sudo udevadm trigger -s accel`) or reboot",
    )
