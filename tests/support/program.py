"""How tests run this checkout as a program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""What a program that does what it should may take on a machine however busy."""
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


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
