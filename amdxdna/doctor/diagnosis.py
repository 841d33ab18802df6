"""What the amdxdna driver's messages in the kernel log mean.

Message fragments are those of Linux 6.14 to 7.3's driver (drivers/accel/amdxdna) as people meet them in
public reports, and as the driver logs them in the virtual machine of this project's tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Trouble(str, Enum):
    """What went wrong, most fundamental first: an earlier one causes the later ones."""

    SIGNATURE = "signature"
    BROKEN_MODULE = "broken module"
    OTHER_KERNEL = "other kernel"
    FIRMWARE_MISSING = "firmware missing"
    PROTOCOL = "protocol"
    FIRMWARE_REFUSED = "firmware refused"
    VIRTUAL = "virtual machine"
    NO_IOMMU = "no iommu"
    NO_DOMAIN = "no iommu domain"
    NOT_ALIVE = "firmware not alive"
    POWER = "power"
    NO_PASID = "no pasid"
    UNKNOWN_DEVICE = "unknown device"


_PATTERNS: tuple[tuple[Trouble, str], ...] = (
    # These name no module.
    (Trouble.SIGNATURE, r"(unsigned module|module with unavailable key).*(rejected|restricted)"),
    # The kernel names no module here either. openzfs/zfs issue 14398 shows what makes it: a build with other
    # flags or another compiler than the kernel's.
    (Trouble.BROKEN_MODULE, r"[Ii]nvalid relocation target"),
    (Trouble.OTHER_KERNEL, r"amdxdna.*(Unknown symbol|disagrees about version|version magic)"),
    (
        Trouble.FIRMWARE_MISSING,
        r"Direct firmware load for amdnpu/\S*/npu\.(dev\.)?sbin failed|failed to request_firmware",
    ),
    (
        Trouble.PROTOCOL,
        r"[Ii]ncompatible firmware protocol|Firmware minor version smaller|"
        r"[Uu]nsupported firmware protocol|firmware protocol .*not supported|"
        r"Firmware \d+\.\d+ below minimum",  # AMD's legacy out-of-tree driver (aie2_pci.c)
    ),
    # A time-out of the security processor is trouble with power, not with the file.
    (Trouble.POWER, r"failed to validate fw, ret -(110|62)\b|PSP is not ready"),
    (Trouble.FIRMWARE_REFUSED, r"fw return error|failed to validate fw|Invalid mbox magic"),
    # Linux 7.3 does not say that the protocol is refused, but only then does the start end with EOPNOTSUPP.
    (Trouble.PROTOCOL, r"start npu failed, ret -95"),
    (Trouble.VIRTUAL, r"Running under hypervisor not supported"),
    (Trouble.NO_IOMMU, r"Running without IOMMU not supported"),
    (Trouble.NO_DOMAIN, r"Failed to alloc iommu domain"),
    (
        Trouble.POWER,
        r"smu cmd \d+ (failed|timed out)|fw waitmode reg error|smu intr idle timed out|Power on failed",
    ),
    (Trouble.NOT_ALIVE, r"firmware is not alive"),
    (Trouble.NO_PASID, r"SVA bind device failed|Enable PASID failed|PASID unavailable|SVA get pasid failed"),
    (Trouble.UNKNOWN_DEVICE, r"Unknown device revision|prob(e|ing).*failed with error -19"),
)
_COMPILED = tuple((trouble, re.compile(pattern)) for trouble, pattern in _PATTERNS)
_FAILED = re.compile(r"prob(e|ing).*failed with error")
_READY = re.compile(r"Initialized amdxdna_accel_driver")
_ORDER = {trouble: index for index, trouble in enumerate(Trouble)}
_PROTOCOL = re.compile(r"major (\d+)\D+minor (\d+)|Firmware (\d+)\.(\d+) below")


@dataclass(frozen=True)
class Diagnosis:
    """Troubles with the line that shows each, most fundamental first; ``unreadable``: why there is no log."""

    troubles: tuple[tuple[Trouble, str], ...] = ()
    unreadable: str = ""

    def line(self, *wanted: Trouble) -> str:
        """The line that shows the first of `wanted` that is there, or empty."""
        return next((line for trouble, line in self.troubles if trouble in wanted), "")

    @property
    def first(self) -> Trouble | None:
        """The most fundamental trouble."""
        return self.troubles[0][0] if self.troubles else None

    @property
    def protocol(self) -> tuple[int, int] | None:
        """The protocol the firmware speaks, where the driver refused it and said so."""
        match = _PROTOCOL.search(self.line(Trouble.PROTOCOL))
        return (int(match[1] or match[3]), int(match[2] or match[4])) if match else None


def diagnose(lines: Sequence[str], unreadable: str = "") -> Diagnosis:
    """Reads the kernel's lines about the NPU. Only the driver's last start counts.

    A failed start goes on to fail in other ways while it cleans up, so the most fundamental trouble of it is
    the cause. Messages about opening the node are kept from after a good start too.
    """
    recent: dict[Trouble, str] = {}
    failed = False
    for line in lines:
        if failed or _READY.search(line):
            recent.clear()
        failed = _FAILED.search(line) is not None
        trouble = next((trouble for trouble, pattern in _COMPILED if pattern.search(line)), None)
        if trouble is not None:
            recent.setdefault(trouble, line.strip())
    ordered = tuple(sorted(recent.items(), key=lambda item: _ORDER[item[0]]))
    return Diagnosis(ordered, unreadable)
