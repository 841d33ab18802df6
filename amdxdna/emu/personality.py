"""The drivers that the emulated one can be: option ``driver=NAME``.

Each entry says what that driver does where it differs from Linux 7.3's, from its source: "stable":
drivers/accel/amdxdna of Linux; "oot" and "legacy": drivers/accel and src/driver of
github.com/amd/xdna-driver, by commit. What a program can know of drivers is :mod:`amdxdna.profile`'s; the two
tables do not share values, so that one can be held against the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MIB = 1 << 20


@dataclass(frozen=True)
class Personality:
    """One driver's behaviour. The defaults are Linux 7.3's."""

    release: str = "7.3.4"
    """Of the kernel it says to run on."""
    major: int = 0
    minor: int = 10
    """DRM version; features newer than the minor are refused."""
    out_of_tree: bool = False
    parameters: Mapping[str, tuple[str, bool]] = field(
        default_factory=lambda: {
            "aie2_max_col": ("128", False),
            "force_cmdlist": ("Y", False),
            "force_iova": ("N", False),
            "tdr_timeout_ms": ("2000", False),
        }
    )
    """The module's parameters: their values, and whether everybody may read them."""
    tdr: float = 2.0
    """Seconds without progress after which a command times out; 0: never."""
    lists_singles: bool = True
    """Single commands are sent as lists of one (force_cmdlist)."""
    raw_status: bool = False
    """A failed list's 32-bit firmware status goes into the packet's four bits of state, as far as it fits."""
    fills_payload: bool = True
    """A failed command's payload is overwritten with 0xFF."""
    hung: str = "report"
    """How a timed-out command ends. "report": TIMEOUT, the report in a chain's first member; "member": in the
    failing one; "packet": in the chain's own packet; "none": TIMEOUT without a report; "abort": a single
    command's state stays NEW, a list is ABORT."""
    report_version: int = 1
    """Of the report: 0 has no word for the NPU's generation."""
    heap_max: int = 512 * MIB
    heap_grows: bool = True
    """More than one heap BO; else the second is EBUSY."""
    user_pointers: str = "rw"
    """"none": EINVAL; "rw": writable memory only; "ro": read-only mappings too."""
    refused_pointer: str = "EFAULT"
    """The errno for memory that cannot be pinned."""
    flush_destroys: bool = False
    """Closing any duplicate of the descriptor destroys every context of the open."""
    context_limit: int = 0
    """Virtual contexts of the device, behind which CREATE_HWCTX is ENOENT; 0: the firmware's slots count."""
    packet_words: int = 0
    """Argument words of a single START_CU packet that the driver copies, whatever its count; 0: the count."""
    refuses_unconfigured: bool = False
    """A command before CONFIG_HWCTX is EINVAL; else the firmware refuses it."""
    all_power_modes: bool = True
    """Else LOW and MEDIUM are EOPNOTSUPP (aie2_pm_set_mode)."""
    checks_sync: bool = True
    """SYNC_BO from the BO's end on is EINVAL."""

    @property
    def level(self) -> int:
        """The in-tree minor whose queries it has: legacy drivers, all of version 1.0, have most of them."""
        return self.minor if self.major == 0 else 8

    def text(self, path: str, privileged: bool) -> str | None:
        """What files of the machine say of the driver; see :meth:`amdxdna.node.Node.text`."""
        if path == "proc/sys/kernel/osrelease":
            return self.release
        name = path.removeprefix("sys/module/amdxdna/")
        if name == "taint":
            return "OE" if self.out_of_tree else ""
        if name == "version":
            return "0.1" if self.out_of_tree else None
        folder, _, parameter = name.partition("/")
        if folder == "parameters" and parameter in self.parameters:
            value, open_to_all = self.parameters[parameter]
            return value if open_to_all or privileged else ""
        return None

    def with_tdr(self, seconds: float) -> Personality:
        """The same with another time-out, as the parameter tells it: where this driver's is fixed, it gets
        Linux 7.3's parameter."""
        parameters = dict(self.parameters)
        if "timeout_in_sec" in parameters:
            # It looks every so often; the third look without progress resets.
            parameters["timeout_in_sec"] = (f"{seconds / 3:g}", True)
        else:
            parameters["tdr_timeout_ms"] = (f"{seconds * 1000:g}", False)
        return replace(self, tdr=seconds, parameters=parameters)


