"""Every way in which an ELF file of control code is refused: at which byte, in which words; what just passes.

Files are made field by field here; layouts are the System V ABI's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from amdxdna.elf import ControlElf, ElfKernel
from amdxdna.errors import BadElf
from tests.support.control_code import File, Names

CODE = b"code" * 16
PROGBITS, SYMTAB, STRTAB, RELA, NOTE, NOBITS, DYNSYM, GROUP = 1, 2, 3, 4, 7, 8, 11, 17
OBJECT, FUNC = 1, 2
Change = Callable[[File], object]


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def with_code(change: Change, **of_file: int | bool) -> bytes:
    """A file for an xclbin's kernel that has control code, and what `change` adds to it."""
    file = File(**of_file)  # type: ignore[arg-type]
    file.add(".ctrltext", PROGBITS, CODE)
    change(file)
    return file.done()


def patches(
    *relocations: tuple[int, int, int, int], section: int = 1, size: int = 8, name: int = 1
) -> Change:
    """A symbol "here" of a section, and relocations (offset, symbol, kind, addend)."""

    def change(file: File) -> None:
        strings = file.add(".dynstr", STRTAB, b"\0here\0")
        symbols = file.symbol(0, 0, 0, 0) + file.symbol(name, OBJECT, size, section)
        file.add(".dynsym", DYNSYM, symbols, link=strings)
        file.add(".rela.dyn", RELA, b"".join(file.relocation(*each) for each in relocations))

    return change


def grouped(
    function: tuple[str, int] = ("_Z4mainPcPc", FUNC),
    kind: int = OBJECT,
    of: int = 1,
    info: int = 2,
    members: tuple[int, ...] = (1,),
    twice: bool = False,
) -> bytes:
    """A full file of one instance "seq": symbol 1 is its kernel's, symbol 2 its own."""
    file, names = File(abi_version=0x10), Names()
    file.add(".ctrltext.0", PROGBITS, CODE)
    file.add(".ctrltext.1", PROGBITS, CODE)
    symbols = file.symbol(0, 0, 0, 0) + file.symbol(names.add(function[0]), function[1], 0, 0)
    symbols += file.symbol(names.add("seq"), kind, 0, of)
    table = file.add(".symtab", SYMTAB, symbols, link=file.add(".strtab", STRTAB, names.data))
    for number in range(1 + twice):
        file.add(f".group.{number}", GROUP, words(1, *members), link=table, info=info)
    file.add(".group.short", GROUP, b"\1\0\0", info=99)
    return file.done()


def refusal(data: bytes) -> tuple[int, str]:
    with pytest.raises(BadElf) as caught:
        ControlElf(data, "a.elf")
    error = caught.value
    assert (error.path, error.call, error.remedy) == ("a.elf", "elf", "Make the file anew, with aiebu-asm")
    at, _, what = error.meaning.removeprefix("a.elf at byte ").partition(": ")
    assert int(at) == error.offset
    return error.offset, what


PLAIN = with_code(lambda file: None)
WIDE = with_code(lambda file: None, wide=True)


def header(data: bytes, **fields: int) -> bytes:
    """A file whose header's fields are others."""
    places = {"shoff": (32, "<I"), "shentsize": (46, "<H"), "shnum": (48, "<H"), "shstrndx": (50, "<H")}
    if data[4] == 2:
        places = {"shoff": (40, "<Q"), "shentsize": (58, "<H"), "shnum": (60, "<H"), "shstrndx": (62, "<H")}
    made = bytearray(data)
    for name, value in fields.items():
        at, form = places[name]
        struct.pack_into(form, made, at, value)
    return bytes(made)


def of_table(data: bytes) -> int:
    return int(struct.unpack_from("<Q" if data[4] == 2 else "<I", data, 40 if data[4] == 2 else 32)[0])


def begin(data: bytes, section: int) -> int:
    """Where a section's bytes begin, by its header."""
    at, form = of_table(data) + section * (64 if data[4] == 2 else 40), "<24xQ" if data[4] == 2 else "<16xI"
    return int(struct.unpack_from(form, data, at)[0])


