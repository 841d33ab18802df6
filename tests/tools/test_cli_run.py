"""`amdxdna run` and `amdxdna example`: data in and out of files, compared and timed."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from amdxdna.cli import main
from amdxdna.cli.arrays import compare
from amdxdna.cli.common import CommandError
from amdxdna.emu import xclbins
from amdxdna.emu.kernels import stream
from amdxdna.xclbin import Xclbin
from amdxdna.xclbin.writer import KernelSpec, PdiSpec, build
from tests.support.emulation import ROOT

Capture = pytest.CaptureFixture[str]
EMU = ["--device", "emu:threads=1,quiet"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert main(["example", str(tmp_path / "ex")]) == 0
    return tmp_path / "ex"


def command(folder: Path, *rest: str) -> list[str]:
    return ["run", str(folder / "copy.xclbin"), str(folder / "copy.insts"), *rest, *EMU]


def test_example_runs_as_it_says(tmp_path: Path, capsys: Capture) -> None:
    assert main(["example", str(tmp_path / "a dir"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [Path(p).name for p in said["files"]] == ["copy.xclbin", "copy.insts", "a.npy", "want.npy"]
    words = shlex.split(said["command"])
    assert words[1:3] == ["-m", "amdxdna"]
    assert main(words[3:]) == 0
    assert "1024 of 1024 equal" in capsys.readouterr().out
    assert np.array_equal(np.load(tmp_path / "a dir" / "c.npy"), np.arange(1, 1025, dtype=np.int32))


def test_example_overwrites_nothing(folder: Path, capsys: Capture) -> None:
    (folder / "copy.xclbin").write_bytes(b"mine")
    assert main(["example", str(folder)]) == 1
    assert "already there" in capsys.readouterr().err
    assert (folder / "copy.xclbin").read_bytes() == b"mine"


def test_difference_is_found_and_named(folder: Path, capsys: Capture) -> None:
    want = np.arange(1, 1025, dtype=np.int32)
    want[7] = -5
    want[900] = 0
    np.save(folder / "w.npy", want)
    words = command(folder, "--in", str(folder / "a.npy"), "--out", "4096", "--expect", str(folder / "w.npy"))
    assert main(words) == 1
    assert "1022 of 1024 equal; first difference at 7: 8, expected -5" in capsys.readouterr().out
    assert main([*words, "--json", "--repeat", "3"]) == 1
    said = json.loads(capsys.readouterr().out)
    (output,) = said["outputs"]
    assert (output["equal"], output["count"], output["first"], output["found"], output["expected"]) == (
        1022,
        1024,
        7,
        "8",
        "-5",
    )
    assert said["runs"] == 3 and 0 < said["median_us"] <= said["p99_us"] and not said["ok"]
    assert [b["argument"] for b in said["buffers"]] == ["bo0", "bo1"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("corrupt=1", "1023 of 1024 equal; first difference at 0: "),
        ("skip=1", "0 of 1024 equal; first difference at 0: 0, expected 1 (run 1 of 3)"),
        ("skip=2", "0 of 1024 equal; first difference at 0: 0, expected 1 (run 2 of 3)"),
    ],
)
def test_every_run_is_compared(fault: str, said: str, folder: Path, capsys: Capture) -> None:
    words = command(folder, "--in", str(folder / "a.npy"), "--out", f"{folder}/c.npy:4096", "--repeat", "3")
    words += ["--expect", str(folder / "want.npy")]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["wrong_run"] is None
    words = [f"{word},{fault}" if word.startswith("emu:") else word for word in words]
    assert main(words) == 1
    assert said in capsys.readouterr().out
    assert np.load(folder / "c.npy")[0] != 1  # the wrong run's


def test_big_endian_files_are_swapped(folder: Path) -> None:
    for name in ("a.npy", "want.npy"):
        np.save(folder / name, np.load(folder / name).astype(">i4"))
    words = command(folder, "--in", str(folder / "a.npy"), "--out", f"{folder}/c.npy:4096")
    assert main([*words, "--expect", str(folder / "want.npy")]) == 0
    assert np.array_equal(np.load(folder / "c.npy"), np.arange(1, 1025, dtype=np.int32))


def test_raw_files_sizes_and_text_streams(folder: Path, capsys: Capture) -> None:
    data = np.arange(4096, dtype=np.uint16).tobytes()[:4096]
    (folder / "a.bin").write_bytes(data)
    insts = np.fromfile(folder / "copy.insts", np.uint32)
    (folder / "copy.insts").write_text("\n".join(f"{word:08x}" for word in insts))
    assert main(command(folder, "--in", str(folder / "a.bin"), "--out", f"{folder}/c.bin:4k")) == 0
    assert np.array_equal(np.fromfile(folder / "c.bin", np.uint32), np.frombuffer(data, np.uint32) + 1)
    assert main(command(folder, "--in", "4096", "--out", f"{folder}/c.npy:4096", "--dtype", "uint32")) == 0
    assert np.array_equal(np.load(folder / "c.npy"), np.arange(1, 1025, dtype=np.uint32))
    (folder / "copy.insts").write_bytes(stream.copy(4, 0))
    for size in (5, 7):  # its last word in part
        (folder / "want").write_bytes(bytes(4))
        assert main(command(folder, "--in", str(size), "--out", "4", "--expect", f"{folder}/want")) == 0


def test_numbers_may_be_near(folder: Path, capsys: Capture) -> None:
    want = np.arange(1, 1025, dtype=np.int32)
    want[3] += 2
    np.save(folder / "w.npy", want)
    words = command(folder, "--in", str(folder / "a.npy"), "--out", "4096", "--expect", str(folder / "w.npy"))
    assert main([*words, "--within", "2"]) == 0
    assert main([*words, "--within", "1.5"]) == 1


@pytest.mark.parametrize(
    ("rest", "status", "what"),
    [
        ([], 2, "there is no buffer"),
        (["--in", "none.npy"], 1, "none.npy: no such file"),
        (["--in", "."], 1, "not a regular file"),
        (["--in", "0"], 2, "0 bytes"),
        (["--in", "5g"], 2, "5g bytes"),
        (["--in", "4096", "--out", "c"], 2, "no size"),
        (["--in", "bad.npy", "--out", "4096"], 1, "bad.npy is no .npy file"),
        (["--in", "objects.npy", "--out", "4096"], 1, "objects.npy is no .npy file"),
        (["--in", "empty.bin"], 2, "holds nothing"),
        (["--in", "4096", "--out", "4096", "--expect", "empty.bin"], 2, "--expect empty.bin holds nothing"),
        (["--in", "/proc/self/mem"], 1, "/proc/self/mem cannot be read: Input/output error"),
        (["--in", "4096", "--out", "want.npy:4096", "--expect", "./want.npy"], 2, "place of ./want.npy"),
        (["--in", "4096", "--out", "new:4096", "--out", "./new:4096"], 2, "would take the place of new"),
        (["--in", "a.npy", "--out", "./a.npy:4096"], 2, "--out ./a.npy would take the place of a.npy"),
        (["--in", "4096", "--out", "copy.insts:4096"], 2, "would take the place of"),
        (["--in", "4096", "--expect", "empty.bin"], 2, "1 --expect for 0 --out"),
        (["--in", "4096", "--out", "4096", "--dtype", "O"], 2, "not a number's type"),
        (["--in", "4096", "--out", "4096", "--dtype", "quux"], 2, "unknown"),
        (["--in", "4096", "--out", "4095", "--dtype", "int16"], 2, "no whole number"),
        (["--in", "4096", "--out", "4096", "--repeat", "0"], 2, "--repeat 0"),
        (["--in", "4096", "--out", "4096", "--repeat", "1000001"], 2, "--repeat 1000001"),
        (["--in", "4096", "--repeat", "1000000", "--timeout", "-1"], 2, "--timeout -1. Give seconds"),
        (["--in", "4096", "--timeout", "0"], 2, "--timeout 0. Give seconds"),
        (["--in", "4096", "--within", "-1"], 2, "--within -1"),
        (["--in", "4096", "--within", "nan"], 2, "--within nan"),
        (["--in", "4096", "--out", "0"], 2, "0 bytes. Give 1 to 4g"),
        (["--in", "4096", "--out", "4096", "--timeout", "nan"], 2, "--timeout nan"),
        (["--in", "4096", "--out", "/nowhere/c.bin:4096"], 1, "/nowhere/c.bin cannot be written"),
        (["--in", "4096", "--out", "4096", "--kernel", "OTHER"], 1, "there is no 'OTHER'"),
        (
            ["--in", "64", "--in", "64", "--in", "64", "--in", "64", "--in", "64", "--out", "64"],
            1,
            "takes 5 buffers (bo0, bo1, bo2, bo3, bo4), 6 are given",
        ),
        (["--in", "4096", "--out", "64"], 1, "the kernel wrote 4032 bytes and more behind the 64 of output"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, rest: list[str], status: int, what: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': <class 'int'>}")
    np.save(folder / "objects.npy", np.array([{}], object), allow_pickle=True)
    (folder / "empty.bin").write_bytes(b"")
    capsys.readouterr()
    assert main(command(folder, *rest)) == status
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and what in said.err and "unexpected" not in said.err


def test_arguments_in_another_order_are_refused(folder: Path, capsys: Capture) -> None:
    """DPU_PDI_n of AMD's overlays takes its instructions at argument 5: a packet in mlir-aie's order would
    send buffers as instructions."""
    file = build([PdiSpec(b"compiled")], [KernelSpec("DPU_PDI_0")])
    names = ("opcode", "instr", "ninstr", "bo0", "bo1", "bo2", "bo3", "bo4")
    other = file
    for index, name in enumerate(("opcode", "ifm", "param", "ofm", "inter", "instruct", "nistruct", "mc")):
        old = f'<arg name="{names[index]}" addressQualifier="{0 if index in (0, 2) else 1}"'.encode()
        new = f'<arg name="{name}" addressQualifier="{0 if index in (0, 6) else 1}"'.encode()
        at = other.index(old)
        other = other[:at] + new + other[at + len(old) :]
    start, end = other.index(b"<?xml"), other.index(b"</project>") + len(b"</project>\n")
    (folder / "copy.xclbin").write_bytes(_refit(file, other[start:end]))
    assert main(command(folder, "--in", "64")) == 1
    assert "takes opcode, ifm, param, ofm, inter, instruct, nistruct, mc" in capsys.readouterr().err


def test_buffers_that_the_metadata_calls_values(folder: Path, capsys: Capture) -> None:
    file = (folder / "copy.xclbin").read_bytes()
    for index in range(5):
        old = f'<arg name="bo{index}" addressQualifier="1"'.encode()
        assert old in file
        file = file.replace(old, old[:-2] + b'0"')
    (folder / "copy.xclbin").write_bytes(file)
    words = command(folder, "--in", str(folder / "a.npy"), "--out", "4096", "--expect", f"{folder}/want.npy")
    assert main(words) == 0
    said = capsys.readouterr()
    assert "1024 of 1024 equal" in said.out and "bo0, bo1, bo2, bo3, bo4 are values" in said.err
    assert main(command(folder, *["--in", "64"] * 6)) == 1
    assert "takes 5 buffers" in capsys.readouterr().err


def _refit(file: bytes, xml: bytes) -> bytes:
    """The xclbin with other metadata: the new section goes to the end."""
    data = bytearray(file)
    data += bytes(-len(data) % 8)
    at = len(data)
    data += xml
    struct.pack_into("<Q", data, 304, len(data))
    for index in range(struct.unpack_from("<I", data, 448)[0]):
        head = 456 + 40 * index
        if struct.unpack_from("<I", data, head)[0] == 2:
            struct.pack_into("<QQ", data, head + 24, at, len(xml))
    return bytes(data)


def test_several_kernels(folder: Path, capsys: Capture) -> None:
    one = xclbins.xclbin_bytes("copy")
    pdi = Xclbin.read(one).pdis[0].data
    (folder / "copy.xclbin").write_bytes(
        build([PdiSpec(pdi, (0x101, 0x102))], [KernelSpec("FIRST", 0x101), KernelSpec("SECOND", 0x102)])
    )
    (folder / "copy.insts").write_bytes(stream.copy(64, addend=3))
    assert main(command(folder, "--in", "64", "--out", "64")) == 1
    assert "the kernels are FIRST, SECOND" in capsys.readouterr().err
    assert main(command(folder, "--in", "64", "--out", "c.bin:64", "--kernel", "SECOND", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["kernel"] == "SECOND"
    Path("c.bin").unlink()


def test_a_wait_that_was_long_enough(folder: Path, capsys: Capture) -> None:
    """The hung command is ended with its context, long before the driver's time-out; the option is named."""
    words = [*command(folder, "--in", "4096", "--out", "4096", "--timeout", "0.2"), "--json"]
    words[words.index(EMU[1])] = "emu:threads=1,quiet,hang=1,tdr=600"
    assert main(words) == 1
    said = capsys.readouterr()
    assert "not completed within 0.2 s" in said.err and "--timeout SECONDS" in said.err
    assert "ait again" not in said.err and json.loads(said.out)["call"] == "SYNCOBJ_TIMELINE_WAIT"


