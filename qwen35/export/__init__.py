"""Export: Hugging Face checkpoints, or seeded weights, to bundles for the emulated NPU.

`export_main(argv)` is the command line; `export_checkpoint` and `export_random` (in `exporter`) the API.
"""

from __future__ import annotations

from qwen35.export.cli import export_main

__all__ = ["export_main"]
