"""Control code in ELF files: reading, and writing addresses into it."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from amdxdna.elf import ControlElf, ElfKernel, Kind
from amdxdna.elf.patch import patch
from amdxdna.emu.kernels import stream
from amdxdna.errors import BadElf
from tests.support import control_code

PROGRAM = stream.copy(4096, 1)
PDIS = {1: bytes(64), 2: b"\2" * 64}


def preemptible(full: bool = False, **more: Any) -> control_code.Stream:
    made = control_code.carrier(PROGRAM, full=full, preempt=True, save=b"\1" * 32, restore=b"\2" * 48, **more)
    made.places += [
        ("scratch-pad-mem", ".preempt_save", 8, control_code.SHIM, 0x40000, 4 << 20),
        ("scratch-pad-mem", ".preempt_restore", 16, control_code.SHIM, 0, 4 << 20),
    ]
    return made


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("abi_version", [1, 2])
def test_a_file_that_goes_with_an_xclbin(wide: bool, abi_version: int) -> None:
    made = preemptible(offsets=(0, 64))
    elf = ControlElf(control_code.partial(made, wide=wide, abi_version=abi_version))
    assert (elf.columns, elf.kernels, elf.names) == (None, {}, ("",))
    assert elf.preemptible and not elf.has_pdis and elf.uid == bytes(range(16))
    code = elf.code()
    assert code.parts == made.parts()
    (second,) = code.places(".ctrltext", "bo1", 4)
    assert (second.kind, second.addend, second.at) == (Kind.SHIM_DMA, 64, made.places[1][2] + 4)
    assert second.original == struct.pack("<II", control_code.BITS, 0x7FF0000)
    (saved,) = code.places(".preempt_save", "scratch-pad-mem")
    assert (saved.addend, saved.at) == (0x40000, 12)
    assert code.places(".ctrltext", "bo1", 7) == () == code.places(".ctrldata", "bo1", 4)


@pytest.mark.parametrize("wide", [False, True])
def test_a_full_file(wide: bool) -> None:
    one = control_code.carrier(PROGRAM, full=True, pdi=1)
    two = preemptible(full=True, pdi=2, scratchpad=256)
    data = control_code.full(
        {"main": (3, {"seq": one, "other": two}), "more": (2, {"seq": one})}, PDIS, 4, wide=wide
    )
    elf = ControlElf(data)
    assert elf.columns == 4 and elf.scratchpad == 256 and elf.has_pdis and elf.preemptible
    assert elf.kernels == {
        "main": ElfKernel("main", 3, ("seq", "other")),
        "more": ElfKernel("more", 2, ("seq",)),
    }
    assert elf.names == ("main:seq", "main:other", "more:seq")
    assert elf.code("main:seq").parts == one.parts() and elf.code("main:other").parts == two.parts()
    assert elf.code("main:seq").pdis == {".pdi.1": PDIS[1]}
    assert elf.code("main:other").pdis == {".pdi.2": PDIS[2]}
    (place,) = elf.code("main:other").places(".ctrltext", ".pdi.2")
    assert (place.kind, place.at) == (Kind.ADDRESS, 24)
    with pytest.raises(KeyError):
        elf.code("main")


def test_each_kernel_has_the_pdi_in_front_of_its_code() -> None:
    """aiebu-asm writes every kernel's PDIs by the same names."""
    one = control_code.carrier(PROGRAM, full=True, pdi=1)
    data = control_code.full({"main": (2, {"seq": one}), "more": (2, {"seq": one})}, {1: b"A" * 64})
    at = data.rindex(b"A" * 64)
    elf = ControlElf(data[:at] + b"B" * 64 + data[at + 64 :])
    assert elf.code("main:seq").pdis == {".pdi.1": b"A" * 64}
    assert elf.code("more:seq").pdis == {".pdi.1": b"B" * 64}


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def written(kind: Kind, before: bytes, value: int, addend: int = 0, mask: int = 0) -> tuple[int, bytes]:
    place = patch(kind, before, 0, addend, mask)
    assert place is not None
    return place.at, place.value(value)


