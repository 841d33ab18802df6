"""Names that are not ours never steer a terminal: escapes, marks that turn text, newlines."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amdxdna.cli import main, screen
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.text import one_line, printable
from amdxdna.xclbin.writer import KernelSpec, PdiSpec, build
from qwen35.cli import main as qwen_main
from qwen35.cli import output
from qwen35.errors import ModelError, explain
from tests.support.binding import adder
from tests.support.emulation import run
from tests.support.streams import elf, transaction
from tests.support.terminal import Terminal

EVIL = "a\x1b[2J\x1b]0;owned\x07\x9b31m\u202eb\u2066c\u2028d\nFAKE LINE\re\x00".replace("\x00", "")
"""Clears the screen, sets the title, colours, turns text, begins lines of its own."""
SHORT = "\x1b[2J\n\u202eab"
"""As much as a process's name holds (15 bytes)."""


def harmless(text: str) -> None:
    assert text
    assert all(c == "\n" or c.isprintable() for c in text), repr(text)
    assert not any(line.startswith("FAKE") for line in text.splitlines())


@pytest.fixture
def named() -> Iterator[None]:
    """This process has such a name."""
    libc = ctypes.CDLL(None)
    before = Path("/proc/self/comm").read_bytes().strip()
    libc.prctl(15, SHORT.encode(), 0, 0, 0)
    yield
    libc.prctl(15, before, 0, 0, 0)


def test_printable() -> None:
    assert printable("plain \u00e9 \u4e2d \U0001f600") == "plain \u00e9 \u4e2d \U0001f600"
    assert printable("\x1b\x07\x9b\x7f\n\t\u202e\ud800") == "\\x1b\\x07\\x9b\\x7f\\n\\t\\u202e\\ud800"
    assert one_line(" a\n\n b\x1b\tc ") == "a b\\x1b c"


@pytest.mark.parametrize("words", [("contexts",), ("doctor",), ("doctor", "--quick")])
def test_process_names(
    words: tuple[str, ...], named: None, open_emu: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    device = open_emu("slots=5")
    kernel = adder(device, 64, 1)
    kernel.run(device.alloc(64), device.alloc(64))
    main([*words, "--device", "emu:threads=1,quiet,slots=5"])
    out, err = capsys.readouterr()
    harmless(out + err)
    if words == ("contexts",):
        assert "\\x1b[2J" in out


def test_process_names_on_a_terminal(named: None, open_emu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours are ours there, and stay."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen.show([screen.paint(f"bold {SHORT}", "bold")])
    assert stream.getvalue() == "\x1b[1mbold \\x1b[2J\\n\\u202eab\x1b[0m\n"


@pytest.mark.parametrize(
    "words",
    [
        ("insts", "{}"),
        ("xclbin", "{}"),
        ("xclbin", "{}", "{}"),
        ("snapshot", "{}"),
        ("run", "{}"),
        ("telemetry", "--device", "emu:quiet", "-o", "{}/x"),
        ("trace", "-o", "{}/x", "--", "/bin/true"),
        ("trace", "--", "{}"),
        ("emulate", "--", "{}"),
        ("info", "--device", "{}"),
        ("contexts", "--device", "{}"),
        ("doctor", "--device", "{}"),
        ("bench", "--device", "{}"),
        ("selftest", "--device", "{}"),
        ("power", "--device", "{}"),
        ("sensors", "--device", "{}"),
        ("decode", "{}"),
        ("errors", "{}"),
        ("{}",),
        ("info", "{}"),
        ("emulate", "-O", "{}", "--", "/bin/true"),
        ("example", "{}"),
    ],
)
def test_names_of_files_and_options(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # where a trace goes that is not told where
    name = f"{tmp_path}/{EVIL}" if words[0] not in ("{}", "errors", "decode") else EVIL
    if words[0] in ("insts", "xclbin", "run"):
        Path(name).write_bytes(b"nothing of the kind")
    main([word.replace("{}", name) for word in words])
    out, err = capsys.readouterr()
    harmless(out + err)


@pytest.mark.parametrize("words", [("trace",), ("emulate",), ("trace", "--emulate")])
def test_name_of_a_killed_program(words: tuple[str, ...], tmp_path: Path) -> None:
    program = tmp_path / EVIL
    program.write_text("#!/bin/sh\nkill -TERM $$\n")
    program.chmod(0o755)
    more = ["-o", str(tmp_path / "t")] if "trace" in words else []
    ended = run(*words, *more, "--", str(program))
    assert ended.returncode == 143
    assert "killed by SIGTERM" in ended.stderr
    harmless(ended.stderr)


def test_names_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = transaction((0x5,))
    (tmp_path / "evil.elf").write_bytes(elf(True, {f".ctrltext{EVIL}": code, ".ctrltext.0": code}))
    assert main(["insts", str(tmp_path / "evil.elf")]) in (0, 1)
    out, err = capsys.readouterr()
    harmless(out + err)
    assert "\\x1b[2J" in out
    (tmp_path / "evil.xclbin").write_bytes(
        build([PdiSpec(pdi(Family.COPY), (0x101,))], [KernelSpec("a\u202eb\nFAKE", 0x101, SHORT)], columns=8)
    )
    main(["xclbin", str(tmp_path / "evil.xclbin")])
    out, err = capsys.readouterr()
    harmless(out + err)
    main(["xclbin", str(tmp_path / "evil.xclbin"), str(tmp_path / "evil.elf")])
    out, err = capsys.readouterr()
    harmless(out + err)


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "{}", "--prompt", "x"),
        ("info", "{}"),
        ("--image", "{}", "--prompt", "x"),
        ("{}",),
        ("export", "{}", "--out", "{}"),
        ("--device", "{}", "--prompt", "x"),
        ("export", "--random", "{}"),
        ("bench", "--model", "{}"),
    ],
)
def test_names_given_to_qwen35(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{tmp_path}/{EVIL}"
    with contextlib.suppress(SystemExit):
        qwen_main([word.replace("{}", name) for word in words])
    out, err = capsys.readouterr()
    harmless(out + err)


def test_errors_of_qwen35() -> None:
    harmless(explain(ModelError(EVIL, EVIL, EVIL)))
    harmless(explain(OSError(2, "No such file", EVIL)))
    harmless(explain(RuntimeError(EVIL)))
    stream = Terminal()
    output.notice(EVIL, stream)
    harmless(stream.getvalue())


def test_a_models_text() -> None:
    """A terminal is not steered by it; a pipe gets it as it is."""
    text = "\x1b[2J\u202eab\u2066 caf\u00e9 \U0001f469\u200d\U0001f4bb \u200fx\n\tend"
    stream = Terminal()
    assert output.writable(text, stream) == (
        "\\x1b[2J\\u202eab\\u2066 caf\u00e9 \U0001f469\u200d\U0001f4bb \u200fx\n\tend"
    )
    with open(os.devnull, "w", encoding="utf-8") as pipe:
        assert output.writable(text, pipe) == text