ANOTHER = "an ELF file of another class or byte order than little-endian 32 or 64 bits"


@pytest.mark.parametrize(
    ("data", "at", "what"),
    [
        (b"", 0, "this is no ELF file"),
        (b"\x7fELG" + PLAIN[4:], 0, "this is no ELF file"),
        (PLAIN[:51], 0, "this is no ELF file"),
        (PLAIN[:4] + b"\0" + PLAIN[5:], 4, ANOTHER),
        (PLAIN[:4] + b"\3" + PLAIN[5:], 4, ANOTHER),
        (PLAIN[:5] + b"\2" + PLAIN[6:], 4, ANOTHER),
        (WIDE[:63], 63, "the file ends inside its header"),
        (header(PLAIN, shnum=0)[:52], 0, "there is no control code (.ctrltext)"),
        (header(WIDE, shnum=0)[:64], 0, "there is no control code (.ctrltext)"),
    ],
)
def test_headers(data: bytes, at: int, what: str) -> None:
    assert refusal(data) == (at, what)


@pytest.mark.parametrize(("data", "least"), [(PLAIN, 40), (WIDE, 64)], ids=["32 bits", "64 bits"])
def test_section_tables(data: bytes, least: int) -> None:
    table = of_table(data)
    assert len(data) == table + 3 * least  # none, the code, the names
    for changed, what in (
        (header(data, shentsize=least - 1), f"3 section headers of {least - 1} bytes do not fit the file"),
        (header(data, shnum=4), f"4 section headers of {least} bytes do not fit the file"),
        (data[:-1], f"3 section headers of {least} bytes do not fit the file"),
        (header(data, shstrndx=3), "there is no section 3, which should hold the names"),
        (header(data, shstrndx=0x1FF), "there is no section 511, which should hold the names"),
    ):
        assert refusal(changed) == (table, what)
    assert ControlElf(data).code().parts == {".ctrltext": CODE}
    assert ControlElf(data + b"more").code().parts == {".ctrltext": CODE}


@pytest.mark.parametrize("data", [PLAIN, WIDE], ids=["32 bits", "64 bits"])
def test_sections_lie_in_the_file_and_are_not_more_than_it(data: bytes) -> None:
    wide = data[4] == 2
    table, least, form = of_table(data), 64 if wide else 40, "<QQ" if wide else "<II"
    field = table + least + (24 if wide else 16)  # offset and size of the code
    offset, size = struct.unpack_from(form, data, field)
    assert data[offset : offset + size] == CODE

    def placed(offset: int, size: int, kind: int = PROGBITS) -> bytes:
        made = bytearray(data)
        struct.pack_into(form, made, field, offset, size)
        struct.pack_into("<I", made, table + least + 4, kind)
        return bytes(made)

    for offset, size in ((len(data) - 63, 64), (len(data) + 1, 0), (0, len(data) + 1), (1 << 31, 64)):
        what = f"section 1 of {size} bytes at byte {offset} does not fit the file"
        assert refusal(placed(offset, size)) == (table, what)
    # With the names, more bytes than there are: section 2's are there twice.
    names = struct.unpack_from(form, data, field + least)
    told = f"section 2 of {names[1]} bytes at byte {names[0]} does not fit the file"
    assert refusal(placed(0, len(data) - names[1] + 1)) == (table, told)
    assert len(ControlElf(placed(0, len(data) - names[1])).code().parts[".ctrltext"]) == len(data) - names[1]
    last = placed(len(data) - 64, 64)
    assert ControlElf(last).code().parts[".ctrltext"] == last[-64:]
    # Sections without bytes in the file may be of any size, anywhere.
    for kind in (0, NOBITS):
        for offset in (64, len(data) + 1):
            assert refusal(placed(offset, 1 << 30, kind)) == (0, "there is no control code (.ctrltext)")


