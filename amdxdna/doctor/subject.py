"""What is examined: the machine, the NPU and node that are meant, and the device once it is open."""

from __future__ import annotations

import contextlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from amdxdna import sysfs
from amdxdna.doctor.diagnosis import Diagnosis, diagnose
from amdxdna.doctor.machine import KernelLog, Machine, PciNpu
from amdxdna.errors import NoDevice, XdnaError
from amdxdna.opening import is_emulated

if TYPE_CHECKING:
    from amdxdna.device import Device


class Subject:
    """What the checks share. Nothing is read, opened or found before it is asked for.

    `spec` as for :meth:`amdxdna.device.Device.open`, but "auto" means the machine's NPU and never the
    emulated one.
    """

    def __init__(self, machine: Machine, spec: str = "auto") -> None:
        self.machine = machine
        self.spec = "auto" if spec in ("", "npu") else spec
        self.emulated = is_emulated(self.spec)
        self._tried = False
        self._device: Device | None = None
        self._error: XdnaError | None = None

    @cached_property
    def npus(self) -> list[PciNpu]:
        """The NPUs on the PCI bus."""
        return self.machine.npus()

    @cached_property
    def nodes(self) -> list[sysfs.FoundNode]:
        """The driver's nodes, as sysfs has them."""
        return sysfs.find_nodes(self.machine.sys, self.machine.dev)

    @cached_property
    def path(self) -> Path | None:
        """The node that is meant, or None when there is none."""
        if self.emulated:
            return None
        if self.spec != "auto" and not self.spec.isdecimal():
            return Path(self.spec)
        index = int(self.spec) if self.spec.isdecimal() else 0
        if index < len(self.nodes):
            return Path(self.nodes[index].path)
        return None if self.spec.isdecimal() or self.nodes else self._unlisted()

    def _unlisted(self) -> Path | None:
        """A node in /dev/accel of which /sys shows nothing, as in a container without the host's /sys."""
        for name in self.machine.names(self.machine.dev / "accel"):
            if name.startswith("accel") and name not in self.machine.names("sys/class/accel"):
                return self.machine.dev / "accel" / name
        return None

    @cached_property
    def npu(self) -> PciNpu | None:
        """The PCI function that is meant."""
        address = next((node.pci for node in self.nodes if str(self.path) == node.path), None)
        found = [npu for npu in self.npus if npu.address == address] or self.npus
        return found[0] if found else None

    @cached_property
    def unseen(self) -> str:
        """Where none was found: what cannot be seen, and why, so that there may be an NPU; else empty."""
        return "" if self.npu is not None else self.machine.hidden_functions()

    @cached_property
    def kernel_log(self) -> KernelLog:
        """The kernel's messages but for those about other NPUs."""
        log = self.machine.kernel_log()
        others = [npu.address for npu in self.npus if npu is not self.npu]
        return log._replace(lines=[line for line in log.lines if not any(each in line for each in others)])

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What the kernel log says went wrong."""
        return diagnose(self.kernel_log.lines, self.kernel_log.unreadable)

    @property
    def device(self) -> Device | None:
        """The device, opened at first use, or None: see :attr:`error`."""
        if not self._tried:
            self._tried = True
            target = self.spec if self.emulated else str(self.path) if self.path else ""
            if target:
                try:
                    self._device = self.machine.open(target)
                except XdnaError as error:
                    self._error = error
            else:
                self._error = NoDevice("there is no node to open", call="open")
        return self._device

    @property
    def error(self) -> XdnaError | None:
        """Why the device could not be opened."""
        return None if self.device is not None else self._error

    def close(self) -> None:
        """Closes the device, if it was opened."""
        device, self._device = self._device, None
        if device is not None:
            with contextlib.suppress(XdnaError):
                device.close()
