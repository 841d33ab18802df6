"""What `python -m amdxdna` says of a wrong word, letter by letter: the fault first, then what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from amdxdna.cli import main
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.trace import SCHEMA
from amdxdna.xclbin.writer import KernelSpec, PdiSpec, build
from tests.support.pdi_builder import W, at
from tests.support.pdi_builder import build as pdi_image
from tests.support.program import FIRST

DEVICE = "--device emu:threads=1,quiet"
RUN = "run one.xclbin code --in 64 --out"
OTHER = "Give a file that `trace` or AMDXDNA_TRACE wrote"
NPY = "Write it again with numpy.save"

ROWS: dict[str, tuple[int, str]] = {
    "nonsense": (
        2,
        "nonsense: no such command. There are: doctor, info, contexts, power, sensors, telemetry, errors, "
        "snapshot, xclbin, insts, trace, emulate, pyxrt, run, example, selftest, bench",
    ),
    "xclbni": (2, "xclbni: no such command. Did you mean xclbin?"),
    "info --nonsense": (
        2,
        "amdxdna info: unrecognized arguments: --nonsense. See python -m amdxdna info --help",
    ),
    # xclbin
    "xclbin two.xclbin --svg x.svg": (1, "the file has 2 PDIs and --svg draws one. Name it: --pdi N"),
    "xclbin two.xclbin --pdi 2": (1, "there is no PDI 2. The file has 2, counted from 0"),
    "xclbin two.xclbin --pdi -2": (1, "there is no PDI -2. The file has 2, counted from 0"),
    "xclbin two.xclbin one.xclbin --pdi 0": (
        2,
        "two files are compared as a whole. Leave --pdi and its options away",
    ),
    "xclbin one.xclbin --svg ./one.xclbin": (
        2,
        "./one.xclbin is the xclbin, and --svg would take its place. Name another file",
    ),
    "xclbin one.xclbin --svg x.svg": (
        1,
        "PDI 0 cannot be drawn: the emulated NPU's kernel copy: a mark for the emulator, no configuration",
    ),
    "xclbin designed.xclbin --svg no/where": (
        1,
        "no/where cannot be written: No such file or directory. Name another file",
    ),
    # insts
    "insts code --at 1": (1, "there is no operation 1. The stream has 1, counted from 0"),
    "insts code --at -1": (1, "there is no operation -1. The stream has 1, counted from 0"),
    "insts big": (1, "big is over 8 MiB. Give an instruction stream"),
    "insts none": (1, "none cannot be read: No such file or directory"),
    # example
    "example code/x": (1, "code/x cannot be made: Not a directory. Name another directory"),
    "example there": (1, "there/want.npy is already there. Name an empty directory"),
    # snapshot, power, telemetry
    "snapshot code": (1, "code is there already. Give another name, or --force to replace it"),
    f"snapshot no/where {DEVICE}": (
        1,
        "no/where cannot be written: No such file or directory. Name another file",
    ),
    f"power fast {DEVICE}": (
        2,
        "amdxdna power: there is no mode 'fast'. There are: default, low, medium, high, turbo",
    ),
    f"telemetry -o no/where {DEVICE}": (
        1,
        "no/where cannot be written: No such file or directory. Name another file",
    ),
    f"telemetry --type -1 {DEVICE}": (
        2,
        "amdxdna telemetry: --type takes a number from 0. See python -m amdxdna telemetry --help",
    ),
    # trace
    "trace": (2, "trace: no command. Give it after --: python -m amdxdna trace -- PROGRAM ARGUMENT..."),
    "trace --read t -- true": (2, "--read goes without a COMMAND. Leave the command away"),
    "trace --emulate --node n -- true": (
        2,
        "--emulate goes without --every-call and --node. It sees every call of its node already",
    ),
    "trace --slow 5 -- true": (2, "--slow is of the emulated NPU's options. Add --emulate"),
    "trace -e EXEC_CMD -- true": (2, "-e and --packets belong to --text. Add --text"),
    "trace --packets -- true": (2, "-e and --packets belong to --text. Add --text"),
    "trace --buffers -1 -- true": (2, "--buffers -1. Give 0 to 65536"),
    "trace --buffers 65537 -- true": (2, "--buffers 65537. Give 0 to 65536"),
    "trace --timeline ./t -o t -- true": (
        2,
        "t is the trace, and --timeline would take its place. Name another file",
    ),
    "trace --read t --timeline ./t": (
        2,
        "t is the trace, and --timeline would take its place. Name another file",
    ),
    "trace --timeline ./amdxdna-trace.jsonl -- true": (
        2,
        "amdxdna-trace.jsonl is the trace, and --timeline would take its place. Name another file",
    ),
    "trace --read t": (2, "--read makes views of a trace. Add --text or --timeline FILE"),
    "trace --read none --text": (1, "none cannot be read: No such file or directory"),
    "trace --read t --timeline no/where": (
        1,
        "no/where cannot be written: No such file or directory. Name another file",
    ),
    "trace --read newer --text": (
        1,
        "newer: a trace of format version 2, and this amdxdna reads version 1. "
        "Read it with the amdxdna that wrote it",
    ),
    "trace --read empty --text": (1, f"empty: no trace: the file is empty. {OTHER}"),
    "trace --read other --text": (1, f"other: line 1 is not of a trace: no header. {OTHER}"),
    "trace -o code -- true": (1, "code is there already and is no trace. Name another file, or remove it"),
    "trace -o no/where -- true": (
        1,
        "no/where cannot be written: No such file or directory. Name another file",
    ),
    # emulate
    "emulate --": (
        2,
        "emulate: no command. Give it after --: python -m amdxdna emulate -- PROGRAM ARGUMENT...",
    ),
    "emulate --device-path dev -- true": (
        2,
        "--device-path dev: not a plain absolute path. Give one such as /dev/accel/accel0",
    ),
    "emulate --device-path / -- true": (
        2,
        "--device-path /: not a plain absolute path. Give one such as /dev/accel/accel0",
    ),
    "emulate --vfio-user s --slots 32": (
        2,
        "--slots 32: a context needs a mailbox and a vector. Give a number from 1 to 31",
    ),
    "emulate --vfio-user s --slots 0": (
        2,
        "--slots 0: a context needs a mailbox and a vector. Give a number from 1 to 31",
    ),
    "emulate --vfio-user s --threads -1": (2, "--threads -1. Give a number, 0 for all cores"),
    f"emulate --vfio-user /{'s' * 107}": (
        2,
        f"/{'s' * 107} is longer than a Unix socket's path can be (107 bytes). Name one in another folder",
    ),
    "emulate --vfio-user no/where": (
        1,
        "cannot listen on no/where: No such file or directory. Name another socket",
    ),
    # pyxrt
    "pyxrt": (2, "pyxrt: no command. Give it after --: python -m amdxdna pyxrt -- PROGRAM ARGUMENT..."),
    "pyxrt -- -m": (2, "pyxrt: -m without a module. Give its name: python -m amdxdna pyxrt -- -m MODULE"),
    "pyxrt -- none.py": (2, "pyxrt: there is no script none.py. Give a file's path, or -m MODULE"),
    "pyxrt --device /no/node -- code": (
        2,
        "pyxrt: --device /no/node: there is no such node. "
        "Give an index, a node's path, emu or emu:KEY=VALUE,...",
    ),
    # run
    "run one.xclbin code": (2, "there is no buffer. Give --in and --out for the kernel's buffers, in order"),
    f"{RUN} 64 --repeat 0": (2, "--repeat 0. Give 1 to 1000000"),
    f"{RUN} 64 --repeat 1000001": (2, "--repeat 1000001. Give 1 to 1000000"),
    f"{RUN} 64 --timeout 0": (2, "--timeout 0. Give seconds, more than 0"),
    f"{RUN} 64 --within -1": (2, "--within -1.0. Give a number, 0 or more"),
    f"{RUN} 0": (2, "0 bytes. Give 1 to 4g"),
    f"{RUN} 4097m": (2, "4097m bytes. Give 1 to 4g"),
    f"{RUN} c.npy": (2, "--out c.npy: no size. Write NAME:BYTES, such as c.npy:4096 or c.bin:64k"),
    f"{RUN} 64 --in empty": (2, "empty holds nothing. Give a file with data, or a size in bytes"),
    f"{RUN} 64 --in none": (1, "none: no such file. Give a .npy file, a raw file or a size in bytes"),
    f"{RUN} 64 --in there": (1, "there: not a regular file. Give a .npy file, a raw file or a size in bytes"),
    f"{RUN} 64 --in huge": (1, "huge is over 4 GiB. Give a smaller file"),
    f"{RUN} 64 --in empty.npy": (1, f"empty.npy is no .npy file: No data left in file. {NPY}"),
    f"{RUN} 64 --dtype quux": (
        2,
        "--dtype quux: unknown. Give one of numpy's, such as int32, float32, uint8",
    ),
    f"{RUN} 64 --dtype O": (
        2,
        "--dtype O: not a number's type. Give one such as int32, float32, uint8",
    ),
    f"{RUN} 63 --dtype int16": (2, "--out output: 63 bytes are no whole number of int16"),
    f"{RUN} 64 --expect code --expect code": (2, "2 --expect for 1 --out. Give an --out for each"),
    f"{RUN} 64 --expect empty": (
        2,
        "--expect empty holds nothing. Give a file with what the output should be",
    ),
    f"{RUN} 64 --expect ten": (1, "--out output has 64 bytes, what is expected 10. Make it 10"),
    f"{RUN} code:64": (2, "--out code would take the place of code. Name another file"),
    f"{RUN} no/where:64 {DEVICE}": (
        1,
        "no/where cannot be written: No such file or directory. Name another file",
    ),
    f"{RUN} 32 {DEVICE}": (
        1,
        "the kernel wrote 32 bytes and more behind the 32 of output. "
        "Give the buffer the size that the instruction stream uses",
    ),
    f"{RUN} 64{' --in 64' * 4}": (
        1,
        "ONE takes 5 buffers (bo0, bo1, bo2, bo3, bo4), 6 are given. "
        "Leave some away, or look at `python -m amdxdna xclbin FILE`",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands are given to read."""
    found = tmp_path_factory.mktemp("errors")
    one, two = PdiSpec(pdi(Family.COPY), (0x101,)), PdiSpec(b"compiled code" * 10, (0x102,))
    (found / "one.xclbin").write_bytes(build([one], [KernelSpec("ONE", 0x101)]))
    (found / "two.xclbin").write_bytes(build([one, two], [KernelSpec("ONE", 0x101), KernelSpec("B", 0x102)]))
    (found / "designed.xclbin").write_bytes(build([PdiSpec(pdi_image([W(at(0, 2, 0x50000), 1)]))]))
    (found / "code").write_bytes(stream.copy(64))
    (found / "ten").write_bytes(bytes(10))
    for name in ("empty", "empty.npy"):
        (found / name).touch()
    for name, size in {"big": (8 << 20) + 1, "huge": (4 << 30) + 1}.items():
        with open(found / name, "wb") as file:
            file.truncate(size)
    (found / "there").mkdir()
    (found / "there" / "want.npy").touch()
    header = {"schema": SCHEMA, "version": 1}
    (found / "t").write_text(json.dumps(header) + "\n")
    (found / "newer").write_text(json.dumps({**header, "version": 2}) + "\n")
    (found / "other").write_text("{}\n")
    return found