CONFIGURATION, UID = ".note.xrt.configuration", ".note.xrt.UID"
UNPAIRED = "sections to save and to restore at a preemption are not paired"


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "flags", "what"),
    [
        (".ctrldata", b"C" * 8, 0x800, "section '.ctrldata' is compressed, which is not read"),
        (".ctrltext.9", b"D" * 8, 0, "'' has two sections .ctrltext"),
        (CONFIGURATION, words(0, 4, 6, 0), 0, "a partition of 0 columns"),
        (CONFIGURATION, words(0, 4, 6, 129), 0, "a partition of 129 columns"),
        (CONFIGURATION, words(0, 5, 6, 8), 0, "the note in '.note.xrt.configuration' does not fit it"),
        (UID, words(4, 5, 6, 0x545258, 7), 0, "the note in '.note.xrt.UID' does not fit it"),
        (UID, b"\1\2", 0, "the note in '.note.xrt.UID' does not fit it"),
        (UID, b"", 0, "the note in '.note.xrt.UID' does not fit it"),
        (".preempt_save", b"S" * 8, 0, UNPAIRED),
        (".preempt_restore", b"S" * 8, 0, UNPAIRED),
    ],
)
def test_sections_of_a_file(name: str, content: bytes, flags: int, what: str, wide: bool) -> None:
    data = with_code(lambda file: file.add(name, PROGBITS, content, flags=flags), wide=wide)
    assert refusal(data) == (0 if what == UNPAIRED else begin(data, 2), what)


@pytest.mark.parametrize(
    ("note", "uid"),
    [
        (words(4, 4, 6, 0x545258, 7), words(7)),
        (words(5, 4, 6, 0, 0, 7), words(7)),  # a name takes whole words
        (words(8, 4, 6, 0, 0, 7, 8), words(7)),
        (words(0, 8, 6, 1, 2), words(1, 2)),
        (words(0, 0, 6), b""),
    ],
)
def test_notes(note: bytes, uid: bytes) -> None:
    assert ControlElf(with_code(lambda f: f.add(".note.xrt.UID", NOTE, note))).uid == uid


@pytest.mark.parametrize("columns", [1, 128])
def test_widths_of_a_partition(columns: int) -> None:
    note = words(0, 8, 6, columns, 99)
    assert ControlElf(with_code(lambda f: f.add(".note.xrt.configuration", NOTE, note))).columns == columns
    assert ControlElf(PLAIN).columns is None


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("change", "section", "what"),
    [
        (patches((16, 2, 3, 0)), 4, "relocation 0 is of symbol 2, which is not there"),
        (patches((16, 1, 3, 0), section=6), 3, "'here' is of section 6, which is not there"),
        (patches((16, 1, 3, 0), section=2), 2, "relocation 0 is for '.dynstr', which is no control code"),
        (patches((16, 1, 3, 0), section=0), 0, "relocation 0 is for '', which is no control code"),
        (patches((16, 1, 3, 0), (0, 1, 6, 0)), 1, "relocation 1 is of kind 6, which NPU2 does not have"),
        (patches((16, 1, 3, 0), (64, 1, 3, 0)), 1, "relocation 1 at 64 does not fit '.ctrltext'"),
        (patches((60, 1, 3, 0), (18, 1, 3, 0)), 1, "relocation 1 at 18 does not fit '.ctrltext'"),
        (patches((16, 1, 3, 0), name=6), 3, "symbol 1 has its name at 6 of 6 bytes"),
    ],
)
def test_relocations(change: Change, section: int, what: str, wide: bool) -> None:
    """Section 1 is the code, 2 to 4 are the names, the symbols and the relocations."""
    data = with_code(change, wide=wide)
    if "of section 6" in what:
        section = 4  # told where the relocation is
    assert refusal(data) == (begin(data, section), what)


