"""What is known of each amdxdna driver: one table, :data:`DRIVERS`, and the profile of the driver at hand.

A driver is told by what a node shows of it: the DRM version, the kernel's release, and the module's folder in
sysfs (its taint, its version, the names of its parameters). The first row that fits is its profile; a driver
that no row knows gets :data:`CAREFUL`.

Sources, as the rows name them: "stable": drivers/accel/amdxdna of Linux and its stable releases; "oot": AMD's
github.com/amd/xdna-driver, folder drivers/accel, by commit; "legacy": the same, folder src/driver, the
out-of-tree driver until February 2026; "measured": the unmodified driver over this package's NPU model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from amdxdna.node import Node
from amdxdna.packet import FIXED_WORDS, MAX_BUFFERS
from amdxdna.version import DrmVersion

MODULE = "sys/module/amdxdna"
RELEASE = "proc/sys/kernel/osrelease"
MIB = 1 << 20
_LAST = math.inf


@dataclass(frozen=True)
class DriverProfile:
    """What to expect of a driver. Immutable; :attr:`amdxdna.device.Device.profile` is the open driver's."""

    name: str
    """The driver in words, for messages."""

    in_tree: bool | None
    """Part of the kernel (true) or built beside it (false); None: not to be told."""

    version: str
    """DRM major.minor."""

    release: str
    """The kernel's release, or empty."""

    careful: bool
    """No row of the table fits exactly: what is promised is the least that any driver keeps."""

    chains_trusted: bool = False
    """A chain's state says whether it failed. Where false the driver writes the firmware's 32-bit status into
    the state's four bits, and a failed chain can read as completed."""

    singles_trusted: bool = False
    """The same for single commands, which some drivers send as lists of one."""

    tdr_seconds: float | None = None
    """Seconds without progress after which the driver ends a hung command, at the most. None: it never does,
    or it is not known."""

    user_pointers: str = "none"
    """Which of the program's own memory a BO may be made over: "none"; "rw": writable memory; "ro": read-only
    mappings too; "unsafe": read-only mappings are accepted, but their pages are not kept in step with the
    memory manager's doings."""

    refused_pointer: str = "ENOMEM"
    """The errno for memory that the driver cannot pin, read-only memory above all."""

    heap_max: int = 64 * MIB
    """Bytes of device heap that a process can have."""

    loses_contexts: bool = True
    """Closing any duplicate of the node's descriptor destroys every context; a child process does it."""

    context_limit: int | None = None
    """Virtual contexts, behind which CREATE_HWCTX is ENOENT; None: the firmware alone sets the limit."""

    packet_words: int | None = 19
    """Argument words of a single command that the driver copies whatever the packet's count says; None: as
    many as the count."""

    tells_timeouts: bool = False
    """A hung command ends with state TIMEOUT; else a single one is left NEW, and a list is ABORT."""

    names_hung_member: bool = False
    """A timed-out chain's index is the member that hung."""

    source: str = ""
    """Where the row is from."""

    @property
    def tdr(self) -> str:
        """What becomes of a hung command, in words."""
        if self.tdr_seconds is not None:
            return f"ends a hung command after {self.tdr_seconds:g} s"
        return "may never end a hung command"

    @property
    def single_buffers(self) -> int:
        """The buffers that a single command may have; one with more (-1: any) has to go as a list of one.

        Lists are copied as they are, and the failure of a list shows on every driver.
        """
        if not self.singles_trusted:
            return -1
        return MAX_BUFFERS if self.packet_words is None else (self.packet_words - FIXED_WORDS) // 2

    @property
    def heap_grows(self) -> bool:
        """Whether a process can have more than one heap BO."""
        return self.heap_max > 64 * MIB

    def rows(self) -> list[tuple[str, str]]:
        """What to expect, as (what, how it is) for a reader."""
        pointers = {
            "none": "none: data is copied",
            "rw": "writable memory only",
            "ro": "read-only mappings too",
            "unsafe": "read-only mappings too, but not kept in step with the memory manager",
        }
        chains = "a failed one can read as completed; a failure is found all the same"
        return [
            ("driver is", self.name + ("; careful defaults are used" if self.careful else "")),
            (
                "hung commands",
                f"end after {self.tdr_seconds:g} s"
                if self.tdr_seconds is not None
                else "may never end by themselves",
            ),
            ("chains", "their state can be trusted" if self.chains_trusted else chains),
            (
                "single commands",
                "their state can be trusted"
                if self.singles_trusted
                else "go as chains of one, whose failure shows",
            ),
            ("user pointers", pointers[self.user_pointers]),
            ("device heap", f"up to {self.heap_max // MIB} MiB"),
            (
                "child processes",
                "cost every context, which is made again; start none while commands run"
                if self.loses_contexts
                else "cost nothing",
            ),
        ]

    def as_json(self) -> dict[str, Any]:
        """The profile as values of JSON's types."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Facts(NamedTuple):
    """What a node shows of its driver."""

    major: int
    minor: int
    release: str
    in_tree: bool | None
    text: Callable[[str], str | None]
    """The text of a module parameter; empty when it may not be read, None when there is none."""

    @property
    def kernel(self) -> tuple[int, int, int]:
        """The kernel's version by its release; zeros when it is not known."""
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", self.release)
        return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


