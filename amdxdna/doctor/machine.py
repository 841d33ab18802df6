"""The machine as the checks see it: files below one root, this process's identity and limits.

Everything is read through a :class:`Machine`, so that a test (or a copy of somebody's /sys, /proc and /dev)
can stand in for the real one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from amdxdna.doctor.models import Model, model_of
from amdxdna.files import read_text
from amdxdna.kmsg import newest
from amdxdna.sysfs import AMD, NPU_IDS, absent, first_hidden, no_descriptors

if TYPE_CHECKING:
    from amdxdna.device import Device

UNLIMITED = (1 << 64) - 1
_CONTAINER_FILES = {".dockerenv": "docker", "run/.containerenv": "podman"}
_CGROUP = re.compile(r"\b(docker|lxc|kubepods|containerd|libpod|podman)\b")
_FAULTS_LEFT_OUT = re.compile(r"amd_iommu_report_page_fault: \d+ callbacks suppressed")
_FIRMWARE_FOLDERS = (
    "lib/firmware/updates/{release}",
    "lib/firmware/updates",
    "lib/firmware/{release}",
    "lib/firmware",
)


@dataclass(frozen=True)
class Identity:
    """Who this process is, by number: effective user, all its groups."""

    uid: int
    gids: frozenset[int]


class KernelLog(NamedTuple):
    """The kernel's messages about the NPU and refused modules.

    ``unreadable``: why they cannot be read, or empty; ``left_out``: older messages were not read.
    """

    lines: list[str]
    unreadable: str = ""
    left_out: bool = False


@dataclass(frozen=True)
class NodeStat:
    """Owner and permission bits of a device node."""

    mode: int
    uid: int
    gid: int


@dataclass(frozen=True)
class PciNpu:
    """An NPU on the PCI bus. ``driver``: the kernel driver that has it, or empty."""

    address: str
    device: int
    revision: int
    driver: str
    path: Path

    @property
    def model(self) -> Model:
        """What kind of NPU it is."""
        return model_of(self.device, self.revision)


def _open(spec: str) -> Device:
    from amdxdna.device import Device

    return Device.open(spec)


def _stat(path: Path) -> NodeStat:
    found = os.stat(path)
    return NodeStat(found.st_mode & 0o7777, found.st_uid, found.st_gid)


@dataclass
class Machine:
    """The machine below `root`. Fields left None are this process's own; ``open`` opens a device by spec."""

    root: Path = Path("/")
    identity: Identity | None = None
    memlock: tuple[int, int] | None = None
    """RLIMIT_MEMLOCK, soft and hard, in bytes."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    open: Callable[[str], Device] = _open
    stat: Callable[[Path], NodeStat] = _stat
    name_others: bool = True
    """Whether :meth:`process_name` tells names of other users' processes."""

    def __post_init__(self) -> None:
        # Paths below it are joined to it again, which only an absolute one outlives.
        self.root = self.root.absolute()

    @property
    def sys(self) -> Path:
        """The root of sysfs."""
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        """The device folder."""
        return self.root / "dev"

    def text(self, path: str | Path) -> str:
        """A file's text, stripped; empty when it cannot be read, is no regular file, or has no end."""
        try:
            return read_text(self.root / path).strip()
        except ValueError:
            return ""
        except OSError as error:
            no_descriptors(error)
            return ""

    def names(self, path: str | Path) -> list[str]:
        """A folder's entries; none when it cannot be listed."""
        try:
            return sorted(os.listdir(self.root / path))
        except OSError as error:
            no_descriptors(error)
            return []

    def hidden(self, *paths: str | Path) -> str:
        """Which of the paths cannot be seen, and why; empty where all can, or are not there."""
        return first_hidden((self.root / path for path in paths), self.shown)

    def shown(self, path: Path) -> str:
        """A path below the root as the machine itself would name it."""
        try:
            return "/" + str(path.relative_to(self.root))
        except ValueError:
            return str(path)

    @property
    def release(self) -> str:
        """The kernel's release (`uname -r`)."""
        return self.text("proc/sys/kernel/osrelease") or "unknown"

    @property
    def kernel(self) -> tuple[int, int]:
        """The kernel's version, (0, 0) when it is not known."""
        match = re.match(r"(\d+)\.(\d+)", self.release)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def command_line(self) -> list[str]:
        """The kernel's command line, word by word."""
        return self.text("proc/cmdline").split()

    def npus(self) -> list[PciNpu]:
        """The NPUs on the PCI bus."""
        found = []
        folder = self.sys / "bus" / "pci" / "devices"
        for name in self.names("sys/bus/pci/devices"):
            path = folder / name
            vendor, device = (self._hex(path / key) for key in ("vendor", "device"))
            if vendor == AMD and device in NPU_IDS:
                try:
                    bound = os.path.basename(os.readlink(path / "driver"))
                except OSError:
                    bound = ""
                found.append(PciNpu(name, device, self._hex(path / "revision"), bound, path))
        return found

    def hidden_functions(self) -> str:
        """What of the PCI bus cannot be seen, and why: an NPU may be there; empty where all can."""
        bus = "sys/bus/pci/devices"
        return self.hidden(
            bus, *(f"{bus}/{name}/{key}" for name in self.names(bus) for key in ("vendor", "device"))
        )

    def _hex(self, path: Path) -> int:
        try:
            return int(self.text(path), 16)
        except ValueError:
            return -1

    @property
    def driver_loaded(self) -> bool:
        """Whether the amdxdna driver is in the kernel, or may be: its folder cannot be seen."""
        return not absent(self.sys / "bus" / "pci" / "drivers" / "amdxdna")

    @property
    def legacy_driver(self) -> bool:
        """Whether the amdxdna driver is AMD's out-of-tree one of before 2026 (folder src/driver)."""
        parameter = self.sys / "module" / "amdxdna" / "parameters" / "timeout_in_sec"
        return "O" in self.text("sys/module/amdxdna/taint") and os.path.exists(parameter)

    def firmware_names(self) -> tuple[str, ...]:
        """The files that the driver asks for, one after the other.

        Those of aie2_pci.c; out of tree npu.dev.sbin comes first, and in the legacy driver it is the only one
        (fw_path of npu4_regs.c in github.com/amd/xdna-driver).
        """
        if self.legacy_driver:
            return ("npu.dev.sbin",)
        own = "O" not in self.text("sys/module/amdxdna/taint")
        return ("npu_7.sbin", "npu.sbin") if own else ("npu.dev.sbin", "npu_7.sbin", "npu.sbin")

    def firmware_files(self, model: Model) -> list[Path]:
        """The firmware files of `model` that the driver takes, in the order in which they are looked for."""
        own = self.text("sys/module/firmware_class/parameters/path").strip("/")
        folders = [own] if own else []
        folders += [folder.format(release=self.release) for folder in _FIRMWARE_FOLDERS]
        found = []
        for part in model.folders:
            for name in self.firmware_names():
                for folder in folders:
                    for ending in ("", ".zst", ".xz"):
                        path = self.root / folder / "amdnpu" / part / (name + ending)
                        if os.path.isfile(path):  # Path.is_file raises for a name that is too long
                            found.append(path)
        return found

    def hidden_firmware(self, model: Model) -> str:
        """Which folder of firmware cannot be seen, and why; empty where all can, or are not there."""
        folders = [folder.format(release=self.release) for folder in _FIRMWARE_FOLDERS]
        return self.hidden(
            *(
                f"{folder}/amdnpu{part}"
                for folder in folders
                for part in ("", *(f"/{p}" for p in model.folders))
            )
        )

    def kernel_log(self) -> KernelLog:
        """The kernel's messages about the NPU, the newest of a long log."""
        try:
            said, left_out = newest(self.dev / "kmsg")
        except PermissionError:
            return KernelLog([], "reading the kernel log needs root (kernel.dmesg_restrict)")
        except OSError as error:
            return KernelLog([], f"there is no kernel log to read ({error.strerror})")
        if not said:  # a pipe's, or what a container has in its place: the kernel's own begins with the boot
            return KernelLog([], f"the kernel log is empty ({self.shown(self.dev / 'kmsg')})", left_out)
        lines = [text for _, text in said]
        wanted = re.compile(
            "|".join(
                [
                    "xdna",
                    "amdnpu",
                    "(rejected|restricted)$|: unsigned module|nvalid relocation target",
                    *(re.escape(npu.address) for npu in self.npus()),
                ]
            )
        )
        found = []
        faults = False
        for line in lines:
            # What the kernel leaves out of a storm names no device: it is of the last one that was named.
            if wanted.search(line) or (faults and _FAULTS_LEFT_OUT.search(line)):
                found.append(line)
            if "IO_PAGE_FAULT" in line:
                faults = wanted.search(line) is not None
        return KernelLog(found, "", left_out)

    def container(self) -> str:
        """The kind of container this is, or empty on a host."""
        for name, kind in _CONTAINER_FILES.items():
            if os.path.exists(self.root / name):
                return kind
        match = _CGROUP.search(self.text("proc/self/cgroup"))
        return (
            self.text("run/systemd/container")
            or self.environ.get("container", "")
            or (match[1] if match else "")
        )

    def virtual(self) -> str:
        """The virtual machine this is, or empty on bare metal."""
        if not re.search(r"^flags\s*:.*\bhypervisor\b", self.text("proc/cpuinfo"), re.MULTILINE):
            return ""
        maker, product = (self.text(f"sys/class/dmi/id/{key}") for key in ("sys_vendor", "product_name"))
        return " ".join(part for part in (maker, product) if part) or "of an unknown kind"

    def who(self) -> Identity:
        """Who this process is."""
        return self.identity or Identity(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))

    def may_open(self, path: Path, node: NodeStat) -> bool:
        """Whether the file's permissions allow this process to read and write it."""
        if self.identity is None:
            return os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        if self.identity.uid == 0:
            return True
        shift = 6 if node.uid == self.identity.uid else 3 if node.gid in self.identity.gids else 0
        return node.mode >> shift & 6 == 6

    def group_name(self, gid: int) -> str:
        """The group's name in this machine's own list, or empty."""
        return next((row[0] for row in self._rows("etc/group") if len(row) > 2 and row[2] == str(gid)), "")

    def listed_in(self, gid: int) -> bool:
        """Whether /etc/group has this user in the group (a login session may be older than that)."""
        user = self.user_name()
        return bool(user) and any(
            user in row[3].split(",")
            for row in self._rows("etc/group")
            if len(row) > 3 and row[2] == str(gid)
        )

    def user_name(self) -> str:
        """This user's name in the machine's own list, or empty."""
        uid = str(self.who().uid)
        return next((row[0] for row in self._rows("etc/passwd") if len(row) > 2 and row[2] == uid), "")

    def unit(self) -> str:
        """The systemd service that this process runs in, or the user manager; empty for a login session."""
        path = self.text("proc/self/cgroup").rpartition(":")[2]
        parts = [part for part in path.split("/") if part.endswith(".service")]
        # A desktop's programs are units of the user manager, from which they have their limits.
        return next((part for part in parts if part.startswith("user@")), parts[-1] if parts else "")

    def _rows(self, path: str) -> list[list[str]]:
        return [line.split(":") for line in self.text(path).splitlines()]

    def locked_memory(self) -> tuple[int, int]:
        """RLIMIT_MEMLOCK (soft, hard) in bytes; :data:`UNLIMITED` for no limit."""
        if self.memlock is not None:
            return self.memlock
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return tuple(UNLIMITED if v == resource.RLIM_INFINITY else v for v in (soft, hard))  # type: ignore[return-value]

    def process_name(self, pid: int) -> str:
        """A process's name, or empty when it is not to be seen from here, or not to be told."""
        if pid <= 0 or not (self.name_others or self._own(pid)):
            return ""
        return self.text(f"proc/{pid}/comm")

    def _own(self, pid: int) -> bool:
        """Whether a process is this user's."""
        users = re.search(r"^Uid:\s+\d+\s+(\d+)", self.text(f"proc/{pid}/status"), re.MULTILINE)
        return users is not None and int(users[1]) == self.who().uid
