"""The real pyxrt of Debian's packages, and one set of programs under both modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from amdxdna.pyxrt import FOLDER
from tests.support import pyxrt_files
from tests.vm import debs

ROOT = Path(__file__).parents[2]
SIDE = ROOT / "tests" / "support" / "pyxrt_side.py"


def debian() -> list[str]:
    """The command line's beginning for a script under XRT's module. Raises Unavailable without an archive."""
    tree = debs.xrt_tree(debs.cache_dir())
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    modules = f"{tree}/usr/lib/python3/dist-packages:{tree}/usr/lib/python3.13/lib-dynload"
    return [
        "env",
        f"LD_LIBRARY_PATH={libraries}",
        f"PYTHONHOME={tree}/usr",
        f"PYTHONPATH={modules}",
        "PYTHONDONTWRITEBYTECODE=1",
        f"{tree}/usr/lib64/ld-linux-x86-64.so.2",
        f"{tree}/usr/bin/python3.13",
    ]


OURS = ["env", f"PYTHONPATH={FOLDER}:{ROOT}", sys.executable]


def apart(module: str, *words: object) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE WORDS`, to its end by 0, without PYTHONPATH: XRT's Python has its own."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        stdin=subprocess.DEVNULL,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended


def times(folder: Path, theirs: list[str], loops: int) -> str:
    """What calls cost in both modules, a line each."""
    pyxrt_files.write(folder)
    pyxrt_files.write_elfs(folder)
    found = []
    for python in (theirs, OURS):
        side = SIDE.with_name("pyxrt_times.py")
        ended = apart("amdxdna", "emulate", "--", *python, side, folder, loops)
        found.append(json.loads(ended.stdout))
    xrt, ours = found
    assert xrt.keys() == ours.keys() and all(value > 0 for each in found for value in each.values())
    return "\n".join(f"{name:20} XRT {xrt[name]:8.2f} us    ours {ours[name]:8.2f} us" for name in xrt)
