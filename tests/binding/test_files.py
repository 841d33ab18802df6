"""What is no regular file is refused at once wherever a file is named; reads are bounded by what is there."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amdxdna.cli.arrays import read_array
from amdxdna.cli.insts import insts_main
from amdxdna.emu.xclbins import xclbin_bytes
from amdxdna.errors import BadXclbin
from amdxdna.files import open_regular, read_regular, read_up_to
from amdxdna.selftest.program import Program
from amdxdna.xclbin import Xclbin
from qwen35.bundle import Bundle
from qwen35.cli.args import parse
from qwen35.cli.run import run
from qwen35.errors import explain
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint, export_random
from qwen35.export.plan import Options
from qwen35.find import DEFAULT_BUNDLE
from qwen35.images.load import load
from qwen35.structured import read_schema
from qwen35.tokenizer import Tokenizer
from tests.support import synthetic
from tests.support.descriptors import descriptors
from tests.support.mock_model import fake

WAIT = 60


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "checkpoint"
    synthetic.write_checkpoint(path, synthetic.SHAPES["tied"])
    return path


@pytest.fixture(params=["fifo", "device", "socket", "directory", "missing"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Something that is no regular file, and the word of the error that says so."""
    path, kind = tmp_path / "odd", request.param
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        here = os.open(tmp_path, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/odd")
        os.close(here)
    elif kind == "directory":
        path.mkdir()
    yield path, {"directory": "is a directory", "missing": "no such "}.get(kind, "regular file|no such file")


def in_time(use: Callable[[], Any]) -> BaseException | None:
    """What `use` raises, which it must within a minute; a FIFO nobody writes to would wait for ever."""
    caught: list[BaseException | None] = []

    def call() -> None:
        try:
            use()
            caught.append(None)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WAIT)
    assert caught, "it waits"
    return caught[0]


def in_place(source: Path, tmp_path: Path, name: str, odd: Path) -> Path:
    """A copy of a directory of files in which `name` is the odd one."""
    copy = tmp_path / "copy"
    shutil.copytree(source, copy, symlinks=False)
    (copy / name).unlink(missing_ok=True)
    if odd.exists() or odd.is_symlink():
        (copy / name).symlink_to(odd)
    return copy


def uses(odd: Path, tmp_path: Path, checkpoint: Path) -> dict[str, Callable[[], Any]]:
    def bundle(name: str, then: Callable[[Bundle], Any] = lambda b: b.tensors) -> Callable[[], Any]:
        return lambda: then(Bundle.open(in_place(DEFAULT_BUNDLE, tmp_path, name, odd)))

    xclbin = tmp_path / "good.xclbin"
    xclbin.write_bytes(xclbin_bytes("copy"))
    stream = next(iter(Bundle.open(DEFAULT_BUNDLE).gemvs.values())).insts
    holder = next(iter(Bundle.open(DEFAULT_BUNDLE).xclbins.values())).file

    def exported(name: str) -> Callable[[], Any]:
        return lambda: export_checkpoint(
            Checkpoint(in_place(checkpoint, tmp_path, name, odd)),
            tmp_path / "out",
            Options(chunk=16),
            quiet=True,
        )

    def talk(method: str) -> Callable[[], Any]:
        return lambda: getattr(fake(tmp_path, str).conversation(), method)(odd)

    return {
        "array": lambda: read_array(str(odd)),
        "xclbin": lambda: Xclbin.read(odd),
        "program": lambda: Program.read(str(xclbin), str(odd), "4096"),
        "insts": lambda: insts_main([str(odd)]),
        "picture": lambda: load(odd),
        "tokenizer": lambda: Tokenizer(odd),
        "schema": lambda: read_schema(odd),
        "/load": talk("load"),
        "manifest.txt": bundle("manifest.txt"),
        "tensors.txt": bundle("tensors.txt"),
        "tensors.bin": bundle("tensors.bin"),
        "tokenizer.json": bundle("tokenizer.json", lambda b: Tokenizer(b.tokenizer_path)),
        "a bundle's insts": bundle(stream, lambda b: b.insts(stream)),
        "a bundle's xclbin": bundle(holder, lambda b: Xclbin.read(b.file(holder))),
        "a sum": bundle(stream, lambda b: b.verify()),
        "config.json": exported("config.json"),
        "safetensors": exported(min(file.name for file in checkpoint.glob("*.safetensors"))),
        "checkpoint's tokenizer": exported("tokenizer.json"),
        "generation_config.json": exported("generation_config.json"),
        "a random bundle's tokenizer": lambda: export_random(
            "tiny", tmp_path / "out", Options(chunk=16, vision="none"), tokenizer=odd, quiet=True
        ),
    }


