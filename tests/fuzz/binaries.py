"""Binary files and packets."""

from __future__ import annotations

import json
import random
import struct
from functools import partial
from pathlib import Path
from typing import Any

from amdxdna import insts as instructions
from amdxdna import pdi as images
from amdxdna._native import ffi
from amdxdna.cli import insts as listing
from amdxdna.elf import ControlElf
from amdxdna.emu.kernels import families, stream, transaction
from amdxdna.errors import BadElf, BadXclbin
from amdxdna.pdi import drawing, summary
from amdxdna.trace import fields, packets
from amdxdna.xclbin import Xclbin, metadata
from tests.fuzz import mutate
from tests.fuzz.run import Ready


def _edited(originals: list[bytes], rng: random.Random) -> bytes:
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(400))
    return mutate.binary(rng, rng.choice(originals))


def xclbin(folder: Path) -> Ready:
    """An xclbin file and the metadata in it."""
    from tests.support.xclbins import two_pdis

    def parse(data: bytes) -> None:
        try:
            read = Xclbin.read(data)
            metadata.read(read)
        except BadXclbin as error:
            assert error.offset >= 0 and error.meaning
            raise
        assert sum(len(p.data) for p in read.pdis) <= 2 * len(data)
        assert read.cus and all(cu.pdi < len(read.pdis) for cu in read.cus)

    return Ready(parse, partial(_edited, [two_pdis()]), (BadXclbin,))


def pdi(folder: Path) -> Ready:
    """A PDI image: its commands, the array that they make, its routes, texts and drawing."""
    from tests.support.designs import design
    from tests.support.pdi_builder import build

    def parse(data: bytes) -> None:
        found = summary.summarise(images.read(data))
        summary.lines(found)
        summary.document(found)
        drawing.text(found)
        drawing.svg(found, "x")

    originals = [build(design(), transformed=transformed) for transformed in (False, True)]
    return Ready(parse, partial(_edited, originals), (images.BadPdi,))


def family(folder: Path) -> Ready:
    """The mark by which the emulated NPU knows its own PDIs."""
    originals = [families.pdi(one) for one in families.Family]
    return Ready(families.family_of, partial(_edited, originals), (families.UnknownPdi,))


def _disassembled(data: bytes) -> None:
    """Ops never overlap nor leave their stream, whose sections are never larger than the file."""
    found = instructions.disassemble(data)
    assert sum(one.size for one in found) <= len(data) or not data.startswith(b"\x7fELF")
    for one in found:
        at = 0
        for op in one.ops:
            assert op["offset"] >= at
            at = op["offset"] + op["bytes"]
        assert at <= one.size
        listing.stream_text(one)
        if len(data) < 1 << 16:
            json.dumps(listing.stream_json(one))


def insts(folder: Path) -> Ready:
    """Instruction streams as `insts` shows them: transactions of both versions, text, the emulator's."""
    from tests.support.streams import transaction

    long = transaction(
        (0, 0, 0x1D000, 0, 7, 24),
        (1, 0, 0x1D000, 48, *range(8)),
        (3, 0, 0x32000, 0, 1, 1, 28),
        (0x80, 16, 0x10100, 0x10000),
        (0x81, 48, *range(10)),
        (5,),
        (6,),
        (8, 4, 0, 0),
    )
    short = transaction((0, 0x1D000, 7), (1, 0x1D000, 44, *range(8)), (0x82, 16, 1, 2), version=(1, 0))
    words = struct.unpack(f"<{len(long) // 4}I", long)
    text = "\n".join(f"{word:08x}" for word in words).encode()
    emulated = stream.program([stream.Copy(64, 1), stream.Delay(5), stream.Hang()])

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return mutate.text(rng, text, ["00000001", "0x00000000", "zz", " ", "\r", "1 2"])
        return _edited([long, short, emulated], rng)

    noop = transaction((5,))
    return Ready(
        _disassembled,
        make,
        (),
        (
            lambda: transaction((5,), size=16 + (1 << 20), count=1 << 18) + b"\5\0\0\0" * (1 << 18),
            lambda: noop + bytes(2 << 20),
            lambda: b"\n" * (8 << 20),
            lambda: b"0" * (8 << 20),
            lambda: struct.pack("<3I", stream.MAGIC, 1, 0xFFFFFFFF) + b"\5\0\1\0" * 140_000,
        ),
    )


def elf(folder: Path) -> Ready:
    """Control code in ELF files."""
    from tests.support.streams import elf as build
    from tests.support.streams import transaction

    originals = [
        build(
            wide,
            {".ctrltext.0": transaction((5,)), ".ctrldata": b"1234", ".preempt_save.0": transaction((5,))},
        )
        for wide in (False, True)
    ]

    def far(offset: int) -> bytes:
        data = bytearray(originals[1])
        struct.pack_into("<Q", data, 40, offset)
        return bytes(data)

    return Ready(
        _disassembled,
        partial(_edited, originals),
        (),
        (lambda: far(1 << 63), lambda: far((1 << 64) - 1), lambda: far((1 << 63) - 64)),
    )