def test_a_table_that_refers_to_no_section() -> None:
    def change(file: File) -> None:
        file.add(".dynsym", DYNSYM, b"Q" * 16, link=5)  # of sections 0 to 4
        file.add(".rela.dyn", RELA, b"")

    data = with_code(change)
    assert refusal(data) == (data.index(b"Q" * 16), "'.dynsym' refers to section 5, which is not there")
    # Either table alone means nothing.
    for name in (".dynsym", ".rela.dyn"):
        assert ControlElf(with_code(lambda f, n=name: f.add(n, 1, b"Q", link=9))).code().patches == {}  # type: ignore[misc]


@pytest.mark.parametrize(("size", "passes"), [(64 << 20, True), ((64 << 20) + 1, False)])
def test_the_largest_control_scratchpad(size: int, passes: bool) -> None:
    def change(file: File) -> None:
        strings = file.add(".dynstr", STRTAB, b"\0scratch-pad-ctrl\0")
        symbols = b"".join(file.symbol(1, OBJECT, n, 1) for n in (0, size, 64))
        file.add(".dynsym", DYNSYM, symbols, link=strings)
        file.add(".rela.dyn", RELA, b"".join(file.relocation(16, n, 8, 0) for n in range(3)))

    data = with_code(change)
    if passes:
        elf = ControlElf(data)
        assert elf.scratchpad == size and len(elf.code().places(".ctrltext", "scratch-pad-ctrl")) == 3
    else:
        assert refusal(data) == (data.index(CODE), f"a control scratchpad of {size} bytes")


@pytest.mark.parametrize(
    ("data", "section", "what"),
    [
        (grouped(info=3), 5, "group '.group.0' names no kernel instance"),
        (grouped(kind=FUNC), 5, "group '.group.0' names no kernel instance"),
        (grouped(of=3), 5, "the instance 'seq' belongs to no kernel"),
        (grouped(("_Z4mainPc", OBJECT)), 5, "the instance 'seq' belongs to no kernel"),
        (grouped(("_Z5mainPc"[:7], FUNC)), 5, "'_Z5main' is no mangled name of a kernel"),
        (grouped(("_Z0", FUNC)), 5, "'_Z0' is no mangled name of a kernel"),
        (grouped(("_Z123456main", FUNC)), 5, "'_Z123456main' is no mangled name of a kernel"),
        (grouped(("main", FUNC)), 5, "'main' is no mangled name of a kernel"),
        (grouped(("_Z4mainPd", FUNC)), 5, "'_Z4mainPd' has arguments of a type that is not known"),
        (grouped(("_Z4mainPcc", FUNC)), 5, "'_Z4mainPcc' has arguments that are no buffers"),
        (grouped(members=(1, 2)), 2, "'main:seq' has two sections .ctrltext"),
        (grouped(members=(1, 9)), 5, "'main:seq' has section 9, which is not there or another's"),
        (grouped(members=(1, 1)), 5, "'main:seq' has section 1, which is not there or another's"),
        (grouped(members=(3,)), 0, "'main:seq' has no control code (.ctrltext)"),
        (grouped(twice=True), 6, "there are two instances 'main:seq'"),
    ],
)
def test_groups(data: bytes, section: int, what: str) -> None:
    """Sections 1 and 2 are code, 5 is the group, 6 a second one of the same instance."""
    assert refusal(data) == (section and begin(data, section), what)


@pytest.mark.parametrize(
    ("mangled", "name", "arguments"),
    [("_Z4main", "main", 0), ("_Z4mainPcPvPi", "main", 3), ("_Z2abPPc", "ab", 1), ("_Z00002abPc", "ab", 1)],
)
def test_kernels(mangled: str, name: str, arguments: int) -> None:
    elf = ControlElf(grouped((mangled, FUNC)))
    assert elf.kernels == {name: ElfKernel(name, arguments, ("seq",))} and elf.names == (f"{name}:seq",)
    assert elf.grouped and elf.code(f"{name}:seq").parts == {".ctrltext": CODE}


