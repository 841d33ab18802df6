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


def start_figures(out: Printer, device: str, repeats: int) -> None:
    """Seconds of `import amdxdna`, and from the command to the built-in model's first token."""
    from qwen35.api import find_bundle

    seconds = [float(_run(["-c", _IMPORT])) for _ in range(repeats)]
    out.add("import_amdxdna", median(seconds) * 1e3, "ms", "at most 60 ms", of="user time")
    try:
        bundle = find_bundle()
    except ModelError:
        return
    words = ["-m", "qwen35", str(bundle), "--prompt", "What is a river?", "--max-new", "1", "--quiet",
             "--device", device]
    _run(words)
    walls = []
    for _ in range(repeats):
        began = time.perf_counter()
        _run(words)
        walls.append(time.perf_counter() - began)
    out.add("first_token", median(walls), "s", "at most 1.5 s", bundle="built-in", of="the whole command")


def _run(words: list[str]) -> str:
    done = subprocess.run([sys.executable, *words], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ModelError(f"{' '.join(words)} ended with status {done.returncode}")
    return done.stdout
