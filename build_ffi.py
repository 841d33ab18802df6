"""Builds the C extensions with cffi (API mode, out of line, one abi3 binary each).

Run as a script it rebuilds them in place (`python build_ffi.py`); setuptools uses :class:`BuildExt`
through pyproject.toml. Each extension is declared by one entry of :data:`MODULES`: what Python sees
(`cdef`), and the C that is compiled. Functions that need more than baseline x86-64 carry their own
`target` attribute and are chosen at run time, so no file needs special flags.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from cffi import FFI
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# Py_LIMITED_API's lowest supported Python, 3.10, as in pyproject's bdist_wheel tag.
LIMITED_API = "0x030A0000"


class Module(NamedTuple):
    """One extension: dotted name, cdef files, header included by the glue, C sources (all repo-relative)."""

    name: str
    cdef: tuple[str, ...]
    include: tuple[str, ...]
    sources: tuple[str, ...]


def _c_files(folder: str) -> tuple[str, ...]:
    return tuple(sorted(str(p.relative_to(ROOT)) for p in (ROOT / folder).glob("*.c")))


MODULES = (
    Module("amdxdna._native",
           ("amdxdna/csrc/uapi.h", "amdxdna/csrc/native.cdef.h", "amdxdna/csrc/process.cdef.h"),
           ("amdxdna/csrc/native.h", "amdxdna/csrc/process.h"), _c_files("amdxdna/csrc")),
    Module("amdxdna.emu._kernels", ("amdxdna/emu/csrc/kernels.cdef.h",),
           ("amdxdna/emu/csrc/kernels.h",), _c_files("amdxdna/emu/csrc")),
    Module("qwen35._host", ("qwen35/csrc/host.cdef.h", "qwen35/csrc/formats.cdef.h", "qwen35/csrc/resize.cdef.h", "qwen35/csrc/host_vision.cdef.h"),
           ("qwen35/csrc/host.h", "qwen35/csrc/formats.h", "qwen35/csrc/resize.h", "qwen35/csrc/host_vision.h"), _c_files("qwen35/csrc")),
)


def emit(module: Module, folder: Path) -> Path:
    """Writes the module's cffi glue into `folder` (only when it changed) and returns its path."""
    ffi = FFI()
    for path in module.cdef:
        ffi.cdef((ROOT / path).read_text(encoding="ascii"))
    ffi.set_source(module.name, "".join(f'#include "{Path(p).name}"\n' for p in module.include),
                   py_limited_api=True)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{module.name}.c"
    ffi.emit_c_code(str(target))
    return target


class BuildExt(build_ext):
    """setuptools' build_ext over :data:`MODULES`."""

    def finalize_options(self) -> None:
        super().finalize_options()
        by_name = {ext.name: ext for ext in self.extensions}
        folder = ROOT / "build" / "ffi"
        for module in MODULES:
            ext = by_name[module.name]
            glue = emit(module, folder)
            ext.sources = [os.path.relpath(glue, ROOT), *module.sources]
            ext.depends = [str(p.relative_to(ROOT))
                           for p in (ROOT / module.include[0]).parent.glob("*.[hc]*")]
            ext.include_dirs = [str((ROOT / module.include[0]).parent.relative_to(ROOT)),
                                "amdxdna/csrc"]
            ext.define_macros = [("Py_LIMITED_API", LIMITED_API), ("_GNU_SOURCE", None)]
            ext.extra_compile_args = ["-O3", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter",
                                      "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
            ext.extra_link_args = ["-pthread"]
            ext.libraries = ["m"]
            ext.py_limited_api = True


def build_in_place() -> None:
    """Compiles every extension beside its package, for a checkout that is used without installing.

    Safe to call from several processes at once: a lock file serialises them.
    """
    from setuptools import setup

    os.chdir(ROOT)
    (ROOT / "build").mkdir(exist_ok=True)
    lock = open(ROOT / "build" / "lock", "w")  # noqa: SIM115 -- held until exit
    fcntl.flock(lock, fcntl.LOCK_EX)
    setup(script_args=["-q", "build_ext", "--inplace"])


if __name__ == "__main__":
    build_in_place()
