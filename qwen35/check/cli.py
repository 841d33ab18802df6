"""The command line of `check`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence

from qwen35.cli.args import Parser
from qwen35.cli.output import Progress

__all__ = ["check_main"]

SHAPE = 1
"""Version of the --json shape: {"shape", "bundle", "device", "passed", "findings": [{"name", ...}]}."""


def _parser() -> Parser:
    parser = Parser(
        prog="qwen35 check",
        description="Proves a bundle against the references its exporter recorded. One line a figure, then "
        "PASS or FAIL; exit status 0 or 1.",
        epilog="A step fails only where float32's best token and the one chosen are further apart than bf16 "
        "activations can move them: a quarter of the logits' spread, and 0.5 at least.",
    )
    parser.add_argument("bundle", nargs="?", metavar="BUNDLE", help="directory (default: as for a prompt)")
    parser.add_argument("--device", default="auto", metavar="D", help="as for a prompt (default auto)")
    parser.add_argument(
        "--max-ctx", type=int, default=8192, metavar="N", help="tokens of context (default 8192)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")
    return parser


def check_main(argv: Sequence[str]) -> int:
    """0: every check passed; 1: one failed. Raises what loading and running raise."""
    options = _parser().parse_args(list(argv))
    from qwen35.api import Qwen35
    from qwen35.bundle import Bundle
    from qwen35.check.proof import checks

    found = []
    with (
        contextlib.closing(Progress(enabled=not options.quiet)) as progress,
        Qwen35.load(options.bundle, options.max_ctx, options.device) as model,
    ):
        assert model.info.bundle is not None
        bundle = Bundle.open(model.info.bundle)
        where = "emulated NPU" if model.info.emulated else model.info.device
        for finding in checks(model, bundle, progress):
            found.append(finding)
            progress.close()
            if not options.json:
                print(finding.line, flush=True)
    passed = all(finding.passed is not False for finding in found)
    proved = sum(finding.passed is True for finding in found)
    if options.json:
        json.dump(
            {
                "shape": SHAPE,
                "bundle": str(bundle.path),
                "device": where,
                "passed": passed and proved > 0,
                "findings": [finding.as_dict() for finding in found],
            },
            sys.stdout,
        )
        print()
    elif not proved and passed:
        print(f"FAIL: {bundle.path} has no records to check; export it with --refs")
    else:
        failed = sum(finding.passed is False for finding in found)
        print(f"{'PASS' if passed else 'FAIL'}: {proved} of {proved + failed} checks passed on {where}")
    return 0 if passed and proved else 1
