"""What the model's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen35 import host

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
