"""The xclbin reader and writer."""

from __future__ import annotations

import os
import struct
import uuid
from dataclasses import replace

import pytest

from amdxdna.errors import BadArgument, BadXclbin
from amdxdna.xclbin import Partition, Section, Xclbin, layout, metadata, read_any, writer
from tests.support.xclbins import PDI_A, PDI_B, two_pdis


def test_layout_of_the_written_file():
    """Absolute offsets, written out by hand from XRT's header: an independent check of the struct formats."""
    name = uuid.UUID(int=0x0102030405060708090A0B0C0D0E0F10)
    data = writer.build([writer.PdiSpec(PDI_A)], uuid=name, timestamp=9)
    assert data[:8] == b"xclbin2\0"
    assert struct.unpack_from("<i", data, 8) == (-1,) and data[12:40] == b"\xff" * 28
    # Length, time stamp, the ROM's time stamp, patch, major, minor, mode and actions.
    assert struct.unpack_from("<QQQHBBHH", data, 304) == (len(data), 9, 0, 0, 2, 1, 0, 0)
    assert not any(data[336:416]) and not any(data[432:448])  # interface, platform; debug binary
    assert data[416:432] == bytes(range(1, 17))
    (count,) = struct.unpack_from("<I", data, 448)
    sections = {}
    for index in range(count):
        kind, offset, size = struct.unpack_from("<I20xQQ", data, 456 + 40 * index)
        assert offset % 8 == 0 and offset + size <= len(data)
        sections[kind] = (offset, size)
    assert set(sections) >= {2, 6, 7, 8, 26, 27, 32}
    part, _ = sections[32]
    assert data[part] == 0 and struct.unpack_from("<QQ", data, part + 16) == (0, 0)  # schema, fingerprints
    assert struct.unpack_from("<I", data, part + 8) == (2048,)  # operations per cycle
    assert struct.unpack_from("<H", data, part + 32) == (8,)  # column width
    starts, starts_at = struct.unpack_from("<II", data, part + 40)
    assert starts == 1 and struct.unpack_from("<H", data, part + starts_at) == (0,)
    pdis, pdis_at = struct.unpack_from("<II", data, part + 120)
    assert pdis == 1
    size, image_at, groups, groups_at = struct.unpack_from("<IIII", data, part + pdis_at + 16)
    assert data[part + image_at : part + image_at + size] == PDI_A and groups == 1
    kind, number, ids, ids_at, *before = struct.unpack_from("<B3xQIIII", data, part + groups_at + 4)
    assert (kind, number, ids, before) == (1, 1, 1, [0, 0])
    assert struct.unpack_from("<Q", data, part + ids_at) == (0x901,)
    ip, _ = sections[8]
    kind, properties, base = struct.unpack_from("<IIQ", data, ip + 8)
    assert (kind, properties, base) == (7, 0x901 << 16 | 1, (1 << 64) - 1)
    assert data[ip + 24 : ip + 88].rstrip(b"\0") == b"MLIR_AIE:MLIRAIE"
    assert b'dpu_kernel_id="0x901"' in data[sections[2][0] : sum(sections[2])]
    banks, size = sections[6]
    assert struct.unpack_from("<i", data, banks) == (2,) and size == 8 + 2 * 40
    # Type DRAM, used, KiB, base, tag.
    rows = [struct.unpack_from("<BB6xQQ16s", data, banks + 8 + 40 * n) for n in range(2)]
    assert [(*row[:4], row[4].rstrip(b"\0")) for row in rows] == [
        (2, 1, 0x10000, 0x4000000, b"HOST"),
        (2, 1, 0xC000, 0x4000000, b"SRAM"),
    ]
    for one, other in ((6, 26), (7, 27)):
        (at, size), (again, same) = sections[one], sections[other]
        assert data[at : at + size] == data[again : again + same]


