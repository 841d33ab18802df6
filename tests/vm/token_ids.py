"""Prints the token ids of a greedy answer as JSON: run on the host and in the guest."""

from __future__ import annotations

import json
import sys


def main(bundle: str, device: str, prompt: str, count: int) -> None:
    """Continues `prompt` by `count` tokens; no `bundle` is the built-in model."""
    from qwen35.api import Qwen35

    with Qwen35.load(bundle or None, max_ctx=256, device=device) as model:
        ids = list(model.generate(model.tokenizer.encode(prompt), count, stop=False))
        print(json.dumps({"device": model.info.device, "emulated": model.info.emulated, "ids": ids}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
