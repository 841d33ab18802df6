"""Writes a tree: as a newc archive for the kernel (initramfs), as a tar, into a folder or as a squashfs."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from amdxdna.output import whole_file
from qwen35.errors import QwenError, UsageError
from qwen35.rootfs.tree import Tree

__all__ = ["COMPRESSORS", "newc", "write_folder", "write_initramfs", "write_squashfs"]

# newc's numbers are eight hexadecimal digits; names and data are padded to four bytes
# (Documentation/driver-api/early-userspace/buffer-format.rst).
_MAGIC = "070701"
_LARGEST = 0xFFFFFFFF
#: zstd's level: at 19 the image is 2% smaller and takes four times as long to write.
_ZSTD_LEVEL = 15
COMPRESSORS = ("zstd", "gzip", "none")


def newc(tree: Tree) -> Iterator[bytes]:
    """The archive's blocks, trailer included. Raises OSError, and QwenError for a file too large for it."""

    def head(path: str, mode: int, size: int, device: tuple[int, int], number: int) -> bytes:
        name = os.fsencode(path) + b"\0"
        fields = (number, mode, 0, 0, 1, 0, size, 0, 0, *device, len(name), 0)
        header = (_MAGIC + "".join(f"{field:08X}" for field in fields)).encode() + name
        return header + bytes(-len(header) % 4)

    number = 0
    for number, entry in enumerate(tree, 1):
        size = entry.size
        if size > _LARGEST:
            raise QwenError(
                f"a file of {size:,} bytes, and an initramfs holds none of 4 GiB or more",
                entry.path,
                "write a --squashfs or a --dir",
            )
        yield head(entry.path, entry.mode, size, entry.device, number)
        written = 0
        for block in entry.blocks():
            written += len(block)
            yield block
        if written != size:
            raise QwenError("the file changed while it was read", str(entry.data))
        yield bytes(-size % 4)
    # Archives follow one another at 4-byte boundaries.
    yield head("TRAILER!!!", 0, 0, (0, 0), number + 1)


def write_initramfs(tree: Tree, out: Path, compress: str) -> None:
    """Writes the archive to a file, whole or not at all. Raises OSError, QwenError."""
    with whole_file(out) as file:
        if compress == "gzip":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed:
                for block in newc(tree):
                    packed.write(block)
        elif compress == "zstd":
            _through(
                ["zstd", f"-{_ZSTD_LEVEL}", "-T0", "-q", "-c"],
                file,
                lambda pipe: pipe.writelines(newc(tree)),
                "take --compress gzip, or install zstd",
            )
        else:
            file.writelines(newc(tree))


def _through(command: list[str], out: IO[bytes], write: Callable[[IO[bytes]], object], remedy: str) -> None:
    """Runs a program over what `write` gives it. Raises QwenError where there is no such program."""
    # Without it mksquashfs writes the time of day: the same tree gives the same image.
    environment = {"SOURCE_DATE_EPOCH": "0", **os.environ}
    if shutil.which(command[0]) is None:
        raise UsageError(f"no {command[0]} on this machine", "", remedy)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        try:
            write(process.stdin)
        except BrokenPipeError:
            pass
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # which may hold what nobody reads any more
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        raise QwenError(f"{command[0]} failed", "", said[-1] if said else f"exit status {process.returncode}")


def write_tar(tree: Tree, file: IO[bytes]) -> None:
    """Writes a tar stream."""
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in tree:
            info = tarfile.TarInfo(entry.path)
            info.mode = stat.S_IMODE(entry.mode)
            if stat.S_ISREG(entry.mode):
                info.size = entry.size
                if isinstance(entry.data, Path):
                    with entry.data.open("rb") as source:
                        archive.addfile(info, source)
                else:
                    archive.addfile(info, io.BytesIO(entry.data))
                continue
            if stat.S_ISDIR(entry.mode):
                info.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(entry.mode):
                info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(b"".join(entry.blocks()))
            else:
                info.type = tarfile.CHRTYPE
                info.devmajor, info.devminor = entry.device
            archive.addfile(info)


def write_squashfs(tree: Tree, out: Path, compress: str) -> None:
    """Writes a squashfs with mksquashfs, whole or not at all. Raises OSError, QwenError."""
    with whole_file(out) as file:
        # Only a name can be given to it: that of the unfinished file.
        name = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        command = [
            "mksquashfs",
            "-",
            name,
            "-tar",
            "-noappend",
            "-all-root",
            "-root-mode",
            "0755",
            "-quiet",
            "-no-progress",
            "-comp",
            "gzip" if compress == "gzip" else "zstd",
        ]
        if compress == "none":
            command += ["-noI", "-noD", "-noF", "-noX"]
        with open(os.devnull, "wb") as nowhere:
            _through(command, nowhere, lambda pipe: write_tar(tree, pipe), "install squashfs-tools")


def write_folder(tree: Tree, out: Path) -> None:
    """Writes the files into a new or empty folder, without device nodes. Raises OSError, QwenError."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise QwenError("it is there already, and no empty folder", str(out), "give a new name")
    out.mkdir(parents=True, exist_ok=True)
    for entry in tree:
        target = out / entry.path
        if stat.S_ISDIR(entry.mode):
            target.mkdir(exist_ok=True)
        elif stat.S_ISLNK(entry.mode):
            target.symlink_to(os.fsdecode(b"".join(entry.blocks())))
        elif stat.S_ISREG(entry.mode):
            with target.open("wb") as file:
                file.writelines(entry.blocks())
            target.chmod(stat.S_IMODE(entry.mode))