def test_reads_what_was_written(tmp_path):
    path = tmp_path / "two.xclbin"
    path.write_bytes(two_pdis())
    xclbin = Xclbin.read(path)
    assert xclbin.path == str(path)
    assert xclbin.kernels == ("FIRST", "SECOND", "THIRD")
    assert xclbin.partition.column_width == 4
    assert xclbin.partition.start_columns == (0, 4)
    assert xclbin.partition.ops_per_cycle == 1024
    assert (xclbin.partition.inference_fingerprint, xclbin.partition.pre_post_fingerprint) == (77, 0)
    assert [[(g.name, g.type, g.pdi_id, g.kernel_ids) for g in p.groups] for p in xclbin.pdis] == [
        [("DPU", 1, 1, (0x901, 0x903))],
        [("DPU", 1, 2, (0x902,))],
    ]
    assert [p.data for p in xclbin.pdis] == [PDI_A, PDI_B]
    assert [p.cu_ids for p in xclbin.pdis] == [(0x901, 0x903), (0x902,)]
    assert [p.functions for p in xclbin.pdis] == [(0, 0), (1,)]
    assert [(c.kernel_id, c.function, c.pdi) for c in xclbin.cus] == [
        (0x901, 0, 0),
        (0x902, 1, 1),
        (0x903, 0, 0),
    ]
    assert xclbin.cu_index("SECOND") == 1
    assert xclbin.cu_index("THIRD:three") == 2
    section = xclbin.section(layout.AIE_PARTITION)
    assert section is not None and section.kind_name == "AIE_PARTITION"


def test_kinds_of_sections():
    """By number, as XRT's xclbin.h counts them."""
    names = {0: "BITSTREAM", 18: "PDI", 24: "ASK_FLASH", 35: "AIE_TRACE_METADATA", 36: "kind 36"}
    assert {n: Section(n, "", 0, b"").kind_name for n in names} == names


def test_naming_a_kernel():
    xclbin = Xclbin.read(two_pdis())
    with pytest.raises(BadXclbin, match="FIRST, SECOND, THIRD"):
        xclbin.cu_index("FOURTH")
    with pytest.raises(BadXclbin, match="must be named"):
        xclbin.cu_index()
    assert Xclbin.read(writer.build([writer.PdiSpec(b"p")])).cu_index() == 0


def test_identity_is_the_content():
    first = writer.build([writer.PdiSpec(PDI_A)])
    assert first == writer.build([writer.PdiSpec(PDI_A)])
    other = writer.build([writer.PdiSpec(PDI_A)], uuid=uuid.UUID(int=5), timestamp=9)
    assert Xclbin.read(first).uuid != Xclbin.read(other).uuid
    assert Xclbin.read(first).digest == Xclbin.read(other).digest
    changed = Xclbin.read(writer.build([writer.PdiSpec(PDI_B)]))
    assert Xclbin.read(first).uuid != changed.uuid and Xclbin.read(first).digest != changed.digest
    narrow = Xclbin.read(writer.build([writer.PdiSpec(PDI_A)], columns=4))
    slow = Xclbin.read(writer.build([writer.PdiSpec(PDI_A)], ops_per_cycle=1024))
    ends = [[writer.PdiSpec(part) for part in parts] for parts in ((b"ab", b"c"), (b"a", b"bc"))]
    digests = {Xclbin.read(data).digest for data in (first, *map(writer.build, ends))}
    digests |= {narrow.digest, slow.digest, changed.digest}
    assert len(digests) == 6 and {len(digest) for digest in digests} == {16}


def test_unrelated_ips_are_not_cus():
    data = bytearray(two_pdis())
    section = Xclbin.read(bytes(data)).section(layout.IP_LAYOUT)
    assert section is not None
    struct.pack_into("<I", data, section.offset + 8, 1)  # the first entry becomes a PL kernel
    xclbin = Xclbin.read(bytes(data))
    assert xclbin.kernels == ("SECOND", "THIRD")
    assert xclbin.pdis[0].functions == (0,)


def test_older_files_do_not_mark_kernels_as_the_arrays():
    """As in six of 108 public files, RyzenAI-SW's phx/int32_scalar.xclbin and others."""
    data = bytearray(two_pdis())
    section = Xclbin.read(bytes(data)).section(layout.IP_LAYOUT)
    assert section is not None
    for index in range(3):
        data[section.offset + 8 + 4 + index * layout.IP_DATA.size] &= ~3 & 0xFF  # the subtype
    assert Xclbin.read(bytes(data)).cus == Xclbin.read(two_pdis()).cus


