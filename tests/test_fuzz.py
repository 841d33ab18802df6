"""Every parser under its fuzzer for a short while: no crash, hang, foreign exception or boundless memory."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import mutate
from tests.fuzz.run import Ready, run
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def told() -> dict[str, tuple[int, int]]:
    """Inputs and refusals of each target, from a fresh process: one forked from this one would have the locks
    of threads that it has not."""
    names = [name for name in TARGETS if name != "schema" or importlib.util.find_spec("llguidance")]
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, "-m", "tests.fuzz", *only, "--inputs", "150", "--seed", "1"]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1100, check=False)
    rows = re.findall(r"^(\S+) +([\d,]+) inputs, +([\d,]+) refused", ended.stdout, re.MULTILINE)
    assert ended.returncode == 0 and [name for name, *_ in rows] == names, ended.stdout
    return {name: (int(given.replace(",", "")), int(no.replace(",", ""))) for name, given, no in rows}


@pytest.mark.parametrize("name", TARGETS)
def test_parser(name: str, told: dict[str, tuple[int, int]]) -> None:
    if name not in told:
        pytest.skip("llguidance is not installed")
    inputs, refused = told[name]
    assert inputs >= 150 and refused < inputs


def faulty(act: Any, one_line: bool = True) -> list[str]:
    def start(folder: Path) -> Ready:
        return Ready(act, lambda rng: rng.randrange(4), (ValueError,), one_line=one_line)

    return run("faulty", start, seed=0, count=20).faults


def test_the_harness_sees_faults() -> None:
    import ctypes

    def crash(given: int) -> None:
        ctypes.string_at(0)

    def foreign(given: int) -> None:
        raise KeyError(given)

    def large(given: int) -> None:
        bytes(3 << 30)

    calls: list[int] = []

    def slow(given: int) -> None:
        calls.append(given)
        until = time.process_time() + 2.2
        while len(calls) == 6 and time.process_time() < until:
            pass

    def ragged(given: int) -> None:
        raise ValueError("two\nlines")

    assert "the process ended (signal 11)" in faulty(crash)[0]
    assert "KeyError" in faulty(foreign)[0]
    assert "MemoryError" in faulty(large)[0]
    assert "s of CPU time" in faulty(slow)[0]
    assert "not one line" in faulty(ragged)[0] and faulty(ragged, one_line=False) == []
    assert faulty(lambda given: None) == []


def test_inputs_follow_from_their_seed() -> None:
    whole = {"a": [1, {"b": "c"}], "d": None}
    for make in (
        lambda rng: mutate.text(rng, b"one two\nthree = four\n"),
        lambda rng: mutate.binary(rng, bytes(range(99))),
        lambda rng: mutate.json_text(rng, whole),
    ):
        assert [make(random.Random(i)) for i in range(50)] == [make(random.Random(i)) for i in range(50)]
        assert len({make(random.Random(i)) for i in range(50)}) > 20
