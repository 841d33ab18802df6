"""The files under which a program finds the emulated node: /dev/accel and what sysfs says of the device.

They lie in a temporary folder; a path of the real tree is answered from the file of the same path in it. The
PCI function is one that no machine has, in a domain of its own, so nothing of the host's is hidden except
other amdxdna devices.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from amdxdna.emu.npu import Npu
from amdxdna.emu.pci.registers import CLASS_SIGNAL_PROCESSING, DEVICE_NPU2, REVISION_STRIX, VENDOR_AMD

FUNCTION = "acce:c5:00.1"
MAJOR = 261
"""Character device number of accel nodes (ACCEL_MAJOR of include/drm/drm_accel.h)."""
_BRIDGE = "pciacce:c5"
_DEVICE = f"sys/devices/{_BRIDGE}/{FUNCTION}"
_PCI_DEVICES = "/sys/bus/pci/devices"
_ACCEL = re.compile(r"/dev/accel/accel(\d{1,3})")


class Tree:
    """The temporary folder. `node` is the device's path, `number` its minor number.

    A node elsewhere than /dev/accel/accelN has no sysfs entries.
    """

    def __init__(self, node: str) -> None:
        """Raises OSError when the folder cannot be made."""
        self.node = os.path.normpath(node)
        accel = _ACCEL.fullmatch(self.node)
        self.number = int(accel[1]) if accel else 0
        self.root = tempfile.mkdtemp(prefix="amdxdna-emulate-")
        self._roots: tuple[str, ...] = ()
        tokens = ["/fd/", os.path.basename(self.node)]
        if accel:
            self._fill(f"accel{self.number}")
            self._roots = ("/dev/accel", "/sys/class/accel", f"/sys/devices/{_BRIDGE}",
                           "/sys/bus/pci/drivers/amdxdna", "/sys/module/amdxdna",
                           f"{_PCI_DEVICES}/{FUNCTION}", f"/sys/dev/char/{MAJOR}:{self.number}")
            tokens = ["/fd/", "accel", "acce:", "amdxdna", f"/{MAJOR}:", _PCI_DEVICES]
        self.tokens = b"".join(os.fsencode(token) + b"\0" for token in tokens) + b"\0"
        """For xdna_notice_next: what a path that concerns the device has in it."""

    def _file(self, path: str, text: str) -> None:
        target = Path(self.root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n" if text else "")

    def _link(self, path: str, to: str) -> None:
        """A relative link to another path of the tree, as sysfs has them."""
        link = Path(self.root, path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(to, os.path.dirname(path)))

    def _fill(self, name: str) -> None:
        self._file(f"dev/accel/{name}", "")
        accel = f"{_DEVICE}/accel/{name}"
        version = ".".join(map(str, Npu.FIRMWARE_VERSION))
        ids = f"{VENDOR_AMD:04X}:{DEVICE_NPU2:04X}"
        for field, text in {
                "vendor": f"{VENDOR_AMD:#06x}", "device": f"{DEVICE_NPU2:#06x}",
                "revision": f"{REVISION_STRIX:#04x}", "class": f"{CLASS_SIGNAL_PROCESSING:#08x}",
                "subsystem_vendor": f"{VENDOR_AMD:#06x}", "subsystem_device": f"{DEVICE_NPU2:#06x}",
                "enable": "1", "numa_node": "-1", "vbnv": "NPU Strix", "device_type": "0",
                "fw_version": version,
                "uevent": f"DRIVER=amdxdna\nPCI_CLASS={CLASS_SIGNAL_PROCESSING:X}\nPCI_ID={ids}\n"
                          f"PCI_SUBSYS_ID={ids}\nPCI_SLOT_NAME={FUNCTION}"}.items():
            self._file(f"{_DEVICE}/{field}", text)
        self._file(f"{accel}/dev", f"{MAJOR}:{self.number}")
        self._file(f"{accel}/uevent", f"MAJOR={MAJOR}\nMINOR={self.number}\nDEVNAME=accel/{name}\n"
                                      "DEVTYPE=accel_minor")
        self._file("sys/module/amdxdna/initstate", "live")
        self._file("sys/module/amdxdna/refcnt", "1")
        for link, to in {
                f"{accel}/device": _DEVICE, f"{accel}/subsystem": "sys/class/accel",
                f"{_DEVICE}/driver": "sys/bus/pci/drivers/amdxdna", f"{_DEVICE}/subsystem": "sys/bus/pci",
                f"sys/class/accel/{name}": accel, f"sys/dev/char/{MAJOR}:{self.number}": accel,
                f"sys/bus/pci/drivers/amdxdna/{FUNCTION}": _DEVICE,
                "sys/bus/pci/drivers/amdxdna/module": "sys/module/amdxdna",
                f"sys/bus/pci/devices/{FUNCTION}": _DEVICE}.items():
            self._link(link, to)
        with contextlib.suppress(OSError):
            for entry in os.scandir(_PCI_DEVICES):
                os.symlink(os.path.realpath(entry.path), f"{self.root}{_PCI_DEVICES}/{entry.name}")

    def absolute(self, path: str, folder: str) -> str:
        """`path` of a program whose relative paths begin at `folder`, as a path of the real tree."""
        path = os.path.join(folder, path)
        if path.startswith(self.root + "/"):
            path = path[len(self.root):]
        parts = [part for part in path.split("/") if part not in ("", ".")]
        plain = "/" + "/".join(parts)
        if ".." in parts:
            plain = os.path.normpath(plain)
        # A slash at the end asks for a folder, through a link too.
        return plain + "/" if path.endswith(("/", "/.")) and parts else plain

    def find(self, path: str) -> str | None:
        """The tree's file for an absolute path; None for a path that is not the device's."""
        if path.rstrip("/") == _PCI_DEVICES or any(path == root or path.startswith(root + "/")
                                                   for root in self._roots):
            return self.root + path
        return None

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.root, ignore_errors=True)
