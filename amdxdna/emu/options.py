"""Options of the emulated device: the text after ``emu:``, and the environment's AMDXDNA_EMU.

``emu:slots=1,address=iova`` is a comma-separated list of ``key=value``; a key alone means ``key=1``.
AMDXDNA_EMU has the same form and gives defaults. :data:`OPTIONS` lists them all.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from amdxdna.emu.faults import KINDS, Fault
from amdxdna.emu.personality import PERSONALITIES, Personality
from amdxdna.emu.timing import DEFAULT, MODELS
from amdxdna.errors import BadArgument

OPTIONS = """\
  slots=16            hardware contexts the NPU holds
  columns=8           AIE columns, 1 to 8
  driver=7.3          the driver it behaves as: 7.3, 7.2, 6.18, 6.18.5, 6.14 (Linux's own), oot-2026-08,
                      oot-2026-05, oot-legacy, oot-2025-12, oot-2025-09, oot-2025-06 (AMD's out of tree);
                      amdxdna/emu/personality.py says what each does
  minor=10            DRM minor the driver reports; features newer than it are refused (0 to 16); default:
                      the driver's
  address=pasid       pasid: packets carry host addresses; iova: addresses the driver gives
  threads=0           threads a kernel computes on, 0 for one a core
  instant             kernels compute nothing and return at once, to measure what the host costs; of a
                      result only the first element and the last row are written: 0
  timed=hx370         a command takes the wall time that it would take on a Ryzen AI 9 HX 370, by a model
                      of bandwidth, rate and fixed costs (amdxdna/emu/timing.py), and no core while it
                      waits; timed alone says the same. Where computing takes longer, a line tells so: the
                      times do not hold then. With instant they do, but nothing is computed
  held_slots=0        contexts that another process holds
  tdr=2               seconds without progress after which a command times out; 0 switches it off;
                      default: the driver's (2 to 60)
  sensors             answer the sensor query (else ENODEV, as without platform support)
  privileged=1        act as root (1) or not (0); default: what this process is
  memlock=BYTES       locked-memory limit for user-pointer BOs; default: this process's
  quiet               no messages on stderr
Faults, each any number of times:
  hang=N              command N never completes
  fail=N:STATUS       command N ends with a firmware status (default 0x3000002)
  slow=N:US           command N takes US microseconds more
  corrupt=N:BYTE      one bit of byte BYTE (default 0) of command N's result is wrong
  skip=N              command N does not run, and ends well
  chain_hang=N        chain N (of several commands) never completes
  chain_fail=N:STATUS chain N fails at its second command, with that status (default 0x3000002)
  chain_corrupt=N:BYTE
                      one bit of byte BYTE (default 0) of chain N's last result is wrong, and it ends well
  chain_skip=N        of chain N only the first command runs, and it ends well
  refuse=N:STATUS     the firmware refuses context N (default 0x2000003, no context free)
  refuse_config=N:STATUS
                      the firmware refuses CU configuration N
  open=N:ERRNO        open N of the device fails (an errno or its name; default EACCES)
  lose=N              the device is removed at submit N: every call of those that have it open is ENODEV from
                      then on; what opens it anew has it
N counts from 1 over the device's life: 3 is the third, 3-5 third to fifth, 3- from the third on, * all.
"""
"""Every option with its default, for `python -m amdxdna emulate --help`."""
ENVIRONMENT = "AMDXDNA_EMU"
_WHICH = re.compile(r"(?P<first>\d+)(?P<range>-(?P<last>\d+)?)?|\*")
_RANGES = {
    "slots": (0, 1024),
    "columns": (1, 8),
    "minor": (0, 16),
    "threads": (0, 1024),
    "held_slots": (0, 1024),
}


@dataclass(frozen=True)
class EmuOptions:
    """Options of one emulated device. Equal options name the same device within a process."""

    slots: int = 16
    columns: int = 8
    driver: str = "7.3"
    minor: int | None = None
    address: str = "pasid"
    threads: int = 0
    instant: bool = False
    timed: str | None = None
    """Name of a timing model; None: commands take as long as they take."""
    held_slots: int = 0
    tdr: float | None = None
    sensors: bool = False
    privileged: bool | None = None
    memlock: int | None = None
    quiet: bool = False
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise _bad(f"{name}={value}", f"it must be {low} to {high}")
        if self.address not in ("pasid", "iova"):
            raise _bad(f"address={self.address}", "it is pasid or iova")
        if self.driver not in PERSONALITIES:
            raise _bad(f"driver={self.driver}", f"there are {', '.join(PERSONALITIES)}")
        if self.timed is not None and self.timed not in MODELS:
            raise _bad(f"timed={self.timed}", f"there is {', '.join(MODELS)} (0: not timed)")
        if self.tdr is not None and not 0 <= self.tdr <= 3600:
            raise _bad(f"tdr={self.tdr:g}", "it is 0 (off) to 3600 seconds")
        if self.held_slots > self.slots:
            raise _bad(f"held_slots={self.held_slots}", f"there are {self.slots} slots")
        if self.memlock is not None and self.memlock < 0:
            raise _bad(f"memlock={self.memlock}", "it is a number of bytes")

    @property
    def personality(self) -> Personality:
        """What the driver does: the chosen one's behaviour, with the minor and time-out given."""
        kind = PERSONALITIES[self.driver]
        if self.minor is not None:
            kind = replace(kind, minor=self.minor)
        return kind if self.tdr is None else kind.with_tdr(self.tdr)

    @classmethod
    def parse(cls, text: str = "", environ: Mapping[str, str] | None = None) -> EmuOptions:
        """Options from `text` on top of the environment's.

        Raises BadArgument naming the option that is unknown or whose value is wrong, and where it stands.
        """
        defaults = (os.environ if environ is None else environ).get(ENVIRONMENT, "")
        options = cls()
        for where, part in ((ENVIRONMENT, defaults), ("emu:", text)):
            try:
                options = _apply(options, part)
            except BadArgument as error:
                error.call = f"{where}{'=' if where == ENVIRONMENT else ''}{part}"
                raise
        return options


def _bad(option: str, why: str) -> BadArgument:
    return BadArgument(
        f"emulator option {option!r}: {why}",
        call="open",
        remedy="`python -m amdxdna emulate --help` lists the options",
    )


def _apply(options: EmuOptions, text: str) -> EmuOptions:
    changes: dict[str, Any] = {}
    faults = options.faults
    known = {field.name for field in fields(EmuOptions)} - {"faults"}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, given, value = (part.strip() for part in item.partition("="))
        if key in KINDS:
            faults = (*faults, _fault(item, key, value))
        elif key not in known:
            raise _bad(item, f"unknown; there are {', '.join(sorted(known | set(KINDS)))}")
        elif key in ("address", "driver"):
            changes[key] = value
        elif key == "timed":
            changes[key] = (None if value == "0" else value) if given else DEFAULT
        else:
            changes[key] = _value(item, key, value if given else "1")
    return replace(options, faults=faults, **changes)


def _value(item: str, key: str, text: str) -> bool | int | float:
    if key in ("instant", "sensors", "privileged", "quiet"):
        if text not in ("0", "1"):
            raise _bad(item, "its value is 0 or 1")
        return text == "1"
    try:
        return float(text) if key == "tdr" else int(text, 0)
    except ValueError:
        raise _bad(item, f"{text!r} is not a number") from None


def _fault(item: str, kind: str, text: str) -> Fault:
    which, given, value = text.partition(":")
    match = _WHICH.fullmatch(which)
    if not match:
        raise _bad(item, f"{which!r} is not N, N-M, N- or * (counted from 1)")
    first, last = 1, None
    if match["first"]:
        first = int(match["first"])
        last = int(match["last"]) if match["last"] else None if match["range"] else first
    if first < 1 or (last is not None and last < first):
        raise _bad(item, f"{which!r} names no event (they are counted from 1)")
    number = 0
    if given:
        number = getattr(errno, value, 0) if kind == "open" and value.isupper() else 0
        try:
            number = number or int(value, 0)
        except ValueError:
            raise _bad(item, f"{value!r} is not a number") from None
        if not (number > 0 or kind.endswith("corrupt")) or number > 0xFFFFFFFF:
            raise _bad(item, f"{value} is out of range")
    if kind in ("hang", "skip", "chain_hang", "chain_skip", "lose") and given:
        raise _bad(item, f"a {kind} takes no value")
    if kind == "slow" and not given:
        raise _bad(item, "say by how many microseconds: slow=N:US")
    return Fault(kind, first, last, number)
