"""`python -m qwen35 info`: what a bundle holds and needs, and whether every byte is as exported; what a model
that is not here would cost.

`describe` gives the facts of a bundle, cost.py those of a published size; `info_main(argv)` runs it.
"""

from __future__ import annotations

from qwen35.info.cli import info_main
from qwen35.info.describe import describe

__all__ = ["describe", "info_main"]