def test_how_each_kind_is_written() -> None:
    """The numbers are XRT's (elf_patcher.cpp)."""
    # A base of 0x1_0000_0010, + the value, the addend and the array's aperture, rounded down to a word.
    assert written(Kind.SHIM_DMA, words(7, 0x13, 0xABCD0001, 9), 0x4008000, 0x20) == (
        4,
        words(0x84008030, 0xABCD0001),
    )
    assert written(Kind.SHIM_DMA, words(7, 0, 0xABCD0000), 0x7F00_9000_0000) == (
        4,
        words(0x1000_0000, 0xABCD7F01),
    )
    assert written(Kind.SHIM_DMA, words(7, 0, 0xABCD0000), 0xFFFF_FFFF_E000) == (
        4,
        words(0x7FFF_E000, 0xABCD0000),
    )
    assert written(Kind.CONTROL_PACKET, words(1, 2, 0x100, 0xABCDF002), 0x4008000) == (
        8,
        words(0x84008100, 0xABCD0002),
    )
    assert written(Kind.ADDRESS, words(5, 6), 0x123456789ABC, 77) == (0, words(0x56789ABC, 0x1234))
    assert written(Kind.SCALAR, words(0xBB11AAAA), 0x550000, mask=0xFF0000) == (0, words(0xBB55AAAA))
    assert written(Kind.SCALAR, words(0), -1, mask=0xFF) == (0, words(0xFF))


def test_places_that_do_not_fit_are_none() -> None:
    for kind, size in ((Kind.SHIM_DMA, 12), (Kind.CONTROL_PACKET, 16), (Kind.ADDRESS, 8), (Kind.SCALAR, 4)):
        fits = [patch(kind, bytes(held), at, 0, 0) for held, at in ((size, 0), (size - 1, 0), (size, 4))]
        assert [place is not None for place in fits] == [True, False, False]
        assert patch(kind, bytes(size + 8), 2, 0, 0) is None


def changed(**of_file: Any) -> bytes:
    return control_code.partial(control_code.carrier(PROGRAM), **of_file)


def one_place(*place: Any, **of_file: Any) -> bytes:
    made = control_code.carrier(PROGRAM)
    made.places = [place]
    return control_code.partial(made, **of_file)


FULL = control_code.full({"main": (2, {"seq": control_code.carrier(PROGRAM, full=True, pdi=1)})}, PDIS)
REFUSED = {
    "empty": (b"", "no ELF file"),
    "xclbin": (b"xclbin2\0" + bytes(600), "no ELF file"),
    "big endian": (FULL[:5] + b"\2" + FULL[6:], "byte order"),
    "short": (FULL[:60], "do not fit"),
    "cut": (FULL[:-1], "do not fit"),
    "VE2": (changed(os_abi=0x40), "AIE2PS.*not for NPU2"),
    "x86": (changed(os_abi=0), "no known generation"),
    "kind": (one_place("3", ".ctrltext", 16, 2, 0, 0), "kind 2"),
    "place": (one_place("3", ".ctrltext", 1 << 20, 5, 0, 0), "does not fit"),
    "odd place": (one_place("3", ".ctrltext", 18, 5, 0, 0), "does not fit"),
    "scratchpad": (one_place("scratch-pad-ctrl", ".ctrltext", 16, 8, 0, 1 << 30), "scratchpad of"),
    "unpaired": (control_code.partial(control_code.carrier(PROGRAM, save=b"1234")), "not paired"),
    "mangled": (FULL.replace(b"_Z4main", b"_Z9main"), "mangled name"),
    "not mangled": (FULL.replace(b"_Z4main", b"xZ4main"), "mangled name"),
    "number": (FULL.replace(b"_Z4mainPcPc", b"_Z4mainPcci"), "no buffers"),
    "type": (FULL.replace(b"_Z4mainPcPc", b"_Z4mainPcPd"), "type that is not known"),
    "columns": (control_code.full({"main": (2, {})}, PDIS, columns=0), "0 columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_damage_is_one_clear_error(name: str) -> None:
    data, why = REFUSED[name]
    with pytest.raises(BadElf, match=why) as caught:
        ControlElf(data, "some.elf")
    assert caught.value.path == "some.elf" and "\n" not in str(caught.value)


def test_a_pdi_that_is_not_there() -> None:
    data = control_code.full({"main": (2, {"seq": control_code.carrier(PROGRAM, full=True, pdi=7)})}, PDIS)
    with pytest.raises(BadElf, match=r"no PDI '\.pdi\.7'"):
        ControlElf(data).code("main:seq")


def test_a_pdi_that_is_empty() -> None:
    made = control_code.carrier(PROGRAM, full=True, pdi=1)
    elf = ControlElf(control_code.full({"main": (2, {"seq": made})}, {1: b""}), "some.elf")
    with pytest.raises(BadElf, match=r"some\.elf at byte \d+: the PDI '\.pdi\.1' is empty") as caught:
        elf.code("main:seq")
    assert caught.value.path == "some.elf"


def test_a_path_that_cannot_be_read(tmp_path: Any) -> None:
    for path in (tmp_path / "missing.elf", tmp_path, "a\0b"):
        with pytest.raises(BadElf):
            ControlElf.read(path)
    (tmp_path / "it.elf").write_bytes(FULL)
    assert ControlElf.read(tmp_path / "it.elf").columns == 8
