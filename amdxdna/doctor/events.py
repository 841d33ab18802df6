"""What the kernel log says of an NPU that started: faults, hung commands, a driver that crashed.

:mod:`amdxdna.doctor.diagnosis` reads why a start failed; this reads what happened since. Messages are
those of Linux 6.14 to 7.3's driver (drivers/accel/amdxdna), of AMD's out-of-tree one, of the AMD IOMMU driver
and of the PCI core, as public reports quote them; each kind names one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amdxdna.doctor.finding import Status

COLD_START = "Switch the machine off and on again (a restart may not be enough)"


@dataclass(frozen=True)
class Kind:
    """A kind of event. ``storm``: lines from which it is a failure (0: always as `status` says).

    ``lasting``: the driver's next start does not undo it.
    """

    name: str
    pattern: re.Pattern[str]
    status: Status
    meaning: str
    remedy: tuple[str, ...]
    storm: int = 0
    lasting: bool = False


KINDS = (
    # amd/xdna-driver pull request 1493: "RIP: 0010:aie2_cmdlist_fill_slot+0x26/0x130 [amdxdna]".
    Kind(
        "oops",
        re.compile(r"\bRIP: .*\[amdxdna\]|Workqueue: amdxdna\S* .*Oops|Oops.*amdxdna"),
        Status.FAIL,
        "the driver crashed in the kernel (an oops): what it held is locked for good",
        (
            "Reboot: a reload of the module will hang or fail",
            "Report the whole trace from `sudo dmesg` to the "
            "kernel's or the driver's maintainers, and use a newer kernel if there is one",
        ),
        lasting=True,
    ),
    # 1bit-MONSTER issue 1920: "not ready after FLR", then a start that fails; AMD says that a function level
    # reset does not work reliably on these devices (amd/xdna-driver pull request 1101).
    Kind(
        "flr",
        re.compile(r"not ready \d+ms after (FLR|bus reset|D3|resume)|not ready after FLR"),
        Status.FAIL,
        "the NPU did not come back after a reset",
        (
            COLD_START,
            "Do not reset it through sysfs: function level resets are not reliable on this hardware",
        ),
    ),
    Kind(
        "resume",
        re.compile(
            r"aie2_hw_resume|[Ss]tart hardware failed|(Hardware|hardware) resume failed|"
            r"amdxdna.*PM: failed to (resume|restore)"
        ),
        Status.FAIL,
        "the driver could not start the NPU again after it was asleep",
        ("Reload it: `sudo modprobe -r amdxdna; sudo modprobe amdxdna`", COLD_START),
    ),
    # OpenGamingCollective/kernel-packages issue 39: a storm of faults makes commands a thousand times slower.
    Kind(
        "page faults",
        re.compile(r"IO_PAGE_FAULT|amd_iommu_report_page_fault"),
        Status.WARN,
        "the IOMMU refused accesses of the NPU (IO_PAGE_FAULT)",
        (
            "If NPU programs are slow or wrong, use another kernel: some pre-releases map its memory wrongly",
            "If it happens with one program only, its instruction stream reaches past its buffers",
        ),
        storm=8,
    ),
    # aie2_set_cmd_timeout: Linux 6.19 and newer; the progress line: amd/xdna-driver issue 1083.
    Kind(
        "hung commands",
        re.compile(
            r"aie2_set_cmd_timeout|tdr_work|isn't making progress|[Ff]irmware state capture|"
            r"cmd timeout|command timed? ?out"
        ),
        Status.WARN,
        "commands hung and the driver reset their contexts",
        (
            "Start the program again; if it hangs every time, its xclbin and instruction stream do not fit "
            "each other, or an argument is too small",
            "If other programs hang too, s" + COLD_START[1:],
        ),
    ),
)
_READY = re.compile(r"Initialized amdxdna_accel_driver")
_SUPPRESSED = re.compile(r"(\d+) callbacks suppressed")


@dataclass(frozen=True)
class Event:
    """Something that the log shows: its kind, how many lines tell of it, the last of them."""

    kind: Kind
    count: int
    line: str

    @property
    def status(self) -> Status:
        """How much it weighs."""
        return Status.FAIL if self.kind.storm and self.count >= self.kind.storm else self.kind.status


def events(lines: Sequence[str]) -> list[Event]:
    """The events since the driver's last good start, the heaviest first; lasting ones since the boot."""
    counts: dict[str, int] = {}
    last: dict[str, str] = {}
    for line in lines:
        if _READY.search(line):
            for kind in KINDS:
                if not kind.lasting:
                    counts.pop(kind.name, None)
        found = next((kind for kind in KINDS if kind.pattern.search(line)), None)
        if found is not None:
            suppressed = _SUPPRESSED.search(line)
            counts[found.name] = counts.get(found.name, 0) + (int(suppressed[1][:9]) if suppressed else 1)
            if not suppressed or found.name not in last:
                last[found.name] = line.strip()
    return [Event(kind, counts[kind.name], last[kind.name]) for kind in KINDS if kind.name in counts]


def heaviest(found: Iterable[Event]) -> Event | None:
    """The event to deal with first."""
    listed = list(found)
    return next((event for event in listed if event.status is Status.FAIL), listed[0] if listed else None)
