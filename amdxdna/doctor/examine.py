"""Runs the checks."""

from __future__ import annotations

from amdxdna.doctor.checks import CHECKS
from amdxdna.doctor.finding import Report
from amdxdna.doctor.machine import Machine
from amdxdna.doctor.subject import Subject


def examine(spec: str = "auto", machine: Machine | None = None) -> Report:
    """All checks of the NPU that `spec` names ("auto": this machine's, "emu...": the emulated one), in order.

    `machine`: where to look, by default this one. Opens the device, makes and destroys a context, and runs a
    command where the NPU is a modelled one; nothing else is changed. Checks do not raise.
    """
    subject = Subject(machine or Machine(), spec)
    try:
        return Report(tuple(check(subject) for check in CHECKS.values()))
    finally:
        subject.close()
