"""How tests run this checkout as a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""What a program that does what it should may take on a machine however busy."""
FIRST = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
"""A PATH on which the commands of messages are called by their bare names."""
ENV = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    "PATH": FIRST,
}


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
