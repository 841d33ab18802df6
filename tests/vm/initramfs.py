"""Writes a newc initramfs: no root, cpio, mknod or kmod needed.

An initramfs is any number of newc archives one after another, so what rarely changes (kernel modules,
the Python root) can be written once and what changes (the code under test) appended per run.
"""

from __future__ import annotations

import lzma
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

# newc's numbers are eight hexadecimal digits; names and data are padded to four bytes
# (Documentation/driver-api/early-userspace/buffer-format.rst).
_MAGIC = "070701"


class Initramfs:
    """A newc archive under construction. Parent folders come by themselves; of a path the first wins."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._paths: set[str] = set()
        self.bytes = 0
        """Of all files."""

    def _entry(self, path: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        name = path.encode() + b"\0"
        fields = (len(self._paths) + 1, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0)
        header = (_MAGIC + "".join(f"{field:08X}" for field in fields)).encode() + name
        self._parts += [header, bytes(-len(header) % 4), data, bytes(-len(data) % 4)]

    def _new(self, path: str) -> str | None:
        path = path.strip("/")
        parent = path.rpartition("/")[0]
        if parent:
            self.folder(parent)
        if path in self._paths:
            return None
        self._paths.add(path)
        return path

    def folder(self, path: str, mode: int = 0o755) -> None:
        """Adds a folder."""
        if (new := self._new(path)) is not None:
            self._entry(new, stat.S_IFDIR | mode)

    def file(self, path: str, data: bytes, mode: int = 0o644) -> int:
        """Adds a file with these contents; the bytes that adds, 0 when the path is there already."""
        if (new := self._new(path)) is None:
            return 0
        self._entry(new, stat.S_IFREG | mode, data)
        self.bytes += len(data)
        return len(data)

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link."""
        if (new := self._new(path)) is not None:
            self._entry(new, stat.S_IFLNK | 0o777, target.encode())

    def device(self, path: str, major: int, minor: int) -> None:
        """Adds a character device node."""
        if (new := self._new(path)) is not None:
            self._entry(new, stat.S_IFCHR | 0o600, device=(major, minor))

    def copy(self, source: Path, path: str) -> int:
        """Adds a host file (what it points to, for a link) under `path`, with its mode; the bytes added."""
        return self.file(path, source.read_bytes(), source.stat().st_mode & 0o777)

    def tree(self, source: Path, path: str = "", wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Adds everything in a folder that `wanted(path relative to source)` accepts; links stay links."""
        for folder, folders, files in os.walk(source):
            relative = os.path.relpath(folder, source)
            prefix = "" if relative == "." else relative + "/"
            folders[:] = sorted(name for name in folders if wanted(prefix + name))
            for name in [*folders, *sorted(files)]:
                full = Path(folder, name)
                if not wanted(prefix + name):
                    continue
                target = f"{path}/{prefix}{name}"
                if full.is_symlink():
                    self.link(target, os.readlink(full))
                elif full.is_file():
                    self.copy(full, target)

    def done(self) -> bytes:
        """The archive, trailer included."""
        self._entry("TRAILER!!!", 0)
        # Archives follow one another at 4-byte boundaries.
        return b"".join(self._parts)


def module_dependencies(image: bytes) -> list[str]:
    """The modules a kernel module (ELF64) needs, from its .modinfo section, `-` written `_`."""
    section_table, = struct.unpack_from("<Q", image, 0x28)
    count, names_index = struct.unpack_from("<HH", image, 0x3C)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, section_table + 64 * i) for i in range(count)]
    names = sections[names_index][4]
    for section in sections:
        start = names + section[0]
        if image[start:image.index(b"\0", start)] != b".modinfo":
            continue
        for item in image[section[4]:section[4] + section[5]].split(b"\0"):
            key, _, value = item.decode().partition("=")
            if key == "depends":
                return [name.replace("-", "_") for name in value.split(",") if name]
    return []


def modules_in_order(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """A module and what it depends on, in the order in which they can be loaded: (name, uncompressed image).

    What is not a file below `folder` is taken to be built into the kernel.
    """
    files = {path.name.split(".ko")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}
    seen: set[str] = set()

    def visit(module: str) -> Iterator[tuple[str, bytes]]:
        if module in seen or module not in files:
            return
        seen.add(module)
        data = files[module].read_bytes()
        image = lzma.decompress(data) if files[module].suffix == ".xz" else data
        for needed in module_dependencies(image):
            yield from visit(needed)
        yield module, image

    yield from visit(name)
