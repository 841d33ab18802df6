"""An initramfs that runs this project on the kernel's driver: a minimal Python root and nothing else.

In it are the running interpreter with its standard library, the run-time dependencies, the two packages of
this checkout and a bundle; no compiler, no package manager, no XRT. `python -m tests.vm.image OUT` writes one
that ends in a shell, and prints what it weighs and how to boot it in QEMU.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amdxdna.emu.pci import qemu

from . import debs
from .guest import base_archive
from .initramfs import Initramfs
from .python_root import HOME, LOADER, Loaded, PythonRoot, compiled, loaded_by

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("amdxdna", "qwen35")
#: Beside what the main job loads: the other picture formats, and what other commands use.
IMPORTED = ["PIL.JpegImagePlugin", "PIL.WebPImagePlugin", "PIL.GifImagePlugin", "PIL.BmpImagePlugin",
            "amdxdna.emu._kernels", "ctypes", "zlib", "bz2", "lzma"]
#: The main job, with text and with a picture: what of numpy, Pillow and tokenizers it loads goes in.
RUNS = [["--prompt", "What is a whale?", "--device", "emu"],
        ["--prompt", "What?", "--image", str(CHECKOUT / "qwen35/data/sample.png"), "--device", "emu"]]
BUNDLE = "bundle"

_STDLIB_LEFT_OUT = {
    "test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "distutils", "pydoc_data", "venv",
    "site-packages", "__pycache__", "curses", "dbm", "sqlite3", "wsgiref", "xmlrpc", "unittest", "turtle.py",
    "this.py", "antigravity.py"}
_LEFT_OUT = {"tests", "testing", "__pycache__", "include", "f2py", "distutils", "csrc", "train", "_examples"}
_EXTENSIONS_LEFT_OUT = (
    "_test", "_ctypes_test", "xxlimited", "_tkinter", "_sqlite3", "_dbm", "_gdbm", "_curses", "readline",
    "nis", "audioop", "ossaudiodev", "_xxtestfuzz", "_crypt", "_codecs_")
_SUFFIXES_LEFT_OUT = (".pyi", ".pxd", ".h", ".a", ".pyc")


@dataclass(frozen=True)
class Sizes:
    """Bytes in the image, by what they are for."""

    python: int
    dependencies: int
    ours: int
    bundle: int
    machine: int
    """Kernel modules and busybox, which a system that already runs would have."""

    def lines(self) -> Iterator[str]:
        """One line a part, in MiB, and the sum."""
        for name in ("python", "dependencies", "ours", "bundle", "machine"):
            yield f"{name:<14}{getattr(self, name) / (1 << 20):8.1f} MiB"
        total = self.python + self.dependencies + self.ours + self.bundle + self.machine
        yield f"{'all':<14}{total / (1 << 20):8.1f} MiB"


class ImageWriter:
    """Adds trees to an archive with compiled modules and a stripped interpreter, counting bytes by kind."""

    def __init__(self, archive: Initramfs, scratch: Path) -> None:
        self._archive = archive
        self._scratch = scratch
        self._strip = shutil.which("strip")
        self.bytes = dict.fromkeys(("python", "dependencies", "ours", "bundle"), 0)

    def add(self, kind: str, source: Path, target: str) -> None:
        """One file: a module goes in compiled, the interpreter's binaries stripped, the rest as it is."""
        if source.suffix == ".py":
            target, data, mode = target + "c", compiled(source), 0o644
        elif ".so" in source.name or os.access(source, os.X_OK):
            # What wheels bring along was edited after linking, and strip would break it.
            data, mode = self._stripped(source) if kind == "python" else source.read_bytes(), 0o755
        else:
            data, mode = source.read_bytes(), 0o644
        self.bytes[kind] += self._archive.file(target, data, mode)

    def _stripped(self, source: Path) -> bytes:
        if self._strip and source.read_bytes()[:4] == b"\x7fELF":
            copy = self._scratch / "stripped"
            done = subprocess.run([self._strip, "--strip-unneeded", "-o", copy, source], capture_output=True)
            if done.returncode == 0:
                return copy.read_bytes()
        return source.read_bytes()

    def tree(self, kind: str, source: Path, target: str, left_out: set[str]) -> None:
        """A folder's modules, extensions and data, without stubs, headers and what `left_out` names."""
        for path in sorted(source.rglob("*")):
            parts = path.relative_to(source).parts
            if left_out & set(parts) or not path.is_file() or path.suffix in _SUFFIXES_LEFT_OUT:
                continue
            # The built-in model is data of the package.
            self.add("bundle" if parts[0] == "data" else kind, path, f"{target}/{'/'.join(parts)}")


