"""The main job as a program: the built-in model on the emulated NPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.program import python

ROOT = Path(__file__).resolve().parents[3]


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "qwen35", "--device", "emu", *words)


def test_it_answers() -> None:
    done = ask("--prompt", "What is a penguin?", "--greedy")
    assert done.returncode == 0, done.stderr
    assert "penguin" in done.stdout
    assert "bird" in done.stdout
    assert "emulated NPU" in done.stderr
    assert "hf download" in done.stderr


def test_every_way_to_run_it_gives_the_same_answer() -> None:
    """Both address modes, one context slot (swaps counted) and sixteen, one thread and two."""
    words = ("--prompt", "What is a penguin?", "--greedy", "--quiet", "--timing", "--device")
    answers = {}
    for device in ("emu:address=pasid", "emu:address=iova", "emu:slots=1", "emu:threads=1", "emu:threads=2"):
        done = ask(*words, device)
        assert done.returncode == 0, done.stderr
        answers[device] = done.stdout
        swaps = next(line for line in done.stderr.splitlines() if "swapped" in line)
        assert ("0 swapped" in swaps) is (device != "emu:slots=1"), swaps
    assert len(set(answers.values())) == 1, answers


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    """`... | head -c 1` on the real path: the answer is cut, the device closed, nothing else said."""
    command = [sys.executable, "-m", "qwen35", "--prompt", "What is a whale?", "--device", "emu"]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stderr is not None
    assert program.stdout.read(1)
    program.stdout.close()
    said = program.stderr.read().decode()
    program.stderr.close()
    program.wait(120)
    assert "Traceback" not in said
    assert "Exception" not in said
