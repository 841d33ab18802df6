"""`python -m qwen35 bench`: speed and memory, ours beside other programs' in the same run.

`bench_main(argv)` is the command line; the JSON lines are described in `qwen35.bench.figures`.
"""

from __future__ import annotations

from qwen35.bench.cli import bench_main

__all__ = ["bench_main"]
