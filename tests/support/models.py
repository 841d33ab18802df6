"""Models that tests load."""

from __future__ import annotations

from pathlib import Path

from tests.support import synthetic

DEVICE = "emu:threads=1"


def export(directory: Path, shape: str) -> Path:
    """A bundle of a seeded checkpoint; small chunks and passes, so that prompts cross both."""
    from qwen35.export.checkpoint import Checkpoint
    from qwen35.export.exporter import export_checkpoint
    from qwen35.export.plan import Options

    checkpoint = directory / "checkpoint"
    synthetic.write_checkpoint(checkpoint, synthetic.SHAPES[shape])
    options = Options(chunk=16, max_prompt=64)
    return export_checkpoint(Checkpoint(checkpoint), directory / "bundle", options, quiet=True)
