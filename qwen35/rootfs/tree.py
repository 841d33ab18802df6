"""The files of an image, in the order in which they are written, counted by what they are for."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Entry", "Tree"]


@dataclass(frozen=True)
class Entry:
    """One file, folder, link or character device; `mode` holds its type, `data` a link's target too."""

    path: str
    mode: int
    data: bytes | Path = b""
    device: tuple[int, int] = (0, 0)

    @property
    def size(self) -> int:
        """Bytes of data."""
        return self.data.stat().st_size if isinstance(self.data, Path) else len(self.data)

    def blocks(self, size: int = 1 << 20) -> Iterator[bytes]:
        """The data, block by block. Raises OSError."""
        if isinstance(self.data, bytes):
            yield self.data
            return
        with self.data.open("rb") as file:
            while block := file.read(size):
                yield block


class Tree:
    """Files to be. Parent folders come by themselves; of a path the first wins. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self.kind = ""
        """What the files that are added next are for."""
        self.sizes: Counter[str] = Counter()
        """Bytes of all files, by kind."""

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, path: str) -> bool:
        return path.strip("/") in self._entries

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes.values())

    def _add(self, entry: Entry) -> int:
        path = entry.path.strip("/")
        parent = path.rpartition("/")[0]
        if parent:
            self.folder(parent)
        if path in self._entries:
            return 0
        self._entries[path] = Entry(path, entry.mode, entry.data, entry.device)
        return entry.size if stat.S_ISREG(entry.mode) else 0

    def first(self, paths: Iterable[str]) -> None:
        """Has these files, with their parent folders, written before all others."""
        order: dict[str, Entry] = {}
        for path in paths:
            parts = path.strip("/").split("/")
            for i in range(len(parts)):
                name = "/".join(parts[: i + 1])
                order[name] = self._entries[name]
        self._entries = {**order, **self._entries}

    def folder(self, path: str, mode: int = 0o755) -> None:
        """Adds a folder."""
        self._add(Entry(path, stat.S_IFDIR | mode))

    def file(self, path: str, data: bytes | Path, mode: int = 0o644) -> int:
        """Adds a file with these contents, or those of a file; the bytes that adds, 0 where there is one."""
        size = self._add(Entry(path, stat.S_IFREG | mode, data))
        self.sizes[self.kind] += size
        return size

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link."""
        self._add(Entry(path, stat.S_IFLNK | 0o777, os.fsencode(target)))

    def device(self, path: str, major: int, minor: int) -> None:
        """Adds a character device node."""
        self._add(Entry(path, stat.S_IFCHR | 0o600, device=(major, minor)))

    def copy(self, source: Path, path: str) -> int:
        """Adds a host file (what it points to, for a link) under `path`, with its mode; the bytes added."""
        return self.file(path, source, source.stat().st_mode & 0o777)

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
