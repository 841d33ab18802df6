"""Finds NPU nodes, and says why there is none, from sysfs.

Every function takes the roots of sysfs and of the device folder, so tests can pass a tree of their own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from amdxdna.causes import from_errno
from amdxdna.files import read_text

DRIVER = "amdxdna"
AMD = 0x1022
"""PCI vendor id."""
NPU_IDS = frozenset({0x1502, 0x17F0, 0x17F1, 0x17F2, 0x17F3, 0x1B0A, 0x1B0B, 0x1B0C})
"""PCI device ids: drivers/accel/amdxdna/amdxdna_pci_drv.c and the aliases of Linux 7.3.4's module."""


@dataclass(frozen=True)
class FoundNode:
    """One accel node of the amdxdna driver: its path, the PCI function behind it and that function's ids."""

    path: str
    pci: str
    vendor: int
    device: int
    revision: int


def _hex(path: Path) -> int:
    try:
        return int(read_text(path).strip(), 16)
    except OSError as error:
        no_descriptors(error)
        return 0
    except ValueError:
        return 0


def no_descriptors(error: OSError) -> None:
    """Raises XdnaError where descriptors ran out, which tells nothing of what is there."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise from_errno("open", error.errno) from None


def hidden(path: str | Path) -> str:
    """Why what is at `path` cannot be seen, as the system says it; empty where it can, or where nothing is.

    A folder is seen when it can be listed and its entries be reached, a file when it can be read.
    """
    try:
        if os.path.isdir(path) or not os.path.lexists(path):
            os.listdir(path)
            os.stat(os.path.join(path, "."))
        else:
            read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        no_descriptors(error)
        return (error.strerror or "").lower()
    return ""


def absent(path: str | Path) -> bool:
    """Whether the system says that nothing is at `path`: what may not be looked at is not absent."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _number(name: str) -> int:
    digits = name[len("accel") :]
    return int(digits) if digits.isdecimal() else 1 << 30


def find_nodes(sys: str | Path = "/sys", dev: str | Path = "/dev") -> list[FoundNode]:
    """The accel class devices whose driver is amdxdna, in node order. The node can be accel1 or later."""
    try:
        entries = sorted((Path(sys) / "class" / "accel").iterdir(), key=lambda p: (_number(p.name), p.name))
    except OSError as error:
        no_descriptors(error)
        return []
    found = []
    for entry in entries:
        device = entry / "device"
        try:
            driver = os.path.basename(os.readlink(device / "driver"))
            pci = os.path.basename(os.path.realpath(device, strict=True))
        except OSError:
            continue
        if driver == DRIVER:
            found.append(
                FoundNode(
                    str(Path(dev) / "accel" / entry.name),
                    pci,
                    _hex(device / "vendor"),
                    _hex(device / "device"),
                    _hex(device / "revision"),
                )
            )
    return found


def why_none(sys: str | Path = "/sys") -> tuple[str, str]:
    """(cause, remedy) for a machine on which :func:`find_nodes` finds nothing."""
    root = Path(sys)
    bus, accel, drivers = root / "bus" / "pci" / "devices", root / "class" / "accel", root / "bus/pci/drivers"
    listed = _listed(bus)
    functions = [p for p in listed if _hex(p / "vendor") == AMD and _hex(p / "device") in NPU_IDS]
    bound = any(os.path.lexists(p / "driver") for p in functions)
    if functions:
        places = [accel, *(p / "device" / "driver" for p in _listed(accel)), *([] if bound else [drivers])]
    else:
        places = [bus, *(p / key for p in listed for key in ("vendor", "device"))]
    if unseen := first_hidden(places):
        return (
            f"whether there is an NPU to open is not known: {unseen}",
            "Run it as a user who may read /sys, name the node (/dev/accel/accel0), or use the emulated "
            "device (`--device emu`)",
        )
    if not functions:
        return (
            "no NPU on the PCI bus: this machine has none, its firmware setup disables it, or a virtual "
            "machine or container hides it",
            "Enable the NPU (IPU) in the firmware setup, or use the emulated device (`--device emu`)",
        )
    if absent(drivers / DRIVER) and not bound:
        return (
            "the NPU is there but its driver is not: the amdxdna module is not loaded",
            "Load it (`modprobe amdxdna`, Linux 6.14 or newer), or use the emulated device (`--device emu`)",
        )
    if not bound:
        return (
            "the amdxdna driver is loaded but did not take the NPU: its start failed",
            "Look at `dmesg | grep amdxdna`: missing firmware (linux-firmware, amdnpu/), a firmware of "
            "another protocol, or no IOMMU are the usual causes",
        )
    return ("the NPU has a driver but no accel node", "Look at `dmesg | grep amdxdna` and at /dev/accel")


def first_hidden(places: Iterable[Path], shown: Callable[[Path], str] = str) -> str:
    """The first of the places that cannot be seen, and why; empty where all can. `shown` names a place."""
    return next((f"{shown(place)} cannot be read ({why})" for place in places if (why := hidden(place))), "")


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        no_descriptors(error)
        return []
