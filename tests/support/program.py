"""How tests run this checkout as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""What a program that does what it should may take on a machine however busy."""
FIRST = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
"""A PATH on which the commands of messages are called by their bare names."""


def environment(**more: str) -> dict[str, str]:
    """This process's, without the packages' own options, for one thread each and this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AMDXDNA_", "QWEN35_"))}
    return (
        kept
        | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": FIRST}
        | more
    )


ENV = environment()


def python(
    *words: object, stdin: str | int = subprocess.DEVNULL, env: dict[str, str] | None = None, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """`python WORDS` in the checkout, to its end; what it says is text.

    `stdin` is what it reads, or a descriptor. `env`: beside :func:`environment`.
    """
    source = {"input": stdin} if isinstance(stdin, str) else {"stdin": stdin}
    settings = {"cwd": ROOT, "timeout": 600, "capture_output": True, "encoding": "utf-8"} | source | settings
    return subprocess.run(
        [sys.executable, *(w if isinstance(w, bytes) else str(w) for w in words)],
        env=environment(**(env or {})),
        **settings,
    )


@contextmanager
def holding(data: bytes) -> Iterator[int]:
    """A pipe that holds `data` and has no writer: its reader waits for nobody."""
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        assert os.write(write, data) == len(data) if data else True
        os.close(write)
        write = -1
        yield read
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
