"""Is the driver in the kernel, and has it taken the NPU?"""

from __future__ import annotations

import re

from amdxdna.doctor import advice
from amdxdna.doctor.checks.firmware import too_new
from amdxdna.doctor.diagnosis import Trouble
from amdxdna.doctor.finding import Finding, fail, ok, skip
from amdxdna.doctor.machine import Machine, PciNpu
from amdxdna.doctor.subject import Subject

FIRST_KERNEL = (6, 14)
_BLACKLIST = re.compile(
    r"^\s*(blacklist\s+amdxdna|install\s+amdxdna\s+(/usr)?/bin/(true|false))(?!\S)", re.MULTILINE
)
_ELSEWHERE = {
    Trouble.FIRMWARE_MISSING: "firmware",
    Trouble.PROTOCOL: "firmware",
    Trouble.FIRMWARE_REFUSED: "firmware",
    Trouble.NOT_ALIVE: "firmware",
    Trouble.NO_IOMMU: "iommu",
    Trouble.NO_DOMAIN: "iommu",
    Trouble.NO_PASID: "iommu",
}


def module(subject: Subject) -> Finding:
    """Module loaded, NPU bound."""
    if subject.emulated:
        return skip("the emulated device needs none")
    machine, npu = subject.machine, subject.npu
    if npu is None and not subject.nodes:
        if unseen := machine.hidden("sys/bus/pci/drivers"):
            return skip(f"unknown: {unseen}")
        state = "loaded" if machine.driver_loaded else "not loaded"
        none = "not known whether there is an NPU" if subject.unseen else "no NPU to drive"
        return skip(f"{none} (amdxdna is {state})")
    if npu is not None and npu.driver not in ("", "amdxdna"):
        return fail(
            f"the NPU belongs to another driver, {npu.driver}"
            + (": it is set aside for virtual machines" if "vfio" in npu.driver else ""),
            f"Give it back: `echo {npu.address} > /sys/bus/pci/drivers/{npu.driver}/unbind` and to "
            "amdxdna's bind, or remove its ids from the vfio-pci options and reboot",
        )
    if not machine.driver_loaded:
        return _not_loaded(subject)
    if npu is not None and not npu.driver:
        if unseen := machine.hidden("sys/bus/pci/drivers"):
            return fail(
                f"amdxdna does not have the NPU; whether it is loaded is unknown: {unseen}", advice.READABLE
            )
        return _not_bound(subject, npu)
    outside = "O" in machine.text("sys/module/amdxdna/taint")
    text = "amdxdna is loaded and has the NPU" + (
        "; it is an out-of-tree build (DKMS or AMD's package), not the kernel's own" if outside else ""
    )
    return ok(
        text,
        facts={
            "out_of_tree": None if machine.hidden("sys/module/amdxdna/taint") else outside,
            "srcversion": machine.text("sys/module/amdxdna/srcversion"),
        },
    )


def _not_loaded(subject: Subject) -> Finding:
    machine = subject.machine
    if line := subject.diagnosis.line(Trouble.SIGNATURE):
        return fail(
            f"amdxdna is not loaded and the kernel refuses unsigned modules, most likely this one ({line})",
            "Enroll the key that signed it (`mokutil --import`, for DKMS /var/lib/dkms/mok.pub) and reboot",
            "Or use the kernel's own module, or switch Secure Boot off",
        )
    if line := subject.diagnosis.line(Trouble.BROKEN_MODULE):
        return fail(
            f"amdxdna is not loaded and the kernel refuses a broken module, most likely this one ({line})",
            "Build it again with the compiler and settings of the running kernel (`dkms remove`, `dkms "
            "install`), or use the kernel's own module: loading it again does not help",
        )
    if line := subject.diagnosis.line(Trouble.OTHER_KERNEL):
        return fail(
            f"the amdxdna module was built for another kernel ({line})",
            "Rebuild it (`dkms autoinstall`) or remove it and use the kernel's own; reboot after an update",
        )
    if where := _blacklisted(machine):
        return fail(
            f"the amdxdna module is blacklisted ({where})", "Remove that line, then `modprobe amdxdna`"
        )
    text = f"the NPU is there but the amdxdna module is not loaded (Linux {machine.release})"
    available = _available(machine)
    if available is False:
        if machine.kernel < FIRST_KERNEL:
            return fail(f"{text}, and this kernel has none: it came with Linux 6.14", "Use a newer kernel")
        return fail(
            f"{text}, and this kernel was built without it",
            "Use your distribution's ordinary kernel (cloud and minimal flavours leave it out: "
            "CONFIG_DRM_ACCEL_AMDXDNA); some put it into a linux-modules-extra package",
        )
    return fail(text, "Load it: `sudo modprobe amdxdna`, on the host if this is a container", advice.LOG)


def _available(machine: Machine) -> bool | None:
    """Whether the running kernel has the module; None where that cannot be seen."""
    folder = f"lib/modules/{machine.release}"
    lists = machine.text(f"{folder}/modules.dep") + machine.text(f"{folder}/modules.builtin")
    return "/amdxdna.ko" in lists if lists else None


def _blacklisted(machine: Machine) -> str:
    for word in machine.command_line:
        key, _, value = word.partition("=")
        if key in ("module_blacklist", "modprobe.blacklist") and "amdxdna" in value.split(","):
            return f"{word} on the kernel command line"
    for folder in ("etc/modprobe.d", "run/modprobe.d", "lib/modprobe.d"):
        for name in machine.names(folder):
            if name.endswith(".conf") and _BLACKLIST.search(machine.text(f"{folder}/{name}")):
                return f"/{folder}/{name}"
    return ""


def _not_bound(subject: Subject, npu: PciNpu) -> Finding:
    found = subject.diagnosis
    text = "amdxdna is loaded but its start of the NPU failed"
    where = _ELSEWHERE.get(found.first) if found.first else None
    if where:
        return fail(f"{text}; see {where}", symptom=True)
    if line := found.line(Trouble.VIRTUAL):
        return fail(
            f"{text}: it runs in no virtual machine ({line})",
            "Use the NPU on the host itself: only older drivers start in a virtual machine",
        )
    machine = subject.machine
    files = machine.firmware_files(npu.model)
    missing = not files and npu.model.folders and not machine.hidden_firmware(npu.model)
    if missing or (found.first is None and too_new(subject, files)):
        return fail(f"{text}; see firmware", symptom=True)
    if not machine.names("sys/class/iommu") and not machine.hidden("sys/class/iommu"):
        return fail(f"{text}; see iommu", symptom=True)
    if line := found.line(Trouble.POWER):
        return fail(
            f"{text}: its power controller does not answer ({line})",
            "Switch the machine off and on again (a restart may not be enough): a failed start or a "
            "changed firmware leaves it in this state",
            "If it stays so, update the machine's BIOS",
        )
    if line := found.line(Trouble.UNKNOWN_DEVICE):
        return fail(
            f"{text}: this driver does not know revision {npu.revision:02x} ({line})", "Use a newer kernel"
        )
    if found.unreadable:
        return fail(
            f"{text}; the reason is in the kernel log, and {found.unreadable}",
            "Run doctor with sudo, or l" + advice.LOG[1:],
        )
    return fail(
        f"{text}, and the kernel log does not say why",
        advice.LOG,
        "Try `sudo modprobe -r amdxdna; sudo modprobe amdxdna`",
    )
