"""Seeded nonsense from a program at the process that emulates the device for it: calls, paths and mappings.

Short here; AMDXDNA_FUZZ_CALLS=N makes N calls a seed, AMDXDNA_FUZZ_SEEDS=FIRST:LAST takes other seeds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.emulation import NODE, c_program, device_programs, emulate

CALLS = int(os.environ.get("AMDXDNA_FUZZ_CALLS", "3000"))
FIRST, LAST = map(int, os.environ.get("AMDXDNA_FUZZ_SEEDS", "1:6").split(":"))
MOST_MIB = 1024
LONGEST = 2.0
"""Seconds that a call may take: what a hung command may hold a context's end up (aie2_hwctx_fini)."""


@pytest.mark.parametrize("seed", range(FIRST, LAST + 1))
def test_nonsense_is_answered(tmp_path: Path, seed: int) -> None:
    """No crash, no exception but the driver's errno, no hang, bounded memory; then the device works."""
    blob, code = device_programs(tmp_path)
    options = f"address={('pasid', 'iova')[seed % 2]},tdr=0.2"
    ended = emulate(
        str(c_program(name="fuzz")),
        NODE,
        str(blob),
        str(code),
        str(seed),
        str(CALLS),
        options=options,
        seconds=120 + CALLS / 100,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    told = re.fullmatch(r"works, (\d+) MiB, slowest ([\d.]+) s\n", ended.stdout)
    assert told, ended.stdout
    assert int(told[1]) < MOST_MIB
    # A wait for the processor on a busy machine is no hang, and takes no thirty times as long.
    assert float(told[2]) < 30 * LONGEST
