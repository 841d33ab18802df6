"""The command line of `info`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amdxdna.text import printable
from qwen35.bundle.bundle import Bundle
from qwen35.bundle.errors import BundleError
from qwen35.bundle.hub import NoBundle
from qwen35.bundle.sizes import PUBLISHED, Size
from qwen35.cli.args import Parser
from qwen35.cli.output import notice
from qwen35.errors import ModelError
from qwen35.export.progress import Progress
from qwen35.find import find_bundle
from qwen35.info.describe import describe, lines
from qwen35.model.options import Options

__all__ = ["info_main"]


def info_main(argv: Sequence[str]) -> int:
    """Runs `info`; returns 0. Raises UsageError, and BundleError where a byte differs or none is recorded."""
    parser = Parser(prog="qwen35 info", description="Tells what a bundle holds and what it needs to run.")
    add = parser.add_argument
    add(
        "bundle",
        nargs="?",
        metavar="BUNDLE",
        help="directory, or Hugging Face id (default: as for a "
        "prompt); or what an export would start from: 0.8b, 2b, 4b, 9b, a checkpoint's id",
    )
    add("--verify", action="store_true", help="read every byte and compare with the recorded checksums")
    add("--max-ctx", type=int, default=8192, metavar="N", help="tokens of context (default 8192)")
    add("--json", action="store_true", help="one JSON object on stdout")
    add("--quiet", "-q", action="store_true", help="no progress")
    options = parser.parse_args(list(argv))
    from qwen35.info.cost import cost, cost_lines, is_model  # knows the exporter and its emulated kernels

    found = None
    if options.bundle is None or not is_model(options.bundle):
        try:
            found = find_bundle(options.bundle)
        except NoBundle:  # a checkpoint of the Hub
            if options.bundle is None:
                raise
        except ModelError as error:
            sizes = [size for size, known in PUBLISHED.items() if _compiled(known) == options.bundle]
            if not sizes or options.verify:
                raise
            notice(f"{error}; what is known of it without:")
            options.bundle = sizes[0]
    if found is None:
        costs = cost(options.bundle, max(1, options.max_ctx))
        print(json.dumps(costs) if options.json else "\n".join(map(printable, cost_lines(costs))))
        return 0
    bundle = Bundle.open(found)
    facts = describe(bundle, max(1, options.max_ctx))
    facts["options"] = vars(Options.of())
    if options.verify:
        facts["verified"] = _verify(bundle, options.quiet)
    if options.json:
        json.dump(facts, sys.stdout)
        print()
    else:
        print("\n".join(printable(line) for line in lines(facts)))
        print(
            f"options  {Options.of().line()} (QWEN35_CHAINS, QWEN35_WEIGHTS, QWEN35_WAIT, QWEN35_STEPS; "
            "--timing tells what came of them)"
        )
        if options.verify:
            print(f"verified {facts['verified']} files, every byte as exported" + printable(_unsummed(facts)))
    return 0


def _compiled(size: Size) -> str:
    return size.compiled.repository if size.compiled is not None else ""


def _unsummed(facts: dict[str, Any]) -> str:
    """Which files nothing is recorded of, to go on with; or ""."""
    files = facts["unsummed"]
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    return f"; not verified, since no checksum is recorded: {', '.join(files[:5])}{more}" if files else ""


def _verify(bundle: Bundle, quiet: bool) -> int:
    if not bundle.sums:
        raise BundleError(
            bundle.manifest.path,
            0,
            "no checksums are recorded: nothing to verify",
            "only bundles of our exporter have them",
        )
    total = sum(Path(bundle.file(entry.file)).stat().st_size for entry in bundle.sums.values())
    with Progress("verify", total, quiet=quiet) as progress:
        return bundle.verify(lambda done, _: progress.add(done - progress.done))
