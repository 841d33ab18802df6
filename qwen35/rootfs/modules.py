"""A kernel module and what it depends on, in the order in which they can be loaded."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from amdxdna.elf.sections import Elf
from amdxdna.errors import BadElf
from qwen35.errors import QwenError

__all__ = ["module_dependencies", "modules_in_order"]


def module_dependencies(image: bytes) -> list[str]:
    """The modules a kernel module needs, from its .modinfo section, `-` written `_`. Raises BadElf."""
    info = Elf(image).named(".modinfo")
    for item in info.data.split(b"\0") if info is not None else ():
        key, _, value = item.decode().partition("=")
        if key == "depends":
            return [name.replace("-", "_") for name in value.split(",") if name]
    return []


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        if shutil.which("zstd") is None:
            raise QwenError(
                "a module compressed with zstd, and no zstd on this machine", str(path), "install zstd"
            )
        return subprocess.run(["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return data


def modules_in_order(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """A module and what it depends on, in the order in which they can be loaded: (file's name, contents).

    Those compressed with xz or gzip stay so, since busybox's insmod reads them; those with zstd do not.

    What is not a file below `folder` is taken to be built into the kernel. Raises QwenError for a file that
    is no kernel module.
    """
    files = {path.name.split(".ko")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}
    seen: set[str] = set()

    def visit(module: str) -> Iterator[tuple[str, bytes]]:
        if module in seen or module not in files:
            return
        seen.add(module)
        try:
            image = _plain(files[module])
            needs = module_dependencies(image)
        except (
            BadElf,
            ValueError,
            EOFError,
            lzma.LZMAError,
            gzip.BadGzipFile,
            subprocess.CalledProcessError,
        ):
            raise QwenError("not a kernel module", str(files[module])) from None
        for needed in needs:
            yield from visit(needed)
        packed = files[module].suffix in (".xz", ".gz")
        yield (files[module].name, files[module].read_bytes()) if packed else (f"{module}.ko", image)

    yield from visit(name)
