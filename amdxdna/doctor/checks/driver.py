"""How old is the driver, and what can it not do?"""

from __future__ import annotations

from typing import Any

from amdxdna.doctor.checks.module import FIRST_KERNEL
from amdxdna.doctor.finding import Finding, fail, ok, skip, warn
from amdxdna.doctor.subject import Subject
from amdxdna.errors import DeviceBusy, PermissionDenied

FEATURES = {
    "GET_ARRAY": "contexts of all processes",
    "the last asynchronous error": "the last asynchronous error",
    "the resource information": "how many contexts there can be",
    "telemetry": "telemetry",
    "the preemption state": "preemption",
    "the sensors": "sensors",
    "the buffer usage": "memory of a process",
}
"""What a driver can be too old for, in plain words."""
_NEEDED = "the resource information"


def driver(subject: Subject) -> Finding:
    """The interface's version and the kernel's."""
    machine = subject.machine
    kernel = f"Linux {machine.release}"
    device = subject.device
    facts: dict[str, Any] = {"kernel": machine.release}
    if device is None:
        if (0, 0) < machine.kernel < FIRST_KERNEL and not machine.driver_loaded:
            return warn(f"{kernel}: the driver came with Linux 6.14", "Use a newer kernel", facts=facts)
        error = subject.error
        if isinstance(error, DeviceBusy):
            return fail(f"{kernel}; {error.meaning}", error.remedy, facts=facts)
        closed = isinstance(error, PermissionDenied)
        return skip(
            f"{kernel}; the driver's version is told once its node can be opened"
            if closed or subject.path
            else f"{kernel}; no driver to ask",
            facts=facts,
        )
    version, profile = device.version, device.profile
    if profile.release not in ("", machine.release):
        # An emulated driver is another kernel's than this machine's.
        kernel = f"Linux {profile.release} (emulated; this machine runs {machine.release})"
    facts |= {"version": str(version), "name": version.name, "profile": profile.as_json()}
    (_, name), *rows = profile.rows()
    text = (
        f"interface {version} on {kernel} ({name}; " + "; ".join(f"{what}: {how}" for what, how in rows) + ")"
    )
    if profile.in_tree is False and not profile.singles_trusted:
        return warn(
            text,
            "Commands work, at some cost in speed. Use a newer build of AMD's driver (June 2025 on), or "
            "the kernel's own",
            facts=facts,
        )
    if version.major > 0:
        return ok(text, facts=facts)
    missing = [what for feature, what in FEATURES.items() if not version.has(feature)]
    facts["missing"] = missing
    if not missing:
        return ok(text, facts=facts)
    text += f"; too old to tell: {', '.join(missing)}"
    if not version.has(_NEEDED):
        return warn(
            text,
            "Commands work. A newer kernel shows who holds the NPU's contexts and why a command failed",
            facts=facts,
        )
    return ok(text, facts=facts)
