"""The files that the probes of pyxrt_probes.py work on: xclbins and instruction streams of our own."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.emu.xclbins import xclbin_bytes
from amdxdna.xclbin import writer
from tests.support import control_code
from tests.support.control_code import Stream, carrier

BYTES = 4096
PDIS = {1: pdi(Family.COPY)}
PACKETS = struct.pack("<16I", 1, 2, 3, 0, 0xABCD0000, *range(5, 16))
ADDEND = 20
"""The byte of a COPY stream that has what it adds."""
PATCHED = {1: [12]}
"""Of the control packets, where the second argument's address is."""


class Elf(NamedTuple):
    """What an ELF file is made of: kernels of a full one, or else the one stream."""

    kernels: dict[str, tuple[int, dict[str, Stream]]]
    notes: dict[str, str]
    """aiebu-asm's JSON of a stream's external buffers, by KERNEL:INSTANCE; "" for the one stream."""


def _elfs() -> dict[str, Elf]:
    def full(program: bytes, **more: object) -> Stream:
        return carrier(program, full=True, pdi=1, **more)  # type: ignore[arg-type]

    def one(stream: Stream, arguments: int = 2) -> Elf:
        return Elf({"main": (arguments, {"seq": stream})}, {})

    copy, note = stream.copy(BYTES, 1), control_code.external_buffers(2, PACKETS, PATCHED)
    packets = full(copy, packets=PACKETS)
    # aiebu-asm counts such arguments as an xclbin's kernel does, also in a full file.
    packets.places.append(("1", ".ctrldata", 4, control_code.PACKET, 0, 0))
    return {
        "part": Elf({"": (2, {"": carrier(copy, offsets=(0, 4))})}, {}),
        "pre": Elf({"": (2, {"": _preemptible()})}, {}),
        "full": one(full(copy, offsets=(4, 8))),
        "scratch": one(
            full(
                stream.copy(BYTES, 0),
                scratchpad=256,
                updates=(
                    # The first parameter moves the input, the second is added: an entry times a number.
                    (0, 4, control_code.DESCRIPTORS + 4),
                    (1, 1, control_code.CORE + ADDEND),
                ),
            )
        ),
        "packets": Elf({"main": (2, {"seq": packets})}, {"main:seq": note}),
        "whole": one(_preemptible(full=True, pdi=1, scratchpad=256)),
        "many": one(full(copy, buffers=8), 8),
        "fail": one(full(stream.fail(0x3000002))),
        "slow": one(full(stream.program([stream.Delay(300_000), stream.Copy(BYTES, 1)]))),
        "two": Elf(
            {
                "main": (2, {"seq": full(copy), "turn": full(stream.copy(BYTES, 9))}),
                "more": (2, {"seq": full(stream.copy(BYTES, 5))}),
            },
            {},
        ),
        "other": Elf({"other": (2, {"seq": full(stream.copy(BYTES, 7))})}, {}),
    }


def _preemptible(**more: Any) -> Stream:
    found = carrier(stream.copy(BYTES, 1), preempt=True, save=bytes(64), restore=bytes(64), **more)
    found.places += [
        ("scratch-pad-mem", part, 8, control_code.SHIM, 0x40000, 4 << 20)
        for part in (".preempt_save", ".preempt_restore")
    ]
    return found


def elf_files() -> dict[str, bytes]:
    """Their bytes, as aiebu-asm would make them."""
    return {
        name: control_code.partial(made.kernels[""][1][""])
        if "" in made.kernels
        else control_code.full(made.kernels, PDIS)
        for name, made in _elfs().items()
    }


def write_elfs(folder: Path, assemble: Callable[[str, Path, Path], None] | None = None) -> None:
    """Writes the ELF files: by `assemble` (target, input, output), or as it would."""
    ready = elf_files() if assemble is None else {}
    for name, made in _elfs().items():
        to = folder / f"{name}.elf"
        if assemble is None:
            to.write_bytes(ready[name])
        elif "" in made.kernels:
            (folder / f"{name}.txn").write_bytes(made.kernels[""][1][""].code)
            assemble("aie2txn", folder / f"{name}.txn", to)
        else:
            inputs = folder / name
            inputs.mkdir()
            assemble("aie2_config", control_code.configuration(inputs, made.kernels, PDIS, made.notes), to)
    (folder / "ve2.elf").write_bytes(control_code.partial(carrier(stream.copy(BYTES)), os_abi=0x7F))


def write(folder: Path) -> None:
    """Writes them all."""
    files = {
        "copy.xclbin": xclbin_bytes("copy"),
        "two.xclbin": writer.build(
            [writer.PdiSpec(pdi(Family.COPY), (0x901, 0x902))],
            [writer.KernelSpec("FIRST", 0x901, "a"), writer.KernelSpec("SECOND", 0x902, "b")],
        ),
        "copy.bin": stream.copy(BYTES, 1),
        "fail.bin": stream.fail(0x3000002),
        "slow.bin": stream.program([stream.Delay(300_000), stream.Copy(BYTES, 1)]),
        "hang.bin": stream.hang(),
        "bad.xclbin": b"no xclbin",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
