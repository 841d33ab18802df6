"""Is the NPU's firmware there, and one that the driver understands?"""

from __future__ import annotations

import os
import re
from pathlib import Path

from amdxdna.doctor import advice
from amdxdna.doctor.diagnosis import Trouble
from amdxdna.doctor.finding import Finding, fail, ok, skip, warn
from amdxdna.doctor.subject import Subject

# Drivers before Linux 7.0 speak protocol 6 and refuse 7; later ones speak 6 (from 6.12 on) and 7.
_NEW_DRIVER = (7, 0)
_CAUSES = (Trouble.FIRMWARE_MISSING, Trouble.PROTOCOL, Trouble.FIRMWARE_REFUSED, Trouble.NOT_ALIVE)


def firmware(subject: Subject) -> Finding:
    """Files, and what the driver said of them."""
    if subject.emulated:
        return skip("the emulated device needs none")
    npu = subject.npu
    if npu is None:
        return skip(f"unknown: {subject.unseen}" if subject.unseen else "no NPU to load it into")
    machine = subject.machine
    files = machine.firmware_files(npu.model)
    facts: dict[str, object] = {"files": [machine.shown(path) for path in files]}
    if npu.driver == "amdxdna":
        running = machine.text(npu.path / "fw_version")
        facts["running"] = running
        return ok(
            f"version {running} is running" if running else "it is running (the driver started the NPU)",
            facts=facts,
        )
    unseen = "" if files else machine.hidden_firmware(npu.model)
    if unseen:
        line = subject.diagnosis.line(*_CAUSES) if machine.driver_loaded and not npu.driver else ""
        return (fail if line else skip)(
            f"which is there is unknown: {unseen}" + (f"; the driver says: {line}" if line else ""),
            advice.READABLE,
            facts=facts,
        )
    wanted = " or ".join(f"amdnpu/{folder}/" for folder in npu.model.folders) or "amdnpu/"
    found = subject.diagnosis
    if not machine.driver_loaded:
        if files or not npu.model.folders:
            return ok(
                f"{_version(files[0])} is there; no driver has loaded it yet"
                if files
                else "not known where this NPU's firmware lies",
                facts=facts,
            )
        return warn(
            f"there is no NPU firmware in /lib/firmware/{wanted}", advice.UPDATE_FIRMWARE, facts=facts
        )
    if npu.driver:
        return skip(f"{npu.driver} has the NPU", facts=facts)
    if not files and npu.model.folders and machine.legacy_driver:
        return fail(
            "the NPU's firmware is missing: AMD's legacy out-of-tree driver loads npu.dev.sbin and no other, "
            f"and there is none in /lib/firmware/{wanted}",
            "Install the firmware of AMD's driver package, of the driver's own release, then reboot",
            "Or remove that package and use the kernel's own driver, which takes linux-firmware's files",
            facts=facts,
        )
    if not files and npu.model.folders:
        return fail(
            f"the NPU's firmware is missing: nothing in /lib/firmware/{wanted}",
            advice.UPDATE_FIRMWARE,
            facts=facts,
        )
    trouble = found.first if found.first in _CAUSES else None
    if trouble is None:
        return _guess(subject, files, facts)
    line = found.line(trouble)
    if trouble is Trouble.FIRMWARE_MISSING:
        return fail(
            "the driver did not find the firmware when it started, though "
            f"{files[0].name} is there now ({line})",
            "If the file is new, or the driver started from the initramfs, reload it: `sudo modprobe -r "
            "amdxdna; sudo modprobe amdxdna`",
            "If that helps, rebuild the initramfs so that it has amdnpu/ too (`update-initramfs -u` or "
            "`dracut -f`)",
            "A .zst or .xz file needs a kernel that can unpack firmware: unpack it yourself if not",
            facts=facts,
        )
    if trouble is Trouble.PROTOCOL:
        return _protocol(subject, files, facts)
    if trouble is Trouble.FIRMWARE_REFUSED:
        return fail(
            f"the NPU refuses this firmware file: damaged, or of another NPU ({line})",
            "Reinstall linux-firmware and remove files copied there by hand",
            advice.LOG,
            facts=facts,
        )
    return fail(
        f"the firmware was loaded but does not come to life ({line})",
        "Switch the machine off and on again",
        advice.UPDATE_FIRMWARE,
        advice.LOG,
        facts=facts,
    )


def _version(path: Path) -> str:
    """The file's name, and the version that is in the name it links to."""
    match = re.search(r"\d+(\.\d+){3}", os.path.basename(os.path.realpath(path)))
    return f"{path.name} ({match[0]})" if match else path.name


def _protocol(subject: Subject, files: list[Path], facts: dict[str, object]) -> Finding:
    speaks = subject.diagnosis.protocol
    named = f"protocol {speaks[0]}.{speaks[1]}" if speaks else "another protocol"
    facts["protocol"] = list(speaks) if speaks else None
    text = (
        f"driver and firmware do not understand each other: {', '.join(map(_version, files))} speaks "
        f"{named}, which the driver of Linux {subject.machine.release} does not"
    )
    if (
        "below minimum" not in subject.diagnosis.line(Trouble.PROTOCOL)
        and (0, 0) < subject.machine.kernel < _NEW_DRIVER
    ):
        return fail(
            text,
            "The firmware is newer than the driver: use Linux 7.0 or newer (or AMD's out-of-tree driver)",
            "Or go back to the linux-firmware of this kernel's time, whose npu.sbin has version 1.0",
            "Then reboot: the NPU stays off until it starts afresh",
            facts=facts,
        )
    return fail(
        text,
        "The firmware is older than the driver (which wants protocol 6.12 or newer, or 7) or much newer",
        advice.UPDATE_FIRMWARE,
        facts=facts,
    )


def too_new(subject: Subject, files: list[Path]) -> bool:
    """Whether the file's version alone shows that this kernel's driver refuses it."""
    return bool(files) and (0, 0) < subject.machine.kernel < _NEW_DRIVER and "(1.1." in _version(files[0])


def _guess(subject: Subject, files: list[Path], facts: dict[str, object]) -> Finding:
    """The start failed and the log does not tell why: only a version that cannot fit is blamed."""
    if subject.diagnosis.first is not Trouble.NO_PASID and too_new(subject, files):
        return _protocol(subject, files, facts)
    names = ", ".join(map(_version, files))
    return ok(
        f"{names} is there; nothing says that it is the trouble"
        if files
        else "not known where this NPU's firmware lies",
        facts=facts,
    )
