"""Makes the bundle that ships: `python -m qwen35.train.default --checkpoint DIR [--out DIR]`.

The ordinary exporter, then float32 reference runs and the params that name the model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from qwen35.export.refs import Request, attach, record

DATA = Path(__file__).parent.parent / "data"
PARAMS = {"name": "the built-in demonstration model", "sampling": "greedy"}
CHUNK, MAX_PROMPT = 64, 512

REQUESTS = (
    Request("penguin", "What is a penguin?"),
    Request("think", "What does volcano mean?", thinking=True),
    Request("unknown", "What is a zorblax?"),
    Request("hello", "Hello!"),
)
SEEN = 80, 80
"""Size of the reference's picture: one that processors keep, as they differ by a level where they resize."""


def make(checkpoint: Path, out: Path) -> Path:
    """Exports `checkpoint` to `out` and adds reference runs, one of them of the sample picture."""
    options = Options(chunk=CHUNK, max_prompt=MAX_PROMPT, vision_chunk=CHUNK)
    export_checkpoint(Checkpoint(checkpoint), out, options, force=True)
    requests = list(REQUESTS)
    if Checkpoint(checkpoint).has_vision:
        with Image.open(DATA / "sample.png") as image:
            picture = np.asarray(image.convert("RGB").resize(SEEN, Image.Resampling.BICUBIC))
        requests.append(Request("picture", "Describe the picture.", picture=picture))
    return attach(out, record(checkpoint, requests), PARAMS)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m qwen35.train.default", description="Makes the default bundle of a trained checkpoint."
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="Hugging Face folder of the training")
    parser.add_argument(
        "--out", type=Path, default=DATA / "default", help="the bundle (default: the package's)"
    )
    args = parser.parse_args(argv)
    path = make(args.checkpoint, args.out)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"{path}: {size / 1e6:.1f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
