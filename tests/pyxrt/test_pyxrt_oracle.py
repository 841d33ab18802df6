"""XRT's own pyxrt as the standard: the same probes under both modules, on the emulated NPU.

Debian's packages are unpacked into the cache of tests/vm (nothing is installed) and run with their own
loader.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import pyxrt_files
from tests.support.pyxrt_answers import BY_CHANCE, DIFFERENT, SAME_BUT_FOR_OUR_WORDS, first_lines, record
from tests.support.pyxrt_debian import OURS, SIDE, apart, times
from tests.support.pyxrt_probes import PROBES

pytestmark = pytest.mark.slow

PACKETS = (
    *("call", "call_words", "call_nones", "call_sub", "call_sub_of_big", "call_too_many", "call_fail"),
    *("run_result", "run_again", "list_one", "list_result", "list_same_twice", "list_again", "list_thirty"),
    *("full_run", "full_again", "full_eight", "full_sub", "full_instances", "full_scratchpad"),
    *("full_packets", "full_whole", "full_list_again", "context_elf_added", "part_run", "part_call"),
    *("part_zeros", "pre_run", "pre_two", "part_list"),
)
"""Probes whose packets are compared."""


NO_DEVICE = "No such device with index '0'"


def run(
    folder: Path, name: str, python: list[str], probes: tuple[str, ...] = (), tries: int = 3
) -> tuple[dict[str, Any], str]:
    """(answers, packets) of one module."""
    packets = folder / f"{name}.packets"
    ended = apart("tests.support.pyxrt_emulate", packets, *python, SIDE, folder, *probes)
    found = dict(map(json.loads, ended.stdout.splitlines()))
    # On a busy machine XRT's own look for devices misses the one there is now and then.
    missed = tuple(name for name, answer in found.items() if NO_DEVICE in json.dumps(answer))
    if name == "xrt" and missed and tries:
        if probes:
            return run(folder, name, python, probes, tries - 1)
        found.update(run(folder, name, python, missed, tries - 1)[0])
    return found, packets.read_text()


def assembler(theirs: list[str]) -> Callable[[str, Path, Path], None]:
    """Makes ELF files with XRT's own aiebu-asm."""

    def assemble(target: str, source: Path, to: Path) -> None:
        python = theirs.index(next(each for each in theirs if "ld-linux" in each))
        tool = str(Path(theirs[-1]).with_name("aiebu-asm"))
        words = ["-t", target, "-c" if target == "aie2txn" else "-j", str(source), "-o", str(to)]
        command = [*theirs[: python + 1], tool, *words]
        subprocess.run(command, check=True, capture_output=True, timeout=300)

    return assemble


def both(folder: Path, theirs: list[str], *probes: str) -> list[tuple[dict[str, Any], str]]:
    pyxrt_files.write(folder)
    pyxrt_files.write_elfs(folder, assembler(theirs))
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda side: run(folder, *side, probes), (("xrt", theirs), ("ours", OURS))))


def test_what_calls_cost(theirs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = times(tmp_path, theirs, 20)
    with capsys.disabled():
        print("\n" + told)


@pytest.fixture(scope="module")
def answers(theirs: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], str]]:
    return both(tmp_path_factory.mktemp("probes"), theirs)


def test_every_probe_answers_as_xrt_does(answers: list[tuple[dict[str, Any], str]]) -> None:
    (xrt, _), (ours, _) = answers
    assert set(xrt) == set(ours) == set(PROBES)
    wrong = {}
    for name, wanted in xrt.items():
        got = ours[name]
        if name in DIFFERENT:
            continue
        if name in SAME_BUT_FOR_OUR_WORDS:
            wanted, got = wanted[:2], got[:2]
        if first_lines(wanted) != first_lines(got):
            wrong[name] = wanted, got
    assert not wrong
    if "PYXRT_RECORD" in os.environ:
        record(xrt)


def test_the_differences_are_there(answers: list[tuple[dict[str, Any], str]]) -> None:
    """A row for a probe in which the two agree is out of date."""
    (xrt, _), (ours, _) = answers
    agreeing = [
        name
        for name in (*DIFFERENT, *SAME_BUT_FOR_OUR_WORDS)
        if name not in BY_CHANCE and first_lines(xrt[name]) == first_lines(ours[name])
    ]
    assert not agreeing


def test_there_are_probes_enough() -> None:
    assert len(PROBES) - len(DIFFERENT) >= 150
    assert set(PACKETS) | set(DIFFERENT) | set(SAME_BUT_FOR_OUR_WORDS) <= set(PROBES)


def test_the_packets_are_the_same(theirs: list[str], tmp_path: Path) -> None:
    """Word for word, but for where buffers lie: header, CU mask, register map, chains and their members."""
    (_, xrt), (_, ours) = both(tmp_path, theirs, *PACKETS)
    assert xrt.splitlines() == ours.splitlines()
    assert len(xrt.splitlines()) >= len(PACKETS)
