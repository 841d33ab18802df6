"""The files under which a program finds the emulated node: /dev/accel and what sysfs says of the device.

They lie in a temporary folder; a path of the real tree is answered from the file of the same path in it. The
PCI function is where Strix parts have theirs: what the host has there is hidden, and so are other amdxdna
devices.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from amdxdna._native import lib
from amdxdna.emu.driver.errors import error
from amdxdna.emu.npu import Npu
from amdxdna.emu.pci.sysfs import FUNCTION, attributes
from amdxdna.emu.personality import PERSONALITIES, Personality
from amdxdna.emu.seccomp import folders
from amdxdna.profile import MODULE, RELEASE

MAJOR = 261
"""Character device number of accel nodes (ACCEL_MAJOR of include/drm/drm_accel.h)."""
NODE_INODE = 0xACCE1
_BRIDGE = "pci0000:c5"
_DEVICE = f"sys/devices/{_BRIDGE}/{FUNCTION}"
_MOST_LINKS = 40
"""Of one path (MAXSYMLINKS of include/linux/namei.h)."""
PCI_DEVICES = "/sys/bus/pci/devices"
_ACCEL = re.compile(r"/dev/accel/accel(\d{1,3})")


_ALWAYS = ("/fd/", "/cwd", "kmsg")
"""Links of /proc that may lead to the device, and the kernel log."""


class Tree:
    """The temporary folder. `node` is the device's path, `number` its minor number.

    A node elsewhere than /dev/accel/accelN has no sysfs entries.
    """

    def __init__(self, node: str, kind: Personality | None = None) -> None:
        """`kind`: the driver whose module and kernel are shown. Raises OSError without room for a folder."""
        self.node = os.path.normpath(node)
        self._kind = kind or PERSONALITIES["7.3"]
        accel = _ACCEL.fullmatch(self.node)
        self.number = int(accel[1]) if accel else 0
        self.root, self._folder = folders.make()
        self._roots: tuple[str, ...] = ()
        tokens = [*_ALWAYS, folders.PREFIX, os.path.basename(self.node)]
        try:
            self._file(self.node[1:], "")
            if accel:
                self._fill(f"accel{self.number}")
            self.node_file = identity(os.stat(self.root + self.node))
        except BaseException:
            self.close()
            raise
        if accel:
            self._roots = (
                "/dev/accel",
                "/sys/class/accel",
                f"/sys/devices/{_BRIDGE}",
                "/sys/bus/pci/drivers/amdxdna",
                "/sys/module/amdxdna",
                f"{PCI_DEVICES}/{FUNCTION}",
                f"/sys/dev/char/{MAJOR}:{self.number}",
                f"/{RELEASE}",
            )
            tokens = [*_ALWAYS, "accel", FUNCTION, _BRIDGE, "amdxdna", f"/{MAJOR}:", PCI_DEVICES]
            tokens.append(f"/{RELEASE}")
        self.tokens = b"".join(os.fsencode(token) + b"\0" for token in tokens) + b"\0"
        """For xdna_notice_next: what a path that concerns the device has in it."""
        self.additions = self._additions()
        """What the listing of a real folder gets: paths of the tree that the host does not have."""
        self.listed = (
            b"".join(
                os.fsencode(folder) + b"\0"
                for folder in (self.root + os.path.dirname(self.node), *self.additions)
            )
            + b"\0"
        )
        """For xdna_notice_next: the folders whose listings are not the kernel's."""

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
        accel = f"{_DEVICE}/accel/{name}"
        version = ".".join(map(str, Npu.FIRMWARE_VERSION))
        for field, text in {**attributes(FUNCTION), "fw_version": version}.items():
            self._file(f"{_DEVICE}/{field}", text)
        self._file(f"{accel}/dev", f"{MAJOR}:{self.number}")
        self._file(
            f"{accel}/uevent",
            f"MAJOR={MAJOR}\nMINOR={self.number}\nDEVNAME=accel/{name}\nDEVTYPE=accel_minor",
        )
        self._file("sys/module/amdxdna/initstate", "live")
        self._file("sys/module/amdxdna/refcnt", "1")
        self._file(RELEASE, self._kind.release)
        for part in ("taint", "version", *(f"parameters/{each}" for each in self._kind.parameters)):
            shown = self._kind.text(f"{MODULE}/{part}", privileged=True)
            if shown is not None:
                self._file(f"{MODULE}/{part}", shown)
        for link, to in {
            f"{accel}/device": _DEVICE,
            f"{accel}/subsystem": "sys/class/accel",
            f"{_DEVICE}/driver": "sys/bus/pci/drivers/amdxdna",
            f"{_DEVICE}/subsystem": "sys/bus/pci",
            f"sys/class/accel/{name}": accel,
            f"sys/dev/char/{MAJOR}:{self.number}": accel,
            f"sys/bus/pci/drivers/amdxdna/{FUNCTION}": _DEVICE,
            "sys/bus/pci/drivers/amdxdna/module": "sys/module/amdxdna",
            f"sys/bus/pci/devices/{FUNCTION}": _DEVICE,
        }.items():
            self._link(link, to)
        with contextlib.suppress(OSError):
            for entry in os.scandir(PCI_DEVICES):
                if entry.name == FUNCTION:
                    continue
                os.symlink(os.path.realpath(entry.path), f"{self.root}{PCI_DEVICES}/{entry.name}")

    def _additions(self) -> dict[str, list[tuple[str, int, int]]]:
        """Name, inode and type (as getdents has it), by folder; what the host has itself is not in it."""
        found: dict[str, list[tuple[str, int, int]]] = {}
        for path in {self.node, *self._roots}:
            folder, name = os.path.split(path)
            if not self.covers(folder) and not os.path.lexists(path):
                status = os.lstat(self.root + path)
                inode, mode = status.st_ino, status.st_mode
                if identity(status) == self.node_file:
                    inode, mode = NODE_INODE, stat.S_IFCHR
                found.setdefault(folder, []).append((name, inode, stat.S_IFMT(mode) >> 12))
        return found

    def absolute(self, path: str, folder: str, follow: bool, root: str = "/") -> tuple[str, bool]:
        """The path of the real tree that `path` of a program leads to, through links of the program's and of
        the tree, `folder` being where relative ones begin; and whether it leads through the tree. Links of
        /proc stay.

        `follow`: through a link at the end, too. `root`: the program's root folder. Raises OSError as
        the kernel would.
        """
        at = "" if path.startswith("/") else folder
        through = False
        if at == self.root or at.startswith(self.root + "/"):
            at = at[len(self.root) :]
            through = True
        names = path.split("/")
        if path.startswith(self.root + "/"):
            names = path[len(self.root) :].split("/")
        links = 0
        while names:
            name = names.pop(0)
            if at == self.node and (name or not any(names)):
                raise error(errno.ENOTDIR)
            if name in ("", "."):
                continue
            step = f"{at.rstrip('/')}/{name}" if name != ".." else os.path.dirname(at)
            if name != ".." and (names or follow) and not step.startswith("/proc/"):
                real = self.root if self.covers(step) else root.rstrip("/")
                target = _target(real + step)
                if target:
                    links += 1
                    if links > _MOST_LINKS:
                        raise error(errno.ELOOP)
                    names = target.split("/") + names
                    step = "" if target.startswith("/") else at
            at = step
            through = through or self.covers(at)
        # A slash at the end asks for a folder.
        return (at or "/") + ("/" if at and path.endswith(("/", "/.")) else ""), through

    def covers(self, path: str) -> bool:
        """Whether an absolute path is the device's."""
        return path.rstrip("/") == PCI_DEVICES or any(
            path == root or path.startswith(root + "/") for root in self._roots
        )

    @contextlib.contextmanager
    def opened(self, path: str, follow: bool = True) -> Iterator[int]:
        """The tree's file for an absolute path that is covered, as an O_PATH descriptor.

        Raises OSError as the kernel would; Outside for what a link of the tree leads to elsewhere, where this
        process may have more rights than the program.
        """
        flags = os.O_PATH | (0 if follow else os.O_NOFOLLOW)
        fd = lib.xdna_open_beneath(self._folder, os.fsencode(path.lstrip("/")), flags)
        if fd == -errno.EXDEV:
            raise Outside(errno.EXDEV, path)
        if fd < 0:
            raise error(-fd)
        try:
            kind = stat.S_IFMT(os.fstat(fd).st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                raise Outside(errno.EXDEV, path)  # nothing that is put there
            yield fd
        finally:
            os.close(fd)

    def is_node(self, fd: int) -> bool:
        """Whether a file of the tree stands for the node."""
        return identity(os.fstat(fd)) == self.node_file

    def close(self) -> None:
        """Removes the folder."""
        folders.remove(self.root, self._folder)


def _target(path: str) -> str:
    """What a link says; nothing where there is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Outside(OSError):
    """A path of the tree that leads out of it."""


def identity(status: os.stat_result) -> tuple[int, int]:
    """What tells one file from another."""
    return status.st_dev, status.st_ino
