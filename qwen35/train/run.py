"""The training program: `python -m qwen35.train.run --wordnet /usr/share/wordnet --out DIR`.

One seeded run: it trains, exports OUT/bundle, scores both and writes OUT/score.txt. Killed at any time, the
same command goes on from its last checkpoint to the same weights.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from amdxdna.output import write_whole
from qwen35.train import default, evaluate
from qwen35.train.corpus import Corpus
from qwen35.train.datafile import DataError
from qwen35.train.trainer import Trainer, TrainError, check_settings, tokenizer_of
from qwen35.train.wordnet import WordNet, WordNetError

STEPS, TOWER_STEPS, MORE_STEPS, ROW_STEPS = 13600, 4500, 2200, 300


def parser() -> argparse.ArgumentParser:
    """The options of the training."""
    made = argparse.ArgumentParser(
        prog="python -m qwen35.train.run", description="Trains the default model on a CPU and scores it."
    )
    made.add_argument(
        "--wordnet", required=True, help="dict folder of Debian's wordnet-base, /usr/share/wordnet"
    )
    made.add_argument("--out", required=True, help="folder of the checkpoint, the log and the result")
    made.add_argument("--words", type=int, help="how many words to teach (default all)")
    made.add_argument("--steps", type=int, default=STEPS, help=f"steps before the others (default {STEPS})")
    made.add_argument(
        "--tower-steps",
        type=int,
        default=TOWER_STEPS,
        help=f"first steps that train the vision tower alone (default {TOWER_STEPS})",
    )
    made.add_argument(
        "--more-steps",
        type=int,
        default=MORE_STEPS,
        help=f"steps after those, at a learning rate that rises again (default {MORE_STEPS})",
    )
    made.add_argument(
        "--row-steps",
        type=int,
        default=ROW_STEPS,
        help=f"last steps, which train the rows of wrong words alone (default {ROW_STEPS})",
    )
    made.add_argument("--layers", type=int, default=4, help="layers, every fourth with softmax attention")
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--lr", type=float, default=2e-3)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--threads", type=int, default=1, help="threads of each worker (default 1)")
    made.add_argument("--workers", type=int, default=2, help="processes that share each batch (default 2)")
    made.add_argument(
        "--save-every", type=float, default=120, help="seconds between checkpoints (default 120)"
    )
    made.add_argument("--no-score", action="store_true", help="end after the Hugging Face folder is written")
    made.add_argument(
        "--install", action="store_true", help="make the bundle and the score those of the package"
    )
    evaluate.add_options(made)
    return made


def work(worker: int, args: Any, folder: str) -> None:
    """One worker; `folder` is where several find each other."""
    args.worker = worker
    torch.set_num_threads(args.threads)
    if args.workers > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=worker, world_size=args.workers
        )
    Trainer(args).run()
    if args.workers > 1:
        torch.distributed.destroy_process_group()


def train(args: Any) -> None:
    """Trains in as many processes as asked for."""
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    check_settings(args)
    tokenizer_of(out, Corpus(WordNet(args.wordnet), args.words))  # before the workers, which all read it
    if args.workers == 1:
        work(0, args, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
        spawn(work, (args, folder), nprocs=args.workers)


def finish(args: Any, minutes: float) -> None:
    """Exports the trained checkpoint, scores it and its bundle, prints the table and keeps it."""
    out = Path(args.out)
    args.checkpoint, args.bundle, args.threads = (
        out / "hf",
        out / "bundle",
        max(1, args.threads * args.workers),
    )
    default.make(args.checkpoint, args.bundle)
    size = sum(file.stat().st_size for file in args.bundle.rglob("*") if file.is_file())
    args.seed = 7  # the questions' own
    words = len(Corpus(WordNet(args.wordnet), args.words).taught)
    steps = args.steps + args.more_steps + args.row_steps
    head = (
        f"Score of the default bundle (python -m qwen35.train.run): {words:,} words, {steps:,} steps,\n"
        f"{size / 1e6:.1f} MB. One run from its seed, nothing changed on the way: {minutes:.0f} minutes of\n"
        f"training by {args.workers} workers on {os.cpu_count()} cores.\n\n"
    )
    report = head
    print(head, end="")
    for part in evaluate.evaluate(args):
        print(part, end="", flush=True)
        report += part
        write_whole(out / "score.txt", report.encode())
    if args.install:
        package = default.DATA / "default"
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(args.bundle, package)
        write_whole(evaluate.SCORE, report.encode())
        print(f"installed: {package} and {evaluate.SCORE}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    args: Any = parser().parse_args(argv)
    begun = time.monotonic()
    try:
        train(args)
        if not args.no_score:
            state = torch.load(Path(args.out) / "state.pt", weights_only=True, mmap=True)
            finish(args, state["seconds"] / 60)
    except (TrainError, DataError, WordNetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    print(f"{(time.monotonic() - begun) / 60:.0f} minutes in all", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
