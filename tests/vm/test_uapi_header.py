"""Our header of the interface against the header of the kernel that the guest runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.uapi_checks import c_checks

from . import debs


@pytest.mark.parametrize(("wrong", "word"), [(False, ""), (True, "CREATE_BO")])
def test_header(wrong: bool, word: str, rig: debs.Rig, tmp_path: Path) -> None:
    """Every constant, size and offset is the kernel's; a number that is not would be noticed."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "check.c"
    checks = c_checks()
    source.write_text(checks.replace("0xc0206443ull", "0xc0206444ull", 1) if wrong else checks)
    include = rig.uapi_header.parents[1]
    done = subprocess.run(
        [compiler, "-std=gnu11", "-fsyntax-only", "-I", str(include), str(source)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode != 0) == wrong, done.stderr
    assert word in done.stderr
