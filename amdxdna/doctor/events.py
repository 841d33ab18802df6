"""What the kernel log says of an NPU that started: faults, hung commands, a driver that crashed.

:mod:`amdxdna.doctor.diagnosis` reads why a start failed; this reads what happened since. Messages are
those of Linux 6.14 to 7.3's driver (drivers/accel/amdxdna), of AMD's out-of-tree one, of the AMD IOMMU driver
and of the PCI core, as public reports quote them; each kind names one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amdxdna.doctor.finding import Status
from amdxdna.packet import lookup

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
    # pci_dev_wait() and pci_power_up() of drivers/pci/pci.c; "...; waiting" may still end well. 1bit-MONSTER
    # issue 1920: "not ready after FLR", then a start that fails; AMD says that a function level reset does
    # not work reliably on these devices (amd/xdna-driver pull request 1101).
    Kind(
        "flr",
        re.compile(
            r"not ready \d+ms after [^;]*; giving up|not ready after FLR|"
            r"Unable to change power state from \S+ to \S+, device inaccessible"
        ),
        Status.FAIL,
        "the NPU did not come back after a reset",
        (
            COLD_START,
            "Do not reset it through sysfs: function level resets are not reliable on this hardware",
        ),
    ),
    # aie2_pci.c, aie4_pci.c and amdxdna_pm.c; drivers/base/power/main.c says "PM: failed to resume".
    Kind(
        "resume",
        re.compile(
            r"aie2_hw_resume|[Ss]tart hardware failed|Resume (firmware )?failed|[Hh]ardware resume failed|"
            r"hw_start failed|hwctx_resume failed|power-cycle start failed|resume failed after NPU reset|"
            r"amdxdna.*PM: failed to (resume|restore)"
        ),
        Status.FAIL,
        "the driver could not start the NPU again after it was asleep or reset",
        ("Reload it: `sudo modprobe -r amdxdna; sudo modprobe amdxdna`", COLD_START),
    ),
    # xdna_send_msg_wait(): ETIME, after which the driver gives the firmware's mailbox up (aie2_message.c).
    Kind(
        "firmware silent",
        re.compile(r"[Ww]ait for completion timeout"),
        Status.FAIL,
        "the NPU's firmware did not answer the driver, which talks to it no more",
        ("Reload the driver: `sudo modprobe -r amdxdna; sudo modprobe amdxdna`", COLD_START),
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
    # A hang is one line each of these, of drivers of different ages: aie2_tdr_detect() and
    # aie2_set_cmd_timeout() of Linux 6.19 and newer, whose twelve lines of details are not counted; the
    # progress line: amd/xdna-driver issue 1083.
    Kind(
        "hung commands",
        re.compile(
            r"TDR timeout detected|isn't making progress|[Ff]irmware timeout state capture|"
            r"NPU firmware unhealthy"
        ),
        Status.WARN,
        "commands hung and the driver reset their contexts",
        (
            "Start the program again; if it hangs every time, its xclbin and instruction stream do not fit "
            "each other, or an argument is too small",
            "If other programs hang too, s" + COLD_START[1:],
        ),
    ),
    # aie2_error_backtrack() of aie2_error.c.
    Kind(
        "array errors",
        re.compile(r"Row: \d+, Col: \d+, module \d+, event ID \d+"),
        Status.WARN,
        "tiles of the NPU's array reported errors (row, column, module and event number are in the line)",
        ("The program that ran then is at fault: its xclbin, its instruction stream or a kernel in it",),
    ),
    Kind(
        "kernel warnings",
        re.compile(r"WARNING: .*amdxdna"),
        Status.WARN,
        "the driver met what should not be (a kernel WARNING) and went on",
        ("Report the whole trace from `sudo dmesg`, and use a newer kernel if there is one",),
    ),
    # What amdxdna.emu says, to programs under `emulate` as the kernel.
    Kind(
        "injected faults",
        re.compile(r"\binjected fault: |\bthe device was removed$"),
        Status.WARN,
        "the emulated NPU had the faults that it was asked for",
        ("Leave --fault away for an NPU without faults",),
    ),
)
_READY = re.compile(r"Initialized amdxdna_accel_driver")
# Of a context that ran no stream it is all ones.
_OPERATION = re.compile(r"TXN OP ID: (0x[0-7]?[0-9a-f]{1,7})$")
_HUNG = "hung commands"
_SUPPRESSED = re.compile(r"(\d+) callbacks suppressed")


@dataclass(frozen=True)
class Event:
    """Something that the log shows: its kind, how many lines tell of it, the last of them."""

    kind: Kind
    count: int
    line: str
    operation: int | None = None
    """Of the instruction stream, at which the last hung command stood, where the driver says so."""

    @property
    def remedy(self) -> tuple[str, ...]:
        """What to do."""
        if self.operation is None:
            return self.kind.remedy
        return (
            *self.kind.remedy,
            f"Where the last one stood: {lookup(self.operation)}",
        )

    @property
    def status(self) -> Status:
        """How much it weighs."""
        return Status.FAIL if self.kind.storm and self.count >= self.kind.storm else self.kind.status


class _Seen:
    """Lines of one kind. Drivers tell of one event in several ways, each of which is counted apart."""

    def __init__(self) -> None:
        self.ways: Counter[str] = Counter()
        self.suppressed = 0
        self.line = ""

    def add(self, line: str, way: str) -> None:
        suppressed = _SUPPRESSED.search(line)
        if suppressed:
            self.suppressed += int(suppressed[1][:9])
        else:
            self.ways[way] += 1
        if not suppressed or not self.line:
            self.line = line.strip()

    @property
    def count(self) -> int:
        return max(self.ways.values(), default=0) + self.suppressed


def events(lines: Sequence[str]) -> list[Event]:
    """The events since the driver's last good start, the heaviest first; lasting ones since the boot."""
    seen: dict[str, _Seen] = {}
    warned = operation = None
    for line in lines:
        if _READY.search(line):
            seen = {kind.name: seen[kind.name] for kind in KINDS if kind.lasting and kind.name in seen}
            operation = None
        if match := _OPERATION.search(line):
            operation = int(match[1], 16)
        kind, way = next(
            ((kind, match[0]) for kind in KINDS if (match := kind.pattern.search(line))), (None, "")
        )
        if kind is None:
            continue
        # The trace of a WARNING has a line of this kind, too.
        crashed = kind.name == "oops"
        if not (crashed and warned):
            seen.setdefault(kind.name, _Seen()).add(line, "" if crashed else way)
        warned = kind.name == "kernel warnings"
    return [
        Event(kind, seen[kind.name].count, seen[kind.name].line, operation if kind.name == _HUNG else None)
        for kind in KINDS
        if kind.name in seen
    ]


def heaviest(found: Iterable[Event]) -> Event | None:
    """The event to deal with first."""
    listed = list(found)
    return next((event for event in listed if event.status is Status.FAIL), listed[0] if listed else None)
