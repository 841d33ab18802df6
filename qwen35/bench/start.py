"""Start-up figures: an import and a first token, each in a fresh process."""

from __future__ import annotations

import subprocess
import sys
import time

from qwen35.bench.figures import Printer, median
from qwen35.errors import ModelError

__all__ = ["start_figures"]

_IMPORT = """import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
import amdxdna
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime - before)"""

# The command itself, with a clock around its loader. CLOCK_MONOTONIC is the same in every process.
_SPLIT = """import sys, time
from qwen35.cli import main
from qwen35.cli.run import load_model
marks = [float(sys.argv[1])]
def load(options):
    marks.append(time.monotonic())
    model = load_model(options)
    marks.append(time.monotonic())
    return model
status = main(sys.argv[2:], load)
marks.append(time.monotonic())
print(*(b - a for a, b in zip(marks, marks[1:])))
sys.exit(status)"""
_PARTS = ("import", "load", "prompt")


def start_figures(out: Printer, device: str, repeats: int) -> None:
    """Seconds of `import amdxdna`, and from the command to the built-in model's first token."""
    from qwen35.find import find_bundle

    seconds = [float(_run(["-c", _IMPORT])) for _ in range(repeats)]
    out.add("import_amdxdna", median(seconds) * 1e3, "ms", "at most 60 ms", of="user time")
    try:
        bundle = find_bundle()
    except ModelError:
        return
    words = [
        "-m",
        "qwen35",
        str(bundle),
        "--prompt",
        "What is a river?",
        "--max-new",
        "1",
        "--quiet",
        "--device",
        device,
    ]
    _run(words)
    walls = []
    for _ in range(repeats):
        began = time.perf_counter()
        _run(words)
        walls.append(time.perf_counter() - began)
    out.add("first_token", median(walls), "s", "at most 1.5 s", bundle="built-in", of="the whole command")
    parts = []
    for _ in range(repeats):
        answer = _run(["-c", _SPLIT, str(time.monotonic()), *words[2:]])
        parts.append([float(word) for word in answer.split()[-len(_PARTS) :]])
    for name, found in zip(_PARTS, zip(*parts, strict=True), strict=True):
        out.add(f"first_token_{name}", median(found), "s", bundle="built-in")


def _run(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise ModelError(f"{' '.join(words)} ended with status {done.returncode}")
    return done.stdout
