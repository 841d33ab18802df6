"""The command line of the fuzzers."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.run import run
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Runs the targets; 1 when one of them has a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000, metavar="N", help="inputs of each (default 1000)")
    parser.add_argument("--only", action="append", choices=TARGETS, metavar="NAME", help=", ".join(TARGETS))
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="other inputs (default 0)")
    given = parser.parse_args()
    total = faults = 0
    for name in given.only or TARGETS:
        result = run(name, TARGETS[name], given.seed, given.inputs)
        total += result.inputs
        faults += len(result.faults)
        print(
            f"{name:<14} {result.inputs:>9,} inputs, {result.refused:>9,} refused, {result.seconds:8.1f} s, "
            f"slowest {result.slowest * 1000:7.1f} ms",
            flush=True,
        )
        for fault in result.faults:
            print(f"  {fault}", flush=True)
    print(f"{total:,} inputs, {faults} faults", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