@pytest.mark.parametrize("words", ROWS)
def test_the_fault_then_what_to_do(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", FIRST)
    before = sorted(os.listdir())
    status, said = ROWS[words]
    assert main(words.split()) == status
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"amdxdna: error: {said}\n")
    assert sorted(os.listdir()) == before


def test_the_same_for_programs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for words in ("xclbin two.xclbin --svg x.svg", "xclbin one.xclbin --svg x.svg", "snapshot code"):
        status, said = ROWS[words]
        assert main([*words.split(), "--json"]) == status
        out, err = capfd.readouterr()
        meaning, _, remedy = said.partition(". ")
        assert err == f"amdxdna: error: {said}\n"
        assert json.loads(out) == {
            "schema": "amdxdna.error",
            "version": 1,
            "call": None,
            "errno": None,
            "meaning": meaning,
            "remedy": remedy or None,
        }


@pytest.mark.parametrize(("debug", "whole"), [("", False), ("0", False), ("1", True)])
def test_all_of_an_error_where_that_is_asked_for(
    debug: str, whole: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMDXDNA_DEBUG", debug)
    assert main(["insts", "/no/such"]) == 1
    *trace, last = capfd.readouterr().err.splitlines()
    assert last == "amdxdna: error: /no/such cannot be read: No such file or directory"
    assert bool(trace) == whole and (not whole or trace[-1].startswith("amdxdna.cli.common.CommandError: "))
