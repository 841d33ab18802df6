"""The cache of unpacked packages that make a virtual machine: QEMU, a kernel with its modules, busybox.

`tests/vm/debs.py` of the checkout fills it from the machine's Debian archive. What lies there is compared
with the hashes noted when it was unpacked before anything of it runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Raise it when what is unpacked changes. Each layout has a folder of its own, so that checkouts of several
# ages can share a cache.
LAYOUT = 6


def cache_dir() -> Path:
    """The cache folder of this layout, in $AMDXDNA_VM_CACHE or else in amdxdna-vm of the user's XDG cache."""
    explicit = os.environ.get("AMDXDNA_VM_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "amdxdna-vm"
    return (Path(explicit).absolute() if explicit else base) / f"layout-{LAYOUT}"


@dataclass(frozen=True)
class Rig:
    """The unpacked trees, and `versions`, the packages taken.

    `kernel_tree` is the folder of the kernel that a guest boots.
    """

    root: Path
    kernel_release: str
    versions: dict[str, str]
    seconds: float
    kernel_tree: str = "kernel"

    @property
    def qemu(self) -> Path:
        """Tree with QEMU, its libraries and its firmware."""
        return self.root / "qemu"

    @property
    def modules(self) -> Path:
        """Folder of the kernel's modules."""
        return self.root / self.kernel_tree / "usr/lib/modules" / self.kernel_release

    @property
    def vmlinuz(self) -> Path:
        """The kernel image."""
        return next((self.root / self.kernel_tree).rglob("*vmlinuz*"))

    @property
    def busybox(self) -> Path:
        """The static busybox."""
        return self.root / "busybox/usr/bin/busybox"

    @property
    def uapi_header(self) -> Path:
        """The kernel's own header of the driver's ioctls."""
        return self.root / "headers/usr/include/drm/amdxdna_accel.h"

    @property
    def qemu_command(self) -> list[str]:
        """QEMU's first words: from its tree, with that tree's loader, libraries, firmware and option ROMs."""
        root = self.qemu
        return [
            str(root / "usr/lib64/ld-linux-x86-64.so.2"),
            "--library-path",
            f"{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu",
            "--argv0",
            "qemu-system-x86_64",
            str(root / "usr/bin/qemu-system-x86_64"),
            "-L",
            str(root / "usr/share/qemu"),
            "-L",
            str(root / "usr/share/seabios"),
        ]


def contents(tree: Path) -> dict[str, str]:
    """Every file below a folder with its SHA-256, every link with its target."""
    found = {}
    for folder, folders, files in os.walk(tree):
        for name in (*files, *(each for each in folders if os.path.islink(os.path.join(folder, each)))):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                value = "-> " + os.readlink(path)
            else:
                with open(path, "rb") as file:
                    value = hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(path, tree)] = value
    return found


def seal(root: Path, trees: Sequence[str], stamp: Path, record: dict[str, object]) -> None:
    """Writes `record` and what the trees hold to `stamp`, which says that they are complete."""
    files = {tree: contents(root / tree) for tree in trees}
    stamp.write_text(json.dumps({**record, "files": files}, indent=1))


def sealed(root: Path, stamp: Path) -> dict[str, Any] | None:
    """What :func:`seal` noted; None where there is nothing yet, or the trees are no longer what they were."""
    try:
        record: dict[str, Any] = json.loads(stamp.read_text())
        files = record.pop("files")
    except (OSError, ValueError, KeyError):
        return None
    for tree, noted in files.items():
        if contents(root / tree) != noted:
            warnings.warn(f"{root / tree} is not what was unpacked there; it is made again", stacklevel=2)
            return None
    return record


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Has the cache to itself, against other processes. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cached(root: Path | None = None) -> Rig | None:
    """What the cache holds, as :func:`sealed` finds it; None where it holds no whole rig."""
    root = root or cache_dir()
    if not (root / "rig.json").exists():
        return None
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a cache that is only read
            stack.enter_context(locked(root))
        record = sealed(root, root / "rig.json")
    return None if record is None else Rig(root, record["kernel"], record["versions"], 0.0)