@pytest.mark.parametrize(
    ("os_abi", "made"),
    [
        (0x40, "AIE2PS"),
        (0x46, "AIE2PS"),
        (0x4B, "AIE4"),
        (0x56, "AIE4"),
        (0x69, "AIE4"),
        (0x44, "no known generation of the array"),
        (0x00, "no known generation of the array"),
    ],
)
def test_other_generations_are_named(os_abi: int, made: str) -> None:
    """As Xilinx/XRT's xrt_elf.cpp tells them apart."""
    with pytest.raises(BadElf) as caught:
        ControlElf(with_code(lambda file: None, os_abi=os_abi), "a.elf")
    error = caught.value
    assert error.meaning == f"a.elf is control code for {made} (OS/ABI {os_abi:#x}), not for NPU2 (0x45)"
    assert (error.offset, error.remedy, error.path) == (7, "Compile it for npu2", "a.elf")


@pytest.mark.parametrize(("abi_version", "grouped"), [(1, False), (2, False), (0x0F, False), (0x10, True)])
def test_which_versions_have_groups(abi_version: int, grouped: bool) -> None:
    elf = ControlElf(with_code(lambda file: None, abi_version=abi_version))
    assert elf.grouped == grouped and elf.names == (() if grouped else ("",))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("addend", [0, 5, -4, 1 << 20])
def test_addends_of_either_version(wide: bool, addend: int) -> None:
    """Version 1 of the ABI has the kind in the addend's low four bits; both keep 32 bits of it."""
    for version, kept in ((1, (addend & 0x0FFFFFFF)), (2, addend & 0xFFFFFFFF)):
        elf = ControlElf(with_code(patches((16, 1, 8, addend)), wide=wide, abi_version=version))
        (place,) = elf.code().places(".ctrltext", "here")
        assert (place.kind, place.at, place.addend) == (8, 16, kept)


def test_an_argument_is_placed_by_its_name_or_else_by_its_index() -> None:
    def change(file: File) -> None:
        strings = file.add(".dynstr", STRTAB, b"\0a\x004\0")
        symbols = b"".join(file.symbol(name, OBJECT, 8, 1) for name in (0, 1, 3))
        file.add(".dynsym", DYNSYM, symbols, link=strings)
        file.add(".rela.dyn", RELA, file.relocation(16, 1, 8, 0) + file.relocation(32, 2, 8, 0))

    code = ControlElf(with_code(change)).code()
    wanted = {
        ("a", None): [16],
        ("a", 4): [16],
        ("b", 4): [32],
        ("b", None): [],
        ("b", 5): [],
        ("4", None): [32],
    }
    for (name, index), at in wanted.items():
        assert [place.at for place in code.places(".ctrltext", name, index)] == at


def test_names_that_are_no_ascii_and_names_without_an_end() -> None:
    data = with_code(patches((16, 1, 3, 0)))
    assert list(ControlElf(data.replace(b"here\0", b"h\xffre\0")).code().patches) == [("h�re", ".ctrltext")]

    def change(file: File) -> None:
        strings = file.add(".dynstr", STRTAB, b"\0" + b"n" * 5000)
        file.add(".dynsym", DYNSYM, file.symbol(0, 0, 0, 0) + file.symbol(1, OBJECT, 8, 1), link=strings)
        file.add(".rela.dyn", RELA, file.relocation(16, 1, 3, 0))

    assert list(ControlElf(with_code(change)).code().patches) == [("n" * 4096, ".ctrltext")]


def test_paths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, said in (
        (f"{tmp_path}/none.elf", f"{tmp_path}/none.elf cannot be read"),
        ("a\0b", "'a\\x00b' is no path"),
        (f"{tmp_path}", f"{tmp_path} cannot be read"),
        (f"{tmp_path}/fifo", f"{tmp_path}/fifo cannot be read: not a regular file"),
    ):
        with pytest.raises(BadElf) as caught:
            ControlElf.read(path)
        assert (caught.value.meaning, caught.value.path) == (said, path)
        assert caught.value.remedy == "Give the path of an ELF file of control code"
