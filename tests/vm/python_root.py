"""A minimal Python root for the guest: the running interpreter and just the modules something imports.

The interpreter, its standard library and its shared libraries are copied from this process's own, so the
guest runs what the host runs. What is needed is found by importing it in a child process and looking at
what that loaded. Pure Python of the standard library goes in compiled, without its source.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .initramfs import Initramfs

HOME = "/usr"
APP = "app"
LOADER = "lib64/ld-linux-x86-64.so.2"

_SHT_DYNAMIC = 6
_DT_SONAME = 14

_PROBE = """
import contextlib, io, json, os, sys
sys.path.insert(0, os.getcwd())
for name in sys.argv[2:]:
    __import__(name)
for words in json.loads(sys.argv[1]):
    from qwen35.cli import main
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = main(words)
    assert status == 0, (words, status)
files = {}
for name, module in sorted(sys.modules.items()):
    path = getattr(module, '__file__', None)
    if path and name != '__main__':
        files[name] = os.path.realpath(path) if path.endswith('.py') else path
with open('/proc/self/maps') as maps:
    libraries = {line.split(None, 5)[5].strip() for line in maps if '.so' in line}
print(json.dumps({'files': files, 'libraries': sorted(libraries)}))
"""


@dataclass(frozen=True)
class Loaded:
    """What importing some modules loads: module name -> file, and shared objects mapped into the process."""

    files: dict[str, Path]
    libraries: list[Path]


def loaded_by(modules: list[str], folder: Path, runs: Sequence[list[str]] = ()) -> Loaded:
    """Imports `modules` in a child process with `folder` first on its path, then runs `qwen35` with each of
    `runs`. Raises CalledProcessError."""
    done = subprocess.run([sys.executable, "-B", "-c", _PROBE, json.dumps(runs), *modules], cwd=folder,
                          check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    record = json.loads(done.stdout)
    return Loaded({name: Path(path) for name, path in record["files"].items()},
                  [Path(path) for path in record["libraries"]])


def compiled(source: Path) -> bytes:
    """A module's .pyc, unchecked against its source: from the interpreter's cache, else compiled here."""
    cached = Path(importlib.util.cache_from_source(str(source)))
    if cached.exists():
        return cached.read_bytes()
    code = compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, 0, 0) + marshal.dumps(code)


def shared_object_name(path: Path) -> str:
    """The name by which others ask for a shared object (ELF64's DT_SONAME), or nothing."""
    image = path.read_bytes()
    table, = struct.unpack_from("<Q", image, 0x28)
    count, = struct.unpack_from("<H", image, 0x3C)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + 64 * i) for i in range(count)]
    for kind, offset, size, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != _SHT_DYNAMIC:
            continue
        for at in range(offset, offset + size, 16):
            tag, value = struct.unpack_from("<qQ", image, at)
            if tag == _DT_SONAME:
                start = sections[link][4] + value
                return image[start:image.index(b"\0", start)].decode()
    return ""


class PythonRoot:
    """Puts the interpreter and modules into an initramfs, and counts bytes by kind in `sizes`."""

    def __init__(self, archive: Initramfs) -> None:
        self._archive = archive
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.stdlib = f"{HOME}/lib/{version}"
        self.site = f"{self.stdlib}/site-packages"
        self.host_stdlib = Path(os.path.realpath(sysconfig.get_path("stdlib")))
        # Also where a .pth file of the environment points.
        sites = [sysconfig.get_path(key) for key in ("purelib", "platlib")]
        sites += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        self._host_sites = [Path(os.path.realpath(path)) for path in sites]
        self.sizes = {"python": 0, "dependencies": 0, "ours": 0}

    def interpreter(self) -> None:
        """The executable, as /usr/bin/python3, and the dynamic loader."""
        executable = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
        self._put("python", executable, f"{HOME}/bin/python3")
        self._put("python", Path("/", LOADER).resolve(), LOADER)

    def modules(self, loaded: Loaded, own: Path) -> None:
        """Everything `loaded`: what lies below the checkout `own` goes to /app with its source."""
        for path in loaded.files.values():
            self.module(path, own)
        for path in loaded.libraries:
            self.library(path)

    def module(self, path: Path, own: Path) -> None:
        """One module's file, to its place in the guest."""
        real = Path(os.path.realpath(path))
        if (target := self.site_target(real)) is not None:
            self._module_at("dependencies", real, target)
            return
        if real.is_relative_to(own):  # after the packages: an environment may lie in the checkout
            self._put("ours", real, f"{APP}/{real.relative_to(own)}")
            return
        if real.is_relative_to(self.host_stdlib):
            self._module_at("python", real, f"{self.stdlib}/{real.relative_to(self.host_stdlib)}")

    def site_target(self, path: Path) -> str | None:
        """Where a file of an installed package goes; None for what is of none."""
        real = Path(os.path.realpath(path))
        for site in self._host_sites:
            if real.is_relative_to(site):
                return f"{self.site}/{real.relative_to(site)}"
        return None

    def library(self, path: Path) -> None:
        """One shared object."""
        target = self.library_target(path)
        if target is not None:
            kind = "python" if target.startswith("lib/") else "dependencies"
            self._put(kind, Path(os.path.realpath(path)), target)

    def library_target(self, path: Path) -> str | None:
        """Where a shared object goes: beside the package that brought it, or to /lib for the system's.

        None for what is no library of its own: extension modules, and the loader.
        """
        real = Path(os.path.realpath(path))
        if (target := self.site_target(real)) is not None:
            return target
        if real.is_relative_to(self.host_stdlib) or "abi3" in path.name or path.name.startswith("ld-linux"):
            return None
        return f"lib/{shared_object_name(real) or path.name}"

    def _module_at(self, kind: str, path: Path, target: str) -> None:
        if path.suffix == ".py":
            self.sizes[kind] += self._archive.file(target + "c", compiled(path))
        else:
            self._put(kind, path, target)

    def _put(self, kind: str, path: Path, target: str) -> None:
        self.sizes[kind] += self._archive.copy(path, target)