def _stdlib_wanted(root: PythonRoot, writer: ImageWriter) -> None:
    stdlib = root.host_stdlib
    for path in sorted(stdlib.iterdir()):
        if path.name in _STDLIB_LEFT_OUT or path.name.startswith("config-"):
            continue
        if path.name == "lib-dynload":
            for extension in sorted(path.glob("*.so")):
                if not extension.name.startswith(_EXTENSIONS_LEFT_OUT):
                    writer.add("python", extension, f"{root.stdlib}/lib-dynload/{extension.name}")
        elif path.is_dir():
            writer.tree("python", path, f"{root.stdlib}/{path.name}", _STDLIB_LEFT_OUT)
        elif path.suffix == ".py":
            writer.add("python", path, f"{root.stdlib}/{path.name}")


def add_python(archive: Initramfs, folder: Path, bundle: Path | None) -> dict[str, int]:
    """Interpreter, standard library, dependencies, packages and bundle; bytes by kind.

    Raises CalledProcessError where the main job does not run here.
    """
    root = PythonRoot(archive)
    writer = ImageWriter(archive, folder)
    executable = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    writer.add("python", executable, f"{HOME}/bin/python3")
    writer.add("python", Path("/", LOADER).resolve(), LOADER)
    _stdlib_wanted(root, writer)
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        writer.tree("ours", Path(spec.origin).parent, f"{root.site}/{name}", _LEFT_OUT)
    loaded: Loaded = loaded_by(IMPORTED, CHECKOUT, RUNS)
    for path in loaded.files.values():
        # By the package's folder alone: an environment may lie in the checkout.
        if (target := root.site_target(path)) is not None:
            writer.add("dependencies", path, target)
    for path in loaded.libraries:
        if (target := root.library_target(path)) is not None:
            kind = "python" if target.startswith("lib/") else "dependencies"
            writer.add(kind, Path(os.path.realpath(path)), target)
    if bundle is not None:
        for path in sorted(bundle.rglob("*")):
            if path.is_file():
                writer.bytes["bundle"] += archive.copy(path, f"{BUNDLE}/{path.relative_to(bundle)}")
    return writer.bytes


def build(rig: debs.Rig, main: str, bundle: Path | None, extra: list[str] | None = None,
          pasid: bool = False) -> tuple[bytes, Sizes]:
    """The image, whose /init ends in the shell lines `main`; `extra` modules of the checkout go to /app."""
    archive = base_archive(rig, main, pasid)
    machine = archive.bytes
    with tempfile.TemporaryDirectory() as folder:
        kinds = add_python(archive, Path(folder), bundle)
    if extra:
        root = PythonRoot(archive)
        for path in loaded_by(extra, CHECKOUT).files.values():
            # What the tests need of a dependency beyond the main job goes with them.
            if path.is_relative_to(CHECKOUT / "tests") or root.site_target(path) is not None:
                root.module(path, CHECKOUT)
    return archive.done(), Sizes(machine=machine, **kinds)


_SHELL = f"""export PYTHONHOME={HOME}
cd /root
setsid sh -c 'exec sh </dev/ttyS0 >/dev/ttyS0 2>&1'"""


def main(argv: list[str] | None = None) -> int:
    """Writes an image with a shell; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.image", allow_abbrev=False, description=__doc__)
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--bundle", type=Path, help="directory of a bundle to put in as /bundle")
    options = parser.parse_args(argv)
    if options.bundle is not None and not options.bundle.is_dir():
        print(f"image: {options.bundle}: no such directory", file=sys.stderr)
        return 1
    try:
        rig = debs.prepare()
        data, sizes = build(rig, _SHELL, options.bundle)
    except (debs.Unavailable, subprocess.CalledProcessError) as reason:
        print(f"image: {reason}", file=sys.stderr)
        return 1
    options.out.write_bytes(data)
    print("\n".join(sizes.lines()))
    print("boot it with an NPU that `python -m amdxdna emulate --vfio-user npu.sock` serves:")
    arguments = shlex.join(qemu.arguments("npu.sock", memory="2G"))
    print(f"qemu-system-x86_64 {arguments} -nographic -kernel {rig.vmlinuz} -initrd {options.out}"
          f" -append '{' '.join(('console=ttyS0 quiet', *qemu.KERNEL_ARGUMENTS))}'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
