"""`python -m amdxdna xclbin` line by line and key by key, of files whose fields are written out here."""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest

from amdxdna.cli import main
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.xclbin import Xclbin
from amdxdna.xclbin.writer import KernelSpec, PdiSpec, build
from tests.support.pdi_builder import W, at
from tests.support.pdi_builder import build as pdi_image

IDS = [uuid.UUID(int=n) for n in range(1, 4)]
# 20,300 days (the 31st of July 2025), 22 hours, 13 minutes and 20 seconds.
MADE = 20_300 * 86_400 + 22 * 3600 + 13 * 60 + 20
KINDS = {2: "EMBEDDED_METADATA", 6: "MEM_TOPOLOGY", 7: "CONNECTIVITY", 8: "IP_LAYOUT"} | {
    26: "ASK_GROUP_TOPOLOGY",
    27: "ASK_GROUP_CONNECTIVITY",
    32: "AIE_PARTITION",
}
"""Sections by number, as in XRT's xclbin.h."""
ARGUMENTS = [("opcode", 8, 0, "value", "uint64_t"), ("instr", 8, 8, "buffer", "char *")]
ARGUMENTS += [("ninstr", 4, 0x10, "value", "uint32_t")]
ARGUMENTS += [(f"bo{n}", 8, 0x14 + 8 * n, "buffer", "void*") for n in range(5)]
"""Of mlir-aie's DPU kernels: name, bytes, offset, kind, type."""


def made(**changes: Any) -> bytes:
    pdis = [PdiSpec(b"compiled code" * 10, (0x101,), IDS[0]), PdiSpec(b"x" * 20, (0x901,), IDS[2])]
    pdis.insert(1, PdiSpec(pdi(Family.COPY), (0x102, 0x103), IDS[1]))
    kernels = [KernelSpec("FIRST", 0x101), KernelSpec("SECOND", 0x102)]
    kernels.append(KernelSpec("SECOND", 0x103, "TWICE", functional=1))
    given: dict[str, Any] = {"columns": 4, "start_columns": (0, 4), "uuid": IDS[0], "timestamp": MADE}
    return build(**({"pdis": pdis, "kernels": kernels} | given | changes))


def sections(data: bytes) -> list[tuple[str, int, int]]:
    """(kind, offset, size) by the file's own table."""
    (count,) = struct.unpack_from("<I", data, 448)
    rows = [struct.unpack_from("<I16x4xQQ", data, 456 + 40 * n) for n in range(count)]
    return [(KINDS[kind], offset, size) for kind, offset, size in rows]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.xclbin"
    path.write_bytes(made())
    return path


def test_every_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xclbin", str(file)]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        f"{file}: {file.stat().st_size} bytes",
        f"UUID       {IDS[0]}, made 2025-07-31 22:13 UTC",
        f"digest     {Xclbin.read(file).digest.hex()}",
        "made for   emulated NPU",
        "partition  QoS: 4 columns, start at 0, 4; 2048 operations a cycle",
        "kernels    FIRST, SECOND",
        "arguments  FIRST, SECOND",
        *(
            f"  {n:>5}  {name:<16}{size:>3} bytes at {offset:#04x}  {kind:<7}{what}"
            for n, (name, size, offset, kind, what) in enumerate(ARGUMENTS)
        ),
        "CU 0       FIRST:MLIRAIE  kernel id 0x101  function 0  PDI 0",
        "CU 1       SECOND:MLIRAIE  kernel id 0x102  function 0  PDI 1",
        "CU 2       SECOND:TWICE  kernel id 0x103  function 1  PDI 1",
        f"PDI 0      {IDS[0]}  130 bytes  kernel ids 0x101",
        f"PDI 1      {IDS[1]}  64 bytes  kernel ids 0x102, 0x103  emulated kernel copy",
        f"PDI 2      {IDS[2]}  20 bytes  kernel ids 0x901  no CU uses it",
        "section                   offset      bytes  name",
        *(f"  {kind:<22}{offset:>8}{size:>11}" for kind, offset, size in sections(file.read_bytes())),
    ]


