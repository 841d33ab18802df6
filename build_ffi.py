"""Builds the C extensions with cffi (API mode, out of line, one abi3 binary each).

Run as a script it rebuilds them in place (`python build_ffi.py`); setuptools uses :class:`BuildExt`
through pyproject.toml. Each extension is one entry of :data:`MODULES`. Functions that need more than baseline
x86-64 carry their own `target` attribute and are chosen at run time, so no file needs special flags.

AMDXDNA_SANITIZE=address,undefined builds them with gcc's sanitizers instead, below build/sanitized, for
tests/test_sanitizers.py.
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
SANITIZE = os.environ.get("AMDXDNA_SANITIZE", "")
SANITIZED = ROOT / "build" / "sanitized"


class Module(NamedTuple):
    """One extension: its dotted name, the folder of its C, and its parts.

    A part X is declared to Python by X.cdef.h and to C by X.h; `shared` headers are read by both as they are.
    """

    name: str
    folder: str
    parts: tuple[str, ...]
    shared: tuple[str, ...] = ()

    def paths(self, pattern: str) -> list[str]:
        """The folder's files of a pattern, relative to the repository, in order."""
        return sorted(str(p.relative_to(ROOT)) for p in (ROOT / self.folder).glob(pattern))


MODULES = (
    Module("amdxdna._native", "amdxdna/csrc", ("native", "process"), ("uapi",)),
    Module("amdxdna.emu._kernels", "amdxdna/emu/csrc", ("kernels",)),
    Module("qwen35._host", "qwen35/csrc", ("host", "host_vision", "formats", "resize")),
    Module("qwen35.rootfs._blas", "qwen35/rootfs/csrc", ("blas",)),
)


def emit(module: Module, folder: Path) -> Path:
    """Writes the module's cffi glue into `folder` (only when it changed) and returns its path."""
    ffi = FFI()
    for name in (*(f"{part}.h" for part in module.shared), *(f"{part}.cdef.h" for part in module.parts)):
        ffi.cdef((ROOT / module.folder / name).read_text(encoding="ascii"))
    ffi.set_source(
        module.name, "".join(f'#include "{part}.h"\n' for part in module.parts), py_limited_api=True
    )
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
            ext.sources = [os.path.relpath(glue, ROOT), *module.paths("*.c")]
            ext.depends = module.paths("*.[hc]")
            ext.include_dirs = [module.folder]
            ext.define_macros = [("Py_LIMITED_API", LIMITED_API), ("_GNU_SOURCE", None)]
            ext.extra_compile_args = [
                "-O3",
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                "-ffp-contract=off",
                "-fvisibility=hidden",
                "-pthread",
            ]
            ext.extra_link_args = ["-pthread", "-Wl,-s"]
            if SANITIZE:
                ext.extra_compile_args += [
                    f"-fsanitize={SANITIZE}",
                    "-fno-sanitize-recover=all",
                    "-O1",
                    "-g",
                    "-fno-omit-frame-pointer",
                ]
                ext.extra_link_args = ["-pthread", f"-fsanitize={SANITIZE}"]
            ext.libraries = ["m"]
            ext.py_limited_api = True


def build_in_place() -> None:
    """Compiles every extension beside its package, for a checkout that is used without installing; with
    AMDXDNA_SANITIZE below build/sanitized.

    Safe to call from several processes at once: a lock file serialises them.
    """
    from setuptools import setup

    os.chdir(ROOT)
    (ROOT / "build").mkdir(exist_ok=True)
    lock = open(ROOT / "build" / "lock", "w")  # noqa: SIM115 -- held until exit
    fcntl.flock(lock, fcntl.LOCK_EX)
    where = (
        ["--build-lib", str(SANITIZED), "--build-temp", str(ROOT / "build" / "sanitized-objects")]
        if SANITIZE
        else ["--inplace"]
    )
    setup(script_args=["-q", "build_ext", *where])


if __name__ == "__main__":
    build_in_place()
