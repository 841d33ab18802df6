"""The files that the probes of pyxrt_probes.py work on: xclbins and instruction streams of our own."""

from __future__ import annotations

from pathlib import Path

from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.emu.xclbins import xclbin_bytes
from amdxdna.xclbin import writer

BYTES = 4096


def write(folder: Path) -> None:
    """Writes them all."""
    files = {
        "copy.xclbin": xclbin_bytes("copy"),
        "two.xclbin": writer.build(
            [writer.PdiSpec(pdi(Family.COPY), (0x901, 0x902))],
            [writer.KernelSpec("FIRST", 0x901, "a"), writer.KernelSpec("SECOND", 0x902, "b")]),
        "copy.bin": stream.copy(BYTES, 1),
        "fail.bin": stream.fail(0x3000002),
        "slow.bin": stream.program([stream.Delay(300_000), stream.Copy(BYTES, 1)]),
        "hang.bin": stream.hang(),
        "bad.xclbin": b"no xclbin",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
