"""Processes that get little memory, or whose C code is refused it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.emulation import ROOT

_LIBRARY = """
#include <stdlib.h>
int allowed_allocations = 1 << 30;
void *aligned_alloc(size_t alignment, size_t size)
{
    void *memory;
    if (allowed_allocations-- <= 0)
        return NULL;
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}
"""
_BEFORE = """
import ctypes
allowed = ctypes.c_int.in_dll(ctypes.CDLL(None), "allowed_allocations")
"""


def run(code: str, folder: Path) -> list[str]:
    """Lines that Python code prints where `allowed.value` says how many more scratch allocations succeed."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or "LD_PRELOAD" in os.environ:
        pytest.skip("no C compiler, or another library comes first")
    library = folder / "shortage.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, "-x", "c", "-"],
        input=_LIBRARY,
        text=True,
        check=True,
    )
    ended = subprocess.run(
        [sys.executable, "-c", _BEFORE + code],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def within(nbytes: int, work: Callable[[], object]) -> bool:
    """Whether `work` needs no more than `nbytes` of further address space, in a forked child."""
    child = os.fork()
    if not child:
        code = 1
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, resource.RLIM_INFINITY))
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0
