"""Runs conformance cases on the kernel's node, in a program that is under `python -m amdxdna emulate`.

`python -m tests.support.emulated_side [tdr=SECONDS] CASE...` prints one JSON line a case: name, and "ok", the
skip or the error.
"""

from __future__ import annotations

import json
import sys
import traceback

from amdxdna.node import KernelNode
from tests.conformance import kit, suite

NODE = "/dev/accel/accel0"
assert suite.MODULES


def main(names: list[str]) -> None:
    """Runs the cases one after the other."""
    tdr = float(names.pop(0).partition("=")[2]) if names[0].startswith("tdr=") else 2.0
    for name in names:
        answer = {"name": name}
        try:
            kit.run_case(name, kit.Target(lambda: KernelNode(NODE), kernel=True, tdr=tdr))
            answer["result"] = "ok"
        except kit.Skip as reason:
            answer["result"], answer["skip"] = "skip", str(reason)
        except BaseException:
            answer["result"], answer["error"] = "error", traceback.format_exc()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
