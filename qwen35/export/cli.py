"""`python -m qwen35 export`: a checkpoint, or a model size with seeded weights, to a bundle."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from amdxdna.entry import no_threads
from amdxdna.programs import own_commands
from amdxdna.text import printable
from qwen35.bundle.sizes import SIZES
from qwen35.cli.args import Parser
from qwen35.errors import UsageError, explain
from qwen35.export.plan import Options
from qwen35.extras import require

if TYPE_CHECKING:
    from qwen35.bundle import Bundle
    from qwen35.export.checkpoint import Checkpoint
    from qwen35.export.refs import Reference

__all__ = ["export_main"]


def parser() -> Parser:
    """The options of `export`."""
    p = Parser(
        prog="qwen35 export",
        description="Export a Qwen3.5 checkpoint (a Hugging Face directory of safetensors) to a bundle for "
        "the emulated NPU. A run that is stopped leaves no bundle behind.",
    )
    p.add_argument("checkpoint", nargs="?", type=Path, help="the checkpoint's directory")
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="the bundle to write")
    p.add_argument("--force", action="store_true", help="replace a bundle that is there already")
    sizes = ", ".join(SIZES)
    p.add_argument("--random", metavar="SIZE", help=f"seeded weights at full shape instead: {sizes}")
    p.add_argument("--seed", type=int, default=0, help="seed of --random (default 0)")
    p.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json for --random")
    p.add_argument("--format", choices=("bfp16", "bfp6s"), default="bfp16", help="weights: 9 or 6.5 bits")
    p.add_argument(
        "--vision",
        choices=("w8", "bfp16x2", "none"),
        default="w8",
        help="the tower's weights: 8 bits and a factor a channel (default), 18 bits, no tower",
    )
    p.add_argument("--max-pixels", type=int, default=1 << 20, help="largest image (default 1048576 pixels)")
    p.add_argument("--chunk", type=int, default=256, help="rows of one prompt GEMM (default 256)")
    p.add_argument("--max-prompt", type=int, default=2048, help="rows of one prefill pass (default 2048)")
    p.add_argument("--head-rows", type=int, default=0, help="rows of one head dispatch (default: chosen)")
    p.add_argument(
        "--kernels",
        type=Path,
        metavar="BUNDLE",
        help="pack for the kernels of this bundle; it decides format, tower, chunks and head rows",
    )
    p.add_argument(
        "--refs",
        action="store_true",
        help="also record what transformers answers in float32, "
        "for qwen35 check (needs torch and transformers)",
    )
    p.add_argument("--verbose", "-v", action="store_true", help="the weights' signal-to-noise ratio by layer")
    p.add_argument("--quiet", "-q", action="store_true", help="no progress")
    return p


def export_main(argv: Sequence[str]) -> int:
    """Runs `export` with `argv` (without the program's name); returns the exit status.

    0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 stopped by Ctrl-C or SIGTERM.
    """
    previous = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, _stop)
    except ValueError:
        previous = None  # not the main thread
    try:
        return _export(parser().parse_args(list(argv)))
    except KeyboardInterrupt as stopped:
        if no_threads(stopped):
            raise
        _tell("\nexport: stopped; nothing was written")
        return 130
    except UsageError as error:
        _tell(f"export: {error}")
        return 2
    except Exception as error:
        _tell(f"export: {explain(error)}")
        return 1
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _export(arguments: argparse.Namespace) -> int:
    from qwen35.bundle import Bundle
    from qwen35.export.checkpoint import Checkpoint
    from qwen35.export.exporter import export_checkpoint, export_random
    from qwen35.export.noise import Noise

    if (arguments.checkpoint is None) == (arguments.random is None):
        raise UsageError("give a checkpoint directory or --random SIZE, one of the two")
    if arguments.random is not None and (arguments.kernels is not None or arguments.refs):
        raise UsageError("--kernels and --refs take a checkpoint, not --random")
    if arguments.refs:
        require("train", "--refs")
    options = Options(
        chunk=arguments.chunk,
        max_prompt=arguments.max_prompt,
        head_rows=arguments.head_rows,
        gemv_format=arguments.format,
        vision=arguments.vision,
        max_pixels=arguments.max_pixels,
        vision_chunk=arguments.chunk,
    )
    start = time.monotonic()
    if arguments.random is not None:
        path = export_random(
            arguments.random,
            arguments.out,
            options,
            seed=arguments.seed,
            tokenizer=arguments.tokenizer,
            force=arguments.force,
            quiet=arguments.quiet,
        )
    else:
        checkpoint = Checkpoint(arguments.checkpoint)
        if checkpoint.has_vision and options.vision != "none" and checkpoint.note and not arguments.quiet:
            _tell(f"export: {checkpoint.note}")
        kernels = None if arguments.kernels is None else Bundle.open(arguments.kernels)
        references = _references(checkpoint, options, kernels, arguments.quiet) if arguments.refs else []
        noise = Noise()
        path = export_checkpoint(
            checkpoint,
            arguments.out,
            options,
            kernels=kernels,
            force=arguments.force,
            quiet=arguments.quiet,
            noise=noise,
        )
        told = noise.lines() if arguments.verbose else []
        for line in [*told, *([] if arguments.quiet else [noise.summary()])]:
            _tell(f"export: {printable(line)}")
        if references:
            from qwen35.export.refs import attach

            attach(path, references, {})
    if not arguments.quiet:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        written = f"{path}, {size / 1e6:,.1f} MB in {time.monotonic() - start:.1f} s"
        _tell(f"export: {printable(written)}")
    return 0


def _references(
    checkpoint: Checkpoint, options: Options, kernels: Bundle | None, quiet: bool
) -> list[Reference]:
    """Reference runs of the standard requests, recorded before anything is written."""
    from qwen35.export.refs import record
    from qwen35.export.standard import standard_requests

    requests = standard_requests(checkpoint, options, kernels)
    if not quiet:
        _tell(f"export: recording {len(requests)} reference runs in float32")
    return record(checkpoint.path, requests)


def _tell(text: str) -> None:
    """A line on stderr; one that is closed or full is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        print(own_commands(text), file=sys.stderr, flush=True)


def _stop(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