_OLD_PARAMETERS = {"aie2_max_col": ("128", False), "force_cmdlist": ("N", False)}
# Stable 6.18: 60 s (HWCTX_MAX_TIMEOUT); amdxdna_flush; a hung single keeps its state, a hung list is ABORT.
_LINUX_6_18 = Personality(
    release="6.18.15",
    minor=1,
    parameters=_OLD_PARAMETERS,
    tdr=60.0,
    lists_singles=False,
    fills_payload=False,
    hung="abort",
    heap_max=64 * MIB,
    heap_grows=False,
    refused_pointer="ENOMEM",
    flush_destroys=True,
    packet_words=19,
    refuses_unconfigured=True,
    all_power_modes=False,
    checks_sync=False,
)
# oot 856409ca. The report of a hung chain is in its first member, as in tree.
_OOT_2026_08 = Personality(
    release="6.18.12", minor=16, out_of_tree=True, user_pointers="ro", refused_pointer="ENOMEM"
)
# legacy 856409ca.
_LEGACY_2026_08 = Personality(
    release="6.18.12",
    major=1,
    minor=0,
    out_of_tree=True,
    tdr=6.0,
    fills_payload=False,
    hung="member",
    heap_max=64 * MIB,
    heap_grows=False,
    user_pointers="ro",
    refused_pointer="ENOMEM",
    context_limit=32,
    parameters={
        "aie2_max_col": ("128", False),
        "context_limit": ("32", True),
        "force_cmdlist": ("Y", False),
        "force_iova": ("N", False),
        "fw_log_level": ("0", True),
        "hwctx_limit": ("16", True),
        "timeout_in_sec": ("2", True),
    },
)


def _without(parameters: Mapping[str, tuple[str, bool]], *names: str) -> dict[str, tuple[str, bool]]:
    return {name: value for name, value in parameters.items() if name not in names}


# legacy d7e832da: the first member gets the report.
_LEGACY_2025_12 = replace(
    _LEGACY_2026_08,
    release="6.17.13",
    hung="report",
    user_pointers="rw",
    parameters=_without(_LEGACY_2026_08.parameters, "force_iova"),
)
# legacy be90de6d: the report goes over the chain's own payload.
_LEGACY_2025_09 = replace(_LEGACY_2025_12, release="6.16.12", hung="packet", report_version=0)
# legacy 57296466: before ea527bf9 a failed list's status is raw, and singles are lists of one.
_LEGACY_2025_06 = replace(
    _LEGACY_2025_09,
    release="6.12.94",
    raw_status=True,
    parameters=_without(_LEGACY_2025_09.parameters, "fw_log_level"),
)

PERSONALITIES: dict[str, Personality] = {
    "7.3": Personality(),
    "7.2": Personality(release="7.2.12"),
    "6.18": _LINUX_6_18,
    "6.18.5": replace(_LINUX_6_18, release="6.18.5", raw_status=True),
    "6.14": replace(_LINUX_6_18, release="6.14.11", minor=0, raw_status=True, user_pointers="none"),
    "oot-2026-08": _OOT_2026_08,
    "oot-2026-05": replace(_OOT_2026_08, minor=15),
    "oot-legacy": _LEGACY_2026_08,
    "oot-2025-12": _LEGACY_2025_12,
    "oot-2025-09": _LEGACY_2025_09,
    "oot-2025-06": _LEGACY_2025_06,
}
"""By the option's value."""
