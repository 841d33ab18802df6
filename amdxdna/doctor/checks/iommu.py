"""How does the NPU reach memory, and does that work?"""

from __future__ import annotations

import errno

from amdxdna.doctor import advice
from amdxdna.doctor.diagnosis import Trouble
from amdxdna.doctor.finding import NOT_OPEN, Finding, fail, ok, skip, warn
from amdxdna.doctor.subject import Subject
from amdxdna.errors import XdnaError

_UNFORCED = "Load it without: `sudo modprobe -r amdxdna; sudo modprobe amdxdna`"
_NO_ADDRESS = (errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC)


def iommu(subject: Subject) -> Finding:
    """The IOMMU, and the address mode that results."""
    if subject.emulated:
        return _mode(subject, {})
    machine, npu = subject.machine, subject.npu
    domain = machine.text(npu.path / "iommu_group" / "type") if npu else ""
    facts = {
        "units": machine.names("sys/class/iommu"),
        "domain": domain,
        "virtual": machine.virtual(),
        "force_iova": machine.text("sys/module/amdxdna/parameters/force_iova") in ("Y", "1"),
    }
    found = subject.diagnosis
    unseen = machine.hidden("sys/class/iommu")
    if npu is not None and not npu.driver and machine.driver_loaded:
        if line := found.line(Trouble.NO_DOMAIN):
            return fail(
                f"force_iova=1 is set and this IOMMU cannot do that ({line})",
                _UNFORCED,
                *advice.iommu_off(machine),
                facts=facts,
            )
        if (line := found.line(Trouble.NO_IOMMU)) or not (facts["units"] or unseen):
            return _off(subject, facts, line)
        if line := found.line(Trouble.NO_PASID):
            return _needs_pasid(subject, facts, line)
    if subject.device is not None:
        return _mode(subject, facts)
    error = subject.error
    if subject.path is not None and error is not None and error.errno in _NO_ADDRESS:
        if not (facts["units"] or unseen):
            return _off(subject, facts, found.line(Trouble.NO_PASID))
        return _no_pasid(subject, facts, error, unseen)
    if npu is None:
        return skip(f"unknown: {subject.unseen}" if subject.unseen else "no NPU behind one", facts=facts)
    if unseen:
        return skip(f"whether it is on is unknown: {unseen}", advice.READABLE, facts=facts)
    if not facts["units"]:
        return warn(
            "the IOMMU is off: the driver will not be able to start", *advice.iommu_off(machine), facts=facts
        )
    return ok(
        f"it is on ({_units(facts)}, domain {domain or 'not shown'}); the "
        "address mode is known once the node is open",
        facts=facts,
    )


def _units(facts: dict[str, object]) -> str:
    units = facts["units"]
    return ", ".join(map(str, units)) if isinstance(units, list) else ""


def _off(subject: Subject, facts: dict[str, object], line: str) -> Finding:
    where = (
        f"this virtual machine ({subject.machine.virtual()}) has no IOMMU"
        if subject.machine.virtual()
        else "the IOMMU is off"
    )
    return fail(
        f"{where}, so the NPU cannot reach a program's memory" + (f" ({line})" if line else ""),
        *advice.iommu_off(subject.machine),
        facts=facts,
    )


def _needs_pasid(subject: Subject, facts: dict[str, object], line: str) -> Finding:
    machine = subject.machine
    where = (
        f"this virtual machine ({machine.virtual()}) gives the NPU"
        if machine.virtual()
        else "the IOMMU is on, but gives the NPU"
    )
    return fail(
        f"{where} no PASID, without which this driver does not start ({line})",
        "Use Linux 7.2 or newer with the kernel's own driver: it does without PASID (force_iova=1)",
        "Update the machine's BIOS and look for IOMMU, ATS and ACS settings in its setup",
        "Check the command line for pci=noats and iommu options",
        facts=facts,
    )


def _no_pasid(subject: Subject, facts: dict[str, object], error: XdnaError, unseen: str) -> Finding:
    machine = subject.machine
    number = errno.errorcode.get(error.errno or 0, str(error.errno)).replace("ENOTSUP", "EOPNOTSUPP")
    text = f"the driver can give this process no address space on the NPU (open: {number})"
    if machine.virtual():
        return fail(
            f"{text}: this is a virtual machine ({machine.virtual()}), whose IOMMU offers no PASID",
            *advice.iommu_off(machine),
            facts=facts,
        )
    if facts["domain"] == "identity":
        words = [w for w in machine.command_line if w in ("iommu=pt", "iommu.passthrough=1")]
        return fail(
            f"{text}: the IOMMU is in passthrough mode, in which drivers before June 2026 get no PASID",
            f"Remove {words[0]} from the kernel command line and reboot"
            if words
            else "Boot with iommu.passthrough=0",
            "Or use a newer kernel",
            facts=facts,
        )
    return fail(
        f"{text}; whether the IOMMU is on is unknown: {unseen}"
        if unseen
        else f"{text}: the IOMMU is on, but without PASID for the NPU",
        "Update the machine's BIOS and look for IOMMU, ATS and ACS settings in its setup",
        "Check the command line for pci=noats and iommu options",
        advice.LOG,
        facts=facts,
    )


def _mode(subject: Subject, facts: dict[str, object]) -> Finding:
    device = subject.device
    if device is None:
        return skip(NOT_OPEN)
    try:
        with device.alloc(4096) as buffer:
            pasid = buffer.address == buffer.host_address
    except XdnaError as error:
        return fail(f"no buffer could be made: {error.meaning}", error.remedy, facts=facts)
    facts["mode"] = "pasid" if pasid else "iova"
    if pasid:
        text = "PASID: the NPU uses the program's own addresses, which packets carry"
    elif facts.get("force_iova"):
        text = "IOVA (force_iova=1): the driver gives every buffer an address for packets"
    else:
        text = "the driver gives every buffer an address for packets (IOVA or carveout mode)"
    return ok(text, facts=facts)
