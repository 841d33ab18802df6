"""Is there an NPU, and which?"""

from __future__ import annotations

import os

from amdxdna.doctor import advice
from amdxdna.doctor.finding import Finding, fail, ok, warn
from amdxdna.doctor.subject import Subject

_XDNA1 = (
    "Programs compiled for XDNA2, such as this package's language model and those of FastFlowLM or "
    "lemonade, cannot run on it; xclbins compiled for XDNA1 can"
)
_NEWER = "This package was not made for it: queries may work, commands will not"


def npu(subject: Subject) -> Finding:
    """The PCI function."""
    if subject.emulated:
        return ok("the emulated NPU of this package: no hardware is involved")
    found = subject.npu
    if found is None:
        return _none(subject)
    model = found.model
    facts = {
        "address": found.address,
        "device": f"{found.device:04x}",
        "revision": f"{found.revision:02x}",
        "name": model.name,
        "generation": model.generation,
        "count": len(subject.npus),
    }
    text = (
        f"{model.product} ({model.name}, {model.generation}), 1022:{found.device:04x} revision "
        f"{found.revision:02x}, at {found.address}"
    )
    if len(subject.npus) > 1:
        text += f"; one of {len(subject.npus)}"
    if virtual := subject.machine.virtual():
        text += f"; seen from a virtual machine ({virtual})"
    if model.generation == "XDNA1":
        return warn(f"{text}. It is an XDNA1 NPU, the first generation", _XDNA1, facts=facts)
    if model.generation != "XDNA2":
        return warn(text, _NEWER, facts=facts)
    if model.name == "unknown":
        return warn(
            f"{text}: a driver that is older than it refuses it (error -19)",
            "Use a newer kernel",
            facts=facts,
        )
    return ok(text, facts=facts)


def _none(subject: Subject) -> Finding:
    machine = subject.machine
    facts = {"count": 0, "virtual": machine.virtual(), "container": machine.container()}
    if subject.path is not None and os.path.exists(subject.path):
        return warn(
            "the PCI bus shows no NPU, though there is a node: /sys is not this machine's, or hidden",
            "In a container pass the host's /sys in (read-only will do)",
            facts=facts,
        )
    if subject.unseen:
        return fail(f"unknown: {subject.unseen}", advice.READABLE, advice.EMULATED, facts=facts)
    if not machine.names("sys/bus/pci/devices"):
        return fail(
            "/sys shows no PCI devices, so nothing can be said about an NPU",
            "Run it on the host, or where /sys is the host's",
            advice.EMULATED,
            facts=facts,
        )
    if virtual := machine.virtual():
        return fail(
            f"this is a virtual machine ({virtual}) and it has no NPU",
            "Run on the host itself: an NPU passed to a virtual machine finds no PASID there",
            advice.EMULATED,
            facts=facts,
        )
    return fail(
        "this machine has no AMD NPU: no such function is on the PCI bus",
        "If its processor is a Ryzen AI, or a Ryzen 7040 or newer, enable the NPU (also called IPU) in "
        "the firmware setup and look at `lspci -d 1022:` for device 1502 or 17f0",
        advice.EMULATED,
        facts=facts,
    )