def patched(offset: int, value: bytes) -> bytes:
    data = bytearray(writer.build([writer.PdiSpec(PDI_A)]))
    data[offset : offset + len(value)] = value
    return bytes(data)


def place(kind: int) -> tuple[int, int]:
    """Where a section of the written file is, and its size."""
    section = Xclbin.read(writer.build([writer.PdiSpec(PDI_A)])).section(kind)
    assert section is not None
    return section.offset, len(section.data)


def partition_at() -> int:
    return place(layout.AIE_PARTITION)[0]


def inside(*steps: int) -> int:
    """Where the entry of the partition is that offset after offset leads to."""
    data, at = writer.build([writer.PdiSpec(PDI_A)]), partition_at()
    for step in steps:
        at = partition_at() + struct.unpack_from("<I", data, at + step)[0]
    return at


PDI_ENTRY, GROUP = inside(124), inside(124, 28)


@pytest.mark.parametrize(
    ("data", "offset", "what"),
    [
        (b"", 0, "ends inside the header"),
        (b"xclbin2\0" + bytes(300), 308, "ends inside the header"),
        (patched(0, b"\x7fELF"), 0, "not an xclbin"),
        (patched(304, struct.pack("<Q", 1 << 40)), 304, "promises"),
        (patched(448, struct.pack("<I", 0xFFFFFFFF)), 448, "section headers"),
        (patched(456 + 24, struct.pack("<QQ", 1 << 63, 1 << 63)), 480, "past the file's end"),
        (patched(456 + 24, struct.pack("<QQ", 0, 4000)), 520, "overlap"),
        (patched(partition_at() + 32, b"\0\0"), partition_at() + 32, "0 columns"),
        (patched(partition_at() + 40, struct.pack("<I", 1 << 31)), partition_at() + 40, "start columns"),
        (patched(partition_at() + 120, struct.pack("<I", 1 << 31)), partition_at() + 120, "PDIs"),
        (patched(partition_at() + 4, struct.pack("<I", 1 << 30)), partition_at() + (1 << 30), "name"),
        (patched(partition_at() + 4, struct.pack("<I", place(32)[1])), sum(place(32)), "name lies past"),
        (patched(PDI_ENTRY + 16, struct.pack("<I", 0)), PDI_ENTRY + 16, "a PDI is empty"),
        (patched(PDI_ENTRY + 16, struct.pack("<I", 1 << 31)), PDI_ENTRY + 16, "PDI image: "),
        (patched(PDI_ENTRY + 24, struct.pack("<I", 1 << 31)), PDI_ENTRY + 24, "CDO groups: "),
        (patched(GROUP + 16, struct.pack("<I", 1 << 31)), GROUP + 16, "DPU kernel ids: "),
        (patched(place(8)[0], struct.pack("<i", -1)), place(8)[0], "IP_LAYOUT lists -1 entries"),
        (patched(place(8)[0], struct.pack("<i", 2)), place(8)[0], "IP_LAYOUT lists 2 entries"),
    ],
)
def test_damage_is_located(data, offset, what):
    with pytest.raises(BadXclbin, match=what) as caught:
        Xclbin.read(data)
    assert caught.value.path == "<bytes>"
    assert caught.value.offset == offset
    assert f"at byte {offset}" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "why", "pdis"),
    [
        # As RyzenAI-SW's simnow_base.xclbin: a platform's file, with one kernel for its FPGA side.
        (patched(448, struct.pack("<I", 1)), "no AIE_PARTITION and no IP_LAYOUT section", 0),
        (patched(partition_at() + 120, struct.pack("<I", 0)), "holds no PDI", 0),
        # As RyzenAI-SW's stx/4x4_dpu.xclbin: a kernel with id 0, PDIs with ids 0x100 and 0x104.
        (
            writer.build([writer.PdiSpec(PDI_A, (0x100,))], [writer.KernelSpec("DPU", 0)]),
            "PDIs are for ids 0x100, the kernels are DPU:MLIRAIE with id 0x0",
            1,
        ),
        (patched(place(8)[0], struct.pack("<i", 0)), "its IP_LAYOUT names no kernel that runs on", 1),
        *(
            (
                writer.build([writer.PdiSpec(PDI_A, tuple(range(count)))], [writer.KernelSpec("DPU", 99)]),
                f"0x6, 0x7{more}, the kernels are",
                1,
            )
            for count, more in ((8, ""), (9, " and 1 more"))
        ),
        (patched(304, struct.pack("<Q", 456))[:448] + bytes(8), "no AIE_PARTITION and no IP_LAYOUT", 0),
    ],
    ids=["platform", "no PDI", "no id in common", "no kernel", "eight", "nine", "no section"],
)
def test_an_intact_file_that_no_npu_can_run(data, why, pdis):
    """Says what it is, not that the file is damaged; what it holds can be read."""
    with pytest.raises(BadXclbin, match=why) as caught:
        Xclbin.read(data)
    assert "an xclbin that no NPU can run" in str(caught.value) and caught.value.offset == 0
    assert "ownload" not in str(caught.value) and "python -m amdxdna xclbin" in caught.value.remedy
    found, problem = read_any(data)
    assert str(problem) == str(caught.value)
    assert (len(found.pdis), found.cus) == (pdis, ())
    assert "PARTITION" not in why or found.partition == Partition("", 0, (), 0, 0, 0)