def test_every_key(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xclbin", str(file), "--json"]) == 0
    arguments = [
        {"index": n, "name": name, "size": size, "offset": offset, "buffer": kind == "buffer", "type": what}
        for n, (name, size, offset, kind, what) in enumerate(ARGUMENTS)
    ]
    digests = [
        hashlib.blake2b(data, digest_size=16).hexdigest()
        for data in (b"compiled code" * 10, pdi(Family.COPY), b"x" * 20)
    ]
    rows = [
        (130, [0x101], [0], True, None),
        (64, [0x102, 0x103], [0, 1], True, "copy"),
        (20, [0x901], [], False, None),
    ]
    names = ("size", "kernel_ids", "functions", "used", "emulator")
    cus = [("FIRST:MLIRAIE", "FIRST", 0x101, 0, 0), ("SECOND:MLIRAIE", "SECOND", 0x102, 0, 1)]
    cus.append(("SECOND:TWICE", "SECOND", 0x103, 1, 1))
    assert json.loads(capsys.readouterr().out) == {
        "schema": "amdxdna.xclbin",
        "version": 1,
        "file": str(file),
        "size": file.stat().st_size,
        "uuid": str(IDS[0]),
        "timestamp": MADE,
        "digest": Xclbin.read(file).digest.hex(),
        "kernels": ["FIRST", "SECOND"],
        "generation": "emulated NPU",
        "partition": {"name": "QoS", "columns": 4, "start_columns": [0, 4], "ops_per_cycle": 2048},
        "arguments": {"FIRST": arguments, "SECOND": arguments},
        "arguments_problem": None,
        "sections": [
            {"kind": kind, "name": "", "offset": offset, "size": size}
            for kind, offset, size in sections(file.read_bytes())
        ],
        "pdis": [
            {"uuid": str(IDS[n]), "digest": digests[n], **dict(zip(names, row, strict=True))}
            for n, row in enumerate(rows)
        ],
        "cus": [
            dict(zip(("name", "kernel", "kernel_id", "function", "pdi"), row, strict=True)) for row in cus
        ],
        "problem": None,
    }


@pytest.mark.parametrize(
    ("columns", "starts", "says"),
    [
        (8, (0,), "NPU2 (8 columns)"),
        (6, (0,), "NPU2 (6 columns)"),
        (4, (0, 4), "NPU2 (8 columns)"),
        (1, (5,), "NPU2 (6 columns)"),
        (5, (0,), "NPU1 or NPU2: the file does not tell"),
        (4, (0,), "NPU1 or NPU2: the file does not tell"),
        (4, (), "NPU1 or NPU2: the file does not tell"),
        (4, (1,), "NPU1, it seems: no partition starts at column 0"),
        (1, (1, 2, 3, 4), "NPU1, it seems: no partition starts at column 0"),
    ],
)
def test_which_npu_a_file_is_for(
    columns: int, starts: tuple[int, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NPU1 has five columns, the first of which has no shim DMA; NPU2 has eight."""
    path = tmp_path / "a.xclbin"
    path.write_bytes(build([PdiSpec(b"compiled" * 9)], columns=columns, start_columns=starts))
    assert main(["xclbin", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"made for   {says}\n" in out
    assert f"{columns} columns, start at {', '.join(map(str, starts)) or 'none'};" in out


@pytest.mark.parametrize(
    ("timestamp", "made_at"),
    [
        (0, ""),
        (1, ", made 1970-01-01 00:00 UTC"),
        ((1 << 34) - 1, ", made 2514-05-30 01:53 UTC"),
        (1 << 34, ""),
    ],
)
def test_when_it_was_made(
    timestamp: int, made_at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that cannot be a time in seconds is not shown as one."""
    path = tmp_path / "a.xclbin"
    path.write_bytes(made(timestamp=timestamp))
    assert main(["xclbin", str(path)]) == 0
    assert f"UUID       {IDS[0]}{made_at}\n" in capsys.readouterr().out


def difference(what: str, file: Any, other: Any) -> dict[str, Any]:
    return {"what": what, "file": file, "other": other}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"uuid": IDS[1]}, [difference("uuid", str(IDS[0]), str(IDS[1]))]),
        ({"timestamp": 5}, [difference("timestamp", MADE, 5)]),
        ({"ops_per_cycle": 1024}, [difference("partition ops_per_cycle", 2048, 1024)]),
        (
            {"columns": 2, "start_columns": (0, 4)},
            [difference("partition columns", 4, 2)],
        ),
        ({"start_columns": (0, 2)}, [difference("partition start_columns", [0, 4], [0, 2])]),
    ],
)
def test_what_differs(
    changes: dict[str, Any], told: list[dict[str, Any]], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = file.with_name("b.xclbin")
    other.write_bytes(made(**changes))
    assert main(["xclbin", str(file), str(other), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    same = Xclbin.read(file).digest == Xclbin.read(other).digest
    assert said["same_context"] == same and (said["file"], said["other"]) == (str(file), str(other))
    assert [each for each in said["differences"] if each["what"] != "digest"] == told
    assert any(each["what"] == "digest" for each in said["differences"]) != same
    assert main(["xclbin", str(file), str(other)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{file} and {other}: {len(said['differences'])} differences"
    assert [f"  {each['what']}: {each['file']} | {each['other']}" for each in said["differences"]] == lines[
        1:-1
    ]
    assert lines[-1].startswith(
        "One hardware context serves both." if same else "Columns, compute units or PDIs"
    )


def test_what_only_one_file_has(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = file.with_name("b.xclbin")
    other.write_bytes(
        made(pdis=[PdiSpec(b"compiled code" * 10, (0x101,), IDS[0])], kernels=[KernelSpec("FIRST", 0x101)])
    )
    assert main(["xclbin", str(file), str(other)]) == 1
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "  generation: emulated NPU | NPU2 (8 columns)",
        "  CU 1 name: SECOND:MLIRAIE | -",
        "  CU 2 function: 1 | -",
        f"  PDI 1 uuid: {IDS[1]} | -",
        "  PDI 2 used: False | -",
        "  SECOND argument 0: opcode, 8 bytes at 0x0, value | -",
        "  SECOND argument 1: instr, 8 bytes at 0x8, buffer | -",
    ):
        assert line in lines
    assert any(line.startswith("  section EMBEDDED_METADATA bytes: ") for line in lines)
    assert not any("FIRST argument" in line or "PDI 0" in line for line in lines)
    assert main(["xclbin", str(file), str(file)]) == 0
    assert (
        capsys.readouterr().out == f"{file} and {file}: the same content\nOne hardware context serves both.\n"
    )


UNREADABLE = "at byte 368: WRITE of 2 words does not fit: 0 are left"
CUT = pdi_image([], raw=struct.pack("<4I", 0x00020103, at(0, 2, 0x32000), 1, 0x00020103))
UNKNOWN = pdi_image([], raw=struct.pack("<5I", 0x000101FE, 7, 0x00020103, at(0, 2, 0x32000), 1))


@pytest.mark.parametrize(
    ("image", "head", "commands"),
    [
        (
            pdi_image([W(at(0, 2, 0x32000), 1, 3)], nops=False),
            ["bytes, plain, 1 commands"],
            ["0x000164  MASK_WRITE    0x00232000 (0,2) Core_Control 0x00000001 mask 0x00000003"],
        ),
        (
            CUT,
            [
                "bytes, plain, 1 commands",
                f"problem   {UNREADABLE}; what follows is not decoded",
            ],
            [
                "0x000164  WRITE         0x00232000 (0,2) Core_Control 0x00000001",
                f"0x000170  unreadable    {UNREADABLE}",
            ],
        ),
        (
            UNKNOWN,
            [
                "bytes, plain, 2 commands, 1 unknown",
                "problem   COMMAND_0x1fe at byte 356: unknown command 0x1fe",
            ],
            [
                "0x000164  COMMAND_0x1fe 0x00000007",
                "0x00016c  WRITE         0x00232000 (0,2) Core_Control 0x00000001",
            ],
        ),
    ],
)
def test_commands_of_a_pdi(
    image: bytes, head: list[str], commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.xclbin"
    path.write_bytes(build([PdiSpec(image)], columns=1))
    assert main(["xclbin", str(path), "--commands"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: PDI 0 of 1: {len(image)} {head[0]}") and lines[0].endswith(head[0])
    assert all(line in lines for line in head[1:])
    assert lines[-len(commands) :] == commands
    assert main(["xclbin", str(path), "--pdi", "0", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["pdi"]
    assert said["decoded"] and said["pdi"] == 0 and "commands_listed" not in said
    assert main(["xclbin", str(path), "--commands", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["pdi"]
    assert [each["command"] for each in said["commands_listed"]] == [line.split()[1] for line in commands]
    assert [each["offset"] for each in said["commands_listed"]] == [int(line[:8], 16) for line in commands]


def test_a_pdi_that_is_none(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xclbin", str(file), "--pdi", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["pdi"]
    assert said == [
        {
            "pdi": 0,
            "decoded": False,
            "reason": "at byte 0: no PDI image: 130 bytes, less than its headers (356)",
        },
        {
            "pdi": 1,
            "decoded": False,
            "reason": "the emulated NPU's kernel copy: a mark for the emulator, no configuration",
        },
        {
            "pdi": 2,
            "decoded": False,
            "reason": "at byte 0: no PDI image: 20 bytes, less than its headers (356)",
        },
    ]


@pytest.mark.parametrize("options", [["--svg", "OUT"], ["--svg", "OUT", "--pdi", "0"]])
def test_the_drawing_is_of_the_files_one_pdi(options: list[str], tmp_path: Path) -> None:
    path, out = tmp_path / "a.xclbin", tmp_path / "a.svg"
    path.write_bytes(build([PdiSpec(pdi_image([W(at(0, 2, 0x32000), 1)]))], columns=1))
    assert main(["xclbin", str(path), *(str(out) if word == "OUT" else word for word in options)]) == 0
    assert "<title>a.xclbin, PDI 0</title>" in out.read_text()
