"""The vision tower's figures: seconds a picture, and what of them is the NPU's and the host's."""

from __future__ import annotations

import numpy as np

from qwen35.bench.figures import Printer, median, ratios
from qwen35.bench.peers import Peer
from qwen35.bench.text import Subject
from qwen35.vision.tower import VisionTower

__all__ = ["GRIDS", "vision_figures"]

GRIDS = ((16, 16), (26, 40), (64, 64))
"""Patch grids of 256, 1,040 and 4,096 patches."""


def vision_figures(
    subject: Subject,
    out: Printer,
    peer: Peer | None,
    repeats: int,
    grids: tuple[tuple[int, int], ...] = GRIDS,
) -> None:
    """Pictures through the tower, alternating with the peer's tower."""
    model = subject.model
    config = model.config.vision
    assert config is not None
    tower = VisionTower(subject.bundle, model.npu, config)
    rng = np.random.default_rng(0)
    try:
        for grid in grids:
            count = grid[0] * grid[1]
            if count > config.max_patches:
                continue
            patches = rng.standard_normal((count, config.patch_dim), np.float32)
            ours, theirs, device = [], [], []
            # The first of a size makes its buffers and is not counted.
            for index in range(repeats + 1):
                tower.timing.reset()
                tower.encode(patches, grid)
                if not index:
                    continue
                ours.append(tower.timing.seconds("vision."))
                device.append(tower.timing.seconds("vision.npu."))
                if peer is not None:
                    theirs.append(peer.ask(patches=list(grid))["tower"])
            npu = median(device)
            host = median(a - b for a, b in zip(ours, device, strict=True))
            out.add("vision", median(ours), "s", patches=count)
            out.add("vision_npu", npu, "s", patches=count)
            out.add("vision_host", host, "s", patches=count)
            if peer is not None:
                out.add("vision_peer", median(theirs), "s", patches=count, peer=peer.name)
                out.add(
                    "vision_ratio",
                    ratios(ours, theirs),
                    "x",
                    patches=count,
                    peer=peer.name,
                    pairs=len(theirs),
                )
    finally:
        tower.close()