class _Row(NamedTuple):
    """A driver: how it is told, and what differs from :data:`CAREFUL`."""

    name: str
    in_tree: bool | None
    major: int
    values: dict[str, Any]
    minors: tuple[float, float] = (0, _LAST)
    kernels: tuple[tuple[float, ...], tuple[float, ...]] = ((0,), (_LAST,))
    """The first, and the first that is not."""
    parameter: str = ""
    """A module parameter that it has."""
    exact: bool = True

    def fits(self, facts: Facts) -> bool:
        return (
            self.in_tree is facts.in_tree
            and self.major == facts.major
            and self.minors[0] <= facts.minor <= self.minors[1]
            and self.kernels[0] <= facts.kernel < self.kernels[1]
            and (not self.parameter or facts.text(self.parameter) is not None)
        )


CAREFUL: dict[str, Any] = {"heap_max": 512 * MIB}
"""What an unknown driver is taken for: the defaults of :class:`DriverProfile`, but larger heaps are tried."""

_NEW: dict[str, Any] = {
    "chains_trusted": True,
    "singles_trusted": True,
    "user_pointers": "rw",
    "refused_pointer": "EFAULT",
    "heap_max": 512 * MIB,
    "loses_contexts": False,
    "packet_words": None,
    "tells_timeouts": True,
    "names_hung_member": True,
    "source": "stable 7.2, 7.3; measured on 7.2.12 and 7.3.4",
}
_OOT: dict[str, Any] = {**_NEW, "refused_pointer": "ENOMEM"}
_LEGACY: dict[str, Any] = {
    "chains_trusted": True,
    "singles_trusted": True,
    "user_pointers": "rw",
    "loses_contexts": False,
    "context_limit": 32,
    "packet_words": None,
    "tells_timeouts": True,
}

DRIVERS: tuple[_Row, ...] = (
    # -- in tree. 0.10 is Linux 7.2's and 7.3's.
    _Row("Linux's driver, newer than this package knows", True, 0, _NEW, minors=(11, _LAST), exact=False),
    _Row("Linux's driver", True, 0, _NEW, minors=(10, 10)),
    # 750817a7c41d (February 2026: a failed chain is ERROR) is in 7.0. Whether the heap of 6.19 to 7.1 grows
    # is not known: it is tried.
    _Row(
        "Linux 7.0's or 7.1's driver",
        True,
        0,
        {
            **_NEW,
            "refused_pointer": "ENOMEM",
            "names_hung_member": False,
            "source": "stable 105caae0ee7b; oot 234824b1 (drm-misc-fixes)",
        },
        minors=(6, 9),
        kernels=((7, 0), (_LAST,)),
    ),
    # 6.19 got 750817a7c41d in one of its stable releases; which one is not known.
    _Row(
        "Linux 6.19's driver",
        True,
        0,
        {**CAREFUL, "user_pointers": "rw", "source": "stable 6.19; not measured"},
        minors=(2, 9),
    ),
    # 6.18.5, .9 and .12 lack 750817a7c41d, .15 has it. Single commands are no lists there.
    _Row(
        "Linux 6.18's driver",
        True,
        0,
        {
            "chains_trusted": True,
            "singles_trusted": True,
            "user_pointers": "rw",
            "source": "measured on 6.18.15",
        },
        minors=(1, 1),
        kernels=((6, 18, 15), (6, 19)),
    ),
    _Row(
        "Linux 6.18's driver",
        True,
        0,
        {"singles_trusted": True, "user_pointers": "rw", "source": "measured on 6.18.5, 6.18.9, 6.18.12"},
        minors=(1, 1),
    ),
    # User-pointer BOs came with 6.17.
    _Row(
        "Linux 6.17's driver",
        True,
        0,
        {"singles_trusted": True, "user_pointers": "rw", "source": "stable 6.17"},
        minors=(0, 0),
        kernels=((6, 17), (_LAST,)),
    ),
    _Row(
        "Linux 6.14's to 6.16's driver",
        True,
        0,
        {"singles_trusted": True, "source": "stable 6.14"},
        minors=(0, 0),
        kernels=((6, 14), (6, 17)),
    ),
    # -- out of tree. Its minors: 6 from 2026-02-26, 8 03-20, 9 03-24, 10 04-21, 15 05-19, 16 07-28.
    # Read-only user pointers are accepted from 8a2759fe (2026-03-23) on, and registered with the memory
    # manager from ba614d7b (2026-07-22) on. The heap grows from b9d18f04 (2026-04-13) on.
    _Row(
        "AMD's out-of-tree driver",
        False,
        0,
        {**_OOT, "user_pointers": "ro", "source": "oot 856409ca, ba614d7b; measured on 2026-08"},
        minors=(16, 16),
    ),
    _Row(
        "AMD's out-of-tree driver, newer than this package knows",
        False,
        0,
        _OOT,
        minors=(17, _LAST),
        exact=False,
    ),
    _Row(
        "AMD's out-of-tree driver of April to July 2026",
        False,
        0,
        {**_OOT, "user_pointers": "unsafe", "source": "oot 8a2759fe, b9d18f04"},
        minors=(10, 15),
    ),
    _Row(
        "AMD's out-of-tree driver of March and April 2026",
        False,
        0,
        {**_OOT, "user_pointers": "unsafe", "heap_max": 64 * MIB, "source": "oot 8a2759fe"},
        minors=(8, 9),
    ),
    _Row(
        "AMD's out-of-tree driver of early 2026",
        False,
        0,
        {**_OOT, "heap_max": 64 * MIB, "names_hung_member": False, "source": "oot 234824b1"},
        minors=(6, 7),
    ),
    # -- out of tree, legacy: always 1.0, told apart by their parameters. 32 virtual contexts
    # (context_limit tells); children that close the descriptor are ignored (867e2f9f, 2024-09-19).
    # ea527bf9 (2025-06-16): a failed list is ERROR; before, singles too were lists with a raw status.
    # bf6bb553 (2025-11-05) and e54e4691 (2026-02-12): the health report goes into the failing member.
    _Row(
        "AMD's legacy out-of-tree driver of 2026",
        False,
        1,
        {
            **_LEGACY,
            "user_pointers": "unsafe",
            "names_hung_member": True,
            "source": "legacy 856409ca; measured on 2026-08",
        },
        parameter="force_iova",
    ),
    _Row(
        "AMD's legacy out-of-tree driver of late 2025",
        False,
        1,
        {**_LEGACY, "source": "legacy be90de6d, d7e832da; measured on 2025-09 and 2025-12"},
        parameter="fw_log_level",
    ),
    _Row(
        "AMD's legacy out-of-tree driver, before September 2025",
        False,
        1,
        {
            **_LEGACY,
            "chains_trusted": False,
            "singles_trusted": False,
            "source": "legacy before ea527bf9; measured on 2025-06",
        },
    ),
)
"""The first row that fits is the driver's."""

