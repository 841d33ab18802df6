"""`python -m amdxdna xclbin`: what it says of a file, against what the file was made of."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from amdxdna.cli import main
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.xclbin.layout import HEADER_BYTES
from amdxdna.xclbin.writer import KernelSpec, PdiSpec, build


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two PDIs, one compiled (unknown) and one of the emulator, three kernels, four columns."""
    path = tmp_path / "two.xclbin"
    pdis = [PdiSpec(b"compiled code" * 10, (0x101,)), PdiSpec(pdi(Family.COPY), (0x102, 0x103))]
    path.write_bytes(
        build(
            pdis,
            [
                KernelSpec("FIRST", 0x101),
                KernelSpec("SECOND", 0x102),
                KernelSpec("SECOND", 0x103, "TWICE", functional=1),
            ],
            columns=4,
        )
    )
    return path


def test_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xclbin", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["version"], said["file"]) == ("amdxdna.xclbin", 1, str(file))
    assert said["size"] == file.stat().st_size
    assert said["partition"]["columns"] == 4
    assert said["kernels"] == ["FIRST", "SECOND"]
    assert [(cu["kernel"], cu["pdi"]) for cu in said["cus"]] == [("FIRST", 0), ("SECOND", 1), ("SECOND", 1)]
    assert [(pdi["size"], pdi["emulator"]) for pdi in said["pdis"]] == [(130, None), (64, "copy")]
    assert [(cu["kernel_id"], cu["function"]) for cu in said["cus"]] == [(0x101, 0), (0x102, 0), (0x103, 1)]
    assert [pdi["kernel_ids"] for pdi in said["pdis"]] == [[0x101], [0x102, 0x103]]
    assert [pdi["functions"] for pdi in said["pdis"]] == [[0], [0, 1]]
    data = file.read_bytes()
    kinds = {section["kind"]: section for section in said["sections"]}
    assert {"AIE_PARTITION", "IP_LAYOUT", "MEM_TOPOLOGY"} <= set(kinds)
    for section in kinds.values():
        assert HEADER_BYTES < section["offset"] <= section["offset"] + section["size"] <= len(data)


def test_text(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xclbin", str(file)]) == 0
    text = capsys.readouterr().out
    assert f"{file}: {file.stat().st_size} bytes" in text
    assert "4 columns" in text
    assert "kernels    FIRST, SECOND" in text
    assert "SECOND:TWICE" in text
    assert "emulated kernel copy" in text
    assert "AIE_PARTITION" in text


@pytest.mark.parametrize("cut", [0, 7, 455, 700, -1])
def test_damaged_file_is_one_line(file: Path, cut: int, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(file.read_bytes()[:cut])
    assert main(["xclbin", str(file), "--json"]) == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["schema"], document["call"]) == ("amdxdna.error", "xclbin")
    assert document["remedy"]
    assert said.err.count("\n") == 1
    assert str(file) in said.err


def test_no_such_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xclbin", str(tmp_path / "none"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["errno"] == "ENOENT"


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xclbin"]) == 2
    assert "--help" in capsys.readouterr().err


def test_names_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostile.xclbin"
    path.write_bytes(build([PdiSpec(pdi(Family.COPY))], [KernelSpec("A\x1b[2JB")]))
    assert main(["xclbin", str(path)]) == 0
    said = capsys.readouterr().out
    assert "A\\x1b[2JB" in said
    assert "\x1b" not in said


def test_a_drawing_takes_no_xclbins_place(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = file.read_bytes()
    assert main(["xclbin", str(file), "--pdi", "0", "--svg", f"{file.parent}/./{file.name}"]) == 2
    assert "is the xclbin" in capsys.readouterr().err and file.read_bytes() == data


def test_a_pipe_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert main(["xclbin", str(tmp_path / "fifo")]) == 1
    said = capsys.readouterr().err
    assert "fifo: not a regular file. Name a file" in said and "ownload" not in said


def test_a_file_that_no_npu_can_run_is_shown(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sections, PDIs and arguments as of any other, with why; exit status 1."""
    other = tmp_path / "other.xclbin"
    other.write_bytes(build([PdiSpec(b"compiled" * 8, (0x100,))], [KernelSpec("DPU", 0)], columns=4))
    assert main(["xclbin", str(other)]) == 1
    said = capsys.readouterr()
    assert not said.err and "problem    an xclbin that no NPU can run" in said.out
    assert "AIE_PARTITION" in said.out and "kernel ids 0x100  no CU uses it" in said.out
    assert main(["xclbin", str(other), "--json"]) == 1
    held = json.loads(capsys.readouterr().out)
    assert "DPU:MLIRAIE with id 0x0" in held["problem"] and held["partition"]["columns"] == 4
    assert held["cus"] == [] and [pdi["used"] for pdi in held["pdis"]] == [False]
    assert main(["xclbin", str(other), "--pdi"]) == 1
    assert f"{other}: PDI 0 of 1: 64 bytes" in capsys.readouterr().out
    assert main(["xclbin", str(file), str(other)]) == 1
    assert f"No NPU can run {other}." in capsys.readouterr().out
    platform = tmp_path / "platform.xclbin"
    data = bytearray(file.read_bytes())
    data[448] = 1  # sections: only the first
    platform.write_bytes(data)
    assert main(["xclbin", str(platform)]) == 1
    said = capsys.readouterr()
    assert "no AIE_PARTITION and no IP_LAYOUT section" in said.out.replace("\n           ", " ")
    assert "partition  none" in said.out and "MEM_TOPOLOGY" in said.out and not said.err
    for options in (["--pdi"], ["--pdi", "--draw"], ["--commands"]):
        assert main(["xclbin", str(platform), *options]) == 1
        said = capsys.readouterr()
        assert f"{platform}: no PDI" in said.out and "that no NPU can run" in said.out and not said.err
    assert main(["xclbin", str(platform), "--svg", str(tmp_path / "drawn.svg")]) == 1
    assert "the file has no PDI to draw" in capsys.readouterr().err
    assert main(["xclbin", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problem"] is None