def test_a_section_may_be_the_whole_file():
    data = bytearray(patched(448, struct.pack("<I", 1)))
    struct.pack_into("<I20xQQ", data, 456, 99, 0, len(data))
    found, _ = read_any(data)
    assert [(each.kind, each.data) for each in found.sections] == [(99, bytes(data))]


def described(kind: int, data: bytes) -> metadata.Metadata:
    return metadata.read(replace(Xclbin.read(two_pdis()), sections=(Section(kind, "", 0, data),)))


@pytest.mark.parametrize(
    ("kind", "data", "what"),
    [
        (2, b" " * ((16 << 20) + 1), "16777217 bytes of XML"),
        (2, b" " * (16 << 20), "the XML cannot be read"),
        (2, b"<!DOCTYPE a><a/>", "declares a document type"),
        (2, b"<a><!ENTITY b 'c'></a>", "declares a document type"),
        (2, b'<a><kernel name="k"><arg size="-1"/></kernel></a>', "argument 0 of kernel 'k': size='-1'"),
        (
            2,
            b'<a><kernel name="k"><arg size="0x10000000000000000"/></kernel></a>',
            "argument 0 of kernel 'k'",
        ),
        (6, bytes(7), "MEM_TOPOLOGY: 7 bytes, less than its header"),
        (7, bytes(3), "CONNECTIVITY: 3 bytes, less than its header"),
        (8, bytes(7), "IP_LAYOUT: 7 bytes, less than its header"),
        (6, struct.pack("<i", -1) + bytes(4), "-1 entries of 40 bytes"),
        (7, struct.pack("<i", 2) + bytes(23), "2 entries of 12 bytes"),
    ],
)
def test_metadata_that_cannot_be_read(kind, data, what):
    with pytest.raises(BadXclbin, match=what):
        described(kind, data)


def test_metadata_that_says_little():
    for kind, size in ((6, 8), (7, 4), (8, 8)):
        assert described(kind, bytes(size)) == metadata.Metadata((), (), (), ())
    largest = f'<a><kernel name="k"><arg/><arg offset="{(1 << 64) - 1}"/></kernel></a>'
    (kernel,) = described(2, largest.encode()).kernels
    assert kernel.arguments[0] == metadata.Argument(0, "", 0, 0, False, "")
    assert (kernel.arguments[1].index, kernel.arguments[1].offset) == (1, (1 << 64) - 1)
    assert described(2, b'<a><kernel name="k"/></a>').kernels[0].map_words == 4