def test_what_is_said_of_runs(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which three runs take 1, 5 and 9 units of 1/1024 s."""
    monkeypatch.chdir(folder)

    def ran(*rest: str) -> list[str]:
        ticks = itertools.count()
        clock = SimpleNamespace(perf_counter=lambda: next(ticks) ** 2 / 1024)
        monkeypatch.setattr("amdxdna.cli.run.time", clock)
        capsys.readouterr()
        assert main(command(folder, "--in", "a.npy", "--out", "c.npy:4096", *rest)) == 0
        return capsys.readouterr().out.splitlines()

    assert ran() == [
        "bo0      in         4096 bytes  a.npy",
        "bo1      out        4096 bytes  c.npy",
        "c.npy: nothing expected; written to c.npy",
        "1 run on emu: median 976.6 us",
    ]
    more = ("--expect", "want.npy", "--out", "64", "--repeat", "3")
    assert ran(*more)[-3:] == [
        "c.npy: 1024 of 1024 equal; written to c.npy",
        "output: nothing expected",
        "3 runs on emu: median 4882.8 us, p99 8789.1 us",
    ]
    found = json.loads(*ran(*more, "--json"))
    assert (found["runs"], found["median_us"], found["p99_us"]) == (3, 4882.8, 8789.1)
    nothing = dict.fromkeys(("equal", "first", "found", "expected"))
    assert found["outputs"] == [
        {"name": "c.npy", "file": "c.npy", "count": 1024, **nothing, "equal": 1024},
        {"name": "output", "file": None, "count": None, **nothing},
    ]


@pytest.mark.parametrize(
    ("found", "wanted", "within", "equal", "first"),
    [
        (np.array([1.5, np.nan, np.inf, 3], "f4"), np.array([1, np.nan, np.inf, 2], "f4"), 0.5, 3, 3),
        (np.array([1.5, np.nan, np.inf], "f4"), np.array([1, 1, -np.inf], "f4"), 0.5, 1, 1),
        (np.array([0, 5, 9], "u1"), np.array([2, 3, 6], "u1"), 2, 2, 2),
        (np.array([0, 0x80000000], "u4"), np.array([0.0, 0.0], "f4"), 0, 1, 1),
        (np.array([0, 0x80000000], "u4"), np.array([0.0, 0.0], "f4"), 1e-9, 2, None),
        (np.array([0, 1], "u1"), np.array([True, True]), 1, 1, 0),
        (np.array([[1, 2], [3, 4]], "i2"), np.array([[1, 2], [3, 5]], "i2"), 0, 3, 3),
    ],
)
def test_how_outputs_are_compared(
    found: np.ndarray, wanted: np.ndarray, within: float, equal: int, first: int | None
) -> None:
    """As numbers of the expected type, however near, or bit for bit."""
    said = compare(found.view("u1"), wanted, within)
    assert (said.equal, said.count, said.first) == (equal, wanted.size, first)
    assert first is None or said.wanted == str(wanted.reshape(-1)[first])
    with pytest.raises(CommandError, match="1 bytes, what is expected"):
        compare(np.zeros(1, "u1"), wanted, within)


@pytest.mark.parametrize("words", ["run", "selftest", "program", "qwen35"])
def test_ctrl_c_ends_a_command_that_hangs(words: str, folder: Path) -> None:
    """Neither the driver nor the wait gives it up for ten minutes: one Ctrl-C is enough. The status
    is 130, and what became of the command is said."""
    device = "emu:threads=1,tdr=600,hang=" + {"qwen35": "200", "program": "16"}.get(words, "1")
    parts = {
        "run": ["amdxdna", *command(folder, *["--in", "4096"] * 3, "--out", "4096")[:-2]],
        "selftest": ["amdxdna", "selftest"],
        "program": [
            *("amdxdna", "selftest", "--buffers", "4k,4k"),
            *("--xclbin", f"{folder}/copy.xclbin", "--insts", f"{folder}/copy.insts"),
        ],
        "qwen35": ["qwen35", "--prompt", "What is a whale?"],
    }[words]
    with subprocess.Popen(
        [sys.executable, "-m", *parts, "--device", device],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "AMDXDNA_WAIT": "600"},
        cwd=ROOT,
    ) as program:
        try:
            assert program.stderr is not None
            while "injected fault" not in program.stderr.readline():
                assert program.poll() is None
            program.send_signal(signal.SIGINT)
            _, err = program.communicate(timeout=120)
        finally:
            program.kill()
    assert program.returncode == 130 and "Traceback" not in err
    assert "stopping: " in err and "Ctrl-C again ends at once" in err and "hardware context" in err
    if words != "qwen35":
        assert err.endswith(
            "stopped: the command was ended with its hardware context: what it wrote is not known\n"
        )