NAMES = [
    *("array", "xclbin", "program", "insts", "picture", "tokenizer", "schema", "/load", "manifest.txt"),
    *("tensors.txt", "tensors.bin", "tokenizer.json", "a bundle's insts", "a bundle's xclbin", "a sum"),
    *("config.json", "safetensors", "checkpoint's tokenizer", "generation_config.json"),
    "a random bundle's tokenizer",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_regular_file_is_refused_at_once(
    odd: tuple[Path, str], name: str, tmp_path: Path, checkpoint: Path
) -> None:
    error = in_time(uses(odd[0], tmp_path, checkpoint)[name])
    if name == "generation_config.json" and (error is None or odd[1] == "no such "):
        assert error is None  # not every checkpoint has one
        return
    if error is None:
        pytest.fail(f"{name} took it")
    text = explain(error)
    told = odd[1] + "|regular file|no such file|not in the bundle|has no tokenizer"
    assert re.search(told, text.lower()), text
    assert "\n" not in text and "Traceback" not in text and "fault of this program" not in text


def test_every_use_is_tested(tmp_path: Path, checkpoint: Path) -> None:
    assert sorted(uses(tmp_path / "odd", tmp_path, checkpoint)) == sorted(NAMES)


def test_a_read_takes_the_memory_of_the_file(tmp_path: Path) -> None:
    small, large = tmp_path / "small.xclbin", tmp_path / "large"
    small.write_bytes(xclbin_bytes("copy"))
    large.write_bytes(bytes(3 << 20))
    tracemalloc.start()
    try:
        Xclbin.read(small)
        Program.read(str(small), str(small), "4096")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        with pytest.raises(OSError, match="longer than 1,000,000 bytes"):
            read_regular(large, 1_000_000)
        with pytest.raises(BadXclbin):
            Xclbin.read(large)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_reads_up_to_a_bound() -> None:
    for size in (0, 1, 9, 10, 11, 1000):
        for expected in (0, 5, size, 2000):
            assert read_up_to(io.BytesIO(bytes(size)), 10, expected) == bytes(min(size, 11))
    with open("/proc/self/status", "rb") as file:
        assert b"VmRSS" in read_up_to(file, 1 << 20)
    assert b"VmRSS" in read_regular("/proc/self/status", 1 << 20)  # its size is said to be 0


def test_an_open_file_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO put in the file's place after the look at its name is opened without waiting, and refused."""
    path, fifo = tmp_path / "file", tmp_path / "fifo"
    path.write_bytes(b"x")
    os.mkfifo(fifo)
    facts = os.stat(path)
    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr("amdxdna.files.os.stat", lambda _: facts)
        error = in_time(lambda: open_regular(fifo))
    assert isinstance(error, OSError) and error.strerror == "not a regular file"
    assert descriptors() <= before


def test_prompts_come_from_pipes_and_end_somewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(path: str) -> int:
        words = [str(tmp_path), "--prompt-file", path, "--max-ctx", "64", "--quiet", "--stats", "none"]
        return run(parse(words), lambda options: fake(tmp_path, lambda q: f"You said: {q}"))

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_text("from a pipe"), daemon=True)
    writer.start()
    assert in_time(lambda: ask(str(fifo))) is None
    assert capsys.readouterr().out.strip() == "You said: from a pipe"
    for path in ("/dev/zero", tmp_path / "large"):
        if path != "/dev/zero":
            Path(path).write_bytes(b"x" * (64 * 512 + 1))
        error = in_time(lambda path=path: ask(str(path)))  # type: ignore[misc]
        assert error is not None
        assert "over 32,768 bytes, and 64 tokens of context cannot hold more" in explain(error)


def test_a_prompt_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    """Also one that gives nothing for now: the kernel's log, read as it grows."""
    try:
        os.close(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        pytest.skip("/proc/kmsg is not readable here")
    words = [str(tmp_path), "--prompt-file", "/proc/kmsg", "--quiet", "--stats", "none"]
    error = in_time(lambda: run(parse(words), lambda options: fake(tmp_path, str)))
    assert error is not None and re.search("has no end|cannot hold more", explain(error))


def test_a_file_that_fails_while_it_is_read_is_named() -> None:
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        read_regular("/proc/self/mem", 100)