def test_any_file_that_an_npu_can_run_has_no_problem():
    found, problem = read_any(two_pdis())
    assert problem is None and found == Xclbin.read(two_pdis())


def test_arrays_cannot_multiply_the_file():
    """Thousands of PDI entries over one image must not be copied out one by one."""
    count, image = 2000, 1 << 18
    body = bytearray(layout.PARTITION.size + count * layout.PDI.size + image)
    layout.PARTITION.pack_into(body, 0, 0, 0, 0, 0, 0, 8, 0, 0, count, layout.PARTITION.size, 0)
    for index in range(count):
        layout.PDI.pack_into(
            body,
            layout.PARTITION.size + index * layout.PDI.size,
            bytes(16),
            image,
            layout.PARTITION.size + count * layout.PDI.size,
            0,
            0,
        )
    data = bytearray(writer.build([writer.PdiSpec(PDI_A)]))
    at = len(data)
    data += body
    struct.pack_into("<QQ", data, 456 + 40 + 24, at, len(body))
    struct.pack_into("<Q", data, 304, len(data))
    with pytest.raises(BadXclbin, match="overlap"):
        Xclbin.read(bytes(data))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p / "missing.xclbin",
        lambda p: p,
        lambda p: os.mkfifo(p / "fifo") or p / "fifo",
    ],
    ids=["missing", "folder", "fifo"],
)
def test_unreadable_paths(tmp_path, make):
    path = make(tmp_path)
    with pytest.raises(BadXclbin) as caught:
        Xclbin.read(path)
    assert caught.value.path == str(path) and str(path) in str(caught.value)


def test_a_file_of_more_than_a_gibibyte_is_not_read(tmp_path):
    path = tmp_path / "huge"
    path.touch()
    os.truncate(path, (1 << 30) + 1)
    with pytest.raises(BadXclbin, match="longer than 1,073,741,824 bytes, more than any xclbin"):
        Xclbin.read(path)


def test_a_name_is_read_up_to_256_bytes():
    (pdi,) = Xclbin.read(writer.build([writer.PdiSpec(PDI_A, name="n" * 300)])).pdis
    assert pdi.groups[0].name == "n" * 256


@pytest.mark.parametrize(("columns", "passes"), [(1024, True), (1025, False)])
def test_the_widest_partition(columns, passes):
    data = patched(partition_at() + 32, struct.pack("<H", columns))
    if passes:
        assert Xclbin.read(data).partition.column_width == columns
    else:
        with pytest.raises(BadXclbin, match="a width of 1025 columns"):
            Xclbin.read(data)


def test_every_truncation_is_refused_or_whole():
    data = writer.build([writer.PdiSpec(PDI_A)])
    for end in range(0, len(data), 7):
        with pytest.raises(BadXclbin):
            Xclbin.read(data[:end])


@pytest.mark.parametrize(
    "arguments",
    [
        {"pdis": []},
        {"kernels": []},
        {"columns": 0},
        {"columns": 1 << 10},
        {"start_columns": (1 << 16,)},
        {"kernels": [writer.KernelSpec(kernel_id=0x1000)]},
        {"start_columns": (-1,)},
        {"kernels": [writer.KernelSpec("x" * 56)]},  # 64 bytes with ":MLIRAIE"
        {"pdis": [writer.PdiSpec(b"")]},
    ],
)
def test_the_writer_refuses_what_the_format_cannot_hold(arguments):
    with pytest.raises(BadArgument):
        writer.build(**{"pdis": [writer.PdiSpec(PDI_A)], **arguments})


def test_what_the_format_just_holds():
    kernel = writer.KernelSpec("x" * 55, 0xFFF, functional=3)
    data = writer.build([writer.PdiSpec(PDI_A, (0xFFF,))], [kernel], columns=1023, start_columns=(0, 0xFFFF))
    found = Xclbin.read(data)
    assert found.cus[0].name == "x" * 55 + ":MLIRAIE"
    assert (found.cus[0].kernel_id, found.cus[0].function) == (0xFFF, 3)
    assert (found.partition.column_width, found.partition.start_columns) == (1023, (0, 0xFFFF))