def control_code(folder: Path) -> Ready:
    """Control code in ELF files, as it is loaded for a run: kernels, code, places to patch."""
    from tests.support import control_code as files

    program = stream.copy(4096, 1)
    part = files.carrier(program, preempt=True, packets=bytes(64), save=bytes(32), restore=bytes(32))
    part.places.append(("4", ".ctrldata", 16, files.PACKET, 0, 0))
    whole = files.carrier(program, full=True, pdi=1, scratchpad=256)
    kernels = {"main": (3, {"seq": whole, "two": whole}), "more": (2, {"seq": whole})}
    originals = [files.full(kernels, {1: bytes(64)}, wide=wide) for wide in (False, True)] + [
        files.partial(part, wide=wide, abi_version=version) for wide, version in ((False, 1), (True, 2))
    ]

    def parse(data: bytes) -> None:
        elf = ControlElf(data)
        assert elf.scratchpad <= 64 << 20 and (elf.columns or 1) <= 128
        room = 0
        for name in elf.names:
            code = elf.code(name)
            room += sum(map(len, code.parts.values()))
            for (_, part), places in code.patches.items():
                for place in places:
                    value = place.value(0x7F0012345678)
                    assert len(value) == len(place.original)
                    assert place.at + len(value) <= len(code.parts[part])
        assert room <= len(data)

    return Ready(parse, partial(_edited, originals), (BadElf,))


def emulator_stream(folder: Path) -> Ready:
    """Streams as the emulated NPU reads them."""
    gemm = stream.Gemm(8, 2, 64, 64, 64, 64, 0, 0, stream.weight_bytes(64, 64))
    gemv = stream.Gemv(64, 64, 0, 0, stream.weight_bytes(64, 64))
    originals = [
        stream.program(ops)
        for ops in (
            [gemm],
            [gemv],
            [stream.Copy(64, 1)] * 5,
            [stream.Delay(5), stream.Hang(), stream.Fail(7)],
        )
    ]

    def parse(data: bytes) -> None:
        for op in stream.parse(data):
            op.check()
            op.spans()

    return Ready(parse, partial(_edited, originals), (stream.StreamError,))


def carriers(folder: Path) -> Ready:
    """Transactions that carry streams, as the emulated NPU reads them."""
    from tests.support import control_code as files

    originals = [
        files.carrier(
            stream.copy(64, 4), 3, pdi=1, scratchpad=128, preempt=True, updates=[(1, 4, files.CORE + 20)]
        ).code,
        files.carrier(stream.copy(64, 4), offsets=(4, 8)).code,
    ]

    def parse(data: bytes) -> None:
        transaction.own_bytes(data)
        room = 0
        for step in transaction.parse(data):
            room += len(step.program)
            for arguments in ((), (0x1000, 0x2000)):
                program, addresses = step.updated(step.addresses(arguments), bytes(range(128)))
                assert len(program) == len(step.program) and len(addresses) <= 26
        assert room <= len(data)

    return Ready(parse, partial(_edited, originals), (stream.StreamError,))


def packet(folder: Path) -> Ready:
    """Command packets as the tracer decodes them, from whatever memory a program leaves there."""

    def read(handle: int, size: int) -> bytes | None:
        return None if handle % 3 == 0 else bytes([handle & 255]) * min(size, 4096)

    def find(address: int) -> tuple[int, int] | None:
        return (address & 7, address >> 3) if address & 1 else None

    def make(rng: random.Random) -> bytes:
        opcode, count = rng.choice([0, 3, 19, 20, 21, 22, rng.randrange(32)]), rng.choice([0, 1, 6, 30, 2047])
        head = opcode << 23 | count << 12 | rng.choice([0, 0, 3]) << 10 | rng.randrange(16)
        words = [
            rng.choice([*mutate.NUMBERS, rng.getrandbits(32)]) & 0xFFFFFFFF for _ in range(rng.randrange(40))
        ]
        return struct.pack(f"<{1 + len(words)}I", head, *words)

    def parse(data: bytes) -> None:
        packets.instruction_bytes(packets.decode(data, find, read))
        if len(data) >= 36:
            packets.health(data)

    return Ready(parse, make)


def records(folder: Path) -> Ready:
    """Structs of the driver as the tracer decodes them, of any length and content."""
    kinds = sorted(
        kind.removeprefix("struct ") for kind in _structs() if kind.startswith("struct amdxdna_drm_")
    )
    assert len(kinds) > 10

    def make(rng: random.Random) -> tuple[str, bytes, bytes, int]:
        old, new = (rng.randbytes(rng.choice([0, 4, 64, 300])) for _ in range(2))
        return rng.choice(kinds), old, new, rng.choice([0, 1, 8, 64, 144])

    def parse(given: tuple[str, bytes, bytes, int]) -> None:
        kind, old, new, element = given
        fields.decode(kind, old)
        fields.changes(kind, old, new)
        fields.array(kind, new, element)

    return Ready(parse, make)


def _structs() -> list[Any]:
    found = []
    for _, names, _ in [ffi.list_types()]:
        found += [f"struct {name}" for name in names]
    return found
