"""Programs of the user's: what is read from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from amdxdna.emu.kernels import stream
from amdxdna.errors import BadArgument
from amdxdna.selftest.program import Program
from amdxdna.xclbin import writer
from tests.support.binding import COPY

MOST = 64 << 20


@pytest.fixture
def xclbin(tmp_path: Path) -> str:
    path = tmp_path / "copy.xclbin"
    path.write_bytes(writer.build([writer.PdiSpec(COPY)]))
    return str(path)


def test_a_program(tmp_path: Path, xclbin: str) -> None:
    insts = tmp_path / "copy.insts"
    insts.write_bytes(stream.copy(64, 1))
    found = Program.read(xclbin, str(insts), "4k,1m")
    assert (found.insts, found.sizes) == (stream.copy(64, 1), (4096, 1 << 20))


def test_what_is_too_large_for_instructions_is_not_read(tmp_path: Path, xclbin: str) -> None:
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(MOST + 4)
    with pytest.raises(BadArgument, match=r"huge is over 64 MiB"):
        Program.read(xclbin, str(path), "4096")
    with open(path, "r+b") as file:
        file.truncate(MOST)
    assert len(Program.read(xclbin, str(path), "4096").insts) == MOST
