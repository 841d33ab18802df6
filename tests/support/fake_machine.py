"""A machine of files: /sys, /proc, /dev, /etc and /lib as a kernel with or without an NPU would show them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from amdxdna.device import Device
from amdxdna.doctor import Machine
from amdxdna.doctor.machine import UNLIMITED, Identity, NodeStat

PCI = "0000:c5:00.1"


class FakeMachine:
    """Builds the tree below `root`; every method returns the machine, so that calls can be strung."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.identity = Identity(1000, frozenset({1000, 992}))
        self.node_stat = NodeStat(0o660, 0, 992)
        self.memlock = (UNLIMITED, UNLIMITED)
        self.environ: dict[str, str] = {}
        self.emu = "threads=1,quiet"
        self.opened: list[str] = []
        (root / "dev").mkdir()
        self.file("sys/bus/pci/devices/0000:00:00.0/vendor", "0x1022\n")
        self.file("sys/bus/pci/devices/0000:00:00.0/device", "0x1480\n")
        self.file("proc/sys/kernel/osrelease", "7.3.4-test\n")
        self.file("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=0 ro quiet\n")
        self.file("proc/cpuinfo", "model name\t: AMD Ryzen AI 9\nflags\t\t: fpu avx512f\n")
        self.file(
            "etc/passwd", "root:x:0:0:root:/root:/bin/sh\njane:x:1000:1000:Jane Doe,,,:/home/jane:/bin/sh\n"
        )
        self.file("etc/group", "root:x:0:\nrender:x:992:jane\n")
        self.log()

    def file(self, path: str, text: str | bytes = "") -> FakeMachine:
        """A file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        return self

    def link(self, path: str, target: str) -> FakeMachine:
        """A symbolic link to another path of the machine."""
        source = self.root / path
        source.parent.mkdir(parents=True, exist_ok=True)
        source.symlink_to(self.root / target)
        return self

    def hide(self, *paths: str) -> FakeMachine:
        """What is at these paths, if anything, cannot be seen, not even by root."""
        for path in paths:
            where = self.root / path
            where.parent.mkdir(parents=True, exist_ok=True)
            if where.is_dir() and not where.is_symlink():
                shutil.rmtree(where)
            else:
                where.unlink(missing_ok=True)
            where.symlink_to(where)
        return self

    def npu(self, device: int = 0x17F0, revision: int = 0x10, driver: str = "amdxdna") -> FakeMachine:
        """An NPU on the bus, taken by a driver (or none)."""
        folder = f"sys/bus/pci/devices/{PCI}"
        for name, value in (("vendor", 0x1022), ("device", device), ("revision", revision)):
            self.file(f"{folder}/{name}", f"{value:#x}\n")
        if driver:
            self.loaded(driver).link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        return self

    def loaded(self, driver: str = "amdxdna") -> FakeMachine:
        """A driver is in the kernel."""
        (self.root / "sys" / "bus" / "pci" / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        return self

    def node(self, name: str = "accel0", present: bool = True) -> FakeMachine:
        """The driver's node, in /sys and (when `present`) in /dev."""
        self.link(f"sys/class/accel/{name}/device", f"sys/bus/pci/devices/{PCI}")
        return self.file(f"dev/accel/{name}") if present else self

    def iommu(self, domain: str = "DMA-FQ") -> FakeMachine:
        """An IOMMU is on."""
        return self.file("sys/class/iommu/ivhd0/name").file(
            f"sys/bus/pci/devices/{PCI}/iommu_group/type", domain + "\n"
        )

    def firmware(
        self, name: str = "npu.sbin", folder: str = "17f0_10", version: str = "1.1.2.64"
    ) -> FakeMachine:
        """A firmware file, linked to one whose name has the version, as linux-firmware installs it."""
        base = f"lib/firmware/amdnpu/{folder}"
        ending = name.partition(".sbin")[2]
        stem = f"{name.removesuffix(ending) if ending else name}.{version}{ending}"
        return self.file(f"{base}/{stem}", b"firmware").link(f"{base}/{name}", f"{base}/{stem}")

    def log(self, *lines: str) -> FakeMachine:
        """The kernel's messages."""
        said = ["Linux version 7.3.4-test", *lines]
        return self.file("dev/kmsg", "".join(f"3,{i},{i}000,-;{line}\n" for i, line in enumerate(said)))

    def good(self) -> FakeMachine:
        """A machine on which everything works."""
        return self.npu().node().iommu().firmware()

    def virtual(self) -> FakeMachine:
        """A virtual machine."""
        self.file("proc/cpuinfo", "flags\t\t: fpu hypervisor\n").file("sys/class/dmi/id/sys_vendor", "QEMU\n")
        return self.file("sys/class/dmi/id/product_name", "Standard PC\n")

    def container(self) -> FakeMachine:
        """A container."""
        return self.file(".dockerenv")

    def machine(self) -> Machine:
        """The machine, whose nodes are emulated devices."""

        def open_node(spec: str) -> Device:
            self.opened.append(spec)
            return Device.open(spec if spec.startswith("emu") else f"emu:{self.emu}")

        return Machine(
            self.root, self.identity, self.memlock, self.environ, open_node, lambda _: self.node_stat
        )


def node_path(root: Path, name: str = "accel0") -> str:
    """The path of a node of the fake machine."""
    return os.fspath(root / "dev" / "accel" / name)
