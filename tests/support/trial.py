"""Text models that a trial at load has looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from amdxdna.device import Device
from amdxdna.emu.npu import Slot
from qwen35.bundle import Bundle
from qwen35.model.options import Options
from qwen35.model.text import TextModel
from tests.support.model_bundle import bundle_path, run, tokens

IDS = tokens("tied", 24)
QUIET = "emu:threads=1,quiet,tdr=1"


def load(options: str = "", notes: list[str] | None = None, **ways) -> TextModel:
    device = Device.open(f"{QUIET},{options}" if options else QUIET)
    bundle = Bundle.open(bundle_path("tied"))
    return TextModel(
        bundle, device, 128, options=Options(**ways), note=None if notes is None else notes.append
    )


def results(found: set[int]) -> Callable[[Any, Slot], None]:
    """Goes to `submits`: `found` gets the addresses that commands write their results to."""
    return lambda context, slot: found.add(slot.buffers()[2])


def shut(text: TextModel) -> None:
    text.close()
    text.device.close()


def answers(text: TextModel) -> np.ndarray:
    rows = run(text, IDS, 16)
    shut(text)
    return rows
