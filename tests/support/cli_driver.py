"""The command line over a mock model, as a program: `python -m tests.support.cli_driver [options]`.

The environment's MOCK_DELAY is seconds a token; with MOCK_TELLS stderr says when one begins, and when a line
is read, and a token does not end before there is a file MOCK_UNTIL. MOCK_GRACE: seconds that a step has after
Ctrl-C (60). The question chooses what the mock says.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from qwen35.cli import main, signals

signals.GRACE = float(os.environ.get("MOCK_GRACE", "60"))


def say(question: str) -> str:
    """What the mock answers."""
    if question.startswith("think"):
        return f"First {question}.\nThen more.\n</think>\n\nDone with {question}."
    if question == "long":
        return " ".join(f"word{i}" for i in range(300))
    if question == "loop":
        return "again " * 300
    if question == "hostile":
        return "a \x1b[31mred\x07\x9b2J b"
    if question == "two lines":
        return "one\ntwo\n"
    return f"You said: {question}"


def load(options: object) -> object:
    """A mock in a fresh directory; `fail` as the bundle fails to load."""
    from qwen35.cli import run
    from qwen35.errors import ModelError
    from tests.support.mock_model import fake

    bundle = getattr(options, "bundle", None)
    if bundle == "fail":
        raise ModelError("no such model", "fail", "name another")
    if bundle == "bug":
        raise RuntimeError("a bug\nof two lines")
    directory = Path(tempfile.mkdtemp(prefix="qwen35-cli-"))
    model = fake(
        directory,
        say,
        delay=float(os.environ.get("MOCK_DELAY", "0")),
        max_ctx=getattr(options, "max_ctx", 8192),
        cache_bytes=getattr(options, "cache_mb", 512) << 20,
    )
    model.model.draft_limit = 40
    decode = model.model.decode

    def failing(token: int, *draft: list[int]) -> object:
        said = model.tokenizer.decode([t for part in model.model.history for t in part])  # type: ignore[attr-defined]
        if said.rpartition("user\n")[2].startswith("device fails"):
            raise OSError(62, "Timer expired", "/dev/accel/accel0")
        return decode(token, *draft)

    model.model.decode = failing  # type: ignore[method-assign, assignment]
    if "MOCK_TELLS" in os.environ:
        logits = model.model.logits  # type: ignore[attr-defined]

        def telling() -> object:
            os.write(2, b"computing\n")
            while (path := os.environ.get("MOCK_UNTIL")) and not os.path.exists(path):
                time.sleep(0.01)
            return logits()

        model.model.logits = telling  # type: ignore[attr-defined]
        read_line = run.read_line

        def reading(*where: Any) -> object:
            os.write(2, b"reading\n")
            return read_line(*where)

        run.read_line = reading  # type: ignore[assignment]
    return model


if __name__ == "__main__":
    sys.exit(main(load=load))  # type: ignore[arg-type]
