"""What the model's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qwen35 import host
from tests.support.model_bundle import run
from tests.support.trial import IDS, load, shut

_NEEDS = {
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"},
    "avx512bf16": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16"},
}
"""What /proc/cpuinfo must list of a processor that the host math's code of this name runs on."""


@pytest.fixture(params=_NEEDS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The host math's instruction set, each that this processor has."""
    before = host.isa()
    if not _NEEDS[request.param] <= set(Path("/proc/cpuinfo").read_text().split()):
        pytest.skip(f"no {request.param} on this processor")
    host.set_isa(request.param)
    assert host.isa() == request.param
    yield request.param
    host.set_isa(before)


@pytest.fixture
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else runs decides nothing."""
    monkeypatch.setattr("qwen35.model.probe.GRACE", 60.0)


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    """What a text model without chains computes of IDS."""
    text = load(chains="off")
    rows = run(text, IDS, 16)
    shut(text)
    return rows