_LIST = "force_cmdlist"


def profile_of(node: Node, version: DrmVersion) -> DriverProfile:
    """The profile of the driver behind `node`, whose DRM version is `version`."""
    return match(facts_of(node, version.major, version.minor))


def facts_of(node: Node, major: int, minor: int) -> Facts:
    """What the node shows of its driver."""
    taint = node.text(f"{MODULE}/taint")
    # A module of the kernel's own has no version file, and no O (out of tree) among its taints
    # (Documentation/admin-guide/tainted-kernels.rst).
    in_tree = None
    if taint is not None:
        version = node.text(f"{MODULE}/version")
        # One that cannot be read is there, or the whole folder is closed to this process.
        in_tree = None if version == "" else "O" not in taint and version is None
    return Facts(
        major, minor, node.text(RELEASE) or "", in_tree, lambda name: node.text(f"{MODULE}/parameters/{name}")
    )


def match(facts: Facts) -> DriverProfile:
    """The profile for what a node shows."""
    common: dict[str, Any] = {
        "in_tree": facts.in_tree,
        "version": f"{facts.major}.{facts.minor}",
        "release": facts.release,
        "tdr_seconds": _tdr(facts),
    }
    for row in DRIVERS:
        if row.fits(facts):
            values = {"name": row.name, "careful": not row.exact, **row.values, **common}
            break
    else:
        values = {"name": "an unknown driver", "careful": True, **CAREFUL, **common}
    limit = _number(facts.text("context_limit"))
    if values.get("context_limit") and limit and limit < 1 << 16:
        values["context_limit"] = int(limit)
    if not values.get("chains_trusted") and facts.text(_LIST) in ("Y", "1"):
        values["singles_trusted"] = False
    return DriverProfile(**values)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _tdr(facts: Facts) -> float | None:
    """After how many seconds a hung command ends, at the most."""
    if facts.major:
        # Legacy (aie2_tdr.c): a timer looks every timeout_in_sec (2) seconds, and the third look without
        # progress resets; 3.3 to 6 s measured.
        looks = facts.text("timeout_in_sec")
        return None if looks is None else 3.0 * (_number(looks) or 0 if looks else 2) or None
    milliseconds = facts.text("tdr_timeout_ms")
    if milliseconds is not None:
        # In tree: aie2_ctx.c of Linux 7.3; out of tree since 695bdd14 (2026-03-24). Only root may read it.
        seconds = 2.0 if not milliseconds else (_number(milliseconds) or 0) / 1000
        # Out of tree on kernels before 6.17 (aie2_tdr.c) a timer looks, as in the legacy driver.
        return seconds * (3 if facts.in_tree is False and facts.kernel < (6, 17) else 1) or None
    if facts.in_tree is None or facts.minor > 8:
        return None
    return 60.0  # HWCTX_MAX_TIMEOUT of aie2_ctx.c, in stable 6.14 to 7.0 and oot 234824b1
