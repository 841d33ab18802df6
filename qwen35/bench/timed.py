"""The model on the timed NPU: what the host adds to the time that hardware would take.

Commands take the time of a Ryzen AI 9 HX 370 by a model (amdxdna.emu.timing) and compute nothing, so that no
kernel takes the host's cores. Of the wall time what is more than the NPU's own is the host's: its arithmetic
and the software of a dispatch, up to the call of the driver and from its end on (amdxdna.emu.npu.schedule).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from qwen35.bench.figures import Printer, median
from qwen35.bench.text import Subject
from qwen35.vision.tower import VisionTower

__all__ = ["LIMITS", "prompt_seconds", "ratio_figures", "timed_figures"]

LIMITS = {"token": 1.03, "prompt": 1.05, "vision": 1.15}
"""Wall time over the NPU's own, at most: of a token, a prompt of three chunks or more, a picture."""
HOST = 2.0
"""Milliseconds of a token at the first context that the NPU waits for the host, at most; at the last one,
1.3 times what the first was measured with."""
BOUND = "the host's work with commands that complete at once"
"""What no ratio gets below on this machine: of a token, the NPU's time and the work that it waits for; of a
picture, whose work may all be beside the NPU's, the longer of the two."""
_GROWTH = 1.3
_WARM = 3


def timed_figures(
    subject: Subject,
    out: Printer,
    contexts: Sequence[int],
    prompts: Sequence[int],
    grids: Sequence[tuple[int, int]],
    count: int,
    repeats: int,
) -> None:
    """A token at `contexts` (`repeats` times the median of `count`), `prompts`, and pictures of `grids`."""
    with subject.mode("timed"):
        host = HOST
        for context in contexts:
            runs = [_token(subject, context, count) for _ in range(repeats)]
            npu = ratio_figures(
                out, "timed_token", runs, "ms", f"at most x {LIMITS['token']}", context=context
            )
            share = median(wall - npu for wall, npu in runs)
            out.add("timed_token_host", share, "ms", f"at most {host:.2f} ms", context=context)
            if context == contexts[0]:
                host = _GROWTH * share
            bound = 1 + median(_waited(subject, context, count) for _ in range(repeats)) / npu
            out.add("timed_token_bound", bound, "x", context=context, of=BOUND)
        for length in prompts:
            runs = [prompt_seconds(subject, length) for _ in range(repeats + 1)][1:]
            long = length > 2 * subject.model.config.chunk
            limit = f"at most x {LIMITS['prompt']}" if long else ""
            ratio_figures(out, "timed_prompt", runs, "s", limit, tokens=length)
        config = subject.model.config.vision
        if config is None:
            return
        with closing(VisionTower(subject.bundle, subject.model.npu, config)) as tower:
            for grid, together in [*((grid, 1) for grid in grids), *((grid, 2) for grid in grids[1:2])]:
                patches = np.zeros((grid[0] * grid[1], config.patch_dim), np.float32)
                if len(patches) > config.max_patches:
                    continue
                encode = partial(tower.encode_all, [(patches, grid)] * together)
                runs = [subject.timed(encode) for _ in range(repeats + 1)][1:]
                limit = f"at most x {LIMITS['vision']}"
                where: dict[str, Any] = {"patches": len(patches), "pictures": together}
                npu = ratio_figures(out, "timed_vision", runs, "s", limit, **where)
                with subject.mode("null"):
                    alone = median(subject.timed(encode)[0] for _ in runs)
                out.add("timed_vision_bound", max(alone / npu, 1), "x", of=BOUND, **where)


def _token(subject: Subject, context: int, count: int) -> tuple[float, float]:
    """The median token's milliseconds and those of them that the NPU works."""
    subject.fill(context)
    found = []
    for token in range(_WARM + count):
        found.append(subject.timed(lambda t=token: subject.model.decode(t)))  # type: ignore[misc]
    wall, npu = (1e3 * median(each) for each in zip(*found[_WARM:], strict=True))
    return wall, npu


def _waited(subject: Subject, context: int, count: int) -> float:
    """Milliseconds of a token's work that the NPU waits for, where it takes no time itself."""
    with subject.mode("null"):
        subject.fill(context)
        timing = subject.model.timing
        for token in range(_WARM + count):
            if token == _WARM:
                timing.reset()
            subject.model.decode(token)
        return 1e3 * timing.seconds("host.") / count


def prompt_seconds(subject: Subject, length: int) -> tuple[float, float]:
    """A prompt's seconds and those of them that the NPU works. In `timed` mode."""
    walls: list[float] = []
    _, npu = subject.timed(lambda: walls.append(subject.prompt(length)))
    return walls[0], npu


def ratio_figures(
    out: Printer, name: str, runs: Sequence[tuple[float, float]], unit: str, limit: str, **where: Any
) -> float:
    """Wall time, the NPU's own, which is returned, and the median of their ratios."""
    walls, npus = zip(*runs, strict=True)
    out.add(name, median(walls), unit, **where)
    npu = out.add(f"{name}_npu", median(npus), unit, **where).value
    out.add(f"{name}_ratio", median(wall / npu for wall, npu in runs), "x", limit, **where, runs=len(runs))
    return npu
