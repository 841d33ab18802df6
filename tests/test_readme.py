"""The README's examples run as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.program import python

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MAP = TEXT.split("## Find your way in the code")[1].split("\n## ")[0]


def python_blocks() -> list[str]:
    """The indented blocks that begin with an import."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", TEXT, re.MULTILINE)
    plain = ["\n".join(line[4:] for line in block.splitlines()).strip() for block in blocks]
    return [block for block in plain if block.startswith("from ")]


def test_there_are_two_examples() -> None:
    assert len(python_blocks()) == 2


@pytest.mark.parametrize("index", range(2))
def test_python_example(index: int) -> None:
    done = python("-c", python_blocks()[index])
    assert done.returncode == 0, done.stderr
    if "stream.copy" in python_blocks()[index]:
        assert done.stdout.strip() == "[1 2 3 4]"
    else:
        assert len(done.stdout.split()) > 8


def test_exactly_two_commands_set_up() -> None:
    section = TEXT.split("## Set up")[1].split("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert len(commands) == 2
    assert "qwen35 --prompt" in commands[0]
    assert commands[1].endswith("-m pytest")


@cache
def files() -> dict[str, Path]:
    """Every file and folder of the packages and tests: path as in the repository, with a slash before it."""
    tops = [ROOT / top for top in ("amdxdna", "qwen35", "tests")]
    paths = [*ROOT.glob("*.py"), *tops, *(path for top in tops for path in top.rglob("*"))]
    return {f"/{path.relative_to(ROOT)}": path for path in paths}


def named(name: str) -> list[Path]:
    """What the map means by the end of a path: `kernels/stream.py`, `emu/npu`, `csrc/host_delta_prompt`."""
    return [path for at, path in files().items() if re.sub(r"\.(inc\.)?[ch]$", "", at).endswith(f"/{name}")]


def test_the_map_names_what_is_there() -> None:
    quoted = set(re.findall(r"`((?:\w+/)*\w+\.pyi?|(?:\w+/)+\w+)`", MAP))
    assert len(quoted) > 80
    assert [name for name in sorted(quoted) if not named(name)] == []
    symbols = re.findall(r"`(\w+)`(?: or `\w+`)? (?:in|of) `([\w/]+\.py)`", MAP)
    assert len(symbols) > 8
    assert [
        (symbol, name)
        for symbol, name in symbols
        if not any(re.search(rf"\b{symbol}\b", path.read_text(encoding="utf-8")) for path in named(name))
    ] == []


def test_a_gcc_that_is_older_than_it_asks_for_is_told_so() -> None:
    """What the compiler says of itself is enough for that; older ones know the instructions by no name."""
    if (gcc := shutil.which("gcc")) is None:
        pytest.skip("no gcc")
    least = int(re.findall(r"gcc (\d+) or newer", TEXT)[0])
    source = ROOT / "amdxdna" / "emu" / "csrc" / "gemm_bf16.c"
    for version, refused in ((least - 1, True), (least, False)):
        words = [gcc, "-std=gnu11", "-fsyntax-only", "-U__GNUC__", f"-D__GNUC__={version}", str(source)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=600, env={**os.environ, "LC_ALL": "C"}
        )
        assert (f"gcc {least} or newer is needed" in done.stderr) == refused, done.stderr


@pytest.mark.parametrize("module", ["qwen35", "amdxdna"])
def test_commands_named_in_it_exist(module: str) -> None:
    """Every `python -m MODULE COMMAND` of the README is one that --help lists."""
    listed = python("-m", module, "--help").stdout
    known = set(re.findall(r"^  (\w+)  ", listed, re.MULTILINE))
    for word in set(re.findall(rf"python -m {module} (\w+) ", TEXT)) - {"bundle", "BUNDLE"}:
        assert word in known, f"{module} {word}"
