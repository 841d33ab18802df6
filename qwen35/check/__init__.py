"""`python -m qwen35 check BUNDLE`: proves a bundle against what its exporter recorded.

`checks` yields one `Finding` a figure; `check_main(argv)` is the command line.
"""

from __future__ import annotations

from qwen35.check.cli import check_main
from qwen35.check.findings import Finding
from qwen35.check.proof import checks

__all__ = ["Finding", "check_main", "checks"]
